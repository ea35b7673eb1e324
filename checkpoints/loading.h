// Carries a load's plan out: every rank reads its boxes once, holds them against their hashes, and
// passes on what others want of them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoints/load_plan.h"
#include "checkpoints/shard_file.h"
#include "core/hash.h"
#include "parallel/communicator.h"

namespace lt2 {

class Loading {
 public:
  // A file of the checkpoint by its name; called by one thread at a time.
  using OpenFile = std::function<absl::StatusOr<const ByteFile*>(const std::string& name)>;

  // wants: by rank; this rank's are, in order, of the tensors and boxes of `pieces`. Each rank's
  // are ordered by tensor.
  Loading(const Manifest& manifest, std::span<const TensorPiece> pieces,
          std::vector<std::vector<Want>> wants, OpenFile open, Communicator& group);

  // Fills the pieces, also with what is found damaged. Collective.
  void Run(const LoadPlan& plan);

  // What this rank found damaged (DataLoss each), and the first failure of another kind.
  const std::vector<absl::Status>& damages() const { return damages_; }
  const absl::Status& failure() const { return failure_; }

 private:
  // Of one box, which its reader reads from first row to last.
  struct Reading {
    Hasher128 hasher;
    bool failed = false;
  };

  int64_t BytesOf(const LoadChunk& chunk) const;
  void Read(const LoadRound& round, std::vector<std::byte>& bytes);
  absl::Status ReadChunk(const LoadChunk& chunk, std::span<std::byte> to);
  // Calls use(chunk, where its bytes begin in the round's, piece of `rank`, what it wants) for all
  // that the rank wants of a round.
  template <class Use>
  void ForEachWanted(const LoadRound& round, int rank, const Use& use) const;
  void Exchange(const LoadPlan& plan, size_t round, std::span<const std::byte> bytes);
  // Puts what a piece wants of `from`, dense bytes of `box`, into its place.
  void Place(int piece, const Box& box, const std::byte* from);

  const Manifest& manifest_;
  const std::span<const TensorPiece> pieces_;
  const std::vector<std::vector<Want>> wants_;
  const OpenFile open_;
  Communicator& group_;

  Reading reading_;
  std::vector<absl::Status> damages_;
  absl::Status failure_;
  std::vector<Tensor> on_host_;   // by piece: itself, or for a GPU's a copy while it is filled
  std::vector<int64_t> missing_;  // by piece: elements
};

}  // namespace lt2
