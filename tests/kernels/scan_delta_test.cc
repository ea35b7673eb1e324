// Properties of the delta rule that no single instance shows: any cut of a sequence into documents,
// chunks, states, tiles of lanes or single tokens is the same recurrence.
#include "kernels/scan_delta.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

using Values = std::vector<double>;

struct Sizes {
  int64_t tokens, key_heads, heads, k, v;
  std::vector<int64_t> cu_seqlens;
};

// One row of tokens; decays lie in (-strongest, 0).
CaseData Problem(uint64_t seed, const Sizes& n, double strongest, const std::string& op) {
  CaseData data{.op = op, .name = absl::StrCat(seed)};
  data.attributes["scale"] = 1 / std::sqrt(static_cast<double>(n.k));
  // Norms at most 1: |x| <= 1 / sqrt(K) in each channel.
  const double edge = 1 / std::sqrt(static_cast<double>(n.k));
  const Shape keys = {1, n.tokens, n.key_heads, n.k}, scalars = {1, n.tokens, n.heads};
  data.inputs["q"] = RandomUniform(seed, "q", keys, -edge, edge);
  data.inputs["k"] = RandomUniform(seed, "k", keys, -edge, edge);
  data.inputs["v"] = RandomNormal(seed, "v", {1, n.tokens, n.heads, n.v});
  data.inputs["beta"] = RandomUniform(seed, "beta", scalars, 0, 2);
  if (op == "gated_delta_rule") data.inputs["g"] = RandomUniform(seed, "g", scalars, -strongest, 0);
  if (op == "kda") {
    data.inputs["g"] = RandomUniform(seed, "g", {1, n.tokens, n.heads, n.k}, -strongest, 0);
  }
  data.inputs["initial_state"] =
      RandomNormal(seed, "initial_state",
                   {static_cast<int64_t>(n.cu_seqlens.size()) - 1, n.heads, n.k, n.v}, 0.3);
  data.inputs["cu_seqlens"] = IntArray(n.cu_seqlens);
  data.cotangents["o"] = RandomNormal(seed, "do", data.inputs["v"].shape);
  data.cotangents["final_state"] =
      RandomNormal(seed, "dfinal", data.inputs["initial_state"].shape, 0.3);
  return data;
}

CaseResult RunScan(const CaseData& data, Backend backend, DType dtype) {
  Stream stream{.device = {backend}};
  return RunCase(*FindOpCase(data.op), data, stream, dtype);
}

void ExpectNear(const HostArrays& got, const HostArrays& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, array] : want) {
    EXPECT_LE(RelativeError(got.at(name), array), tolerance) << name;
  }
}

bool ByDocument(const std::string& name) {
  return name == "initial_state" || name == "final_state";
}

// Rows [begin, end) of dimension `axis`; what lies before it has extent 1.
HostArray Slice(const HostArray& x, int axis, int64_t begin, int64_t end) {
  HostArray part{.shape = x.shape, .values = {}, .integer = x.integer};
  part.shape[axis] = end - begin;
  const auto width = static_cast<int64_t>(x.values.size()) / x.shape[axis];
  part.values.assign(x.values.begin() + begin * width, x.values.begin() + end * width);
  return part;
}

// Tokens [begin, end) of document `document`, as one document.
HostArrays SliceAll(const HostArrays& all, int64_t document, int64_t begin, int64_t end) {
  HostArrays part;
  for (const auto& [name, array] : all) {
    if (name == "cu_seqlens") {
      part[name] = IntArray({0, end - begin});
    } else {
      part[name] =
          ByDocument(name) ? Slice(array, 0, document, document + 1) : Slice(array, 1, begin, end);
    }
  }
  return part;
}

std::vector<int64_t> RandomCuts(std::mt19937_64& random, int64_t tokens) {
  std::vector<int64_t> cuts = {0};
  while (cuts.back() < tokens) {
    const int64_t longest = random() % 3 == 0 ? 3 : 150;
    cuts.push_back(std::min<int64_t>(tokens, cuts.back() + 1 + random() % longest));
  }
  return cuts;
}

