// A layer of operators whose values are rebuilt in backward: the same bits as where all are kept,
// on the CPU and, where there is one, on a GPU in both dtypes.
#include <gtest/gtest.h>

#include <cmath>

#include "core/cuda.h"
#include "kernels/add_rms_norm.h"
#include "kernels/case.h"
#include "kernels/decay_gate.h"
#include "kernels/elementwise.h"
#include "kernels/gated_product.h"
#include "kernels/gated_rms_norm.h"
#include "kernels/init.h"
#include "kernels/l2_norm.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "kernels/scan_delta.h"
#include "kernels/short_conv.h"
#include "kernels/swiglu_ffn.h"

namespace lt2 {
namespace {

constexpr int64_t kTokens = 200, kWidth = 64, kHeads = 4, kKey = 16, kValue = 24, kHidden = 160;

// The delta rule's layer of a model, and the feed-forward layer behind it.
class Layer {
 public:
  Layer(Device device, DType dtype) : stream_{.device = device}, dtype_(dtype) {}

  // Of all weights and of the input, with what is rebuilt in backward.
  std::vector<std::vector<double>> Gradients(Rebuild rebuild) {
    for (auto& [name, param] : params_) param->ExpectUses(1);
    Tape tape(stream_);
    tape.set_rebuild(rebuild);
    const Var x = tape.Input(Random("x", {kTokens, kWidth}), true);
    const Var y = Forward(tape, x);
    std::vector<std::vector<double>> all = {
        y.value.ToDoubles(),
        tape.Backward({{y, Random("dy", y.shape())}}, std::span(&x, 1))[0].ToDoubles()};
    for (auto& [name, param] : params_) all.push_back(param->main_grad.ToDoubles());
    return all;
  }

 private:
  Tensor Random(const std::string& name, const Shape& shape) const {
    return Tensor::FromHost(RandomNormal(1, name, shape).values, shape, dtype_, stream_.device);
  }

  Param& Get(const std::string& name, const Shape& shape, bool product) {
    std::unique_ptr<Param>& param = params_[name];
    if (param == nullptr) {
      const DType dtype = product ? dtype_ : AccumulatorOf(dtype_);
      param =
          std::make_unique<Param>(ParamSpec{.name = name, .shape = shape}, dtype, stream_.device);
      const double scale = product ? 1 / std::sqrt(static_cast<double>(shape.back())) : 0.5;
      param->value.CopyFrom(Tensor::FromHost(RandomNormal(2, name, shape, scale).values, shape,
                                             dtype, stream_.device));
      param->BindGradient(Tensor::Zeros(shape, AccumulatorOf(dtype_), stream_.device));
      param->ExpectUses(1);
    }
    return *param;
  }
  Var Project(Tape& tape, const Var& x, const std::string& name, int64_t out) {
    return Linear(tape, x, Get(name, {out, x.shape().back()}, true));
  }

  Var Forward(Tape& tape, const Var& x) {
    const Documents documents =
        Documents::Of(std::vector<int32_t>{0, 70, 71, kTokens}, stream_.device);
    const Var normed = RmsNorm(tape, x, Get("norm1", {kWidth}, false), 1e-6);
    const auto heads = [&](const std::string& name, int64_t dim, bool keys) {
      Var part = ShortConv(tape, Project(tape, normed, name, kHeads * dim),
                           Get(name + "_conv", {kHeads * dim, 4}, false), nullptr, true, documents);
      if (keys) part = L2Norm(tape, part, dim, 1e-6);
      return Reshape(part, {kTokens, kHeads, dim});
    };
    const Var g = DecayGate(tape, Project(tape, normed, "a", kHeads), Get("A_log", {kHeads}, false),
                            Get("dt_bias", {kHeads}, false));
    const Var beta = Product(tape, g, g);
    const Var o = ScanDelta(tape,
                            {.q_NHK = heads("q", kKey, true),
                             .k_NHK = heads("k", kKey, true),
                             .v_NGV = heads("v", kValue, false),
                             .g_NG = g,
                             .g_NGK = {},
                             .beta_NG = beta,
                             .initial_state_DGKV = {}},
                            0.25, documents, FinalStates::kNone)
                      .o_NGV;
    const Var gated = GatedRmsNorm(tape, Reshape(o, {kTokens, kHeads * kValue}),
                                   Project(tape, normed, "gate", kHeads * kValue),
                                   Get("o_norm", {kValue}, false), 1e-6, GateKind::kSwish);
    const SumAndNorm sum = AddRmsNorm(tape, x, Project(tape, gated, "out", kWidth),
                                      Get("norm2", {kWidth}, false), 1e-6);
    return SwiGluFfn(tape, sum.normed, Get("ffn_gate", {kHidden, kWidth}, true),
                     Get("ffn_up", {kHidden, kWidth}, true), Get("down", {kWidth, kHidden}, true),
                     &sum.sum);
  }

  Stream stream_;
  const DType dtype_;
  std::map<std::string, std::unique_ptr<Param>> params_;
};

void ExpectSameBits(Device device, DType dtype) {
  Layer layer(device, dtype);
  const auto kept = layer.Gradients(Rebuild::kNothing);
  EXPECT_EQ(layer.Gradients(Rebuild::kNothing), kept);
  EXPECT_EQ(layer.Gradients(Rebuild::kCheap), kept);
  EXPECT_EQ(layer.Gradients(Rebuild::kProducts), kept);
}

TEST(Rebuild, SameBitsOnTheCpu) {
  ExpectSameBits({Backend::kCpu}, DType::kF64);
  ExpectSameBits({Backend::kCpu}, DType::kF32);
}

TEST(Rebuild, SameBitsOnAGpu) {
  if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  ExpectSameBits({Backend::kCuda}, DType::kF32);
  ExpectSameBits({Backend::kCuda}, DType::kBF16);
}

}  // namespace
}  // namespace lt2
