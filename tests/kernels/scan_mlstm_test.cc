// Properties of the mLSTM that no single instance shows: any cut of a sequence into documents,
// chunks, states or single tokens is the same recurrence, and the frame of a state is arbitrary.
#include "kernels/scan_mlstm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

using Values = std::vector<double>;

constexpr double kScale = 0.3;
constexpr const char* kTokenInputs[] = {"q", "k", "v", "i", "f"};

double Difference(const Values& got, const Values& want) {
  const Shape shape = {static_cast<int64_t>(want.size())};
  return RelativeError({.shape = {static_cast<int64_t>(got.size())}, .values = got},
                       {.shape = shape, .values = want});
}

// Random inputs and cotangents for tokens of some documents.
struct Problem {
  std::vector<int32_t> cu_seqlens;
  int64_t heads = 2, k = 9, v = 14;
  std::map<std::string, HostArray> arrays;  // q, k, v, i, f [N, …], do, state, max, dstate [D, …]

  int64_t tokens() const { return cu_seqlens.back(); }
  int64_t documents() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }

  Problem(uint64_t seed, std::vector<int32_t> cuts, double forget, double spread)
      : cu_seqlens(std::move(cuts)) {
    const Shape keys = {tokens(), heads, k}, values = {tokens(), heads, v};
    const Shape states = {documents(), heads, k, v + 1}, gates = {tokens(), heads};
    const auto normal = [&](const char* name, const Shape& shape, double size = 1) {
      arrays[name] = RandomNormal(seed, name, shape, size);
    };
    normal("q", keys), normal("k", keys), normal("v", values), normal("do", values);
    normal("i", gates, spread), normal("f", gates, spread);
    for (double& f : arrays["f"].values) f += forget;
    normal("state", states, 0.3), normal("dstate", states, 0.3);
    normal("max", {documents(), heads});
    // Denominators that cancel would lose digits in any algorithm: keys and queries have one sign.
    for (const char* name : {"q", "k"}) {
      for (double& x : arrays[name].values) x = std::abs(x);
    }
    for (double& x : arrays["state"].values) x = std::abs(x);
  }

  Tensor Make(const std::string& name, DType dtype, Device device) const {
    const HostArray& x = arrays.at(name);
    return Tensor::FromHost(x.values, x.shape, dtype, device);
  }
};

// o, final, final_max, and gradients dq … dstate.
using Result = std::map<std::string, Values>;

Result RunScan(const Problem& problem, Backend backend, DType dtype) {
  Stream stream{.device = {backend}};
  Tape tape(stream);
  const auto in = [&](const char* name) {
    return tape.Input(problem.Make(name, dtype, stream.device), /*needs_grad=*/true);
  };
  const ScanMlstmInputs inputs{.q_NHK = in("q"),
                               .k_NHK = in("k"),
                               .v_NHV = in("v"),
                               .i_NH = in("i"),
                               .f_NH = in("f"),
                               .initial_state_DHKW = in("state"),
                               .initial_max_DH = problem.Make("max", dtype, stream.device)};
  const Documents documents = Documents::Of(problem.cu_seqlens, stream.device);
  const ScanMlstmOutputs out = ScanMlstm(tape, inputs, kScale, documents, FinalStates::kAll);
  const std::vector<Var> wrt = {inputs.q_NHK, inputs.k_NHK, inputs.v_NHV,
                                inputs.i_NH,  inputs.f_NH,  inputs.initial_state_DHKW};
  const std::vector<Tensor> grads =
      tape.Backward({{out.o_NHV, problem.Make("do", dtype, stream.device)},
                     {out.final_state_DHKW, problem.Make("dstate", dtype, stream.device)}},
                    wrt);
  Result result;
  result["o"] = out.o_NHV.value.ToDoubles();
  result["final"] = out.final_state_DHKW.value.ToDoubles();
  result["final_max"] = out.final_max_DH.ToDoubles();
  const char* names[] = {"dq", "dk", "dv", "di", "df", "dstate"};
  for (size_t i = 0; i < grads.size(); ++i) result[names[i]] = grads[i].ToDoubles();
  return result;
}

std::vector<int32_t> RandomCuts(std::mt19937_64& random, int32_t tokens) {
  std::vector<int32_t> cuts = {0};
  while (cuts.back() < tokens) {
    const int32_t longest = random() % 3 == 0 ? 3 : 150;
    cuts.push_back(std::min(tokens, cuts.back() + 1 + static_cast<int32_t>(random() % longest)));
  }
  return cuts;
}

