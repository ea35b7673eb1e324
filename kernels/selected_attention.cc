#include "kernels/selected_attention.h"

#include <algorithm>

#include "kernels/elementwise.h"

namespace lt2 {
namespace {

double BytesOf(std::initializer_list<const Tensor*> tensors) {
  double bytes = 0;
  for (const Tensor* tensor : tensors) bytes += tensor->defined() ? tensor->bytes() : 0;
  return bytes;
}

void CheckShapes(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& blocks,
                 const SelectedAttentionOptions& options, const Documents& documents) {
  for (const Tensor* x : {&q, &k, &v, &blocks}) CHECK_EQ(x->shape().rank(), 3);
  CHECK_EQ(q.dim(0), documents.query_tokens());
  CHECK_EQ(blocks.dim(0), q.dim(0));
  CHECK_EQ(k.dim(0), documents.tokens());
  CHECK_EQ(v.dim(0), k.dim(0));
  CHECK_EQ(k.dim(2), q.dim(2)) << "head sizes of q and k";
  CHECK_EQ(v.dim(1), k.dim(1)) << "heads of k and v";
  CHECK_EQ(blocks.dim(1), k.dim(1)) << "lists and heads of k";
  CHECK_EQ(q.dim(1) % k.dim(1), 0) << "query heads over key/value heads";
  CHECK_GE(options.block, 1);
}

}  // namespace

double SelectedPairs(int64_t length, int64_t selected, int64_t block) {
  const double ramp = static_cast<double>(std::min(length, selected * block));  // all is selected
  const int64_t beyond = std::max<int64_t>(0, length - selected * block);
  const double whole = static_cast<double>(beyond / block),
               rest = static_cast<double>(beyond % block);
  const double width = static_cast<double>(block),
               before = (static_cast<double>(selected) - 1) * width;
  return ramp * (ramp + 1) / 2 + whole * (width * before + width * (width + 1) / 2) +
         rest * before + rest * (rest + 1) / 2;
}

double SelectedPairs(const Documents& documents, int64_t selected, int64_t block) {
  return SumOverQueries(documents, [&](double queries) {
    return SelectedPairs(static_cast<int64_t>(queries), selected, block);
  });
}

Cost CostOf(const SelectedAttentionForwardArgs& args) {
  const double pairs =
      SelectedPairs(args.documents, args.blocks_NGS.dim(2), args.options.block) * args.q_NHD.dim(1);
  return {.flops = 2 * pairs * (args.q_NHD.dim(2) + args.v_NGE.dim(2)),
          .bytes = BytesOf({&args.q_NHD, &args.k_NGD, &args.v_NGE, &args.blocks_NGS, &args.o_NHE,
                            &args.lse_NH})};
}

Cost CostOf(const SelectedAttentionBackwardArgs& args) {
  const double pairs =
      SelectedPairs(args.documents, args.blocks_NGS.dim(2), args.options.block) * args.q_NHD.dim(1);
  return {
      .flops = 2 * pairs * (3 * args.q_NHD.dim(2) + 2 * args.v_NGE.dim(2)),
      .bytes = BytesOf({&args.do_NHE, &args.q_NHD, &args.k_NGD, &args.v_NGE, &args.o_NHE,
                        &args.lse_NH, &args.blocks_NGS, &args.dq_NHD, &args.dk_NGD, &args.dv_NGE})};
}

// Full lists: lengths are the device's.
Cost CostOf(const SelectedAttentionStepArgs& args) {
  const double keys = std::min<double>(
      args.k_BCGD.dim(1), static_cast<double>(args.blocks_BGS.dim(2) * args.options.block));
  const double D = args.k_BCGD.dim(3), E = args.v_BCGE.dim(3), B = args.q_BHD.dim(0);
  return {.flops = 2 * B * args.q_BHD.dim(1) * keys * (D + E),
          .bytes = B * keys * args.k_BCGD.dim(2) * (D + E) * SizeOf(args.k_BCGD.dtype()) +
                   BytesOf({&args.q_BHD, &args.blocks_BGS, &args.o_BHE})};
}

Var SelectedAttention(Tape& tape, Var q_NHD, Var k_NGD, Var v_NGE, const Tensor& blocks_NGS,
                      const SelectedAttentionOptions& options, const Documents& documents,
                      Tensor* lse_NH) {
  const Tensor &q = q_NHD.value, &k = k_NGD.value, &v = v_NGE.value;
  CheckShapes(q, k, v, blocks_NGS, options, documents);
  std::vector<Tensor> kept = tape.Kept([&] {
    Tensor o = Tensor::Empty({q.dim(0), q.dim(1), v.dim(2)}, q.dtype(), tape.device());
    Tensor lse = Tensor::Empty({q.dim(0), q.dim(1)}, AccumulatorOf(q.dtype()), tape.device());
    SelectedAttentionForward(tape.stream(), {.q_NHD = q,
                                             .k_NGD = k,
                                             .v_NGE = v,
                                             .blocks_NGS = blocks_NGS,
                                             .o_NHE = o,
                                             .lse_NH = lse,
                                             .options = options,
                                             .documents = documents});
    return std::vector<Tensor>{o, lse};
  });
  if (lse_NH) *lse_NH = kept[1];
  auto backward = [&stream = tape.stream(), q = tape.Save(q_NHD), k = tape.Save(k_NGD),
                   v = tape.Save(v_NGE), blocks_NGS, o = kept[0], lse = kept[1], options,
                   documents](std::span<const Tensor> dy, std::span<GradSlot> dx) {
    if (!dy[0].defined()) return;
    // Slot by slot: asked before to() makes it defined, and k and v may be one value.
    const bool add_dq = dx[0].accumulate();
    const Tensor dq = dx[0].to();
    const bool add_dk = dx[1].accumulate();
    const Tensor dk = dx[1].to();
    const bool add_dv = dx[2].accumulate();
    const Tensor sum_dv = dx[2].to();
    // A backend may write dk and dv in any order.
    const bool one = sum_dv.defined() && dk.defined() && sum_dv.SharesStorageWith(dk);
    const Tensor dv = one ? Tensor::Empty(dk.shape(), dk.dtype(), dk.device()) : sum_dv;
    SelectedAttentionBackward(stream, {.do_NHE = dy[0],
                                       .q_NHD = q.get(),
                                       .k_NGD = k.get(),
                                       .v_NGE = v.get(),
                                       .o_NHE = o,
                                       .lse_NH = lse,
                                       .blocks_NGS = blocks_NGS,
                                       .dq_NHD = dq,
                                       .dk_NGD = dk,
                                       .dv_NGE = dv,
                                       .accumulate_dq = add_dq,
                                       .accumulate_dk = add_dk,
                                       .accumulate_dv = add_dv && !one,
                                       .options = options,
                                       .documents = documents});
    if (one) AccumulateInto(stream, dk, dv);
  };
  return tape.Record({q_NHD, k_NGD, v_NGE}, kept[0],
                     {.name = "selected_attention", .input_grad = std::move(backward)});
}

}  // namespace lt2
