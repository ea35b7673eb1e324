// A micro-batch as kernels read it: this rank's tokens and targets, and where documents begin.
#pragma once

#include <memory>

#include "core/upload.h"
#include "data/loader.h"
#include "parallel/context_shard.h"

namespace lt2 {

class LoadedBatch {
 public:
  // Of `tokens` tokens with at most `max_documents` documents, which the ranks of `cp` share.
  LoadedBatch(Communicator& cp, int64_t tokens, int64_t max_documents, Device device,
              StateExchange exchange);

  // Ranks of a context-parallel group get the same batch and take their tokens of it. Its memory is
  // the device's of a fixed place, so that a recorded step may be repeated with others.
  void Load(const Batch& batch);

  const Tensor& ids_N() const { return ids_N_; }
  const Tensor& targets_N() const { return targets_N_; }
  int64_t tokens() const { return ids_N_.size(); }
  const Documents& documents() const { return shard_ ? shard_->documents() : documents_; }
  ContextShard* shard() const { return shard_.get(); }  // null: all tokens are here

 private:
  const int64_t row_tokens_;
  std::unique_ptr<ContextShard> shard_;
  Upload tokens_2N_;  // ids, then targets
  Tensor ids_N_, targets_N_;
  Documents documents_;
};

}  // namespace lt2
