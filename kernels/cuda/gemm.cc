// Matrix products by cuBLASLt. Tensors are row-major and cuBLASLt is column-major: what is computed
// is cᵀ = op(b)ᵀ op(a)ᵀ.
#include "kernels/gemm.h"

#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "core/check.h"
#include "core/cuda/check.h"
#include "core/cuda/stream.h"

namespace lt2::cuda {
namespace {

void CheckBlas(cublasStatus_t status, const char* call) {
  CHECK(status == CUBLAS_STATUS_SUCCESS) << call << ": " << cublasLtGetStatusString(status);
}
#define LT2_BLAS_CHECK(call) CheckBlas(call, #call)

cudaDataType_t TypeOf(DType dtype) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16) << "no GPU matrix product of " << dtype;
  return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
}

// Deleted with their owner.
struct Layout {
  Layout(cudaDataType_t type, int64_t rows, int64_t columns) {
    LT2_BLAS_CHECK(cublasLtMatrixLayoutCreate(&handle, type, rows, columns, rows));
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(handle); }
  Layout(const Layout&) = delete;
  cublasLtMatrixLayout_t handle = nullptr;
};

struct Operation {
  Operation(bool transpose_a, bool transpose_b) {
    LT2_BLAS_CHECK(cublasLtMatmulDescCreate(&handle, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    Set(CUBLASLT_MATMUL_DESC_TRANSA, transpose_a);
    Set(CUBLASLT_MATMUL_DESC_TRANSB, transpose_b);
  }
  ~Operation() { cublasLtMatmulDescDestroy(handle); }
  Operation(const Operation&) = delete;
  void Set(cublasLtMatmulDescAttributes_t attribute, bool transpose) {
    const cublasOperation_t op = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    LT2_BLAS_CHECK(cublasLtMatmulDescSetAttribute(handle, attribute, &op, sizeof(op)));
  }
  cublasLtMatmulDesc_t handle = nullptr;
};

// A thread's library handle, workspace, and the algorithm of every product it has seen.
class Blas {
 public:
  static Blas& OfThread(Device device) {
    thread_local std::map<int, Blas> of_device;
    return of_device.try_emplace(device.index, device).first->second;
  }

  explicit Blas(Device device)
      : workspace_(Tensor::Empty({int64_t{32} << 20}, DType::kU8, device)) {
    LT2_BLAS_CHECK(cublasLtCreate(&handle_));
  }
  ~Blas() { cublasLtDestroy(handle_); }
  Blas(const Blas&) = delete;

  void Multiply(cudaStream_t stream, const GemmArgs& args) {
    const auto [m, n, k] = SizesOf(args);
    const cudaDataType_t in = TypeOf(args.a.dtype()), out = TypeOf(args.c.dtype());
    const Operation operation(args.transpose_b, args.transpose_a);
    const Layout b(in, args.transpose_b ? k : n, args.transpose_b ? n : k);
    const Layout a(in, args.transpose_a ? m : k, args.transpose_a ? k : m);
    const Layout c(out, n, m);
    const Key key{m,
                  n,
                  k,
                  args.transpose_a,
                  args.transpose_b,
                  args.accumulate,
                  in,
                  out,
                  AlignmentOf(args.a),
                  AlignmentOf(args.b),
                  AlignmentOf(args.c)};
    auto known = algorithms_.find(key);
    if (known == algorithms_.end()) {
      known = algorithms_.emplace(key, Choose(operation, b, a, c, args)).first;
    }
    const float one = 1, beta = args.accumulate ? 1 : 0;
    LT2_BLAS_CHECK(cublasLtMatmul(handle_, operation.handle, &one, args.b.raw(), b.handle,
                                  args.a.raw(), a.handle, &beta, args.c.raw(), c.handle,
                                  args.c.raw(), c.handle, &known->second, workspace_.raw(),
                                  workspace_.bytes(), stream));
  }

 private:
  using Key = std::tuple<int64_t, int64_t, int64_t, bool, bool, bool, int, int, uint32_t, uint32_t,
                         uint32_t>;

  // Bytes, up to 16.
  static uint32_t AlignmentOf(const Tensor& x) {
    const auto address = reinterpret_cast<uintptr_t>(x.raw());
    return static_cast<uint32_t>(std::min<uintptr_t>(16, address & -address));
  }

  // Partial sums stay float32, so that no result depends on how a product was split.
  cublasLtMatmulAlgo_t Choose(const Operation& operation, const Layout& a, const Layout& b,
                              const Layout& c, const GemmArgs& args) const {
    cublasLtMatmulPreference_t preference = nullptr;
    LT2_BLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      LT2_BLAS_CHECK(
          cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_.bytes()));
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(args.b));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(args.a));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(args.c));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(args.c));
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    LT2_BLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(handle_, operation.handle, a.handle, b.handle,
                                                  c.handle, c.handle, preference, 1, &best,
                                                  &found));
    LT2_BLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    CHECK(found > 0) << "cuBLASLt has no algorithm for this product";
    return best.algo;
  }

  cublasLtHandle_t handle_ = nullptr;
  const Tensor workspace_;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace

void Gemm(Stream& stream, const GemmArgs& args) {
  const auto [m, n, k] = SizesOf(args);
  if (m == 0 || n == 0) return;
  if (k == 0) {
    if (!args.accumulate) args.c.Zero();
    return;
  }
  Blas::OfThread(stream.device).Multiply(Handle(stream), args);
}

}  // namespace lt2::cuda
