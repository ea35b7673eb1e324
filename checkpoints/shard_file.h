// The pieces of one rank, or of all ranks of a node, in one HDF5 file: shard-RRRRR.h5.
//
// A piece is the dataset ID/GROUP/NAME, where ID is the checkpoint's: a shard that strayed in from
// another checkpoint holds nothing under the expected names. Where the file holds several boxes of
// a tensor, "@BEGIN,BEGIN" is added. HDF5 makes the file and chooses the places; the bytes are then
// written there directly, by several threads or processes at once.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoints/byte_file.h"
#include "checkpoints/manifest.h"
#include "core/hdf5.h"
#include "core/tensor.h"

namespace lt2 {

// A box of a logical tensor and the memory that holds it: what a rank saves and loads.
struct TensorPiece {
  std::string group;  // "param", "adam_m", "adam_v"
  std::string name;   // logical
  Shape shape;        // of the whole logical tensor
  Box box;
  Tensor tensor;  // on the host, box.size() elements, dense row-major

  std::string path() const { return group + "/" + name; }
};

// A file's share of a manifest: the file, and its boxes of each tensor.
struct ShardContent {
  StoredFile file;
  std::vector<StoredTensor> tensors;
};

std::string ShardName(int rank);

// The boxes of the pieces that have elements, without place or hash yet.
ShardContent PlanShard(std::span<const TensorPiece> pieces);
// Appends the boxes of another plan, which will lie in the same file.
void AddTo(ShardContent& plan, const ShardContent& other);

// Makes DIRECTORY/shard-RRRRR.h5 with room for the boxes of `plan`, and notes there the file with
// its frame, and the boxes' places: what remains is to write the boxes' bytes there. All that
// writes here gives ResourceExhausted or Internal, naming the file.
absl::Status CreateShard(const std::string& directory, int rank, const CheckpointInfo& info,
                         ShardContent& plan);
// Notes the places alone, which are the same for every checkpoint of these boxes; in DIRECTORY
// nothing stays. What `placed` is below.
absl::Status PlaceBoxes(const std::string& directory, int rank, ShardContent& plan);

// Writes the shard's frame for this checkpoint, while others write boxes. Does not sync.
absl::StatusOr<StoredFile> WriteFrame(const std::string& directory, int rank,
                                      const CheckpointInfo& info, const ShardContent& placed);
// Writes pieces to their places, while others write other boxes or the frame, and syncs the file.
// data[i] are the bytes of pieces[i] (its tensor's own, or a staged copy). Returns their share with
// hashes.
absl::StatusOr<ShardContent> WriteBoxes(const std::string& directory, const CheckpointInfo& info,
                                        const ShardContent& placed,
                                        std::span<const TensorPiece> pieces,
                                        std::span<const std::byte* const> data);
// The whole file of a rank that has one of its own.
absl::StatusOr<ShardContent> WriteShard(const std::string& directory, int rank,
                                        const CheckpointInfo& info,
                                        std::span<const TensorPiece> pieces,
                                        std::span<const std::byte* const> data);

// Reads boxes back from disk: DataLoss if one is not what was written.
absl::Status VerifyShard(const std::string& directory, const ShardContent& content);

// Shares travel to rank 0 as text.
std::string ToJson(const ShardContent& content);
absl::StatusOr<ShardContent> ParseShardContent(std::string_view text);
// The manifest of all shares in rank order, of which several may be of one file (the first tells
// its frame); Internal if ranks disagree on a tensor's shape or dtype, or if their boxes do not
// tile it.
absl::StatusOr<Manifest> MergeShards(const CheckpointInfo& info,
                                     std::span<const ShardContent> shards);

// Reads what was stored of a box and compares its hash: DataLoss naming file and tensor.
absl::Status CheckStoredBox(const ByteFile& file, const StoredTensor& tensor,
                            const StoredBox& stored);
// OK if `hash`, of the bytes read of a box, is what was stored.
absl::Status CheckHash(const ByteFile& file, const StoredTensor& tensor, const StoredBox& stored,
                       const std::string& hash);

// What a dtype is in HDF5; bf16 travels as its 16 bits.
h5::Type H5Type(DType dtype);

}  // namespace lt2
