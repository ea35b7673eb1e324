// The delta rule beyond what every scan owes (scan_property_test.cc): tiles of lanes, threads,
// single tokens, spare capacity.
#include "kernels/scan_delta.h"

#include <gtest/gtest.h>
#include <omp.h>

#include "tests/kernels/scan_problem.h"

namespace lt2 {
namespace {

using Values = std::vector<double>;

// With a decay per token and head, and with one per key channel.
class ScanDeltaTest : public testing::TestWithParam<const char*> {};

TEST_P(ScanDeltaTest, TilesOfLanesAndThreadsGiveTheSameBits) {
  const ScanSizes n{
      .tokens = 150, .key_heads = 1, .heads = 1, .k = 24, .v = 200, .cu_seqlens = {0, 150}};
  const CaseData data = ScanProblem(GetParam(), 13, n, 1);
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
    const ScanSizes n{.tokens = batch * length,
                      .key_heads = 2,
                      .heads = 4,
                      .k = 24,
                      .v = 30,
                      .cu_seqlens = {0, length, 2 * length}};
    const OnDevice on{
        .device = {backend}, .dtype = dtype, .data = ScanProblem(GetParam(), 17, n, 0.5)};
    Stream stream{on.device};
    Tape tape(stream);
    const ScanDeltaInputs in = on.Inputs(tape);
    const std::vector<int32_t> cu = {0, length, 2 * length};
    const ScanOutputs scan =
        ScanDelta(tape, in, 0.2, Documents::Of(cu, on.device), FinalStates::kAll);

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

class ScanDeltaCapacity : public testing::TestWithParam<std::tuple<const char*, Backend, DType>> {};

// Room for more documents than there are, and the scan inside Recompute.
TEST_P(ScanDeltaCapacity, SparesCapacityAndSurvivesRecompute) {
  const auto [op, backend, dtype] = GetParam();
  const ScanSizes n{.tokens = 100,
                    .key_heads = 1,
                    .heads = 2,
                    .k = 8,
                    .v = 24,
                    .cu_seqlens = {0, 30, 100, 100, 100}};
  const OnDevice on{.device = {backend}, .dtype = dtype, .data = ScanProblem(op, 19, n, 1)};
  Documents documents(100, 4, on.device);
  documents.Fill(std::vector<int32_t>{0, 30, 100});
  Stream stream{on.device};

  const auto run = [&](bool recompute) {
    {  // what is never written shows
      const Tensor stale = Tensor::Empty({1 << 20}, DType::kF64, on.device);
      std::ranges::fill(stale.span<double>(), std::numeric_limits<double>::quiet_NaN());
    }
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
                                        0.3, documents, FinalStates::kAll);
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
INSTANTIATE_TEST_SUITE_P(Backends, ScanDeltaCapacity,
                         testing::Values(std::tuple("gated_delta_rule", Backend::kCpu, DType::kF32),
                                         std::tuple("kda", Backend::kCpu, DType::kF32),
                                         std::tuple("gated_delta_rule", Backend::kReference,
                                                    DType::kF64)));

}  // namespace
}  // namespace lt2
