// Attention on a GPU in bfloat16 against the reference: every padded head size, ragged documents,
// windows, grouped heads, queries that are a part of the tokens, written and added gradients, by
// warpgroups and by warps, those of queries alone too; equal bits twice.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/cuda.h"
#include "kernels/attention.h"
#include "kernels/case.h"
#include "kernels/cuda/attention_tensor_core.h"

namespace lt2 {
namespace {

constexpr uint64_t kSeed = 11;
const std::vector<int32_t> kRagged = {0, 1, 64, 65, 200, 330};

struct Problem {
  int64_t H, G, D, E, window;
  std::vector<int32_t> cu;
  double spread = 1;
  int64_t spare_documents = 0;
  TokenRange queries = {0, 0};  // nothing: all
};

enum class Path { kChosen, kWarps, kQueriesOnly };

using Arrays = std::map<std::string, std::vector<double>>;

// As the operator computes them before its backward.
Tensor StatsOf(const Tensor& dout, const Tensor& o, const Tensor& lse) {
  const int64_t N = o.dim(0), H = o.dim(1), E = o.dim(2);
  const std::vector<double> a = dout.ToDoubles(), b = o.ToDoubles(), l = lse.ToDoubles();
  std::vector<double> stats(H * N * 2, 0.0);
  for (int64_t i = 0; i < N; ++i) {
    for (int64_t h = 0; h < H; ++h) {
      double* of = &stats[(h * N + i) * 2];
      of[0] = l[i * H + h] / std::log(2.0);
      for (int64_t e = 0; e < E; ++e) of[1] += a[(i * H + h) * E + e] * b[(i * H + h) * E + e];
    }
  }
  return Tensor::FromHost(stats, {H, N, 2}, DType::kF32, o.device());
}

Arrays Attend(const Problem& p, Device device, bool add, Path path = Path::kChosen) {
  const int64_t N = p.cu.back();
  const TokenRange queries = p.queries.size() > 0 ? p.queries : TokenRange{0, N};
  const int64_t M = queries.size();
  const bool gpu = device.backend == Backend::kCuda;
  Stream stream{device};
  const DType dtype = gpu ? DType::kBF16 : DType::kF64;
  const auto random = [&](const std::string& name, const Shape& shape, double scale = 1) {
    // Rounded, so that both see the same.
    const auto values = RandomNormal(kSeed, name, shape, scale).values;
    const Tensor rounded = Tensor::FromHost(values, shape, DType::kBF16, {Backend::kCpu});
    return Tensor::FromHost(rounded.ToDoubles(), shape, dtype, device);
  };
  const Tensor q = random("q", {M, p.H, p.D}, p.spread), k = random("k", {N, p.G, p.D});
  const Tensor v = random("v", {N, p.G, p.E}), dout = random("do", {M, p.H, p.E});
  const Tensor dq = random("dq", q.shape()), dk = random("dk", k.shape());
  const Tensor dv = random("dv", v.shape());
  const Tensor o = Tensor::Empty({M, p.H, p.E}, dtype, device);
  const Tensor lse = Tensor::Empty({M, p.H}, AccumulatorOf(dtype), device);
  Documents documents(N, static_cast<int64_t>(p.cu.size()) - 1 + p.spare_documents, device,
                      queries);
  documents.Fill(p.cu);
  const AttentionOptions options{.scale = 1 / std::sqrt(double(p.D)), .window = p.window};
  const AttentionForwardArgs forward{.q_NHD = q,
                                     .k_NGD = k,
                                     .v_NGE = v,
                                     .o_NHE = o,
                                     .lse_NH = lse,
                                     .options = options,
                                     .documents = documents};
  AttentionBackwardArgs backward{.do_NHE = dout,
                                 .q_NHD = q,
                                 .k_NGD = k,
                                 .v_NGE = v,
                                 .o_NHE = o,
                                 .lse_NH = lse,
                                 .dq_NHD = dq,
                                 .dk_NGD = dk,
                                 .dv_NGE = dv,
                                 .accumulate_dq = add,
                                 .accumulate_dk = add,
                                 .accumulate_dv = add,
                                 .options = options,
                                 .documents = documents};
  if (path == Path::kQueriesOnly) backward.dk_NGD = backward.dv_NGE = {};
  if (path == Path::kWarps) {
    cuda::TensorCoreAttentionForward(stream, forward);
    const Tensor stats = StatsOf(dout, o, lse);
    cuda::TensorCoreAttentionBackward(stream, backward, stats.raw());
  } else {
    AttentionForward(stream, forward);
    AttentionBackward(stream, backward);
  }
  Arrays arrays = {{"o", o.ToDoubles()}, {"lse", lse.ToDoubles()}, {"dq", dq.ToDoubles()}};
  if (path == Path::kQueriesOnly) return arrays;
  arrays["dk"] = dk.ToDoubles(), arrays["dv"] = dv.ToDoubles();
  return arrays;
}

class GpuAttention : public testing::TestWithParam<Problem> {};

TEST_P(GpuAttention, MatchesTheReference) {
  if (cuda::DeviceCount() == 0) GTEST_SKIP() << "no GPU";
  const Device gpu{Backend::kCuda};
  const Problem& p = GetParam();
  for (bool add : {false, true}) {
    const Arrays want = Attend(p, {Backend::kReference}, add);
    for (Path path : {Path::kChosen, Path::kWarps, Path::kQueriesOnly}) {
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << (add ? ", added" : ", written")
                                      << (path == Path::kWarps         ? ", warps"
                                          : path == Path::kQueriesOnly ? ", queries only"
                                                                       : ""));
      const Arrays got = Attend(p, gpu, add, path);
      for (const auto& [name, values] : got) {
        const Shape shape{static_cast<int64_t>(values.size())};
        const double tolerance = name == "lse" ? 1e-6 : 8e-3;
        EXPECT_LE(RelativeError({shape, values}, {shape, want.at(name)}), tolerance) << name;
      }
      EXPECT_EQ(got, Attend(p, gpu, add, path)) << "a second time";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    HeadSizes, GpuAttention,
    testing::Values(Problem{2, 1, 32, 32, 0, {0, 150}}, Problem{2, 1, 24, 32, 17, kRagged, 1, 3},
                    Problem{1, 1, 16, 8, 0, {0, 1}}, Problem{4, 2, 64, 64, 0, {0, 300}},
                    Problem{4, 2, 64, 48, 70, kRagged, 1, 2}, Problem{2, 1, 96, 96, 0, {0, 200}},
                    Problem{2, 1, 128, 128, 0, {0, 270}}, Problem{6, 2, 128, 128, 0, kRagged, 1, 1},
                    Problem{3, 1, 128, 128, 100, {0, 129, 1000}},
                    Problem{20, 4, 64, 64, 0, {0, 300, 1000}, 1, 40},
                    Problem{16, 16, 128, 128, 150, {0, 517, 1100}},
                    Problem{2, 1, 104, 104, 33, {0, 131}, 4}, Problem{1, 1, 192, 128, 0, {0, 200}},
                    Problem{2, 1, 256, 256, 65, {0, 40, 200}, 1, 3},
                    Problem{1, 1, 200, 256, 0, {0, 150}}));

std::vector<Problem> RandomRanges() {
  std::mt19937_64 random(kSeed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  std::vector<Problem> problems;
  for (const int64_t width : {24, 64, 64, 72, 104, 128, 128, 128, 184, 256}) {
    Problem p{.H = 0,
              .G = 1 + below(3),
              .D = width,
              .E = 8 * (1 + below(width / 8)),
              .window = 0,
              .cu = {}};
    p.H = p.G * (1 + below(3));
    const int64_t N = 200 + below(700), longest = 1 + below(below(2) == 0 ? N : 5);
    p.cu = {0};
    while (p.cu.back() < N) {
      p.cu.push_back(static_cast<int32_t>(std::min(N, p.cu.back() + 1 + below(longest))));
    }
    if (below(2) == 0) p.window = 1 + below(N);
    p.spare_documents = below(4);
    p.queries.begin = below(N - 100);
    p.queries.end = p.queries.begin + 100 + below(N - 100 - p.queries.begin + 1);
    problems.push_back(p);
  }
  return problems;
}

INSTANTIATE_TEST_SUITE_P(QueryRanges, GpuAttention, testing::ValuesIn(RandomRanges()));

}  // namespace
}  // namespace lt2