Sizes RandomSizes(std::mt19937_64& random) {
  Sizes n{.tokens = static_cast<int64_t>(1 + random() % 300),
          .key_heads = static_cast<int64_t>(1 + random() % 2),
          .heads = 0,
          .k = static_cast<int64_t>(1 + random() % 40),
          .v = static_cast<int64_t>(1 + random() % 70),
          .cu_seqlens = {}};
  n.heads = n.key_heads * static_cast<int64_t>(1 + random() % 3);
  n.cu_seqlens = RandomCuts(random, n.tokens);
  return n;
}

// With a decay per token and head, and with one per key channel.
class ScanDeltaTest : public testing::TestWithParam<const char*> {};

TEST_P(ScanDeltaTest, ChunksAreTheRecurrence) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const double strongest = std::array{0.01, 1.0, 30.0}[seed % 3];
    const CaseData data =
        Problem(seed, RandomSizes(random), strongest, seed % 4 == 0 ? "delta_rule" : GetParam());
    const CaseResult want = RunScan(data, Backend::kReference, DType::kF64);
    const CaseResult got64 = RunScan(data, Backend::kCpu, DType::kF64);
    ExpectNear(got64.outputs, want.outputs, 1e-10);
    ExpectNear(got64.grads, want.grads, 1e-10);
    const CaseResult got32 = RunScan(data, Backend::kCpu, DType::kF32);
    ExpectNear(got32.outputs, want.outputs, 5e-6);
    ExpectNear(got32.grads, want.grads, 2e-5);
  }
}

// Decays of every size side by side: sums of log-decays are far larger than the differences needed.
TEST_P(ScanDeltaTest, WeakDecayAfterStrongDecayKeepsItsDigits) {
  const Sizes n{
      .tokens = 128, .key_heads = 1, .heads = 1, .k = 16, .v = 16, .cu_seqlens = {0, 128}};
  CaseData data = Problem(7, n, 0.01, GetParam());
  const auto width = static_cast<int64_t>(data.inputs["g"].values.size()) / 128;
  for (int64_t t = 0; t < 128; ++t) {
    if (t % 64 < 40) std::fill_n(data.inputs["g"].values.begin() + t * width, width, -30);
  }
  const CaseResult want = RunScan(data, Backend::kReference, DType::kF64);
  const CaseResult got = RunScan(data, Backend::kCpu, DType::kF32);
  ExpectNear(got.outputs, want.outputs, 5e-6);
  ExpectNear(got.grads, want.grads, 2e-5);
}

// No decay and all of it, one key repeated, beta 0 and 1, lengths around every edge.
TEST_P(ScanDeltaTest, ExtremesAreRight) {
  for (const int64_t length : {1, 15, 16, 17, 48, 63, 64, 65, 129}) {
    for (const double decay : {0.0, -30.0}) {
      SCOPED_TRACE(absl::StrCat("length ", length, " decay ", decay));
      const Sizes n{.tokens = length,
                    .key_heads = 1,
                    .heads = 2,
                    .k = 12,
                    .v = 20,
                    .cu_seqlens = {0, length}};
      CaseData data = Problem(23, n, 1, GetParam());
      std::fill(data.inputs["g"].values.begin(), data.inputs["g"].values.end(), decay);
      std::fill(data.inputs["k"].values.begin(), data.inputs["k"].values.end(), 0.25);
      Values& beta = data.inputs["beta"].values;
      for (size_t i = 0; i < beta.size(); ++i) beta[i] = i % 3 == 0 ? 0 : 1;
      const CaseResult want = RunScan(data, Backend::kReference, DType::kF64);
      const CaseResult got64 = RunScan(data, Backend::kCpu, DType::kF64);
      ExpectNear(got64.outputs, want.outputs, 1e-12);
      ExpectNear(got64.grads, want.grads, 1e-12);
      const CaseResult got32 = RunScan(data, Backend::kCpu, DType::kF32);
      ExpectNear(got32.outputs, want.outputs, 5e-6);
      ExpectNear(got32.grads, want.grads, 2e-5);
    }
  }
}

