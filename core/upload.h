// A tensor that the host fills again and again while the device still works on what it was.
//
//   Upload ids({tokens}, DType::kI32, device);
//   std::ranges::copy(batch.ids, ids.Next<int32_t>());
//   ids.Send();  // ids.tensor() holds them for whatever is queued from here on
#pragma once

#include <array>
#include <memory>

#include "core/cuda.h"
#include "core/tensor.h"

namespace lt2 {

class Upload {
 public:
  Upload() = default;
  // On the host the tensor itself is filled; a GPU's goes through two pinned buffers in turn.
  Upload(const Shape& shape, DType dtype, Device device);

  const Tensor& tensor() const { return tensor_; }
  // Memory for the next contents, all of which must be written. Waits until the copy of the Send
  // before the last is done.
  template <class T>
  T* Next() {
    CHECK_EQ(tensor_.dtype(), kDTypeOf<T>);
    return static_cast<T*>(NextBytes());
  }
  // Queues the copy. Not inside a recorded step.
  void Send();

 private:
  struct Staging {
    explicit Staging(int64_t bytes);
    ~Staging();
    std::array<void*, 2> memory;
    std::array<cuda::Event, 2> copied;
    int turn = 0;
  };
  void* NextBytes();

  Tensor tensor_;
  std::shared_ptr<Staging> staging_;  // on a GPU
};

}  // namespace lt2
