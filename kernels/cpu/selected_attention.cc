#include "kernels/selected_attention.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/group_attention.h"
#include "kernels/cpu/row_parts.h"

namespace lt2::cpu {
namespace {

// Queries of one thread's turn.
constexpr int64_t kQueries = 16;

// The runs of a list's rows in [low, high), rows being counted from the document's start.
template <class Emit>
void ForEachRun(const int32_t* blocks, int64_t count, int64_t block, int64_t low, int64_t high,
                const Emit& emit) {
  for (int64_t s = 0; s < count; ++s) {
    if (blocks[s] < 0) continue;
    const int64_t begin = std::max(blocks[s] * block, low);
    const int64_t end = std::min((blocks[s] + 1) * block, high);
    if (begin < end) emit(begin, end - begin);
  }
}

// Rows of key/value head g of the document that begins at token `begin`.
template <class T, class Args>
GroupRows<T> RowsOf(const Args& args, int64_t begin, int64_t g) {
  const int64_t G = args.k_NGD.dim(1), D = args.k_NGD.dim(2), E = args.v_NGE.dim(2);
  return {.k = args.k_NGD.template data<T>() + (begin * G + g) * D,
          .v = args.v_NGE.template data<T>() + (begin * G + g) * E,
          .k_stride = G * D,
          .v_stride = G * E,
          .D = D,
          .E = E,
          .heads = args.q_NHD.dim(1) / G,
          .scale = static_cast<T>(args.options.scale)};
}

template <class T>
void ForwardQuery(const SelectedAttentionForwardArgs& args, int64_t token, int64_t g) {
  const int64_t position = args.documents.positions().data<int32_t>()[token];
  const int64_t G = args.k_NGD.dim(1), S = args.blocks_NGS.dim(2);
  const GroupRows<T> group = RowsOf<T>(args, token - position, g);
  const int64_t row = (token - args.documents.query_begin()) * G + g;
  const int32_t* blocks = args.blocks_NGS.data<int32_t>() + row * S;
  GroupForward(
      group, args.q_NHD.data<T>() + row * group.heads * group.D,
      [&](const auto& emit) { ForEachRun(blocks, S, args.options.block, 0, position + 1, emit); },
      args.o_NHE.data<T>() + row * group.heads * group.E,
      args.lse_NH.data<T>() + row * group.heads);
}

// The gradients of query `token` through the rows [low, high) of its document.
template <class T>
void BackwardQuery(const SelectedAttentionBackwardArgs& args, int64_t token, int64_t g, int64_t low,
                   int64_t high, bool to_query, bool to_rows) {
  const int64_t position = args.documents.positions().data<int32_t>()[token];
  const int64_t begin = token - position;
  const int64_t G = args.k_NGD.dim(1), S = args.blocks_NGS.dim(2);
  const GroupRows<T> group = RowsOf<T>(args, begin, g);
  const int64_t row = (token - args.documents.query_begin()) * G + g, heads = group.heads;
  const auto rows_of = [&](const Tensor& gradient) -> T* {
    if (!to_rows || !gradient.defined()) return nullptr;
    return gradient.data<T>() + (begin * G + g) * gradient.dim(2);
  };
  const bool dq = to_query && args.dq_NHD.defined();
  GroupBackward(group,
                {.q = args.q_NHD.data<T>() + row * heads * group.D,
                 .dout = args.do_NHE.data<T>() + row * heads * group.E,
                 .o = args.o_NHE.data<T>() + row * heads * group.E,
                 .lse = args.lse_NH.data<T>() + row * heads,
                 .dq = dq ? args.dq_NHD.data<T>() + row * heads * group.D : nullptr,
                 .accumulate_dq = args.accumulate_dq,
                 .dk = rows_of(args.dk_NGD),
                 .dv = rows_of(args.dv_NGE)},
                [&](const auto& emit) {
                  ForEachRun(args.blocks_NGS.data<int32_t>() + row * S, S, args.options.block, low,
                             std::min(high, position + 1), emit);
                });
}

template <class T>
void Backward(const SelectedAttentionBackwardArgs& args) {
  const int32_t* cu = args.documents.cu_seqlens().data<int32_t>();
  const int64_t G = args.k_NGD.dim(1);
  const std::vector<RowPart> parts = PartsOf(
      args.documents, [](int64_t length) { return length; }, /*least=*/512);
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (size_t p = 0; p < parts.size(); ++p) {
    for (int64_t g = 0; g < G; ++g) {
      const RowPart& part = parts[p];
      const int64_t begin = cu[part.document];
      if (!args.accumulate_dk) ZeroRows<T>(args.dk_NGD, begin + part.low, begin + part.high, g);
      if (!args.accumulate_dv) ZeroRows<T>(args.dv_NGE, begin + part.low, begin + part.high, g);
      const TokenRange queries =
          QueriesIn(args.documents, {begin + part.low, cu[part.document + 1]});
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
      const int64_t begin = cu[part.document];
      const TokenRange queries = QueriesIn(args.documents, {begin + part.low, begin + part.high});
      for (int64_t token = queries.begin; token < queries.end; ++token) {
        BackwardQuery<T>(args, token, g, 0, token + 1 - begin, true, false);
      }
    }
  }
}

template <class T>
void Step(const SelectedAttentionStepArgs& args) {
  const int64_t B = args.q_BHD.dim(0), H = args.q_BHD.dim(1), D = args.q_BHD.dim(2);
  const int64_t C = args.k_BCGD.dim(1), G = args.k_BCGD.dim(2), E = args.v_BCGE.dim(3);
  const int64_t S = args.blocks_BGS.dim(2);
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t g = 0; g < G; ++g) {
      const int64_t length = args.lengths_B.data<int32_t>()[b];
      CHECK(length >= 0 && length <= C) << "length " << length << " of capacity " << C;
      const GroupRows<T> group{.k = args.k_BCGD.data<T>() + (b * C * G + g) * D,
                               .v = args.v_BCGE.data<T>() + (b * C * G + g) * E,
                               .k_stride = G * D,
                               .v_stride = G * E,
                               .D = D,
                               .E = E,
                               .heads = H / G,
                               .scale = static_cast<T>(args.options.scale)};
      const int64_t row = b * G + g;
      GroupForward<T>(
          group, args.q_BHD.data<T>() + row * group.heads * D,
          [&](const auto& emit) {
            ForEachRun(args.blocks_BGS.data<int32_t>() + row * S, S, args.options.block, 0, length,
                       emit);
          },
          args.o_BHE.data<T>() + row * group.heads * E, nullptr);
    }
  }
}

}  // namespace

void SelectedAttentionForward(Stream&, const SelectedAttentionForwardArgs& args) {
  const int64_t begin = args.documents.query_begin(), end = args.documents.query_end();
  const int64_t G = args.k_NGD.dim(1);
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

void SelectedAttentionBackward(Stream&, const SelectedAttentionBackwardArgs& args) {
  DispatchFloat(args.q_NHD.dtype(), [&]<class T>() { Backward<T>(args); });
}

void SelectedAttentionStep(Stream&, const SelectedAttentionStepArgs& args) {
  DispatchFloat(args.q_BHD.dtype(), [&]<class T>() { Step<T>(args); });
}

}  // namespace lt2::cpu