TEST_P(ScanDeltaTest, SplittingAndPassingTheStateChangesNothing) {
  for (const auto& [seed, length, cut] :
       std::vector<std::array<int64_t, 3>>{{1, 200, 64}, {2, 150, 1}, {3, 97, 96}, {4, 260, 131}}) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, " length ", length, " cut ", cut));
    const Sizes n{
        .tokens = length, .key_heads = 1, .heads = 2, .k = 12, .v = 20, .cu_seqlens = {0, length}};
    const CaseData whole = Problem(seed, n, 0.5, GetParam());
    const CaseResult want = RunScan(whole, Backend::kCpu, DType::kF64);

    CaseData head = whole, tail = whole;
    head.inputs = SliceAll(whole.inputs, 0, 0, cut);
    head.cotangents = SliceAll(whole.cotangents, 0, 0, cut);
    tail.inputs = SliceAll(whole.inputs, 0, cut, length);
    tail.cotangents = SliceAll(whole.cotangents, 0, cut, length);
    tail.inputs["initial_state"] =
        RunScan(head, Backend::kCpu, DType::kF64).outputs.at("final_state");
    const CaseResult after = RunScan(tail, Backend::kCpu, DType::kF64);
    head.cotangents["final_state"] = after.grads.at("initial_state");
    const CaseResult before = RunScan(head, Backend::kCpu, DType::kF64);

    EXPECT_LE(RelativeError(after.outputs.at("final_state"), want.outputs.at("final_state")),
              1e-12);
    EXPECT_LE(RelativeError(before.grads.at("initial_state"), want.grads.at("initial_state")),
              1e-12);
    for (const auto& [all, first, last] : {std::tuple(want.outputs, before.outputs, after.outputs),
                                           std::tuple(want.grads, before.grads, after.grads)}) {
      for (const auto& [name, array] : all) {
        if (ByDocument(name)) continue;
        HostArray whole_shape = array;
        const Shape one = {1, length, array.shape.size() / length};
        whole_shape.shape = one;
        HostArray head_shape = first.at(name), tail_shape = last.at(name);
        head_shape.shape = {1, cut, one[2]}, tail_shape.shape = {1, length - cut, one[2]};
        EXPECT_LE(RelativeError(head_shape, Slice(whole_shape, 1, 0, cut)), 1e-11) << name;
        EXPECT_LE(RelativeError(tail_shape, Slice(whole_shape, 1, cut, length)), 1e-11) << name;
      }
    }
  }
}

TEST_P(ScanDeltaTest, ADocumentDoesNotSeeItsNeighbours) {
  const Sizes n{.tokens = 230,
                .key_heads = 1,
                .heads = 2,
                .k = 24,
                .v = 48,
                .cu_seqlens = {0, 70, 140, 141, 230}};
  const CaseData data =
      Problem(11, n, 0.05, GetParam());  // almost no decay: what leaked would stay
  CaseData other = data;
  for (HostArrays* arrays : {&other.inputs, &other.cotangents}) {
    for (auto& [name, array] : *arrays) {
      if (name == "cu_seqlens") continue;
      const int axis = ByDocument(name) ? 0 : 1;
      const auto width = static_cast<int64_t>(array.values.size()) / array.shape[axis];
      const int64_t begin = axis == 0 ? 1 : 70, end = axis == 0 ? 2 : 140;
      for (int64_t i = begin * width; i < end * width; ++i) array.values[i] *= 0.75;
    }
  }
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const CaseResult a = RunScan(data, Backend::kCpu, dtype),
                     b = RunScan(other, Backend::kCpu, dtype);
    for (const auto& [x, y] : {std::pair(a.outputs, b.outputs), std::pair(a.grads, b.grads)}) {
      for (const auto& [name, array] : x) {
        const int64_t rows = ByDocument(name) ? 4 : 230, begin = ByDocument(name) ? 1 : 70,
                      end = ByDocument(name) ? 2 : 140;
        const Values &p = array.values, &q = y.at(name).values;
        const int64_t width = static_cast<int64_t>(p.size()) / rows;
        const auto from = [&](const Values& all, int64_t row) { return all.begin() + row * width; };
        EXPECT_TRUE(std::equal(from(p, 0), from(p, begin), from(q, 0))) << name;
        EXPECT_TRUE(std::equal(from(p, end), p.end(), from(q, end))) << name;
        EXPECT_FALSE(std::equal(from(p, begin), from(p, end), from(q, begin))) << name;
      }
    }
  }
}

