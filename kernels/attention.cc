#include "kernels/attention.h"

#include <algorithm>

#include "kernels/attention_workspace.h"

namespace lt2 {
namespace {

// Of the first `length` queries of a document.
double PairsOf(double length, double window) {
  const double ramp = window > 0 ? std::min(length, window) : length;  // queries that see all
  return ramp * (ramp + 1) / 2 + (length - ramp) * ramp;
}

double BytesOf(std::initializer_list<const Tensor*> tensors) {
  double bytes = 0;
  for (const Tensor* tensor : tensors) bytes += tensor->defined() ? tensor->bytes() : 0;
  return bytes;
}

void CheckShapes(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                 const Documents& documents) {
  CHECK_EQ(q.shape().rank(), 3);
  CHECK_EQ(k.shape().rank(), 3);
  CHECK_EQ(v.shape().rank(), 3);
  CHECK_EQ(q.dim(0), documents.query_tokens());
  CHECK_EQ(k.dim(0), documents.tokens());
  CHECK_EQ(v.dim(0), k.dim(0));
  CHECK_EQ(k.dim(2), q.dim(2)) << "head sizes of q and k";
  CHECK_EQ(v.dim(1), k.dim(1)) << "heads of k and v";
  CHECK_EQ(q.dim(1) % k.dim(1), 0) << "query heads over key/value heads";
  CHECK_GE(options.window, 0);
}

}  // namespace

double VisiblePairs(const Documents& documents, int64_t window) {
  return SumOverQueries(documents, [&](double queries) { return PairsOf(queries, window); });
}

Cost CostOf(const AttentionForwardArgs& args) {
  const double pairs = VisiblePairs(args.documents, args.options.window) * args.q_NHD.dim(1);
  return {.flops = 2 * pairs * (args.q_NHD.dim(2) + args.v_NGE.dim(2)),
          .bytes = BytesOf({&args.q_NHD, &args.k_NGD, &args.v_NGE, &args.o_NHE, &args.lse_NH})};
}

Cost CostOf(const AttentionBackwardArgs& args) {
  const double pairs = VisiblePairs(args.documents, args.options.window) * args.q_NHD.dim(1);
  return {.flops = 2 * pairs * (3 * args.q_NHD.dim(2) + 2 * args.v_NGE.dim(2)),
          .bytes = BytesOf({&args.do_NHE, &args.q_NHD, &args.k_NGD, &args.v_NGE, &args.o_NHE,
                            &args.lse_NH, &args.dq_NHD, &args.dk_NGD, &args.dv_NGE})};
}

Var Attention(Tape& tape, Var q_NHD, Var k_NGD, Var v_NGE, const AttentionOptions& options,
              const Documents& documents, Tensor* lse_NH) {
  const Tensor &q = q_NHD.value, &k = k_NGD.value, &v = v_NGE.value;
  CheckShapes(q, k, v, options, documents);
  std::vector<Tensor> kept = tape.Kept([&] {
    Tensor o = Tensor::Empty({q.dim(0), q.dim(1), v.dim(2)}, q.dtype(), tape.device());
    Tensor lse = Tensor::Empty({q.dim(0), q.dim(1)}, AccumulatorOf(q.dtype()), tape.device());
    AttentionForward(tape.stream(), {.q_NHD = q,
                                     .k_NGD = k,
                                     .v_NGE = v,
                                     .o_NHE = o,
                                     .lse_NH = lse,
                                     .options = options,
                                     .documents = documents});
    return std::vector<Tensor>{o, lse};
  });
  if (lse_NH) *lse_NH = kept[1];
  auto backward = [&stream = tape.stream(), q = tape.Save(q_NHD), k = tape.Save(k_NGD),
                   v = tape.Save(v_NGE), o = kept[0], lse = kept[1], options,
                   documents](std::span<const Tensor> dy, std::span<GradSlot> dx) {
    if (!dy[0].defined()) return;
    // Asked before to() makes the gradients defined.
    const bool add_dq = dx[0].accumulate(), add_dk = dx[1].accumulate();
    const bool add_dv = dx[2].accumulate();
    const AttentionBackwardArgs args{.do_NHE = dy[0],
                                     .q_NHD = q.get(),
                                     .k_NGD = k.get(),
                                     .v_NGE = v.get(),
                                     .o_NHE = o,
                                     .lse_NH = lse,
                                     .dq_NHD = dx[0].to(),
                                     .dk_NGD = dx[1].to(),
                                     .dv_NGE = dx[2].to(),
                                     .accumulate_dq = add_dq,
                                     .accumulate_dk = add_dk,
                                     .accumulate_dv = add_dv,
                                     .options = options,
                                     .documents = documents};
    const Tensor counted = CountedWorkspace(args);
    AttentionBackward(stream, args);
  };
  return tape.Record({q_NHD, k_NGD, v_NGE}, kept[0],
                     {.name = "attention", .input_grad = std::move(backward)});
}

}  // namespace lt2
