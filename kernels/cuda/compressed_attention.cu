#include "kernels/compressed_attention.h"
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/block_rows.cuh"
#include "kernels/cuda/scratch.h"

namespace lt2::cuda {
namespace {

struct Run {
  int64_t count, first;
  __device__ int64_t operator()(int64_t n) const { return first + n; }
};

// The blocks that end at or before a query.
struct PastBlocks {
  const int32_t* positions;
  int64_t query_begin, block;

  __device__ Run Of(int64_t i, int64_t) const {
    const int64_t token = query_begin + i, position = positions[token];
    return {(position + 1) / block, BlockRow(token - position, block)};
  }
};

// The queries of a document from its block's last token on.
struct LaterQueries {
  const int32_t *positions, *cu_seqlens;
  int64_t tokens, query_begin, query_end, block, documents;  // documents: capacity

  __device__ Run Of(int64_t row, int64_t) const {
    const int64_t first = FirstToken(positions, tokens, block, row);
    if (first < 0) return {0, 0};
    // The first document that begins behind `first`; what lies beyond their number begins at
    // `tokens`.
    int64_t low = 0, high = documents;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (cu_seqlens[middle] > first) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    const int64_t begin = max(first + block - 1, query_begin);
    return {min(int64_t{cu_seqlens[low]}, query_end) - begin, begin - query_begin};
  }
};

struct CachedBlocks {
  const int32_t* lengths;
  int64_t block, R;

  __device__ Run Of(int64_t b, int64_t) const {
    const int64_t blocks = lengths[b] / block;
    if (lengths[b] < 0 || blocks > R) __trap();
    return {blocks, b * R};
  }
};

template <class T>
void Backward(const Stream& stream, const CompressedAttentionBackwardArgs& args) {
  const Documents& documents = args.documents;
  const int64_t block = args.options.block;
  const int32_t* positions = Data<int32_t>(documents.positions());
  float* delta = ScratchFor<float>(stream, args.q_NHD.dim(0) * args.q_NHD.dim(1));
  RunRowsBackward(
      stream, "compressed_attention backward",
      RowAttentionOf<T>(args.q_NHD, args.k_CGD, args.v_CGE, args.options.scale), args, delta,
      PastBlocks{positions, documents.query_begin(), block},
      LaterQueries{positions, Data<int32_t>(documents.cu_seqlens()), documents.tokens(),
                   documents.query_begin(), documents.query_end(), block, documents.capacity()},
      args.k_CGD.dim(0), DataOrNull<T>(args.dk_CGD), DataOrNull<T>(args.dv_CGE));
}

}  // namespace

void CompressedAttentionForward(Stream& stream, const CompressedAttentionForwardArgs& args) {
  const PastBlocks seen{Data<int32_t>(args.documents.positions()), args.documents.query_begin(),
                        args.options.block};
  DispatchType("compressed_attention", args.q_NHD.dtype(), [&]<class T>() {
    RunRowsForward(stream, "compressed_attention",
                   RowAttentionOf<T>(args.q_NHD, args.k_CGD, args.v_CGE, args.options.scale), seen,
                   Data<T>(args.o_NHE), Data<float>(args.lse_NH));
  });
}

void CompressedAttentionBackward(Stream& stream, const CompressedAttentionBackwardArgs& args) {
  if (args.q_NHD.size() == 0) return;
  DispatchType("compressed_attention", args.q_NHD.dtype(),
               [&]<class T>() { Backward<T>(stream, args); });
}

void CompressedAttentionStep(Stream& stream, const CompressedAttentionStepArgs& args) {
  const CachedBlocks seen{Data<int32_t>(args.lengths_B), args.options.block, args.k_BRGD.dim(1)};
  DispatchType("compressed_attention_step", args.q_BHD.dtype(), [&]<class T>() {
    RunRowsForward(stream, "compressed_attention_step",
                   RowAttentionOf<T>(args.q_BHD, args.k_BRGD, args.v_BRGE, args.options.scale),
                   seen, Data<T>(args.o_BHE), static_cast<float*>(nullptr));
  });
}

}  // namespace lt2::cuda
