#include "parallel/row_attention.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "kernels/attention_workspace.h"
#include "kernels/channel_range.h"
#include "kernels/first_token_mass.h"

namespace lt2 {
namespace {

// Heads [begin, end).
struct HeadRange {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
  // The query heads that read these, `each` of them one.
  HeadRange Queries(int64_t each) const { return {begin * each, end * each}; }
};

// The same on every rank.
std::vector<HeadRange> BlocksOf(const Tensor& k, const Tensor& v, int64_t query_heads,
                                const ContextShard& shard, const RowBlocks& least) {
  const int64_t heads = k.dim(1), row = shard.row_tokens();
  const int64_t bytes = (k.bytes() + v.bytes()) / k.dim(0) * row;
  const int64_t query_rows = row / shard.cp().size() * query_heads;
  const auto blocks = static_cast<int>(
      std::clamp<int64_t>(std::min(bytes / least.bytes, query_rows / least.query_rows), 1, heads));
  std::vector<HeadRange> ranges;
  for (int b = 0; b < blocks; ++b) {
    ranges.push_back({ShardBegin(heads, blocks, b), ShardBegin(heads, blocks, b + 1)});
  }
  return ranges;
}

Tensor ByRows(const Tensor& x) { return x.Reshape({x.dim(0), x.dim(1) * x.dim(2)}); }

Tensor EmptyHeads(const Tensor& like, int64_t rows, int64_t heads) {
  return Tensor::Empty({rows, heads, like.dim(2)}, like.dtype(), like.device());
}

// x [N, H, D] -> to [N, heads, D].
void TakeHeads(Stream& stream, const Tensor& x, HeadRange heads, const Tensor& to) {
  TakeChannels(stream, {.x_NW = ByRows(x), .y_NC = ByRows(to), .first = heads.begin * x.dim(2)});
}

// And back.
void PutHeads(Stream& stream, const Tensor& from, HeadRange heads, const Tensor& x, bool add) {
  PutChannels(stream, {.y_NC = ByRows(from),
                       .x_NW = ByRows(x),
                       .first = heads.begin * x.dim(2),
                       .accumulate_x = add});
}

// A gradient that is written block by block.
struct BlockedGradient {
  explicit BlockedGradient(GradSlot& slot) : add(slot.accumulate()), to(slot.to()) {}
  void Put(Stream& stream, const Tensor& rows, int64_t first_row, HeadRange heads) const {
    if (!to.defined()) return;
    PutHeads(stream, rows, heads, to.Rows(first_row, first_row + rows.dim(0)), add);
  }

  const bool add;  // to what is there
  const Tensor to;
};

// Tensors that come from other ranks.
struct Arriving {
  std::vector<Tensor> tensors;
  std::vector<Pending> pending;
  const std::vector<Tensor>& Wait() const {
    for (const Pending& each : pending) each.Wait();
    return tensors;
  }
};

// What forward and backward of a row have in common.
class RowAttender {
 public:
  RowAttender(Stream& stream, const AttentionOptions& options, ContextShard& shard,
              int64_t query_heads, const Tensor& k, const Tensor& v, const RowBlocks& least)
      : stream_(stream),
        options_(options),
        shard_(shard),
        heads_each_(query_heads / k.dim(1)),
        half_(shard.halves() ? shard.half() : shard.tokens()),
        blocks_(BlocksOf(k, v, query_heads, shard, least)) {
    if (shard.halves()) {
      parts_ = {shard.first_half(), shard.mirrored_half()};
    } else {
      parts_ = {shard.row()};
    }
  }

  // o of the queries here, then the log-sum-exp of each block's parts.
  std::vector<Tensor> Forward(const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& first_token_mass) const;
  // lse: Forward's.
  void Backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                const Tensor& o, std::span<const Tensor> lse, std::span<GradSlot> dx) const;

 private:
  // What a block reads: keys and values of the row, and rows of each part's queries.
  struct Block {
    HeadRange heads;
    Arriving keys_values;
    std::vector<Tensor> own;  // of the first part
    Arriving mirrored;        // of the second
    const std::vector<Tensor>& OfPart(size_t part) const {
      return part == 0 ? own : mirrored.tensors;
    }
  };

  // Works on the blocks in turn, while what the next one reads is brought. work(block, its index)
  // returns what is to be done once what it sent has come: after the next block's work is queued.
  template <class Work>
  void ForEachBlock(std::span<const Tensor> of_queries, const Tensor& k, const Tensor& v,
                    const Work& work) const;
  Block Bring(HeadRange heads, std::span<const Tensor> of_queries, const Tensor& k,
              const Tensor& v) const;
  // What the mirror rank gives for `mine`, `rows` of each.
  Arriving Swap(std::vector<Tensor> mine, int64_t rows, const char* label) const;
  // Elements of each rank's tokens.
  std::vector<int64_t> Counts(const Tensor& row) const;
  int64_t second_rows() const { return shard_.tokens() - half_; }

