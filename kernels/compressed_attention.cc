#include "kernels/compressed_attention.h"

#include <algorithm>

#include "kernels/block_mean.h"

namespace lt2 {
namespace {

double BytesOf(std::initializer_list<const Tensor*> tensors) {
  double bytes = 0;
  for (const Tensor* tensor : tensors) bytes += tensor->defined() ? tensor->bytes() : 0;
  return bytes;
}

void CheckShapes(const Tensor& q, const Tensor& k, const Tensor& v,
                 const CompressedAttentionOptions& options, const Documents& documents) {
  for (const Tensor* x : {&q, &k, &v}) CHECK_EQ(x->shape().rank(), 3);
  CHECK_GE(options.block, 1);
  CHECK_EQ(q.dim(0), documents.query_tokens());
  CHECK_EQ(k.dim(0), BlockRows(documents.tokens(), options.block));
  CHECK_EQ(v.dim(0), k.dim(0));
  CHECK_EQ(k.dim(2), q.dim(2)) << "head sizes of q and k";
  CHECK_EQ(v.dim(1), k.dim(1)) << "heads of k and v";
  CHECK_EQ(q.dim(1) % k.dim(1), 0) << "query heads over key/value heads";
}

}  // namespace

// sum over t < length of ⌊(t + 1) / ℓ⌋: ℓ queries see each count below ⌊length / ℓ⌋.
double CompressedPairs(int64_t length, int64_t block) {
  const double whole = static_cast<double>(length / block);
  return static_cast<double>(block) * whole * (whole - 1) / 2 +
         whole * static_cast<double>(length % block + 1);
}

double CompressedPairs(const Documents& documents, int64_t block) {
  return SumOverQueries(documents, [&](double queries) {
    return CompressedPairs(static_cast<int64_t>(queries), block);
  });
}

Cost CostOf(const CompressedAttentionForwardArgs& args) {
  const double pairs =
      CompressedPairs(args.documents, args.options.block) * static_cast<double>(args.q_NHD.dim(1));
  return {.flops = 2 * pairs * static_cast<double>(args.q_NHD.dim(2) + args.v_CGE.dim(2)),
          .bytes = BytesOf({&args.q_NHD, &args.k_CGD, &args.v_CGE, &args.o_NHE, &args.lse_NH})};
}

Cost CostOf(const CompressedAttentionBackwardArgs& args) {
  const double pairs =
      CompressedPairs(args.documents, args.options.block) * static_cast<double>(args.q_NHD.dim(1));
  return {.flops = 2 * pairs * static_cast<double>(3 * args.q_NHD.dim(2) + 2 * args.v_CGE.dim(2)),
          .bytes = BytesOf({&args.do_NHE, &args.q_NHD, &args.k_CGD, &args.v_CGE, &args.o_NHE,
                            &args.lse_NH, &args.dq_NHD, &args.dk_CGD, &args.dv_CGE})};
}

// Full caches: lengths are the device's.
Cost CostOf(const CompressedAttentionStepArgs& args) {
  const double pairs = static_cast<double>(args.q_BHD.dim(0) * args.k_BRGD.dim(1));
  return {.flops = 2 * pairs * static_cast<double>(args.q_BHD.dim(1)) *
                   static_cast<double>(args.k_BRGD.dim(3) + args.v_BRGE.dim(3)),
          .bytes = BytesOf({&args.q_BHD, &args.k_BRGD, &args.v_BRGE, &args.o_BHE})};
}

Var CompressedAttention(Tape& tape, Var q_NHD, Var k_CGD, Var v_CGE,
                        const CompressedAttentionOptions& options, const Documents& documents) {
  const Tensor &q = q_NHD.value, &k = k_CGD.value, &v = v_CGE.value;
  CheckShapes(q, k, v, options, documents);
  std::vector<Tensor> kept = tape.Kept([&] {
    Tensor o = Tensor::Empty({q.dim(0), q.dim(1), v.dim(2)}, q.dtype(), tape.device());
    Tensor lse = Tensor::Empty({q.dim(0), q.dim(1)}, AccumulatorOf(q.dtype()), tape.device());
    CompressedAttentionForward(tape.stream(), {.q_NHD = q,
                                               .k_CGD = k,
                                               .v_CGE = v,
                                               .o_NHE = o,
                                               .lse_NH = lse,
                                               .options = options,
                                               .documents = documents});
    return std::vector<Tensor>{o, lse};
  });
  auto backward = [&stream = tape.stream(), q = tape.Save(q_NHD), k = tape.Save(k_CGD),
                   v = tape.Save(v_CGE), o = kept[0], lse = kept[1], options,
                   documents](std::span<const Tensor> dy, std::span<GradSlot> dx) {
    // Slot by slot: asked before to() makes it defined, and k and v may be one value.
    const bool add_dq = dx[0].accumulate();
    const Tensor dq = dx[0].to();
    const bool add_dk = dx[1].accumulate();
    const Tensor dk = dx[1].to();
    const bool add_dv = dx[2].accumulate();
    CompressedAttentionBackward(stream, {.do_NHE = dy[0],
                                         .q_NHD = q.get(),
                                         .k_CGD = k.get(),
                                         .v_CGE = v.get(),
                                         .o_NHE = o,
                                         .lse_NH = lse,
                                         .dq_NHD = dq,
                                         .dk_CGD = dk,
                                         .dv_CGE = dx[2].to(),
                                         .accumulate_dq = add_dq,
                                         .accumulate_dk = add_dk,
                                         .accumulate_dv = add_dv,
                                         .options = options,
                                         .documents = documents});
  };
  return tape.Record({q_NHD, k_CGD, v_CGE}, kept[0],
                     {.name = "compressed_attention", .input_grad = std::move(backward)});
}

}  // namespace lt2
