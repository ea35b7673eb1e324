#include "kernels/lightning_indexer.h"

#include "kernels/attention.h"

namespace lt2 {
namespace {

// Of one (query, key) pair: a product per head and channel, then ReLU, weight and sum.
double PairFlops(int64_t heads, int64_t dim) {
  return static_cast<double>(2 * heads * dim + 3 * heads);
}

double BytesOf(std::initializer_list<const Tensor*> tensors) {
  double bytes = 0;
  for (const Tensor* tensor : tensors) {
    if (tensor->defined()) bytes += static_cast<double>(tensor->bytes());
  }
  return bytes;
}

}  // namespace

Cost CostOf(const LightningIndexerArgs& args) {
  const double pairs = VisiblePairs(args.documents, /*window=*/0);
  return {.flops = pairs * PairFlops(args.q_NHD.dim(1), args.q_NHD.dim(2)),
          .bytes = BytesOf({&args.q_NHD, &args.k_ND, &args.w_NH, &args.keys_NS})};
}

// Full caches: lengths are the device's.
Cost CostOf(const LightningIndexerStepArgs& args) {
  const double pairs = static_cast<double>(args.k_BCD.dim(0) * args.k_BCD.dim(1));
  return {.flops = pairs * PairFlops(args.q_BHD.dim(1), args.q_BHD.dim(2)),
          .bytes = BytesOf({&args.q_BHD, &args.k_BCD, &args.w_BH, &args.keys_BS})};
}

Tensor LightningIndexer(Tape& tape, const Tensor& q_NHD, const Tensor& k_ND, const Tensor& w_NH,
                        int64_t selected, const Documents& documents) {
  CHECK_EQ(q_NHD.shape().rank(), 3);
  CHECK_EQ(k_ND.shape(), (Shape{documents.tokens(), q_NHD.dim(2)}));
  CHECK_EQ(q_NHD.dim(0), documents.query_tokens());
  CHECK_EQ(q_NHD.dtype(), k_ND.dtype());
  if (w_NH.defined()) {
    CHECK_EQ(w_NH.shape(), (Shape{q_NHD.dim(0), q_NHD.dim(1)}));
    CHECK_EQ(w_NH.dtype(), k_ND.dtype());
  }
  CHECK_GE(selected, 1);
  return tape.Kept([&] {
    Tensor keys = Tensor::Empty({q_NHD.dim(0), selected}, DType::kI32, tape.device());
    LightningIndexer(
        tape.stream(),
        {.q_NHD = q_NHD, .k_ND = k_ND, .w_NH = w_NH, .keys_NS = keys, .documents = documents});
    return std::vector<Tensor>{keys};
  })[0];
}

}  // namespace lt2
