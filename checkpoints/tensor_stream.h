// A stored tensor from its first row to its last, whatever boxes it lies in.
//
//   TensorStream stream(checkpoint, tensor, RowsAtATime(tensor));
//   while (!stream.done()) {
//     ASSIGN_OR_RETURN(const TensorRows rows, stream.Next());
//     …
//   }
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoints/reader.h"
#include "core/hash.h"

namespace lt2 {

// Consecutive rows (of the leading extent), dense row-major.
struct TensorRows {
  Box box;
  DType dtype;
  std::span<const std::byte> bytes;

  std::vector<double> ToDoubles() const;  // every dtype's values fit
};

// How many rows make some MiB, at least one: what a stream holds in memory.
int64_t RowsAtATime(const StoredTensor& tensor);

// A tensor's rows in order. What came is to be trusted only if the stream ended well.
class RowStream {
 public:
  virtual ~RowStream() = default;
  virtual bool done() const = 0;
  // The rows that follow; valid until the next call.
  virtual absl::StatusOr<TensorRows> Next() = 0;
};

class TensorStream : public RowStream {
 public:
  // Both must outlive the stream.
  TensorStream(const Checkpoint& checkpoint, const StoredTensor& tensor, int64_t rows);

  bool done() const override { return row_ == end_; }
  // `rows` rows, or what is left. Every stored byte is read once, and every box is held against its
  // hash when its last row comes: DataLoss naming file and tensor.
  absl::StatusOr<TensorRows> Next() override;

 private:
  absl::Status Add(size_t box, const Box& rows);

  const Checkpoint& checkpoint_;
  const StoredTensor& tensor_;
  const int64_t rows_;
  int64_t row_ = 0, end_;
  std::vector<Hasher128> hashers_;  // by box
  std::vector<std::byte> bytes_, piece_;
};

}  // namespace lt2
