// Matrix products by cuBLASLt.
#include "kernels/gemm.h"

#include <map>

#include "core/allocator.h"
#include "core/cuda/stream.h"
#include "kernels/cuda/gemm_choice.h"

namespace lt2::cuda {
namespace {

// A thread's library handle, workspace, and the algorithm of every product it has seen.
class Blas {
 public:
  static Blas& OfThread(Device device) {
    thread_local std::map<int, Blas> of_device;
    return of_device.try_emplace(device.index, device).first->second;
  }

  explicit Blas(Device device)
      : workspace_(MakeWorkspace(device)), handle_(MakeHandle()), choice_(handle_, workspace_) {}
  ~Blas() { cublasLtDestroy(handle_); }
  Blas(const Blas&) = delete;

  void Multiply(cudaStream_t stream, const GemmArgs& args) {
    const GemmKey key = GemmKey::Of(args);
    auto known = plans_.find(key);
    if (known == plans_.end()) {
      auto plan = std::make_unique<Plan>(key);
      plan->algorithm = choice_.Choose(stream, key, plan->product, args);
      known = plans_.emplace(key, std::move(plan)).first;
    }
    const auto& [product, algorithm] = *known->second;
    const float one = 1, beta = key.adds ? 1 : 0;
    const Tensor& added = args.addend.defined() ? args.addend : args.c;
    const cublasStatus_t status =
        cublasLtMatmul(handle_, product.operation, &one, args.b.raw(), product.b, args.a.raw(),
                       product.a, &beta, added.raw(), product.c, args.c.raw(), product.c,
                       &algorithm, workspace_.raw(), workspace_.bytes(), stream);
    CheckBlas(status, "cublasLtMatmul", key.ToString());
  }

 private:
  struct Plan {
    explicit Plan(const GemmKey& key) : product(key) {}
    GemmProduct product;
    cublasLtMatmulAlgo_t algorithm = {};
  };

  static Tensor MakeWorkspace(Device device) {
    const PoolScope common(nullptr);  // it outlives the step
    return Tensor::Empty({int64_t{32} << 20}, DType::kU8, device);
  }

  static cublasLtHandle_t MakeHandle() {
    cublasLtHandle_t handle = nullptr;
    LT2_BLAS_CHECK(cublasLtCreate(&handle));
    return handle;
  }

  const Tensor workspace_;
  const cublasLtHandle_t handle_;
  GemmChoice choice_;
  std::map<GemmKey, std::unique_ptr<Plan>> plans_;
};

}  // namespace

void Gemm(Stream& stream, const GemmArgs& args) {
  const auto [m, n, k] = SizesOf(args);
  if (m == 0 || n == 0) return;
  if (k == 0) {
    if (args.addend.defined()) {
      args.c.CopyFrom(args.addend);
    } else if (!args.accumulate) {
      args.c.Zero();
    }
    return;
  }
  const cudaStream_t handle = Handle(stream);
  Blas::OfThread(stream.device).Multiply(handle, args);
}

}  // namespace lt2::cuda
