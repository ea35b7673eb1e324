// A value in memory. It knows nothing of gradients, graphs or ranks.
//
// Contiguous and row-major; the only views are Reshape, Rows and Flat, which share the bytes.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/shape.h"

namespace lt2 {

class Storage;  // shared bytes; returned to their device's allocator with the last owner

class Tensor {
 public:
  Tensor() = default;  // undefined: no storage, defined() is false

  // Uninitialised memory. On kMeta no bytes exist, they are only counted.
  static Tensor Empty(const Shape& shape, DType dtype, Device device);
  static Tensor Zeros(const Shape& shape, DType dtype, Device device);
  // A copy of host values, converted to dtype (float kinds). Nothing is copied on kMeta.
  static Tensor FromHost(std::span<const double> values, const Shape& shape, DType dtype,
                         Device device);
  static Tensor FromHost(std::span<const int32_t> values, const Shape& shape, Device device);

  Tensor Reshape(const Shape& shape) const;            // same size
  Tensor Rows(int64_t begin, int64_t end) const;       // leading extent [begin, end)
  Tensor Flat(int64_t begin, int64_t elements) const;  // one-dimensional piece of the elements

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int64_t dim(int i) const { return shape_[i]; }
  int64_t size() const { return shape_.size(); }
  int64_t bytes() const { return size() * SizeOf(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  bool on_host() const {
    return device_.backend == Backend::kCpu || device_.backend == Backend::kReference;
  }

  bool on_meta() const { return device_.backend == Backend::kMeta; }
  bool on_gpu() const { return device_.backend == Backend::kCuda; }

  // The elements. CHECKs the type; kMeta has none.
  template <class T>
  T* data() const {
    CHECK_EQ(dtype_, kDTypeOf<T>);
    return static_cast<T*>(raw());
  }
  template <class T>
  std::span<T> span() const {
    return {data<T>(), static_cast<size_t>(size())};
  }
  void* raw() const;

  // True if no other tensor shares the bytes.
  bool unique() const { return storage_.use_count() == 1; }
  bool SharesStorageWith(const Tensor& other) const { return storage_ == other.storage_; }

  // On a GPU ordered on the thread's stream (core/cuda.h); nothing happens on kMeta.
  void Zero() const;
  void CopyFrom(const Tensor& other) const;  // same size and dtype, any two devices
  Tensor Clone() const;
  Tensor To(Device device) const;         // this tensor if it is there, else a copy
  std::vector<double> ToDoubles() const;  // any float or integer dtype; waits for a GPU

 private:
  friend class WeakTensor;
  std::shared_ptr<Storage> storage_;
  int64_t offset_ = 0;  // in bytes
  Shape shape_;
  DType dtype_ = DType::kF32;
  Device device_;
};

// A tensor for as long as others hold its bytes.
class WeakTensor {
 public:
  explicit WeakTensor(const Tensor& tensor) : storage_(tensor.storage_), view_(tensor) {
    view_.storage_.reset();
  }
  // Undefined once the last of them has let go.
  Tensor Lock() const {
    Tensor tensor = view_;
    tensor.storage_ = storage_.lock();
    return tensor;
  }

 private:
  std::weak_ptr<Storage> storage_;
  Tensor view_;
};

}  // namespace lt2
