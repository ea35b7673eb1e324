// What the passes over the chunks of a document (scan_states.cuh) work on, and what they leave for
// the kernels that see all chunks at once.
#pragma once

#include "kernels/cuda/scan_chunk.cuh"

namespace lt2::cuda {

// What belongs to chunk c of head h is number c heads + h.
template <class T>
struct ScanOperands {
  T *q_read, *k_write, *w;  // [64, padded K] each; w only of the delta rule
  T* attention;             // P [64, 64]
  float* decay;             // exp(G_C) [padded K]

  __device__ T* Rows(T* x, int64_t item, int k) const { return x + item * kPanel * PaddedWidth(k); }
  __device__ T* Square(T* x, int64_t item) const { return x + item * kPanel * kPanel; }
};

// Documents that a call is about. Those of a step that is repeated are known on the GPU alone.
enum class Which : uint8_t { kAll, kFirst, kLast };

struct ScanShape {
  const int32_t *chunks, *first_chunks;
  int documents;                              // how many there may be
  int tokens, heads, key_heads, k, v, width;  // width: of a state, v or v + 1
  Which which = Which::kAll;                  // of these alone anything is worked out

  // How many documents that is, and the i-th.
  int Count() const { return which == Which::kAll ? documents : 1; }
  __device__ int Document(int i) const { return which == Which::kLast ? Last() : i; }
  __device__ int Last() const { return PlaceOf(chunks, first_chunks[documents] - 1).document; }
  // A chunk's place, without rows where there is none or nothing is wanted of it.
  __device__ ChunkPlace Place(int chunk) const {
    ChunkPlace place = PlaceOf(chunks, chunk);
    if (which != Which::kAll && place.document != Document(0)) place.rows = 0;
    return place;
  }
};

// States [D, G, size], or [1, G, size] of the first or last document alone.
struct StatesOf {
  float* states = nullptr;
  Which which = Which::kAll;

  // Null: that one has none.
  __device__ float* At(const ScanShape& n, int document, int head, int64_t size) const {
    if (which != Which::kAll) {
      if (document != (which == Which::kFirst ? 0 : n.Last())) return nullptr;
      document = 0;
    }
    return states == nullptr ? nullptr : states + (int64_t{document} * n.heads + head) * size;
  }
};
inline Which OneOrAll(const Tensor& states, Which one) {
  return states.defined() && states.dim(0) == 1 ? one : Which::kAll;
}
inline StatesOf InitialStates(const Tensor& x) {
  return {DataOrNull<float>(x), OneOrAll(x, Which::kFirst)};
}
inline StatesOf LastStates(const Tensor& x) {
  return {DataOrNull<float>(x), OneOrAll(x, Which::kLast)};
}

// extra: columns of a state beyond those of a value.
inline ScanShape ScanShapeOf(const Tensor& q_NHK, const Tensor& v_NGV, const Documents& documents,
                             int extra = 0) {
  const auto size = [](int64_t n) { return static_cast<int>(n); };
  return {.chunks = Data<int32_t>(documents.chunks()),
          .first_chunks = Data<int32_t>(documents.first_chunks()),
          .documents = size(documents.capacity()),
          .tokens = size(v_NGV.dim(0)),
          .heads = size(v_NGV.dim(1)),
          .key_heads = size(q_NHK.dim(1)),
          .k = size(q_NHK.dim(2)),
          .v = size(v_NGV.dim(2)),
          .width = size(v_NGV.dim(2)) + extra};
}

// A document's chunks, which lie one after the other, without asking for each.
struct ChunksOf {
  int first, end, token, tokens;

  __device__ ChunksOf(const ScanShape& n, int document)
      : first(n.first_chunks[document]), end(n.first_chunks[document + 1]), token(0), tokens(0) {
    if (first == end) return;
    const ChunkPlace start = PlaceOf(n.chunks, first), last = PlaceOf(n.chunks, end - 1);
    token = start.token;
    tokens = last.token + last.rows - token;
  }
  __device__ ChunkPlace Place(int chunk) const {
    const int done = (chunk - first) * kPanel;
    return {0, token + done, min(kPanel, tokens - done)};
  }
};

template <class T>
struct ForwardStates {
  ScanShape shape;
  ScanOperands<T> operands;
  StatesOf initial, final;  // none: zero, not wanted
  T* states_CGKV;           // may be null
  ValueRows<T> values;      // the additive scans'; of the delta rule u_0, which u replaces
  T* u_NGV;                 // the same, to write
};

template <class T>
struct ReverseStates {
  ScanShape shape;
  ScanOperands<T> operands;
  StatesOf dfinal, dinitial;  // none: zero, not wanted
  bool accumulate;
  T* dstates_CGKV;
  ValueRows<T> d_o;
  T* du_NGV;  // the delta rule's: dU_0, which dU replaces
};

}  // namespace lt2::cuda
