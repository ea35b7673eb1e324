#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "core/cuda/check.h"

namespace lt2::cuda {
namespace {

// The driver's, without linking to it: this program also starts where there is none.
decltype(&cuTensorMapEncodeTiled) Encoder() {
  static const auto encoder = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    LT2_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                    cudaEnableDefault, &found));
    CHECK(found == cudaDriverEntryPointSuccess && entry != nullptr)
        << "the driver has no cuTensorMapEncodeTiled: it is older than CUDA 12";
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  return encoder;
}

// Sizes innermost first; strides in bytes, of all dimensions but the first.
template <int kRank>
CUtensorMap Encode(CUtensorMapDataType type, const void* data, const cuuint64_t (&sizes)[kRank],
                   const cuuint64_t (&strides)[kRank - 1], const cuuint32_t (&box)[kRank],
                   CUtensorMapSwizzle swizzle) {
  cuuint32_t steps[kRank];
  std::fill(steps, steps + kRank, 1);
  CUtensorMap map;
  const CUresult status =
      Encoder()(&map, type, kRank, const_cast<void*>(data), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(status == CUDA_SUCCESS) << "cuTensorMapEncodeTiled: error " << status << " for a box of "
                                << box[kRank - 1] << " rows and " << box[0] << " columns";
  return map;
}

}  // namespace

CUtensorMap PanelMap(const Tensor& x, int rows) {
  CHECK_EQ(x.dtype(), DType::kBF16);
  return PanelMap(x.raw(), x.dim(0), x.dim(1), x.dim(2), rows);
}

CUtensorMap PanelMap(const void* x, int64_t tokens, int64_t heads, int64_t size, int rows) {
  const auto of = [](int64_t n) { return static_cast<cuuint64_t>(n); };
  return Encode<3>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, x, {of(size), of(heads), of(tokens)},
                   {2 * of(size), 2 * of(heads) * of(size)}, {64, 1, static_cast<cuuint32_t>(rows)},
                   CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap MatrixMap(const void* x, int64_t height, int64_t width, int rows, int columns) {
  CHECK(columns == 64 || columns == 32) << "a panel of " << columns << " columns";
  return Encode<2>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, x,
                   {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(height)},
                   {2 * static_cast<cuuint64_t>(width)},
                   {static_cast<cuuint32_t>(columns), static_cast<cuuint32_t>(rows)},
                   columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
}

CUtensorMap RowsMap(const void* x, int64_t height, int64_t width, int rows, int columns) {
  return Encode<2>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, x,
                   {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(height)},
                   {2 * static_cast<cuuint64_t>(width)},
                   {static_cast<cuuint32_t>(columns), static_cast<cuuint32_t>(rows)},
                   CU_TENSOR_MAP_SWIZZLE_NONE);
}

CUtensorMap FloatPanelMap(const void* x, int64_t height, int64_t width, int rows) {
  return Encode<2>(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, x,
                   {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(height)},
                   {4 * static_cast<cuuint64_t>(width)}, {32, static_cast<cuuint32_t>(rows)},
                   CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap FloatMap(const void* x, int64_t rows, int64_t columns, int64_t stride, int count) {
  return Encode<2>(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, x,
                   {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                   {static_cast<cuuint64_t>(4 * stride)}, {static_cast<cuuint32_t>(count), 1},
                   CU_TENSOR_MAP_SWIZZLE_NONE);
}

}  // namespace lt2::cuda
