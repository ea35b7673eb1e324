#include "kernels/indexer_loss.h"

#include <limits>
#include <utility>

#include "kernels/attention.h"

namespace lt2 {
namespace {

// Of all listed (token, key) pairs: scores of index heads and of the attention's.
double PairFlops(const Tensor& a_NJC, const IndexerTarget& target) {
  const int64_t index = a_NJC.dim(1) * (2 * a_NJC.dim(2) + 3);
  const int64_t attention = target.q_NHD.dim(1) * (2 * target.q_NHD.dim(2) + 4);
  return VisiblePairs(target.documents, target.keys_NS.dim(1)) *
         static_cast<double>(index + attention);
}

double ReadBytes(const Tensor& a, const Tensor& b, const Tensor& w, const IndexerTarget& target) {
  return static_cast<double>(a.bytes() + b.bytes() + w.bytes() + target.q_NHD.bytes() +
                             target.k_NGD.bytes() + target.lse_NH.bytes() + target.keys_NS.bytes());
}

void CheckShapes(const Tensor& a, const Tensor& b, const Tensor& w, const IndexerTarget& target) {
  const int64_t N = target.documents.query_tokens(), J = a.dim(1), C = a.dim(2);
  CHECK_EQ(a.shape(), (Shape{N, J, C}));
  CHECK_EQ(b.shape(), (Shape{target.documents.tokens(), C}));
  CHECK_EQ(w.shape(), (Shape{N, J}));
  const Tensor &q = target.q_NHD, &k = target.k_NGD;
  CHECK_EQ(q.dim(0), N);
  CHECK_EQ(k.dim(0), b.dim(0));
  CHECK_EQ(q.dim(2), k.dim(2)) << "head sizes of q and k";
  CHECK_EQ(q.dim(1) % k.dim(1), 0) << "query heads over key heads";
  CHECK_EQ(target.lse_NH.shape(), (Shape{N, q.dim(1)}));
  CHECK_EQ(target.keys_NS.dim(0), N);
  CHECK_LT(target.keys_NS.size(), std::numeric_limits<int32_t>::max())
      << "listed keys; make the micro-batch smaller";
}

// The loss of all heads.
Tensor LossOf(Stream& stream, IndexerLossForwardArgs args, RankLink* link) {
  const Device device = args.a_NJC.device();
  if (link != nullptr) {
    args.p_MS =
        Tensor::Empty(args.target.keys_NS.shape(), AccumulatorOf(args.a_NJC.dtype()), device);
    IndexerLossForward(stream, args);
    link->Sum(args.p_MS);
    args.target.p_MS = std::exchange(args.p_MS, {});
  }
  args.kl_N = Tensor::Empty({args.a_NJC.dim(0)}, DType::kF64, device);
  args.loss = Tensor::Empty({1}, DType::kF64, device);
  IndexerLossForward(stream, args);
  return args.loss;
}

}  // namespace

Cost CostOf(const IndexerLossForwardArgs& args) {
  return {.flops = PairFlops(args.a_NJC, args.target),
          .bytes = ReadBytes(args.a_NJC, args.b_NC, args.w_NJ, args.target)};
}

Cost CostOf(const IndexerLossBackwardArgs& args) {
  const double products = VisiblePairs(args.target.documents, args.target.keys_NS.dim(1)) *
                          static_cast<double>(args.a_NJC.dim(1) * (6 * args.a_NJC.dim(2) + 3));
  return {.flops = PairFlops(args.a_NJC, args.target) + products,
          .bytes = 2 * ReadBytes(args.a_NJC, args.b_NC, args.w_NJ, args.target) +
                   2 * static_cast<double>(args.dscore_NS.bytes() + args.readers.bytes())};
}

Var IndexerLoss(Tape& tape, Var a_NJC, Var b_NC, Var w_NJ, const IndexerTarget& target,
                double weight, RankLink* link) {
  CheckShapes(a_NJC.value, b_NC.value, w_NJ.value, target);
  const auto make = [&]() -> std::vector<Tensor> {
    return {LossOf(tape.stream(),
                   {.a_NJC = a_NJC.value,
                    .b_NC = b_NC.value,
                    .w_NJ = w_NJ.value,
                    .target = target,
                    .weight = weight},
                   link)};
  };
  const Tensor loss = (link != nullptr ? tape.Kept(make) : make())[0];
  if (link != nullptr) weight /= link->size();
  auto backward = [&stream = tape.stream(), a = tape.Save(a_NJC), b = tape.Save(b_NC),
                   w = tape.Save(w_NJ), target,
                   weight](std::span<const Tensor> dy, std::span<GradSlot> dx) {
    const Tensor& keys = target.keys_NS;
    // Asked before to() makes the gradients defined.
    const bool add_da = dx[0].accumulate(), add_db = dx[1].accumulate();
    const bool add_dw = dx[2].accumulate();
    IndexerLossBackward(
        stream,
        {.dloss = dy[0],
         .a_NJC = a.get(),
         .b_NC = b.get(),
         .w_NJ = w.get(),
         .target = target,
         .weight = weight,
         .da_NJC = dx[0].to(),
         .db_NC = dx[1].to(),
         .dw_NJ = dx[2].to(),
         .accumulate_da = add_da,
         .accumulate_db = add_db,
         .accumulate_dw = add_dw,
         .dscore_NS = Tensor::Empty(keys.shape(), AccumulatorOf(a.get().dtype()), keys.device()),
         .readers = Tensor::Empty({b.get().dim(0) + 1 + keys.size()}, DType::kI32, keys.device())});
  };
  return tape.Record({a_NJC, b_NC, w_NJ}, loss,
                     {.name = "indexer_loss", .input_grad = std::move(backward)});
}

}  // namespace lt2
