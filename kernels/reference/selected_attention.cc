#include "kernels/selected_attention.h"

#include <set>

#include "kernels/reference/listed_attention.h"

namespace lt2::reference {
namespace {

// Tokens that one list shows to the query at `position`, as indices of its document.
std::set<int64_t> Visible(const int32_t* blocks, int64_t count, int64_t block, int64_t position) {
  std::set<int64_t> visible;
  for (int64_t s = 0; s < count; ++s) {
    if (blocks[s] < 0) continue;
    for (int64_t j = blocks[s] * block; j < (blocks[s] + 1) * block; ++j) {
      if (j <= position) visible.insert(j);
    }
  }
  return visible;
}

template <class Args>
auto RowsOf(const Args& args) {
  return [&args](int64_t i, int64_t g) {
    const int64_t G = args.blocks_NGS.dim(1), S = args.blocks_NGS.dim(2);
    const int64_t token = args.documents.query_begin() + i;
    const int64_t position = args.documents.positions().template data<int32_t>()[token];
    std::vector<int64_t> rows;
    for (int64_t j : Visible(args.blocks_NGS.template data<int32_t>() + (i * G + g) * S, S,
                             args.options.block, position)) {
      rows.push_back(token - position + j);
    }
    return rows;
  };
}

}  // namespace

void SelectedAttentionForward(Stream&, const SelectedAttentionForwardArgs& args) {
  ListedForward({args.q_NHD, args.k_NGD, args.v_NGE, args.options.scale}, RowsOf(args), args.o_NHE,
                args.lse_NH);
}

void SelectedAttentionBackward(Stream&, const SelectedAttentionBackwardArgs& args) {
  double* dq = StartGradient(args.dq_NHD, args.accumulate_dq);
  double* dk = StartGradient(args.dk_NGD, args.accumulate_dk);
  double* dv = StartGradient(args.dv_NGE, args.accumulate_dv);
  ListedBackward({args.q_NHD, args.k_NGD, args.v_NGE, args.options.scale}, RowsOf(args),
                 args.do_NHE, dq, dk, dv);
}

void SelectedAttentionStep(Stream&, const SelectedAttentionStepArgs& args) {
  const int64_t B = args.k_BCGD.dim(0), C = args.k_BCGD.dim(1), G = args.k_BCGD.dim(2);
  const int64_t S = args.blocks_BGS.dim(2);
  const auto rows = [&](int64_t b, int64_t g) {
    const int64_t length = args.lengths_B.data<int32_t>()[b];
    CHECK(length >= 0 && length <= C) << "length " << length << " of capacity " << C;
    std::vector<int64_t> listed;
    for (int64_t j : Visible(args.blocks_BGS.data<int32_t>() + (b * G + g) * S, S,
                             args.options.block, length - 1)) {
      listed.push_back(b * C + j);
    }
    return listed;
  };
  ListedForward({args.q_BHD, args.k_BCGD.Reshape({B * C, G, args.k_BCGD.dim(3)}),
                 args.v_BCGE.Reshape({B * C, G, args.v_BCGE.dim(3)}), args.options.scale},
                rows, args.o_BHE, {});
}

}  // namespace lt2::reference
