#include "launch/bench_target.h"

#include <algorithm>
#include <set>

#include "core/status_macros.h"
#include "core/strings.h"
#include "kernels/case.h"
#include "kernels/elementwise.h"
#include "kernels/init.h"
#include "launch/run_config.h"
#include "model/mixers/registry.h"

namespace lt2 {
namespace {

constexpr char kMixerPrefix[] = "mixer.";
constexpr int kManyUses = 1 << 24;  // more than will be run

class OpTarget final : public BenchTarget {
 public:
  OpTarget(const OpCase& op_case, bool full_size, DType dtype)
      : op_case_(op_case),
        data_(full_size && op_case.gpu_bench ? op_case.gpu_bench() : op_case.bench()),
        dtype_(dtype) {}
  const std::string& name() const override { return data_.name; }

  void Prepare(Stream& stream) override {
    first_ = std::make_unique<Tape>(stream);
    context_ = std::make_unique<CaseContext>(data_, *first_, dtype_);
    context_->set_uses(kManyUses);
    cotangents_.clear();
    Tape tape(stream);
    context_->MoveTo(tape);
    for (const auto& [output, var] : op_case_.run(*context_)) {
      if (!var.needs_grad()) continue;
      const DType dtype = var.value.dtype();
      cotangents_[output] = BenchNumbers(output, var.shape(), dtype, stream.device);
    }
    context_->MoveTo(*first_);
  }

  bool Run(bool backward, const std::function<void()>& between) override {
    Tape tape(first_->stream());
    context_->MoveTo(tape);
    std::vector<Tape::Seed> seeds;
    for (auto& [output, var] : op_case_.run(*context_)) {
      if (var.needs_grad()) seeds.push_back({var, cotangents_.at(output)});
    }
    if (between) between();
    const bool differentiated = backward && !seeds.empty();
    if (differentiated) {
      std::vector<Var> wrt;
      for (const auto& [input, var] : context_->vars()) wrt.push_back(var);
      tape.Backward(std::move(seeds), wrt);
    }
    context_->MoveTo(*first_);
    return differentiated;
  }

  // These read a result on the host, or give an argument from there.
  bool waits() const override {
    return std::set<std::string>{"linear_cross_entropy", "step_decision"}.contains(op_case_.op);
  }

 private:
  const OpCase& op_case_;
  const CaseData data_;
  const DType dtype_;
  std::unique_ptr<Tape> first_;  // the context is on it between runs
  std::unique_ptr<CaseContext> context_;
  std::map<std::string, Tensor> cotangents_;
};

class MixerTarget final : public BenchTarget {
 public:
  MixerTarget(const std::string& kind, const ModelConfig& config, int64_t length, DType dtype)
      : dtype_(dtype),
        length_(length),
        width_(config.width),
        mixer_(
            MakeMixer(kind, config, {.scope = ParamScope(params_), .root = ParamScope(params_)})),
        name_(StrCat(kRows, "x", length, " width ", width_, " heads ", config.heads, ", ",
                     params_.elements(), " parameters")) {}
  const std::string& name() const override { return name_; }

  void Prepare(Stream& stream) override {
    stream_ = &stream;
    const Device device = stream.device;
    for (Param* param : params_.all()) {
      const Shape& shape = param->spec.shape;
      const DType master = AccumulatorOf(dtype_);
      const bool rounded = dtype_ != master && !param->spec.elementwise;
      param->value = {};
      if (rounded) param->BindValue(Tensor::Empty(shape, dtype_, device));
      param->BindMaster(Tensor::Empty(shape, master, device));
      param->BindGradient(Tensor::Zeros(shape, master, device));
      InitParam(*param, /*seed=*/1);
      if (rounded) Cast(stream, {.from = param->master, .to = param->value});
      if (param->outstanding() == 0) param->ExpectUses(kManyUses);
    }
    const Shape shape = {kRows * length_, width_};
    x_ND_ = BenchNumbers("x", shape, dtype_, device);
    one_ = Tensor::FromHost(std::vector<double>{1}, {1}, DType::kF64, device);
    documents_ = std::make_unique<Documents>(Documents::Rows(kRows, length_, device));
    Run(/*backward=*/true, {});
  }

  bool Run(bool backward, const std::function<void()>& between) override {
    Tape tape(*stream_);
    const Var x = tape.Input(x_ND_, /*needs_grad=*/true);
    const MixerOutput out = mixer_->Forward(tape, x, {.documents = *documents_});
    if (between) between();
    if (!backward) return false;
    std::vector<Tape::Seed> seeds = {{out.y_ND, x_ND_}};
    if (out.auxiliary_loss.value.defined()) seeds.push_back({out.auxiliary_loss, one_});
    tape.Backward(std::move(seeds), std::span(&x, 1));
    return true;
  }

 private:
  static constexpr int64_t kRows = 2;

  const DType dtype_;
  const int64_t length_, width_;
  ParamSet params_;
  std::unique_ptr<Mixer> mixer_;
  const std::string name_;
  Stream* stream_ = nullptr;
  Tensor x_ND_, one_;
  std::unique_ptr<Documents> documents_;
};

}  // namespace

Tensor BenchNumbers(const std::string& name, const Shape& shape, DType dtype, Device device) {
  constexpr int64_t kOwn = 1'048'573;  // a prime: rows of no width begin alike
  const Tensor numbers = Tensor::Empty(shape, dtype, device);
  if (device.backend == Backend::kMeta) return numbers;
  const int64_t size = shape.size(), own = std::min(size, kOwn);
  const HostArray some = RandomNormal(0, name, {own});
  numbers.Flat(0, own).CopyFrom(Tensor::FromHost(some.values, {own}, dtype, device));
  for (int64_t made = own; made < size;) {
    const int64_t more = std::min(made, size - made);
    numbers.Flat(made, more).CopyFrom(numbers.Flat(0, more));
    made += more;
  }
  return numbers;
}

std::vector<std::string> BenchTargetNames() {
  std::vector<std::string> names;
  for (const OpCase& op_case : AllOpCases()) names.push_back(op_case.op);
  for (const std::string& kind : MixerKinds()) names.push_back(StrCat(kMixerPrefix, kind));
  return names;
}

absl::StatusOr<std::unique_ptr<BenchTarget>> MakeBenchTarget(const std::string& op, Device device,
                                                             DType dtype) {
  // The plain kernels of float32 are for checking.
  const bool full_size = device.backend == Backend::kCuda && dtype == DType::kBF16;
  if (!op.starts_with(kMixerPrefix)) {
    return std::make_unique<OpTarget>(*FindOpCase(op), full_size, dtype);
  }
  const std::string kind = op.substr(sizeof(kMixerPrefix) - 1);
  std::vector<std::string> sets;
  if (!full_size) sets.push_back("model.width=512");
  ASSIGN_OR_RETURN(const RunConfig config, LoadRunConfig(StrCat("lt2-0.6b-", kind), sets));
  return std::make_unique<MixerTarget>(kind, config.model, full_size ? 4096 : 512, dtype);
}

}  // namespace lt2
