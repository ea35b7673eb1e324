// This rank's part of layers that a tensor-parallel group divides by heads, hidden channels and
// rows of the vocabulary (Megatron-LM, arXiv 1909.08053, 2205.05198), and the operators on a tape
// that lead into such a layer and out of it. Without a shard (null) they return their input.
//
// Between layers every rank has all tokens, or with `sequence` its share of them: rank r those from
// Begin(r). Within a layer every rank reads all tokens and computes a summand of the output.
#pragma once

#include "core/tape.h"
#include "kernels/rank_link.h"
#include "kernels/row_sums.h"
#include "parallel/communicator.h"

namespace lt2 {

class TensorShard final : public RankLink, public RowSums {
 public:
  // Rows of each rank in a piece that travels while products go on with the next one, at least, and
  // pieces at most.
  struct Pieces {
    int64_t least_rows = 1024;
    int64_t most = 4;
  };
  // `tokens`: those that layers read. The communicator must outlive it.
  TensorShard(Communicator& tp, bool sequence, int64_t tokens)
      : TensorShard(tp, sequence, tokens, Pieces()) {}
  TensorShard(Communicator& tp, bool sequence, int64_t tokens, const Pieces& limits);

  int rank() const override { return tp_.rank(); }
  int size() const override { return tp_.size(); }
  void Sum(const Tensor& x) override;
  void Max(const Tensor& x) override;

  // With `sequence`: what LeaveLayer does, of a layer's last product, in pieces. Each piece has
  // some rows of every rank, so that all of them send and receive all the time.
  Tensor SumRows(int64_t columns, const Tensor& like, const MakeRows& make) override;
  Tensor GatherRows(const Tensor& own, const UseRows& use) override;
  int64_t rows() const override { return tokens_; }
  // What EnterLayer does, in pieces.
  Var EnterRows(Tape& tape, const Var& own, const UseRows& use) override;

  Communicator& tp() const { return tp_; }
  bool sequence() const { return sequence_; }
  int64_t tokens() const { return tokens_; }
  int64_t Begin(int rank) const;  // 0 … tokens: of the shares between layers, where there are any

 private:
  struct Piece;
  int64_t pieces() const;
  int64_t Begin(int rank, int64_t piece) const;  // of the piece's rows of a rank
  Piece EmptyPiece(int64_t piece, int64_t columns, const Tensor& like) const;
  Tensor OwnRows(const Tensor& own, int64_t piece) const;
  void GatherPieces(const Tensor& own, const Tensor& all, const UseRows& use, const char* label);
  // fn(begin, end, where they are in the piece) for its rows that follow each other.
  template <class Fn>
  void ForEachRun(int64_t piece, const Fn& fn) const;

  Communicator& tp_;
  const bool sequence_;
  const int64_t tokens_;
  const Pieces limits_;
};

// What lies between layers -> all tokens, read by a layer that is divided: gradients are summed
// over ranks, while weights' gradients are made of what the layer's products read.
Var EnterLayer(Tape& tape, const Var& x_ND, TensorShard* shard);
// The summands of a layer's output -> their sum, as it lies between layers: in their own memory
// where the caller gives them away.
Var LeaveLayer(Tape& tape, Var y_ND, TensorShard* shard);
// What lies between layers -> all tokens, read by what every rank computes alike: gradients, the
// same on all ranks, go back as they are.
Var GatherShares(Tape& tape, const Var& x, TensorShard* shard);
// The inverse: the own share of what every rank has. Gradients are gathered.
Var OwnShare(Tape& tape, const Var& x, TensorShard* shard);

}  // namespace lt2