  Stream& stream_;
  const AttentionOptions options_;
  ContextShard& shard_;
  const int64_t heads_each_;      // query heads of a key/value head
  const int64_t half_;            // own queries that stay here
  std::vector<Documents> parts_;  // of these, and of those of the mirror rank
  const std::vector<HeadRange> blocks_;
};

std::vector<int64_t> RowAttender::Counts(const Tensor& row) const {
  std::vector<int64_t> counts;
  for (int r = 0; r < shard_.cp().size(); ++r) {
    counts.push_back((shard_.Begin(r + 1) - shard_.Begin(r)) * (row.size() / row.dim(0)));
  }
  return counts;
}

Arriving RowAttender::Swap(std::vector<Tensor> mine, int64_t rows, const char* label) const {
  Communicator& cp = shard_.cp();
  Arriving theirs;
  if (shard_.mirror() == cp.rank()) {
    theirs.tensors = std::move(mine);
    return theirs;
  }
  for (const Tensor& x : mine) {
    theirs.tensors.push_back(EmptyHeads(x, rows, x.dim(1)));
    theirs.pending.push_back(cp.ReceiveAsync(theirs.tensors.back(), shard_.mirror(), label));
    theirs.pending.push_back(cp.SendAsync(x, shard_.mirror(), label));
  }
  return theirs;
}

RowAttender::Block RowAttender::Bring(HeadRange heads, std::span<const Tensor> of_queries,
                                      const Tensor& k, const Tensor& v) const {
  Block block{.heads = heads};
  std::vector<Tensor> second;
  for (const Tensor& x : of_queries) {
    const HeadRange of_x = heads.Queries(heads_each_);
    const Tensor rows = of_x.size() == x.dim(1) ? x : EmptyHeads(x, x.dim(0), of_x.size());
    if (of_x.size() < x.dim(1)) TakeHeads(stream_, x, of_x, rows);
    block.own.push_back(rows.Rows(0, half_));
    second.push_back(rows.Rows(half_, rows.dim(0)));
  }
  if (parts_.size() == 2) {
    block.mirrored = Swap(std::move(second), parts_[1].query_tokens(), "mirrored queries");
  }
  const int64_t begin = shard_.begin(), end = begin + shard_.tokens();
  for (const auto& [own, label] : {std::pair(k, "gather keys"), std::pair(v, "gather values")}) {
    const Tensor row = EmptyHeads(own, shard_.row_tokens(), heads.size());
    TakeHeads(stream_, own, heads, row.Rows(begin, end));
    block.keys_values.tensors.push_back(row);
    block.keys_values.pending.push_back(shard_.cp().AllGatherAsync(row, Counts(row), label));
  }
  return block;
}

template <class Work>
void RowAttender::ForEachBlock(std::span<const Tensor> of_queries, const Tensor& k, const Tensor& v,
                               const Work& work) const {
  Block next = Bring(blocks_[0], of_queries, k, v);
  std::function<void()> finish_last = [] {};
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block block = std::move(next);
    if (i + 1 < blocks_.size()) next = Bring(blocks_[i + 1], of_queries, k, v);
    block.mirrored.Wait();
    block.keys_values.Wait();
    std::function<void()> finish = work(block, i);
    finish_last();
    finish_last = std::move(finish);
  }
  finish_last();
}

std::vector<Tensor> RowAttender::Forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                         const Tensor& first_token_mass) const {
  const Tensor o = EmptyHeads(v, q.dim(0), q.dim(1));
  std::vector<Tensor> made = {o};
  ForEachBlock(std::span(&q, 1), k, v, [&](const Block& block, size_t) {
    const std::vector<Tensor>& kv = block.keys_values.tensors;
    const HeadRange heads = block.heads.Queries(heads_each_);
    std::vector<Tensor> of_parts;
    for (size_t p = 0; p < parts_.size(); ++p) {
      const Tensor queries = block.OfPart(p)[0];
      const int64_t rows = queries.dim(0);
      const Tensor lse = Tensor::Empty({rows, heads.size()}, AccumulatorOf(q.dtype()), q.device());
      of_parts.push_back(EmptyHeads(v, rows, heads.size()));
      AttentionForward(stream_, {.q_NHD = queries,
                                 .k_NGD = kv[0],
                                 .v_NGE = kv[1],
                                 .o_NHE = of_parts[p],
                                 .lse_NH = lse,
                                 .options = options_,
                                 .documents = parts_[p]});
      if (first_token_mass.defined()) {
        FirstTokenMass(stream_, {.q_NHD = queries,
                                 .k_NGD = kv[0],
                                 .lse_NH = lse,
                                 .mass = first_token_mass,
                                 .options = options_,
                                 .documents = parts_[p]});
      }
      made.push_back(lse);
    }
    PutHeads(stream_, of_parts[0], heads, o.Rows(0, half_), false);
    Arriving second;
    if (parts_.size() == 2) {
      second = Swap({of_parts[1]}, second_rows(), "outputs of mirrored queries");
    }
    return [this, heads, o, second] {
      for (const Tensor& rows : second.Wait()) {
        PutHeads(stream_, rows, heads, o.Rows(half_, o.dim(0)), false);
      }
    };
  });
  return made;
}

