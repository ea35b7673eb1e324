#include "checkpoints/loading.h"

#include <algorithm>
#include <cstring>
#include <future>

#include "checkpoints/float_values.h"
#include "core/status_macros.h"

namespace lt2 {
namespace {

constexpr auto kByTensor = [](const Want& a, const Want& b) { return a.tensor < b.tensor; };

// Copies `elements` from stored bytes to tensor memory, converting between float types.
void CopyElements(const std::byte* from, DType from_type, std::byte* to, DType to_type,
                  int64_t elements) {
  if (from_type == to_type) {
    std::memcpy(to, from, elements * SizeOf(to_type));
    return;
  }
  const size_t count = elements;
  ConvertFloats(FloatTypeOf(from_type), {from, count * SizeOf(from_type)}, FloatTypeOf(to_type),
                {to, count * SizeOf(to_type)});
}

// Room for so many bytes from or to each rank.
Tensor BufferFor(const std::vector<int64_t>& counts) {
  int64_t bytes = 0;
  for (int64_t count : counts) bytes += count;
  return Tensor::Empty({bytes}, DType::kU8, {});
}

}  // namespace

Loading::Loading(const Manifest& manifest, std::span<const TensorPiece> pieces,
                 std::vector<std::vector<Want>> wants, OpenFile open, Communicator& group)
    : manifest_(manifest),
      pieces_(pieces),
      wants_(std::move(wants)),
      open_(std::move(open)),
      group_(group) {
  for (const TensorPiece& piece : pieces_) {
    on_host_.push_back(piece.tensor.on_gpu() ? Tensor() : piece.tensor);
    missing_.push_back(piece.tensor.size());
  }
}

int64_t Loading::BytesOf(const LoadChunk& chunk) const {
  return chunk.rows.size() * SizeOf(manifest_.tensors[chunk.tensor].dtype);
}

void Loading::Run(const LoadPlan& plan) {
  const std::vector<LoadRound>& mine = plan.readers[group_.rank()];
  std::vector<std::byte> bytes, next;
  const auto read_next = [&](size_t round) {
    if (round < mine.size()) Read(mine[round], next);
  };
  read_next(0);
  for (size_t round = 0; round < plan.rounds(); ++round) {
    std::swap(bytes, next);
    const std::future<void> reading = std::async(std::launch::async, read_next, round + 1);
    Exchange(plan, round, bytes);
    reading.wait();
  }
}

void Loading::Read(const LoadRound& round, std::vector<std::byte>& bytes) {
  int64_t total = 0;
  for (const LoadChunk& chunk : round) total += BytesOf(chunk);
  bytes.resize(total);
  std::span<std::byte> left(bytes);
  for (const LoadChunk& chunk : round) {
    const absl::Status status = ReadChunk(chunk, left.first(BytesOf(chunk)));
    left = left.subspan(BytesOf(chunk));
    if (status.ok()) continue;
    reading_.failed = true;
    if (absl::IsDataLoss(status)) {
      damages_.push_back(status);
    } else {
      failure_.Update(status);
    }
  }
}

absl::Status Loading::ReadChunk(const LoadChunk& chunk, std::span<std::byte> to) {
  const StoredTensor& tensor = manifest_.tensors[chunk.tensor];
  const StoredBox& stored = tensor.boxes[chunk.box];
  const int64_t row = chunk.rows.begin[0] - stored.box.begin[0];
  if (row == 0) reading_ = {};
  if (reading_.failed) return absl::OkStatus();  // it was told
  ASSIGN_OR_RETURN(const ByteFile* file, open_(stored.file));
  const int64_t row_bytes = static_cast<int64_t>(to.size()) / chunk.rows.extent[0];
  RETURN_IF_ERROR(file->Read(stored.offset + row * row_bytes, to));
  reading_.hasher.Add(to);
  if (row + chunk.rows.extent[0] < stored.box.extent[0]) return absl::OkStatus();
  return CheckHash(*file, tensor, stored, reading_.hasher.Digest());
}

template <class Use>
void Loading::ForEachWanted(const LoadRound& round, int rank, const Use& use) const {
  const std::vector<Want>& wants = wants_[rank];
  int64_t offset = 0;
  for (const LoadChunk& chunk : round) {
    const auto [first, last] =
        std::equal_range(wants.begin(), wants.end(), Want{chunk.tensor, {}}, kByTensor);
    for (auto want = first; want != last; ++want) {
      const std::optional<Box> both = Intersect(chunk.rows, want->box);
      if (both) use(chunk, offset, static_cast<int>(want - wants.begin()), *both);
    }
    offset += BytesOf(chunk);
  }
}

void Loading::Exchange(const LoadPlan& plan, size_t round, std::span<const std::byte> bytes) {
  const auto round_of = [&](int reader) -> const LoadRound& {
    static const LoadRound kNothing;
    const std::vector<LoadRound>& rounds = plan.readers[reader];
    return round < rounds.size() ? rounds[round] : kNothing;
  };
  const auto size_of = [&](const LoadChunk& chunk) {
    return SizeOf(manifest_.tensors[chunk.tensor].dtype);
  };
  const int me = group_.rank(), ranks = group_.size();
  const LoadRound& mine = round_of(me);
  ForEachWanted(mine, me, [&](const LoadChunk& chunk, int64_t offset, int piece, const Box&) {
    Place(piece, chunk.rows, bytes.data() + offset);
  });
  if (ranks == 1) return;

  std::vector<int64_t> given(ranks), taken(ranks);  // bytes, by rank
  for (int r = 0; r < ranks; ++r) {
    if (r == me) continue;
    ForEachWanted(mine, r, [&](const LoadChunk& chunk, int64_t, int, const Box& part) {
      given[r] += part.size() * size_of(chunk);
    });
    ForEachWanted(round_of(r), me, [&](const LoadChunk& chunk, int64_t, int, const Box& part) {
      taken[r] += part.size() * size_of(chunk);
    });
  }
  const Tensor out = BufferFor(given), in = BufferFor(taken);
  auto* to = static_cast<std::byte*>(out.raw());
  for (int r = 0; r < ranks; ++r) {
    if (r == me) continue;
    ForEachWanted(mine, r, [&](const LoadChunk& chunk, int64_t offset, int, const Box& part) {
      const int64_t size = size_of(chunk);
      ForEachRun(chunk.rows, part, [&](int64_t source, int64_t target, int64_t elements) {
        std::memcpy(to + target * size, bytes.data() + offset + source * size, elements * size);
      });
      to += part.size() * size;
    });
  }
  group_.AllToAll(out, given, in, taken, "pass_on_stored_boxes");
  const auto* from = static_cast<const std::byte*>(in.raw());
  for (int r = 0; r < ranks; ++r) {
    if (r == me) continue;
    ForEachWanted(round_of(r), me,
                  [&](const LoadChunk& chunk, int64_t, int piece, const Box& part) {
                    Place(piece, part, from);
                    from += part.size() * size_of(chunk);
                  });
  }
}

void Loading::Place(int piece, const Box& box, const std::byte* from) {
  const TensorPiece& target = pieces_[piece];
  const DType from_type = manifest_.tensors[wants_[group_.rank()][piece].tensor].dtype;
  const DType to_type = target.tensor.dtype();
  Tensor& host = on_host_[piece];
  if (!host.defined()) host = Tensor::Empty(target.tensor.shape(), to_type, {});
  auto* to = static_cast<std::byte*>(host.raw());
  ForEachRun(box, target.box, [&](int64_t source, int64_t place, int64_t elements) {
    CopyElements(from + source * SizeOf(from_type), from_type, to + place * SizeOf(to_type),
                 to_type, elements);
    missing_[piece] -= elements;
  });
  if (missing_[piece] > 0 || !target.tensor.on_gpu()) return;
  target.tensor.CopyFrom(host);
  host = Tensor();
}

}  // namespace lt2
