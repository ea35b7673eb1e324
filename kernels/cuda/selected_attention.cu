#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/readers.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/selected_attention.h"

namespace lt2::cuda {
namespace {

// The visible tokens of the blocks that a query lists, counted from its document's first row.
struct ListedRows {
  const int32_t* blocks;
  int64_t count, block, begin, visible;

  __device__ int64_t operator()(int64_t n) const {
    const int64_t of_list = n / block, c = blocks[of_list];
    if (c < 0) return -1;
    const int64_t position = c * block + (n - of_list * block);
    return position < visible ? begin + position : -1;
  }
};

struct Selected {
  const int32_t *blocks_NGS, *positions;
  int64_t query_begin, G, S, block;

  __device__ ListedRows Of(int64_t i, int64_t g) const {
    const int64_t token = query_begin + i, position = positions[token];
    return {blocks_NGS + (i * G + g) * S, S * block, block, token - position, position + 1};
  }
  // The token and head with which a listed block begins, or -1: none, or nothing of it is visible.
  __device__ int64_t operator()(int64_t i, int64_t entry) const {
    const int64_t c = blocks_NGS[i * G * S + entry], token = query_begin + i;
    const int64_t position = positions[token];
    return c >= 0 && c * block <= position ? (token - position + c * block) * G + entry / S : -1;
  }
};

struct InCache {
  const int32_t *blocks_BGS, *lengths;
  int64_t G, S, block, capacity;

  __device__ ListedRows Of(int64_t b, int64_t g) const {
    if (lengths[b] < 0 || lengths[b] > capacity) __trap();
    return {blocks_BGS + (b * G + g) * S, S * block, block, b * capacity, lengths[b]};
  }
};

// The queries that list a token's block and stand at it or behind.
struct LaterReaders {
  struct List {
    const int32_t* entries;
    int64_t count, first, length;
    __device__ int64_t operator()(int64_t n) const {
      const int64_t query = entries[n] / length;
      return query >= first ? query : -1;
    }
  };
  ReaderLists lists;
  const int32_t* positions;
  int64_t query_begin, G, S, block;

  __device__ List Of(int64_t j, int64_t g) const {
    const int64_t bucket = (j - positions[j] % block) * G + g, begin = lists.offsets[bucket];
    return {lists.entries + begin, lists.offsets[bucket + 1] - begin, j - query_begin, G * S};
  }
};

template <class Args>
Selected SeenOf(const Args& args) {
  return {Data<int32_t>(args.blocks_NGS), Data<int32_t>(args.documents.positions()),
          args.documents.query_begin(),   args.blocks_NGS.dim(1),
          args.blocks_NGS.dim(2),         args.options.block};
}

template <class T>
void Backward(const Stream& stream, const SelectedAttentionBackwardArgs& args) {
  const char* name = "selected_attention backward";
  const int64_t M = args.q_NHD.dim(0), H = args.q_NHD.dim(1);
  const int64_t N = args.k_NGD.dim(0), G = args.k_NGD.dim(1), buckets = N * G;
  const Selected seen = SeenOf(args);
  const int64_t S = seen.S;
  const bool to_rows = args.dk_NGD.defined() || args.dv_NGE.defined();
  const int64_t counts = to_rows ? ReaderRuns(M, buckets) * buckets : 0;
  const int64_t listed = to_rows ? buckets + 1 + M * G * S : 0;
  static_assert(sizeof(float) == sizeof(int32_t));
  float* delta = ScratchFor<float>(stream, M * H + counts + listed);
  int32_t* of_runs = reinterpret_cast<int32_t*>(delta + M * H);
  const ReaderLists lists{of_runs + counts, of_runs + counts + buckets + 1};
  if (to_rows) SortReaders(stream, name, M, G * S, buckets, seen, of_runs, lists);
  RunRowsBackward(
      stream, name, RowAttentionOf<T>(args.q_NHD, args.k_NGD, args.v_NGE, args.options.scale), args,
      delta, seen, LaterReaders{lists, seen.positions, seen.query_begin, G, S, seen.block}, N,
      DataOrNull<T>(args.dk_NGD), DataOrNull<T>(args.dv_NGE));
}

}  // namespace

void SelectedAttentionForward(Stream& stream, const SelectedAttentionForwardArgs& args) {
  const Selected seen = SeenOf(args);
  DispatchType("selected_attention", args.q_NHD.dtype(), [&]<class T>() {
    RunRowsForward(stream, "selected_attention",
                   RowAttentionOf<T>(args.q_NHD, args.k_NGD, args.v_NGE, args.options.scale), seen,
                   Data<T>(args.o_NHE), Data<float>(args.lse_NH));
  });
}

void SelectedAttentionBackward(Stream& stream, const SelectedAttentionBackwardArgs& args) {
  if (args.q_NHD.size() == 0) return;
  DispatchType("selected_attention", args.q_NHD.dtype(),
               [&]<class T>() { Backward<T>(stream, args); });
}

void SelectedAttentionStep(Stream& stream, const SelectedAttentionStepArgs& args) {
  const InCache seen{Data<int32_t>(args.blocks_BGS),
                     Data<int32_t>(args.lengths_B),
                     args.blocks_BGS.dim(1),
                     args.blocks_BGS.dim(2),
                     args.options.block,
                     args.k_BCGD.dim(1)};
  DispatchType("selected_attention_step", args.q_BHD.dtype(), [&]<class T>() {
    RunRowsForward(stream, "selected_attention_step",
                   RowAttentionOf<T>(args.q_BHD, args.k_BCGD, args.v_BCGE, args.options.scale),
                   seen, Data<T>(args.o_BHE), static_cast<float*>(nullptr));
  });
}

}  // namespace lt2::cuda
