#include "tests/support/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "core/hash.h"
#include "core/philox.h"
#include "kernels/elementwise.h"
#include "kernels/head_loss.h"

namespace lt2 {
namespace {

double Normal(uint64_t key, uint64_t i) {
  const Philox4 r = Philox(key, i);
  return std::sqrt(-2 * std::log(OpenUniform(r[0]))) * std::cos(2 * M_PI * OpenUniform(r[1]));
}

double Length(const std::vector<double>& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

}  // namespace

ModelConfig TinyConfig() {
  const ConfigTable table = *ConfigTable::Parse(R"(
      width = 32
      layers = 3
      loops = 2
      heads = 4
      kv_heads = 2
      head_dim = 6
      ffn = 40
      vocab = 37
      mixers = ["gdn", "gdn", "full"]
      attention_gate = true
      [gdn]
      heads = 2
      v_heads = 4
      head_dim = 10
      expand_v = 1.5
  )",
                                                "tiny");
  ModelConfig config = ReadModelConfig(table);
  const absl::Status status = table.Finish();
  CHECK(status.ok()) << status.ToString();
  return config;
}

void HoldPart(Param& param, const TensorSplit& split, int rank) {
  const ParamSplit& cut = param.spec.split;
  const int64_t extent = param.spec.shape[cut.dim], part = rank / (split.ranks / cut.parts);
  Box box = Box::Whole(param.spec.shape);
  box.begin[cut.dim] = PartBegin(extent, cut.parts, part);
  box.extent[cut.dim] = PartBegin(extent, cut.parts, part + 1) - box.begin[cut.dim];
  param.Hold(box);
}

void BindRandom(Param& param, DType dtype, Device device, uint64_t seed) {
  const Shape& shape = param.spec.shape;
  param.BindValue(Tensor::Empty(param.held.extent, dtype, device));
  param.BindGradient(Tensor::Zeros(param.held.extent, dtype, device));
  if (!param.value.on_host()) return;
  const bool norm = param.spec.name.find("norm") != std::string::npos;
  const bool matrix = shape.rank() == 2 && param.spec.name != "loop.residual";
  const double scale = matrix ? 1 / std::sqrt(static_cast<double>(shape.back())) : 0.6;
  const uint64_t key = seed ^ Hash64(param.spec.name);
  DispatchFloat(dtype, [&]<class T>() {
    T* value = param.value.data<T>();
    ForEachRun(Box::Whole(shape), param.held, [&](int64_t logical, int64_t here, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        const double u = OpenUniform(Philox(key, logical + i)[0]) * 2 - 1;
        value[here + i] = static_cast<T>(static_cast<float>(u * scale + (norm ? 1 : 0)));
      }
    });
  });
}

void AddHeld(const Param& param, std::vector<double>* whole) {
  const std::vector<double> held = param.main_grad.ToDoubles();
  whole->resize(param.spec.shape.size());
  ForEachRun(Box::Whole(param.spec.shape), param.held,
             [&](int64_t logical, int64_t here, int64_t count) {
               for (int64_t i = 0; i < count; ++i) (*whole)[logical + i] += held[here + i];
             });
}

TinyModel::TinyModel(const ModelConfig& config, DType the_dtype, Backend backend, uint64_t seed,
                     const TensorSplit& split, int rank)
    : stream{.device = {backend}}, dtype(the_dtype), model(config, split) {
  for (Param* param : model.params().all()) {
    HoldPart(*param, split, rank);
    BindRandom(*param, dtype, stream.device, seed);
  }
}

TinyModel::Result TinyModel::ForwardBackward(const Tokens& tokens, const ForwardOptions& options,
                                             double z_loss) {
  const std::vector<Param*> params = model.params().all();
  const std::vector<int> uses = model.UsesPerMicroBatch();
  for (size_t i = 0; i < params.size(); ++i) params[i]->ExpectUses(uses[i]);
  const int64_t n = static_cast<int64_t>(tokens.ids.size());
  const Documents documents = Documents::Of(tokens.cu_seqlens, stream.device);
  Tape tape(stream);
  tape.set_rebuild(rebuild);
  const LanguageModel::Loss loss =
      model.Forward(tape, Tensor::FromHost(tokens.ids, {n}, stream.device),
                    Tensor::FromHost(tokens.targets, {n}, stream.device), documents, options);
  std::vector<Tape::Seed> seeds = model.Seeds(loss, z_loss);
  for (size_t i = 1; i < seeds.size(); ++i) {
    Scale(stream, seeds[i].gradient, auxiliary_weight);
  }
  tape.Backward(std::move(seeds));
  Result result;
  if (!loss.sums.value.on_host()) return result;
  result.loss = loss.sums.value.ToDoubles()[kLossSum];
  for (Param* param : params) {
    CHECK_EQ(param->outstanding(), 0) << param->spec.name;
    result.grads[param->spec.name] = param->main_grad.ToDoubles();
  }
  return result;
}