TEST(ScanMlstm, ChunksAreTheRecurrence) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const auto tokens = static_cast<int32_t>(1 + random() % 300);
    const double forget = std::array{-4.0, 3.0, 9.0}[seed % 3], spread = seed % 2 ? 1 : 6;
    const Problem problem(seed, RandomCuts(random, tokens), forget, spread);
    const Result want = RunScan(problem, Backend::kReference, DType::kF64);
    const Result wide = RunScan(problem, Backend::kCpu, DType::kF64);
    const Result narrow = RunScan(problem, Backend::kCpu, DType::kF32);
    for (const auto& [name, values] : want) {
      EXPECT_LE(Difference(wide.at(name), values), 1e-10) << name;
      EXPECT_LE(Difference(narrow.at(name), values), name[0] == 'd' ? 2e-5 : 5e-6) << name;
    }
  }
}

// Columns [begin, end) of every row of the first dimension's worth.
Values Rows(const Values& all, int64_t begin, int64_t end, int64_t rows) {
  const int64_t width = static_cast<int64_t>(all.size()) / rows;
  return {all.begin() + begin * width, all.begin() + end * width};
}

TEST(ScanMlstm, SplittingAndPassingTheStateChangesNothing) {
  for (const auto& [seed, length, cut] :
       std::vector<std::array<int32_t, 3>>{{1, 200, 64}, {2, 150, 1}, {3, 97, 96}, {4, 260, 131}}) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, " length ", length, " cut ", cut));
    const Problem whole(seed, {0, length}, 4, 2);
    const Result want = RunScan(whole, Backend::kCpu, DType::kF64);
    const auto part = [&](int32_t begin, int32_t end) {
      Problem piece = whole;
      piece.cu_seqlens = {0, end - begin};
      for (auto& [name, array] : piece.arrays) {
        if (array.shape[0] != length) continue;
        array.values = Rows(array.values, begin, end, length);
        array.shape[0] = end - begin;
      }
      return piece;
    };
    Problem head = part(0, cut), tail = part(cut, length);
    const Result state = RunScan(head, Backend::kCpu, DType::kF64);
    tail.arrays["state"].values = state.at("final");
    tail.arrays["max"].values = state.at("final_max");
    const Result after = RunScan(tail, Backend::kCpu, DType::kF64);
    head.arrays["dstate"].values = after.at("dstate");
    const Result before = RunScan(head, Backend::kCpu, DType::kF64);
    EXPECT_LE(Difference(after.at("final"), want.at("final")), 1e-12);
    EXPECT_LE(Difference(before.at("dstate"), want.at("dstate")), 1e-11);
    for (const char* name : {"o", "dq", "dk", "dv", "di", "df"}) {
      const Values& all = want.at(name);
      EXPECT_LE(Difference(before.at(name), Rows(all, 0, cut, length)), 1e-11) << name;
      EXPECT_LE(Difference(after.at(name), Rows(all, cut, length, length)), 1e-11) << name;
    }
  }
}

TEST(ScanMlstm, ADocumentDoesNotSeeItsNeighbours) {
  const Problem problem(11, {0, 70, 140, 141, 230}, 9, 1);  // what leaked would stay
  Problem other = problem;
  for (auto& [name, array] : other.arrays) {
    const bool by_token = array.shape[0] == 230;
    const int64_t width = static_cast<int64_t>(array.values.size()) / array.shape[0];
    const int64_t begin = by_token ? 70 : 1, end = by_token ? 140 : 2;
    for (int64_t i = begin * width; i < end * width; ++i) array.values[i] *= 0.75;
  }
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Result a = RunScan(problem, Backend::kCpu, dtype),
                 b = RunScan(other, Backend::kCpu, dtype);
    for (const auto& [name, x] : a) {
      const Values& y = b.at(name);
      const bool by_document = name == "final" || name == "final_max" || name == "dstate";
      const int64_t rows = by_document ? 4 : 230, begin = by_document ? 1 : 70,
                    end = by_document ? 2 : 140;
      EXPECT_EQ(Rows(x, 0, begin, rows), Rows(y, 0, begin, rows)) << name;
      EXPECT_EQ(Rows(x, end, rows, rows), Rows(y, end, rows, rows)) << name;
      EXPECT_NE(Rows(x, begin, end, rows), Rows(y, begin, end, rows)) << name;
    }
  }
}

