#include "core/tensor.h"

#include <algorithm>
#include <cstring>

#include "core/allocator.h"
#include "core/cuda.h"

namespace lt2 {
namespace {

Device HostOf(Device device) {
  return device.backend == Backend::kCuda ? Device{Backend::kCpu} : device;
}

}  // namespace

class Storage {
 public:
  Storage(int64_t bytes, Device device) : bytes_(bytes), device_(device) {
    if (device.backend == Backend::kMeta) {
      meter_ = MetaMeter::Current();
      if (meter_) meter_->Add(bytes);
    } else {
      pool_ = PoolScope::Current(device);
      memory_ = allocator().Allocate(bytes);
    }
  }
  ~Storage() {
    if (meter_) meter_->Remove(bytes_);
    if (memory_) allocator().Free(memory_);
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  std::byte* memory() const { return static_cast<std::byte*>(memory_); }

 private:
  CachingAllocator& allocator() const { return pool_ ? *pool_ : CachingAllocator::Of(device_); }

  const int64_t bytes_;
  const Device device_;
  void* memory_ = nullptr;
  std::shared_ptr<CachingAllocator> pool_;  // none: the device's common memory
  std::shared_ptr<MetaMeter::Counters> meter_;
};

Tensor Tensor::Empty(const Shape& shape, DType dtype, Device device) {
  Tensor tensor;
  tensor.shape_ = shape;
  tensor.dtype_ = dtype;
  tensor.device_ = device;
  tensor.storage_ = std::make_shared<Storage>(shape.size() * SizeOf(dtype), device);
  return tensor;
}

Tensor Tensor::Zeros(const Shape& shape, DType dtype, Device device) {
  Tensor tensor = Empty(shape, dtype, device);
  tensor.Zero();
  return tensor;
}

Tensor Tensor::FromHost(std::span<const double> values, const Shape& shape, DType dtype,
                        Device device) {
  CHECK_EQ(static_cast<int64_t>(values.size()), shape.size());
  if (device.backend == Backend::kMeta) return Empty(shape, dtype, device);
  Tensor host = Empty(shape, dtype, HostOf(device));
  const auto convert = [&]<class T>(const auto& of) {
    T* const to = host.data<T>();
    const double* const from = values.data();
#pragma omp parallel for simd schedule(static) if (shape.size() > 1 << 16)
    for (int64_t i = 0; i < shape.size(); ++i) to[i] = of(from[i]);
  };
  if (dtype == DType::kBF16) {
    convert.template operator()<BFloat16>(
        [](double x) { return BFloat16::Of(static_cast<float>(x)); });
  } else {
    DispatchFloat(dtype, [&]<class T>() {
      convert.template operator()<T>([](double x) { return static_cast<T>(x); });
    });
  }
  return host.To(device);
}

Tensor Tensor::FromHost(std::span<const int32_t> values, const Shape& shape, Device device) {
  CHECK_EQ(static_cast<int64_t>(values.size()), shape.size());
  if (device.backend == Backend::kMeta) return Empty(shape, DType::kI32, device);
  Tensor host = Empty(shape, DType::kI32, HostOf(device));
  std::ranges::copy(values, host.data<int32_t>());
  return host.To(device);
}

Tensor Tensor::Reshape(const Shape& shape) const {
  CHECK_EQ(shape.size(), size()) << shape_ << " to " << shape;
  Tensor view = *this;
  view.shape_ = shape;
  return view;
}

Tensor Tensor::Rows(int64_t begin, int64_t end) const {
  CHECK(shape_.rank() > 0 && 0 <= begin && begin <= end && end <= shape_[0])
      << begin << ".." << end << " of " << shape_;
  Tensor view = *this;
  const int64_t row = shape_[0] == 0 ? 0 : size() / shape_[0];
  view.offset_ += begin * row * SizeOf(dtype_);
  view.shape_[0] = end - begin;
  return view;
}

Tensor Tensor::Flat(int64_t begin, int64_t elements) const {
  return Reshape({size()}).Rows(begin, begin + elements);
}

void* Tensor::raw() const {
  CHECK(defined()) << "an undefined tensor has no data";
  std::byte* memory = storage_->memory();
  CHECK(memory != nullptr || size() == 0) << "a " << device_ << " tensor has no data";
  return memory + offset_;
}

void Tensor::Zero() const {
  if (on_host()) std::memset(raw(), 0, bytes());
  if (on_gpu()) cuda::Zero(raw(), bytes());
}

void Tensor::CopyFrom(const Tensor& other) const {
  CHECK_EQ(size(), other.size());
  CHECK_EQ(dtype_, other.dtype());
  if (size() == 0 || on_meta()) return;
  if (on_gpu() || other.on_gpu()) return cuda::Copy(raw(), other.raw(), bytes());
  std::memmove(raw(), other.raw(), bytes());
}

Tensor Tensor::To(Device device) const {
  if (device == device_) return *this;
  Tensor copy = Empty(shape_, dtype_, device);
  copy.CopyFrom(*this);
  return copy;
}

Tensor Tensor::Clone() const {
  Tensor copy = Empty(shape_, dtype_, device_);
  copy.CopyFrom(*this);
  return copy;
}

std::vector<double> Tensor::ToDoubles() const {
  if (on_gpu()) return To({Backend::kCpu}).ToDoubles();
  std::vector<double> out(size());
  switch (dtype_) {
    case DType::kF32:
      std::copy_n(data<float>(), size(), out.begin());
      break;
    case DType::kF64:
      std::copy_n(data<double>(), size(), out.begin());
      break;
    case DType::kBF16:
      std::copy_n(data<BFloat16>(), size(), out.begin());
      break;
    case DType::kI32:
      std::copy_n(data<int32_t>(), size(), out.begin());
      break;
    default:
      CHECK(false) << "ToDoubles of " << dtype_;
  }
  return out;
}

}  // namespace lt2
