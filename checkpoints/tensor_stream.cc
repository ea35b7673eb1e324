#include "checkpoints/tensor_stream.h"

#include <algorithm>
#include <cstring>

#include "core/status_macros.h"

namespace lt2 {
namespace {

template <class T>
std::vector<double> Convert(std::span<const std::byte> bytes) {
  const auto* values = reinterpret_cast<const T*>(bytes.data());
  return {values, values + bytes.size() / sizeof(T)};
}

}  // namespace

std::vector<double> TensorRows::ToDoubles() const {
  switch (dtype) {
    case DType::kF64:
      return Convert<double>(bytes);
    case DType::kF32:
      return Convert<float>(bytes);
    case DType::kBF16:
      return Convert<BFloat16>(bytes);
    case DType::kI32:
      return Convert<int32_t>(bytes);
    case DType::kU8:
      return Convert<uint8_t>(bytes);
  }
  return {};
}

int64_t RowsAtATime(const StoredTensor& tensor) {
  constexpr int64_t kBytes = 4 << 20;
  const int64_t rows = std::max<int64_t>(1, tensor.shape[0]);
  return std::max<int64_t>(1, kBytes / std::max<int64_t>(1, tensor.bytes() / rows));
}

TensorStream::TensorStream(const Checkpoint& checkpoint, const StoredTensor& tensor, int64_t rows)
    : checkpoint_(checkpoint),
      tensor_(tensor),
      rows_(rows),
      end_(tensor.shape.size() == 0 ? 0 : tensor.shape[0]),
      hashers_(tensor.boxes.size()) {}

absl::StatusOr<TensorRows> TensorStream::Next() {
  CHECK(!done()) << tensor_.path();
  const Box rows = Box::RowsOf(tensor_.shape, row_, std::min(row_ + rows_, end_));
  bytes_.resize(rows.size() * SizeOf(tensor_.dtype));
  for (size_t i = 0; i < tensor_.boxes.size(); ++i) RETURN_IF_ERROR(Add(i, rows));
  row_ += rows.extent[0];
  return TensorRows{.box = rows, .dtype = tensor_.dtype, .bytes = bytes_};
}

// Whole rows of a box lie in one piece, and come in order.
absl::Status TensorStream::Add(size_t box, const Box& rows) {
  const StoredBox& stored = tensor_.boxes[box];
  const std::optional<Box> both = Intersect(stored.box, rows);
  if (!both) return absl::OkStatus();
  const ByteFile& file = checkpoint_.file(stored.file);
  const int64_t size = SizeOf(tensor_.dtype);
  const int64_t first = both->begin[0] - stored.box.begin[0];
  const int64_t row_bytes = stored.box.size() / stored.box.extent[0] * size;
  piece_.resize(both->size() * size);
  RETURN_IF_ERROR(file.Read(stored.offset + first * row_bytes, piece_));
  hashers_[box].Add(piece_);
  ForEachRun(*both, rows, [&](int64_t from, int64_t to, int64_t elements) {
    std::memcpy(bytes_.data() + to * size, piece_.data() + from * size, elements * size);
  });
  const bool last = first + both->extent[0] == stored.box.extent[0];
  return last ? CheckHash(file, tensor_, stored, hashers_[box].Digest()) : absl::OkStatus();
}

}  // namespace lt2