// exp(m) S is the state; m itself says only how it is written down.
TEST(ScanMlstm, TheFrameOfAStateDoesNotMatter) {
  const Problem problem(13, {0, 90}, 3, 1);
  Problem moved = problem;
  for (double& s : moved.arrays["state"].values) s *= std::exp(2.5);
  for (double& m : moved.arrays["max"].values) m -= 2.5;
  const Result want = RunScan(problem, Backend::kCpu, DType::kF64);
  const Result got = RunScan(moved, Backend::kCpu, DType::kF64);
  EXPECT_LE(Difference(got.at("o"), want.at("o")), 1e-12);
}

TEST(ScanMlstm, StepsAreTheScan) {
  for (const auto& [backend, dtype, tolerance] :
       {std::tuple(Backend::kReference, DType::kF64, 1e-13),
        std::tuple(Backend::kCpu, DType::kF64, 1e-12),
        std::tuple(Backend::kCpu, DType::kF32, 5e-6)}) {
    const int64_t length = 90, batch = 2;  // the documents are the sequences
    const Problem problem(17, {0, length, 2 * length}, 4, 2);
    const Result want = RunScan(problem, backend, dtype);
    Stream stream{.device = {backend}};
    const auto token = [&](const char* name, int64_t t) {
      const Tensor all = problem.Make(name, dtype, stream.device);
      Shape shape = all.shape();
      shape[0] = batch;
      Tensor rows = Tensor::Empty(shape, dtype, stream.device);
      for (int64_t b = 0; b < batch; ++b) {
        rows.Rows(b, b + 1).CopyFrom(all.Rows(b * length + t, b * length + t + 1));
      }
      return rows;
    };
    const Tensor state = problem.Make("state", dtype, stream.device);
    const Tensor max = problem.Make("max", dtype, stream.device);
    const Tensor o = Tensor::Empty({batch, problem.heads, problem.v}, dtype, stream.device);
    const int64_t row = problem.heads * problem.v;
    for (int64_t t = 0; t < length; ++t) {
      ScanMlstmStep(stream, {.q_BHK = token("q", t),
                             .k_BHK = token("k", t),
                             .v_BHV = token("v", t),
                             .i_BH = token("i", t),
                             .f_BH = token("f", t),
                             .state_BHKW = state,
                             .max_BH = max,
                             .scale = kScale,
                             .o_BHV = o});
      Values both;
      for (int64_t b = 0; b < batch; ++b) {
        const auto at = want.at("o").begin() + (b * length + t) * row;
        both.insert(both.end(), at, at + row);
      }
      ASSERT_LE(Difference(o.ToDoubles(), both), tolerance) << "token " << t;
    }
    EXPECT_LE(Difference(state.ToDoubles(), want.at("final")), tolerance);
    EXPECT_LE(Difference(max.ToDoubles(), want.at("final_max")), tolerance);
  }
}

// Room for more documents than there are, and the scan inside Recompute.
TEST(ScanMlstm, SparesCapacityAndSurvivesRecompute) {
  const Problem problem(19, {0, 30, 100}, 3, 2);
  Stream stream{.device = {Backend::kCpu}};
  Documents documents(100, 4, stream.device);
  documents.Fill(problem.cu_seqlens);
  const auto run = [&](bool recompute) {
    Tape tape(stream);
    std::vector<Var> leaves;
    for (const char* name : kTokenInputs) {
      leaves.push_back(tape.Input(problem.Make(name, DType::kF32, stream.device), true));
    }
    const auto scan = [&](Tape& t, std::span<const Var> x) {
      const ScanMlstmInputs in{.q_NHK = x[0],
                               .k_NHK = x[1],
                               .v_NHV = x[2],
                               .i_NH = x[3],
                               .f_NH = x[4],
                               .initial_state_DHKW = {}};
      const ScanMlstmOutputs out = ScanMlstm(t, in, kScale, documents, FinalStates::kAll);
      return std::vector<Var>{out.o_NHV, out.final_state_DHKW};
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
  const auto spare = plain[1].begin() + static_cast<int64_t>(plain[1].size()) / 2;
  EXPECT_TRUE(std::all_of(spare, plain[1].end(), [](double x) { return x == 0; }));
  EXPECT_TRUE(std::any_of(plain[1].begin(), spare, [](double x) { return x != 0; }));
}

}  // namespace
}  // namespace lt2
