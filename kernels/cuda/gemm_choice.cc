#include "kernels/cuda/gemm_choice.h"

#include <array>
#include <bit>
#include <cstring>

#include "absl/strings/numbers.h"
#include "core/cuda/check.h"
#include "core/file.h"
#include "core/log.h"
#include "kernels/cuda/timing.h"

namespace lt2::cuda {
namespace {

// An algorithm as a word of 128 hexadecimal digits, and back.
using Words = std::array<uint64_t, 8>;
static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(Words));

std::string ToWord(const cublasLtMatmulAlgo_t& algorithm) {
  std::string word;
  for (uint64_t x : std::bit_cast<Words>(algorithm)) {
    absl::StrAppend(&word, absl::Hex(x, absl::kZeroPad16));
  }
  return word;
}

bool FromWord(const std::string& word, cublasLtMatmulAlgo_t* algorithm) {
  Words words;
  if (word.size() != 16 * words.size()) return false;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!absl::SimpleHexAtoi(word.substr(16 * i, 16), &words[i])) return false;
  }
  *algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(words);
  return true;
}

// Microseconds at a GPU's best; launches take as long as what is less.
bool WorthMeasuring(const GemmArgs& args) {
  const Cost cost = CostOf(args);
  return cost.flops / 700e6 + cost.bytes / 4e6 > 4;
}

}  // namespace

GemmChoice::GemmChoice(cublasLtHandle_t handle, const Tensor& workspace)
    : handle_(handle), workspace_(workspace) {
  int device = 0;
  cudaDeviceProp properties;
  LT2_CUDA_CHECK(cudaGetDevice(&device));
  LT2_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  std::string name = properties.name;
  std::replace(name.begin(), name.end(), ' ', '-');
  machine_ = absl::StrCat(name, ":", properties.multiProcessorCount, ":", cublasLtGetVersion(), ":",
                          workspace.bytes(), ":");
  const absl::StatusOr<std::string> folder = CacheDirectory();
  if (folder.ok()) {
    cache_ = std::make_unique<MeasuredChoices>(JoinPath(*folder, "gemm.txt"));
  } else {
    LogWarn(folder.status().ToString());
  }
}

// Partial sums stay float32, so that no result depends on how a product was split.
std::vector<cublasLtMatmulAlgo_t> GemmChoice::Proposals(const GemmKey& key,
                                                        const GemmProduct& product,
                                                        int count) const {
  cublasLtMatmulPreference_t preference = nullptr;
  LT2_BLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    LT2_BLAS_CHECK(
        cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_.bytes()));
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_b);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_a);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_c);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_c);
  std::vector<cublasLtMatmulHeuristicResult_t> results(count);
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, product.operation, product.b, product.a, product.c,
                                     product.c, preference, count, results.data(), &found);
  CheckBlas(status, "cublasLtMatmulAlgoGetHeuristic", key.ToString());
  LT2_BLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
  std::vector<cublasLtMatmulAlgo_t> proposals;
  for (int i = 0; i < found; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) proposals.push_back(results[i].algo);
  }
  CHECK(!proposals.empty()) << "cuBLASLt has no algorithm for the product " << key.ToString();
  return proposals;
}

bool GemmChoice::Runs(const std::string& word, const GemmProduct& product) const {
  cublasLtMatmulAlgo_t algorithm;
  cublasLtMatmulHeuristicResult_t result;
  return FromWord(word, &algorithm) &&
         cublasLtMatmulAlgoCheck(handle_, product.operation, product.b, product.a, product.c,
                                 product.c, &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= static_cast<size_t>(workspace_.bytes());
}

// All proposals a few times, then the best of them one after the other, each until the GPU's clocks
// are its own: where power is the limit, what a product needs of it decides, not its cycles.
std::string GemmChoice::Measure(cudaStream_t stream, const GemmKey& key, const GemmProduct& product,
                                const GemmArgs& args) const {
  constexpr int kProposals = 24, kFinalists = 5;
  constexpr float kHeatMs = 120, kTimedMs = 80;
  std::vector<cublasLtMatmulAlgo_t> proposals = Proposals(key, product, kProposals);
  const Lent c(args.c.bytes());
  const Timing timing(stream);
  if (proposals.size() == 1) return ToWord(proposals[0]);
  if (c.data() == nullptr || !timing.possible()) return "";
  LT2_CUDA_CHECK(cudaMemsetAsync(c.data(), 0, args.c.bytes(), stream));
  const float one = 1, beta = key.adds ? 1 : 0;
  const auto run = [&](int proposal) {
    return [&, proposal] {
      return cublasLtMatmul(handle_, product.operation, &one, args.b.raw(), product.b, args.a.raw(),
                            product.a, &beta, c.data(), product.c, c.data(), product.c,
                            &proposals[proposal], workspace_.raw(), workspace_.bytes(),
                            stream) == CUBLAS_STATUS_SUCCESS;
    };
  };
  std::vector<std::pair<float, int>> ranking;  // by time, then by the library's order
  for (int i = 0; i < static_cast<int>(proposals.size()); ++i) {
    if (timing.Once(run(i)) < 0) continue;  // the first run loads the kernel
    ranking.emplace_back(std::min(timing.Once(run(i)), timing.Once(run(i))), i);
  }
  CHECK(!ranking.empty()) << "no algorithm of cuBLASLt runs the product " << key.ToString();
  std::sort(ranking.begin(), ranking.end());
  ranking.resize(std::min<size_t>(ranking.size(), kFinalists));
  const auto runs_in = [once = ranking[0].first](float milliseconds) {
    return std::clamp(static_cast<int>(milliseconds / once), 2, 2000);
  };
  for (auto& [time, proposal] : ranking) {
    timing.Sustained(runs_in(kHeatMs), run(proposal));
    time = timing.Sustained(runs_in(kTimedMs), run(proposal));
  }
  std::sort(ranking.begin(), ranking.end());
  LogDebug(absl::StrCat("product ", key.ToString(), ": proposal ", ranking[0].second, " of ",
                        proposals.size(), ", ", 1e3 * ranking[0].first, " us under load"));
  return ToWord(proposals[ranking[0].second]);
}

cublasLtMatmulAlgo_t GemmChoice::Choose(cudaStream_t stream, const GemmKey& key,
                                        const GemmProduct& product, const GemmArgs& args) {
  if (cache_ == nullptr || key.in != DType::kBF16 || !WorthMeasuring(args) ||
      BeingCaptured(stream)) {
    return Proposals(key, product, 1)[0];
  }
  const absl::StatusOr<std::string> word = cache_->Choose(
      machine_ + key.ToString(), [&](const std::string& known) { return Runs(known, product); },
      [&] { return Measure(stream, key, product, args); });
  if (!word.ok()) {
    LogWarn(absl::StrCat(word.status().ToString(),
                         ": matrix products run as cuBLASLt proposes, unmeasured; LT2_CACHE_DIR "
                         "names a folder for what is measured"));
    cache_ = nullptr;
  }
  if (!word.ok() || word->empty()) return Proposals(key, product, 1)[0];
  cublasLtMatmulAlgo_t algorithm;
  CHECK(FromWord(*word, &algorithm)) << *word;
  return algorithm;
}

}  // namespace lt2::cuda
