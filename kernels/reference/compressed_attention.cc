#include "kernels/compressed_attention.h"

#include "kernels/block_mean.h"
#include "kernels/reference/listed_attention.h"

namespace lt2::reference {
namespace {

template <class Args>
auto RowsOf(const Args& args) {
  return [&args](int64_t i, int64_t) {
    const int64_t token = args.documents.query_begin() + i;
    const int64_t position = args.documents.positions().template data<int32_t>()[token];
    const int64_t first = BlockRow(token - position, args.options.block);
    std::vector<int64_t> rows;
    for (int64_t c = 0; (c + 1) * args.options.block <= position + 1; ++c) {
      rows.push_back(first + c);
    }
    return rows;
  };
}

}  // namespace

void CompressedAttentionForward(Stream&, const CompressedAttentionForwardArgs& args) {
  ListedForward({args.q_NHD, args.k_CGD, args.v_CGE, args.options.scale}, RowsOf(args), args.o_NHE,
                args.lse_NH);
}

void CompressedAttentionBackward(Stream&, const CompressedAttentionBackwardArgs& args) {
  double* dq = StartGradient(args.dq_NHD, args.accumulate_dq);
  double* dk = StartGradient(args.dk_CGD, args.accumulate_dk);
  double* dv = StartGradient(args.dv_CGE, args.accumulate_dv);
  ListedBackward({args.q_NHD, args.k_CGD, args.v_CGE, args.options.scale}, RowsOf(args),
                 args.do_NHE, dq, dk, dv);
}

void CompressedAttentionStep(Stream&, const CompressedAttentionStepArgs& args) {
  const int64_t B = args.k_BRGD.dim(0), R = args.k_BRGD.dim(1), G = args.k_BRGD.dim(2);
  const auto rows = [&](int64_t b, int64_t) {
    const int64_t length = args.lengths_B.data<int32_t>()[b];
    CHECK(length >= 0 && length / args.options.block <= R) << "length " << length;
    std::vector<int64_t> listed;
    for (int64_t c = 0; c < length / args.options.block; ++c) listed.push_back(b * R + c);
    return listed;
  };
  ListedForward({args.q_BHD, args.k_BRGD.Reshape({B * R, G, args.k_BRGD.dim(3)}),
                 args.v_BRGE.Reshape({B * R, G, args.v_BRGE.dim(3)}), args.options.scale},
                rows, args.o_BHE, {});
}

}  // namespace lt2::reference