double TinyModel::LossOnly(const Tokens& tokens, double z_loss) {
  const int64_t n = static_cast<int64_t>(tokens.ids.size());
  const Documents documents = Documents::Of(tokens.cu_seqlens, stream.device);
  Tape tape(stream);
  tape.set_recording(false);
  const LanguageModel::Loss loss =
      model.Forward(tape, Tensor::FromHost(tokens.ids, {n}, stream.device),
                    Tensor::FromHost(tokens.targets, {n}, stream.device), documents);
  const std::vector<double> sums = loss.sums.value.ToDoubles();
  const std::vector<double> weights = model.Seeds(loss, z_loss)[0].gradient.ToDoubles();
  return std::inner_product(sums.begin(), sums.end(), weights.begin(), 0.0);
}

TinyModel::Tokens RandomTokens(const ModelConfig& config, int64_t tokens, int64_t documents,
                               uint64_t seed) {
  TinyModel::Tokens out;
  for (int64_t i = 0; i < tokens; ++i) {
    const Philox4 r = Philox(seed, i);
    out.ids.push_back(static_cast<int32_t>(r[0] % config.vocab));
    out.targets.push_back(i % 7 == 3 ? -100 : static_cast<int32_t>(r[1] % config.vocab));
  }
  std::set<int32_t> cuts = {0, static_cast<int32_t>(tokens)};
  for (uint64_t i = 0; static_cast<int64_t>(cuts.size()) < documents + 1; ++i) {
    cuts.insert(static_cast<int32_t>(Philox(seed + 1, i)[0] % tokens));
  }
  out.cu_seqlens.assign(cuts.begin(), cuts.end());
  return out;
}

std::map<std::string, double> DerivativeErrors(const ModelConfig& config, Backend backend,
                                               int64_t tokens, int directions, uint64_t seed) {
  TinyModel tiny(config, DType::kF64, backend, seed);
  const TinyModel::Tokens text = RandomTokens(config, tokens, 4, seed);
  const double z_loss = 1e-2;
  const TinyModel::Result result = tiny.ForwardBackward(text, {}, z_loss);
  std::map<std::string, double> errors;
  for (Param* param : tiny.model.params().all()) {
    const std::vector<double> base = param->value.ToDoubles();
    const std::vector<double>& grad = result.grads.at(param->spec.name);
    const double norm = Length(grad);
    double& worst = errors[param->spec.name];
    if (!(norm > 0)) worst = std::numeric_limits<double>::infinity();
    for (int d = 0; d < directions && norm > 0; ++d) {
      std::vector<double> direction(base.size());
      for (size_t i = 0; i < base.size(); ++i) direction[i] = Normal(seed * 1000 + d, i);
      const double length = Length(direction);
      const auto at = [&](double step) {
        double* value = param->value.data<double>();
        for (size_t i = 0; i < base.size(); ++i) value[i] = base[i] + step * direction[i] / length;
        return tiny.LossOnly(text, z_loss);
      };
      const double h = 2e-5;  // fourth-order stencil: truncation ~ h^4, rounding ~ 1e-16 / h
      const double numeric = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      at(0);
      double analytic = 0;
      for (size_t i = 0; i < base.size(); ++i) analytic += grad[i] * direction[i] / length;
      worst = std::max(worst, std::abs(numeric - analytic) / norm);
    }
  }
  return errors;
}

double RelativeDifference(const std::vector<double>& a, const std::vector<double>& b) {
  CHECK_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / (norm > 0 ? norm : 1));
}

}  // namespace lt2
