// Which of cuBLASLt's algorithms a product runs with: the fastest of those it proposes, measured at
// the first use of a shape and remembered in the user's cache (kernels/measured_choices.h).
#pragma once

#include "kernels/cuda/gemm_product.h"
#include "kernels/measured_choices.h"

namespace lt2::cuda {

class GemmChoice {
 public:
  // Of the current device. `workspace` is what the products will run with.
  GemmChoice(cublasLtHandle_t handle, const Tensor& workspace);

  // The library's own first proposal for float32, for products too small to matter, while the
  // stream is being captured, and where the cache cannot be written. Reads a and b, never c.
  cublasLtMatmulAlgo_t Choose(cudaStream_t stream, const GemmKey& key, const GemmProduct& product,
                              const GemmArgs& args);

 private:
  // Best first by the library's own estimate; never empty.
  std::vector<cublasLtMatmulAlgo_t> Proposals(const GemmKey& key, const GemmProduct& product,
                                              int count) const;
  bool Runs(const std::string& word, const GemmProduct& product) const;
  std::string Measure(cudaStream_t stream, const GemmKey& key, const GemmProduct& product,
                      const GemmArgs& args) const;

  const cublasLtHandle_t handle_;
  const Tensor workspace_;
  std::string machine_;                     // of the keys in the cache
  std::unique_ptr<MeasuredChoices> cache_;  // null where there is none
};

}  // namespace lt2::cuda
