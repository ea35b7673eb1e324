// One rank's pieces in one HDF5 file: shard-RRRRR.h5.
//
// A piece is the dataset ID/GROUP/NAME, where ID is the checkpoint's: a shard that strayed in from
// another checkpoint holds nothing under the expected names. A rank that holds several boxes of a
// tensor adds "@BEGIN,BEGIN".
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

// One rank's share of a manifest: its file, and its boxes of each tensor.
struct ShardContent {
  StoredFile file;
  std::vector<StoredTensor> tensors;
};

std::string ShardName(int rank);

// Writes DIRECTORY/shard-RRRRR.h5 and syncs it; empty boxes are left out. data[i] are the bytes of
// pieces[i] (its tensor's own, or a staged copy). ResourceExhausted or Internal naming the file.
absl::StatusOr<ShardContent> WriteShard(const std::string& directory, int rank,
                                        const CheckpointInfo& info,
                                        std::span<const TensorPiece> pieces,
                                        std::span<const std::byte* const> data);

// Reads a shard back from disk: DataLoss if a box is not what was written.
absl::Status VerifyShard(const std::string& directory, const ShardContent& content);

// Shares travel to rank 0 as text.
std::string ToJson(const ShardContent& content);
absl::StatusOr<ShardContent> ParseShardContent(std::string_view text);
// The manifest of all shares; Internal if ranks disagree on a tensor's shape or dtype, or if their
// boxes do not tile it.
absl::StatusOr<Manifest> MergeShards(const CheckpointInfo& info,
                                     std::span<const ShardContent> shards);

// Reads what was stored of a box and compares its hash: DataLoss naming file and tensor.
absl::Status ReadStoredBox(const ByteFile& file, const StoredTensor& tensor,
                           const StoredBox& stored, std::span<std::byte> to);

// What a dtype is in HDF5; bf16 travels as its 16 bits.
h5::Type H5Type(DType dtype);

}  // namespace lt2