void RowAttender::Backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& o, std::span<const Tensor> lse,
                           std::span<GradSlot> dx) const {
  const BlockedGradient dq(dx[0]), dk(dx[1]), dv(dx[2]);
  const std::vector<Tensor> of_queries = {q, o, dout};
  const int64_t begin = shard_.begin(), end = begin + shard_.tokens();
  ForEachBlock(of_queries, k, v, [&](const Block& block, size_t i) {
    const std::vector<Tensor>& kv = block.keys_values.tensors;
    const HeadRange heads = block.heads.Queries(heads_each_);
    const Tensor dk_row = EmptyHeads(kv[0], kv[0].dim(0), block.heads.size());
    const Tensor dv_row = EmptyHeads(kv[1], kv[1].dim(0), block.heads.size());
    std::vector<Tensor> of_parts(parts_.size());
    // As of parts that were recorded one after the other: back from the last one.
    for (size_t p = parts_.size(); p-- > 0;) {
      const std::vector<Tensor>& queries = block.OfPart(p);
      const bool add = p + 1 < parts_.size();
      of_parts[p] = EmptyHeads(q, queries[0].dim(0), heads.size());
      const AttentionBackwardArgs args{.do_NHE = queries[2],
                                       .q_NHD = queries[0],
                                       .k_NGD = kv[0],
                                       .v_NGE = kv[1],
                                       .o_NHE = queries[1],
                                       .lse_NH = lse[i * parts_.size() + p],
                                       .dq_NHD = of_parts[p],
                                       .dk_NGD = dk_row,
                                       .dv_NGE = dv_row,
                                       .accumulate_dk = add,
                                       .accumulate_dv = add,
                                       .options = options_,
                                       .documents = parts_[p]};
      const Tensor counted = CountedWorkspace(args);
      AttentionBackward(stream_, args);
    }
    Arriving second;
    if (parts_.size() == 2) {
      second = Swap({of_parts[1]}, second_rows(), "gradients of mirrored queries");
    }
    Arriving sums{.tensors = {dk_row, dv_row}};
    for (const auto& [row, label] : {std::pair(dk_row, "sum gradients of keys"),
                                     std::pair(dv_row, "sum gradients of values")}) {
      sums.pending.push_back(
          shard_.cp().ReduceScatterAsync(row, Counts(row), Reduction::kSum, label));
    }
    return [=, this, &dq, &dk, &dv, first = of_parts[0], of_keys = block.heads] {
      dq.Put(stream_, first, 0, heads);
      for (const Tensor& rows : second.Wait()) dq.Put(stream_, rows, half_, heads);
      const std::vector<Tensor>& rows = sums.Wait();
      dk.Put(stream_, rows[0].Rows(begin, end), 0, of_keys);
      dv.Put(stream_, rows[1].Rows(begin, end), 0, of_keys);
    };
  });
}

}  // namespace

Var RowAttention(Tape& tape, const Var& q_NHD, const Var& k_NGD, const Var& v_NGE,
                 const AttentionOptions& options, ContextShard& shard,
                 const Tensor& first_token_mass, const RowBlocks& least) {
  const Tensor &q = q_NHD.value, &k = k_NGD.value, &v = v_NGE.value;
  CHECK(!shard.cp().in_turn()) << "ranks that take turns attend to what was passed on";
  for (const Tensor* x : {&q, &k, &v}) {
    CHECK_EQ(x->shape().rank(), 3);
    CHECK_EQ(x->dim(0), shard.tokens());
  }
  CHECK_EQ(v.dim(1), k.dim(1)) << "heads of k and v";
  CHECK_EQ(q.dim(1) % k.dim(1), 0) << "query heads over key/value heads";
  const RowAttender attender(tape.stream(), options, shard, q.dim(1), k, v, least);
  const std::vector<Tensor> kept =
      tape.Kept([&] { return attender.Forward(q, k, v, first_token_mass); });
  auto backward = [attender, q = tape.Save(q_NHD), k = tape.Save(k_NGD), v = tape.Save(v_NGE),
                   kept](std::span<const Tensor> dy, std::span<GradSlot> dx) {
    attender.Backward(dy[0], q.get(), k.get(), v.get(), kept[0], std::span(kept).subspan(1), dx);
  };
  return tape.Record({q_NHD, k_NGD, v_NGE}, kept[0],
                     {.name = "attention", .input_grad = std::move(backward)});
}

}  // namespace lt2
