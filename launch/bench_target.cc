#include "launch/bench_target.h"

#include "core/cuda.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "core/trace.h"
#include "kernels/case.h"
#include "kernels/elementwise.h"
#include "kernels/init.h"
#include "launch/run_config.h"
#include "model/mixers/registry.h"

namespace lt2 {
namespace {

constexpr char kMixerPrefix[] = "mixer.";

class OpTarget final : public BenchTarget {
 public:
  OpTarget(const OpCase& op_case, DType dtype)
      : op_case_(op_case), data_(op_case.bench()), dtype_(dtype) {}
  const std::string& name() const override { return data_.name; }
  Seconds Run(Stream& stream) override {
    const bool counted = stream.device.backend == Backend::kMeta;
    const CaseResult result = RunCase(op_case_, data_, stream, dtype_, {.warm_up = !counted});
    return {.forward = result.forward_seconds, .backward = result.backward_seconds};
  }

 private:
  const OpCase& op_case_;
  const CaseData data_;
  const DType dtype_;
};

class MixerTarget final : public BenchTarget {
 public:
  static constexpr int64_t kRows = 2, kLength = 512;

  MixerTarget(const std::string& kind, const ModelConfig& config, DType dtype)
      : dtype_(dtype),
        width_(config.width),
        mixer_(
            MakeMixer(kind, config, {.scope = ParamScope(params_), .root = ParamScope(params_)})),
        name_(StrCat(kRows, "x", kLength, " width ", width_, " heads ", config.heads, ", ",
                     params_.elements(), " parameters")) {}
  const std::string& name() const override { return name_; }

  Seconds Run(Stream& stream) override {
    Bind(stream);
    for (Param* param : params_.all()) param->ExpectUses(params_.Sites(param));
    const Documents documents = Documents::Rows(kRows, kLength, stream.device);
    Tape tape(stream);
    const Var x = tape.Input(x_ND_, /*needs_grad=*/true);
    const double begun = MonotonicSeconds();
    const MixerOutput out = mixer_->Forward(tape, x, {.documents = documents});
    WaitFor(stream);
    const double between = MonotonicSeconds();
    std::vector<Tape::Seed> seeds = {{out.y_ND, x_ND_}};
    if (out.auxiliary_loss.value.defined()) {
      seeds.push_back({out.auxiliary_loss,
                       Tensor::FromHost(std::vector<double>{1}, {1}, DType::kF64, stream.device)});
    }
    tape.Backward(std::move(seeds), std::span(&x, 1));
    WaitFor(stream);
    return {.forward = between - begun, .backward = MonotonicSeconds() - between};
  }

 private:
  void Bind(Stream& stream) {
    const Device device = stream.device;
    if (x_ND_.defined() && x_ND_.device().backend == device.backend) return;
    for (Param* param : params_.all()) {
      const Shape& shape = param->spec.shape;
      const DType master = AccumulatorOf(dtype_);
      param->value = {};
      if (dtype_ != master && !param->spec.elementwise) {
        param->BindValue(Tensor::Empty(shape, dtype_, device));
      }
      param->BindMaster(Tensor::Empty(shape, master, device));
      param->BindGradient(Tensor::Zeros(shape, master, device));
      InitParam(*param, /*seed=*/1);
      if (dtype_ != master && !param->spec.elementwise) {
        Cast(stream, {.from = param->master, .to = param->value});
      }
    }
    const Shape shape = {kRows * kLength, width_};
    x_ND_ = device.backend == Backend::kMeta
                ? Tensor::Empty(shape, dtype_, device)
                : Tensor::FromHost(RandomNormal(1, "x", shape).values, shape, dtype_, device);
  }

  const DType dtype_;
  const int64_t width_;
  ParamSet params_;
  std::unique_ptr<Mixer> mixer_;
  const std::string name_;
  Tensor x_ND_;
};

}  // namespace

std::vector<std::string> BenchTargetNames() {
  std::vector<std::string> names;
  for (const OpCase& op_case : AllOpCases()) names.push_back(op_case.op);
  for (const std::string& kind : MixerKinds()) names.push_back(StrCat(kMixerPrefix, kind));
  return names;
}

absl::StatusOr<std::unique_ptr<BenchTarget>> MakeBenchTarget(const std::string& op, DType dtype) {
  if (!op.starts_with(kMixerPrefix)) return std::make_unique<OpTarget>(*FindOpCase(op), dtype);
  const std::string kind = op.substr(sizeof(kMixerPrefix) - 1);
  ASSIGN_OR_RETURN(const RunConfig config,
                   LoadRunConfig(StrCat("lt2-0.6b-", kind), {"model.width=512"}));
  return std::make_unique<MixerTarget>(kind, config.model, dtype);
}

}  // namespace lt2