TEST_P(ScanDeltaTest, TilesOfLanesAndThreadsGiveTheSameBits) {
  const Sizes n{
      .tokens = 150, .key_heads = 1, .heads = 1, .k = 24, .v = 200, .cu_seqlens = {0, 150}};
  const CaseData data = Problem(13, n, 1, GetParam());
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const CaseResult want = RunScan(data, Backend::kCpu, DType::kF32);
  for (int count : {2, 3, 7}) {
    omp_set_num_threads(count);
    const CaseResult got = RunScan(data, Backend::kCpu, DType::kF32);
    for (const auto& [name, x] : want.outputs)
      EXPECT_EQ(x.values, got.outputs.at(name).values) << name;
    for (const auto& [name, x] : want.grads) EXPECT_EQ(x.values, got.grads.at(name).values) << name;
  }
  omp_set_num_threads(threads);
}

// ScanDelta on inputs made by Problem, in one dtype on the CPU.
struct OnDevice {
  Device device{Backend::kCpu};
  DType dtype;
  CaseData data;

  Tensor Make(const std::string& name) const {
    const HostArray& x = data.inputs.at(name);
    Shape shape;
    for (int i = ByDocument(name) ? 0 : 1; i < x.shape.rank(); ++i) shape.push_back(x.shape[i]);
    return Tensor::FromHost(x.values, shape, dtype, device);
  }
  ScanDeltaInputs Inputs(Tape& tape) const {
    const auto in = [&](const char* name) { return tape.Input(Make(name), true); };
    const bool channels = data.inputs.at("g").shape.rank() == 4;
    return {.q_NHK = in("q"),
            .k_NHK = in("k"),
            .v_NGV = in("v"),
            .g_NG = channels ? Var() : in("g"),
            .g_NGK = channels ? in("g") : Var(),
            .beta_NG = in("beta"),
            .initial_state_DGKV = in("initial_state")};
  }
};

TEST_P(ScanDeltaTest, StepsAreTheScan) {
  for (const auto& [backend, dtype, tolerance] :
       {std::tuple(Backend::kReference, DType::kF64, 1e-13),
        std::tuple(Backend::kCpu, DType::kF64, 1e-12),
        std::tuple(Backend::kCpu, DType::kF32, 5e-6)}) {
    const int64_t length = 90, batch = 2;  // the documents are the sequences
    const Sizes n{.tokens = batch * length,
                  .key_heads = 2,
                  .heads = 4,
                  .k = 24,
                  .v = 30,
                  .cu_seqlens = {0, length, 2 * length}};
    const OnDevice on{.device = {backend}, .dtype = dtype, .data = Problem(17, n, 0.5, GetParam())};
    Stream stream{on.device};
    Tape tape(stream);
    const ScanDeltaInputs in = on.Inputs(tape);
    const std::vector<int32_t> cu = {0, length, 2 * length};
    const ScanOutputs scan = ScanDelta(tape, in, 0.2, Documents::Of(cu, on.device), true);

    const auto time_rows = [&](const Tensor& x, int64_t t) {  // token t of every sequence
      Shape shape = x.shape();
      shape[0] = batch;
      Tensor rows = Tensor::Empty(shape, dtype, on.device);
      for (int64_t b = 0; b < batch; ++b) {
        rows.Rows(b, b + 1).CopyFrom(x.Rows(b * length + t, b * length + t + 1));
      }
      return rows;
    };
    const auto maybe_rows = [&](const Tensor& x, int64_t t) {
      return x.defined() ? time_rows(x, t) : Tensor();
    };
    Tensor state = in.initial_state_DGKV.value.Clone();
    Tensor o = Tensor::Empty({batch, n.heads, n.v}, dtype, on.device);
    for (int64_t t = 0; t < length; ++t) {
      ScanDeltaStep(stream, {.q_BHK = time_rows(in.q_NHK.value, t),
                             .k_BHK = time_rows(in.k_NHK.value, t),
                             .v_BGV = time_rows(in.v_NGV.value, t),
                             .g_BG = maybe_rows(in.g_NG.value, t),
                             .g_BGK = maybe_rows(in.g_NGK.value, t),
                             .beta_BG = time_rows(in.beta_NG.value, t),
                             .state_BGKV = state,
                             .scale = 0.2,
                             .o_BGV = o});
      const HostArray got{.shape = {o.size()}, .values = o.ToDoubles()};
      const HostArray want{.shape = {o.size()},
                           .values = time_rows(scan.o_NGV.value, t).ToDoubles()};
      ASSERT_LE(RelativeError(got, want), tolerance) << "token " << t;
    }
    const HostArray got{.shape = {state.size()}, .values = state.ToDoubles()};
    const HostArray want{.shape = {state.size()},
                         .values = scan.final_state_DGKV.value.ToDoubles()};
    EXPECT_LE(RelativeError(got, want), tolerance);
  }
}

