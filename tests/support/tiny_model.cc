#include "tests/support/tiny_model.h"

#include <cmath>
#include <set>

#include "core/hash.h"
#include "core/philox.h"
#include "kernels/elementwise.h"
#include "kernels/head_loss.h"

namespace lt2 {

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

TinyModel::TinyModel(const ModelConfig& config, DType the_dtype, Backend backend, uint64_t seed)
    : stream{.device = {backend}}, dtype(the_dtype), model(config) {
  for (Param* param : model.params().all()) {
    const Shape& shape = param->spec.shape;
    param->BindValue(Tensor::Empty(shape, dtype, stream.device));
    param->BindGradient(Tensor::Zeros(shape, dtype, stream.device));
    if (!param->value.on_host()) continue;
    // Every parameter away from its special initial value (zero gates, unit norms), and exact in
    // float32, so that models of either precision hold the same numbers.
    const bool norm = param->spec.name.find("norm") != std::string::npos;
    const bool matrix = shape.rank() == 2 && param->spec.name != "loop.residual";
    const double scale = matrix ? 1 / std::sqrt(static_cast<double>(shape.back())) : 0.6;
    DispatchFloat(dtype, [&]<class T>() {
      T* value = param->value.data<T>();
      for (int64_t i = 0; i < shape.size(); ++i) {
        const double u = OpenUniform(Philox(seed ^ Hash64(param->spec.name), i)[0]) * 2 - 1;
        value[i] = static_cast<T>(static_cast<float>(u * scale + (norm ? 1 : 0)));
      }
    });
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
  const LanguageModel::Loss loss =
      model.Forward(tape, Tensor::FromHost(tokens.ids, {n}, stream.device),
                    Tensor::FromHost(tokens.targets, {n}, stream.device), documents, options);
  std::vector<Tape::Seed> seeds = LanguageModel::Seeds(loss, z_loss);
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
  const std::vector<double> sums =
      model
          .Forward(tape, Tensor::FromHost(tokens.ids, {n}, stream.device),
                   Tensor::FromHost(tokens.targets, {n}, stream.device), documents)
          .sums.value.ToDoubles();
  return sums[kLossSum] + z_loss * sums[kSquaredLseSum];
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
