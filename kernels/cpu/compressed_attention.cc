#include "kernels/compressed_attention.h"

#include "kernels/block_mean.h"
#include "kernels/cpu/group_attention.h"
#include "kernels/cpu/row_parts.h"

namespace lt2::cpu {
namespace {

// Queries of one thread's turn.
constexpr int64_t kQueries = 16;

// Rows of key/value head g from row `first` on.
template <class T>
GroupRows<T> RowsOf(const Tensor& k_CGD, const Tensor& v_CGE, int64_t first, int64_t g,
                    int64_t heads, double scale) {
  const int64_t G = k_CGD.dim(1), D = k_CGD.dim(2), E = v_CGE.dim(2);
  return {.k = k_CGD.data<T>() + (first * G + g) * D,
          .v = v_CGE.data<T>() + (first * G + g) * E,
          .k_stride = G * D,
          .v_stride = G * E,
          .D = D,
          .E = E,
          .heads = heads / G,
          .scale = static_cast<T>(scale)};
}

template <class T>
void ForwardQuery(const CompressedAttentionForwardArgs& args, int64_t token, int64_t g) {
  const int64_t position = args.documents.positions().data<int32_t>()[token];
  const int64_t block = args.options.block;
  const int64_t row = (token - args.documents.query_begin()) * args.k_CGD.dim(1) + g;
  const GroupRows<T> group = RowsOf<T>(args.k_CGD, args.v_CGE, BlockRow(token - position, block), g,
                                       args.q_NHD.dim(1), args.options.scale);
  GroupForward(
      group, args.q_NHD.data<T>() + row * group.heads * group.D,
      [&](const auto& emit) { emit(0, (position + 1) / block); },
      args.o_NHE.data<T>() + row * group.heads * group.E,
      args.lse_NH.data<T>() + row * group.heads);
}

// The gradients of query `token` through the rows [low, high) of its document.
template <class T>
void BackwardQuery(const CompressedAttentionBackwardArgs& args, int64_t token, int64_t g,
                   int64_t low, int64_t high, bool to_query, bool to_rows) {
  const int64_t position = args.documents.positions().data<int32_t>()[token];
  const int64_t block = args.options.block, first = BlockRow(token - position, block);
  const int64_t G = args.k_CGD.dim(1), row = (token - args.documents.query_begin()) * G + g;
  const GroupRows<T> group =
      RowsOf<T>(args.k_CGD, args.v_CGE, first, g, args.q_NHD.dim(1), args.options.scale);
  const auto rows_of = [&](const Tensor& gradient) -> T* {
    if (!to_rows || !gradient.defined()) return nullptr;
    return gradient.data<T>() + (first * G + g) * gradient.dim(2);
  };
  const int64_t D = group.heads * group.D, E = group.heads * group.E;
  const bool dq = to_query && args.dq_NHD.defined();
  GroupBackward(group,
                {.q = args.q_NHD.data<T>() + row * D,
                 .dout = args.do_NHE.data<T>() + row * E,
                 .o = args.o_NHE.data<T>() + row * E,
                 .lse = args.lse_NH.data<T>() + row * group.heads,
                 .dq = dq ? args.dq_NHD.data<T>() + row * D : nullptr,
                 .accumulate_dq = args.accumulate_dq,
                 .dk = rows_of(args.dk_CGD),
                 .dv = rows_of(args.dv_CGE)},
                [&](const auto& emit) {
                  const int64_t end = std::min((position + 1) / block, high);
                  if (low < end) emit(low, end - low);
                });
}

template <class T>
void Backward(const CompressedAttentionBackwardArgs& args) {
  const int32_t* cu = args.documents.cu_seqlens().data<int32_t>();
  const int64_t G = args.k_CGD.dim(1), block = args.options.block;
  // Rows of no block too.
  if (args.dk_CGD.defined() && !args.accumulate_dk) args.dk_CGD.Zero();
  if (args.dv_CGE.defined() && !args.accumulate_dv) args.dv_CGE.Zero();
  const std::vector<RowPart> parts = PartsOf(
      args.documents, [&](int64_t length) { return length / block; }, /*least=*/64);
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (size_t p = 0; p < parts.size(); ++p) {
    for (int64_t g = 0; g < G; ++g) {
      const RowPart& part = parts[p];
      const int64_t begin = cu[part.document], seen = part.whole ? 0 : part.low * block;
      const TokenRange queries = QueriesIn(args.documents, {begin + seen, cu[part.document + 1]});
      for (int64_t token = queries.begin; token < queries.end; ++token) {
        BackwardQuery<T>(args, token, g, part.low, part.high, part.whole, true);
      }
    }
  }
  if (!args.dq_NHD.defined()) return;
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (size_t p = 0; p < parts.size(); ++p) {
    for (int64_t g = 0; g < G; ++g) {
      const RowPart& part = parts[p];
      if (part.whole) continue;
      const int64_t begin = cu[part.document], length = cu[part.document + 1] - begin;
      const int64_t high = part.high == length / block ? length : part.high * block;
      const TokenRange queries =
          QueriesIn(args.documents, {begin + part.low * block, begin + high});
      for (int64_t token = queries.begin; token < queries.end; ++token) {
        BackwardQuery<T>(args, token, g, 0, length, true, false);
      }
    }
  }
}

template <class T>
void Step(const CompressedAttentionStepArgs& args) {
  const int64_t B = args.q_BHD.dim(0), H = args.q_BHD.dim(1), R = args.k_BRGD.dim(1);
  const int64_t G = args.k_BRGD.dim(2), D = args.k_BRGD.dim(3), E = args.v_BRGE.dim(3);
  const Tensor k = args.k_BRGD.Reshape({B * R, G, D}), v = args.v_BRGE.Reshape({B * R, G, E});
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t g = 0; g < G; ++g) {
      const int64_t blocks = args.lengths_B.data<int32_t>()[b] / args.options.block;
      CHECK(blocks >= 0 && blocks <= R) << blocks << " blocks of capacity " << R;
      const GroupRows<T> group = RowsOf<T>(k, v, b * R, g, H, args.options.scale);
      const int64_t row = b * G + g;
      GroupForward<T>(
          group, args.q_BHD.data<T>() + row * group.heads * D,
          [&](const auto& emit) { emit(0, blocks); }, args.o_BHE.data<T>() + row * group.heads * E,
          nullptr);
    }
  }
}

}  // namespace

void CompressedAttentionForward(Stream&, const CompressedAttentionForwardArgs& args) {
  const int64_t begin = args.documents.query_begin(), end = args.documents.query_end();
  const int64_t G = args.k_CGD.dim(1);
  DispatchFloat(args.q_NHD.dtype(), [&]<class T>() {
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t first = begin; first < end; first += kQueries) {
      for (int64_t g = 0; g < G; ++g) {
        for (int64_t token = first; token < std::min(end, first + kQueries); ++token) {
          ForwardQuery<T>(args, token, g);
        }
      }
    }
  });
}

void CompressedAttentionBackward(Stream&, const CompressedAttentionBackwardArgs& args) {
  DispatchFloat(args.q_NHD.dtype(), [&]<class T>() { Backward<T>(args); });
}

void CompressedAttentionStep(Stream&, const CompressedAttentionStepArgs& args) {
  DispatchFloat(args.q_BHD.dtype(), [&]<class T>() { Step<T>(args); });
}

}  // namespace lt2::cpu