// Room for more documents than there are, and the scan inside Recompute.
TEST_P(ScanDeltaTest, SparesCapacityAndSurvivesRecompute) {
  const Sizes n{.tokens = 100,
                .key_heads = 1,
                .heads = 2,
                .k = 8,
                .v = 24,
                .cu_seqlens = {0, 30, 100, 100, 100}};
  const OnDevice on{.dtype = DType::kF32, .data = Problem(19, n, 1, GetParam())};
  Documents documents(100, 4, on.device);
  documents.Fill(std::vector<int32_t>{0, 30, 100});
  Stream stream{on.device};

  const auto run = [&](bool recompute) {
    Tape tape(stream);
    const ScanDeltaInputs in = on.Inputs(tape);
    const bool channels = in.g_NGK.value.defined();
    const std::vector<Var> leaves = {in.q_NHK,   in.k_NHK,
                                     in.v_NGV,   channels ? in.g_NGK : in.g_NG,
                                     in.beta_NG, in.initial_state_DGKV};
    const auto scan = [&](Tape& t, std::span<const Var> x) {
      const ScanOutputs out = ScanDelta(t,
                                        {.q_NHK = x[0],
                                         .k_NHK = x[1],
                                         .v_NGV = x[2],
                                         .g_NG = channels ? Var() : x[3],
                                         .g_NGK = channels ? x[3] : Var(),
                                         .beta_NG = x[4],
                                         .initial_state_DGKV = x[5]},
                                        0.3, documents, true);
      return std::vector<Var>{out.o_NGV, out.final_state_DGKV};
    };
    const std::vector<Var> out = recompute ? tape.Recompute(leaves, scan) : scan(tape, leaves);
    std::vector<Values> values;
    std::vector<Tape::Seed> seeds;
    for (const Var& var : out) {
      values.push_back(var.value.ToDoubles());
      seeds.push_back({var, var.value.Clone()});
    }
    for (const Tensor& grad : tape.Backward(std::move(seeds), leaves)) {
      values.push_back(grad.ToDoubles());
    }
    return values;
  };
  const std::vector<Values> plain = run(false);
  EXPECT_EQ(plain, run(true));
  for (const Values* states :
       {&plain[1], &plain.back()}) {  // final state, initial state's gradient
    const auto spare = states->begin() + static_cast<int64_t>(states->size()) / 2;
    EXPECT_TRUE(std::all_of(spare, states->end(), [](double x) { return x == 0; }));
    EXPECT_TRUE(std::any_of(states->begin(), spare, [](double x) { return x != 0; }));
  }
}

INSTANTIATE_TEST_SUITE_P(Decays, ScanDeltaTest, testing::Values("gated_delta_rule", "kda"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lt2
