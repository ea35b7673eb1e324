// A matrix product as cuBLASLt wants it described. Tensors are row-major and cuBLASLt is
// column-major: what is computed is cᵀ = op(b)ᵀ op(a)ᵀ, so b comes first.
#pragma once

#include <cublasLt.h>

#include <algorithm>
#include <compare>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "kernels/gemm.h"

namespace lt2::cuda {

inline void CheckBlas(cublasStatus_t status, const char* call, const std::string& product = "") {
  CHECK(status == CUBLAS_STATUS_SUCCESS) << call << (product.empty() ? "" : " of ") << product
                                         << ": " << cublasLtGetStatusString(status);
}
#define LT2_BLAS_CHECK(call) CheckBlas(call, #call)

inline cudaDataType_t BlasTypeOf(DType dtype) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16) << "no GPU matrix product of " << dtype;
  return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
}

// Everything that an algorithm may depend on. Alignments are in bytes, up to 16.
struct GemmKey {
  int64_t m, n, k;
  bool transpose_a, transpose_b, adds;  // adds: something is read into the sum, c or the addend
  DType in, out;
  uint32_t align_a, align_b, align_c;
  auto operator<=>(const GemmKey&) const = default;

  static GemmKey Of(const GemmArgs& args) {
    const auto [m, n, k] = SizesOf(args);
    const uint32_t align_c = AlignmentOf(args.c);
    return {
        .m = m,
        .n = n,
        .k = k,
        .transpose_a = args.transpose_a,
        .transpose_b = args.transpose_b,
        .adds = args.accumulate || args.addend.defined(),
        .in = args.a.dtype(),
        .out = args.c.dtype(),
        .align_a = AlignmentOf(args.a),
        .align_b = AlignmentOf(args.b),
        .align_c = args.addend.defined() ? std::min(align_c, AlignmentOf(args.addend)) : align_c};
  }
  // "8192x2048x5632:nt:bf16:f32:add:16.16.16"
  std::string ToString() const {
    return absl::StrCat(m, "x", n, "x", k, ":", transpose_a ? "t" : "n", transpose_b ? "t" : "n",
                        ":", Name(in), ":", Name(out), adds ? ":add:" : ":set:", align_a, ".",
                        align_b, ".", align_c);
  }

 private:
  static uint32_t AlignmentOf(const Tensor& x) {
    const auto address = reinterpret_cast<uintptr_t>(x.raw());
    return static_cast<uint32_t>(std::min<uintptr_t>(16, address & -address));
  }
};

// The library's handles for a key, deleted with their owner. Their first operand is our b.
class GemmProduct {
 public:
  explicit GemmProduct(const GemmKey& key) {
    LT2_BLAS_CHECK(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    Transpose(CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_b);
    Transpose(CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_a);
    const cudaDataType_t in = BlasTypeOf(key.in);
    Create(&b, in, key.transpose_b ? key.k : key.n, key.transpose_b ? key.n : key.k);
    Create(&a, in, key.transpose_a ? key.m : key.k, key.transpose_a ? key.k : key.m);
    Create(&c, BlasTypeOf(key.out), key.n, key.m);
  }
  ~GemmProduct() {
    cublasLtMatmulDescDestroy(operation);
    for (cublasLtMatrixLayout_t layout : {a, b, c}) cublasLtMatrixLayoutDestroy(layout);
  }
  GemmProduct(const GemmProduct&) = delete;

  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;

 private:
  void Transpose(cublasLtMatmulDescAttributes_t attribute, bool transpose) const {
    const cublasOperation_t op = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    LT2_BLAS_CHECK(cublasLtMatmulDescSetAttribute(operation, attribute, &op, sizeof(op)));
  }
  static void Create(cublasLtMatrixLayout_t* layout, cudaDataType_t type, int64_t rows,
                     int64_t columns) {
    LT2_BLAS_CHECK(cublasLtMatrixLayoutCreate(layout, type, rows, columns, rows));
  }
};

}  // namespace lt2::cuda
