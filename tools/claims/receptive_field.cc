#include "tools/claims/receptive_field.h"

#include <cmath>

#include "kernels/case.h"
#include "kernels/embedding.h"

namespace lt2 {
namespace {

// The blocks of the model, run so many times, sharing the model's weights.
struct Stack {
  Stack(LanguageModel& model, int64_t loops)
      : config(WithLoops(model.config(), loops)), stack(config, ParamScope(params), {}) {
    for (Param* param : params.all()) {
      const Tensor value = model.params().Find(param->spec.name)->value;
      const Shape& shape = param->spec.shape;
      param->BindValue(value.shape() == shape ? value : value.Rows(0, shape[0]));
      param->BindGradient(Tensor::Zeros(shape, value.dtype(), value.device()));
      param->ExpectUses(static_cast<int>(loops) * params.Sites(param));
    }
  }
  static ModelConfig WithLoops(ModelConfig config, int64_t loops) {
    config.loops = loops;
    return config;
  }

  const ModelConfig config;
  ParamSet params;
  LoopedStack stack;
};

}  // namespace

ReceptiveField MeasureField(LanguageModel& model, int64_t loops, std::span<const int32_t> ids,
                            int64_t length, uint64_t seed) {
  CHECK_LE(loops, model.config().loops);
  Stack stack(model, loops);
  const int64_t tokens = static_cast<int64_t>(ids.size()), rows = tokens / length;
  const int64_t width = model.config().width;
  Stream stream{.device = {Backend::kCpu}};
  const Documents documents = Documents::Rows(rows, length, stream.device);

  Tape silent(stream);
  silent.set_recording(false);
  const Tensor ids_N = Tensor::FromHost(ids, {tokens}, stream.device);
  const Tensor x = Embedding(silent, ids_N, *model.params().Find("embed.weight")).value;

  Tape tape(stream);
  const Var in = tape.Input(x, /*needs_grad=*/true);
  const Var out = stack.stack.Forward(tape, in, documents, {}).h_ND;
  const Tensor dh = Tensor::Zeros({tokens, width}, x.dtype(), x.device());
  const HostArray cotangent = RandomNormal(seed, "cotangent", {rows, width});
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < width; ++c) {
      dh.data<double>()[((row + 1) * length - 1) * width + c] = cotangent.values[row * width + c];
    }
  }
  const Tensor dx = tape.Backward({{out, dh}}, std::span(&in, 1))[0];

  ReceptiveField field;
  field.influence.assign(length, 0.0);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t d = 0; d < length; ++d) {
      const double* g = dx.data<double>() + ((row + 1) * length - 1 - d) * width;
      for (int64_t c = 0; c < width; ++c) field.influence[d] += g[c] * g[c];
    }
  }
  for (int64_t d = 0; d < length; ++d) {
    if (field.influence[d] > 0) field.reach = d;
    field.influence[d] = std::sqrt(field.influence[d] / static_cast<double>(rows));
  }
  return field;
}

int64_t ReceptiveField::Within(double share) const {
  double total = 0, sum = 0;
  for (double x : influence) total += x;
  for (size_t d = 0; d < influence.size(); ++d) {
    sum += influence[d];
    if (sum >= share * total) return static_cast<int64_t>(d);
  }
  return reach;
}

double ReceptiveField::Hop(int64_t i, int64_t window) const {
  const auto mean = [&](int64_t hop) {
    double sum = 0;
    for (int64_t d = (hop - 1) * (window - 1) + 1; d <= hop * (window - 1); ++d) {
      sum += d < static_cast<int64_t>(influence.size()) ? influence[d] : 0;
    }
    return sum / static_cast<double>(window - 1);
  };
  return mean(i) / mean(1);
}

int64_t ReceptiveField::Above(double part, int64_t window) const {
  double near = 0;
  for (int64_t d = 1; d < window; ++d) near += influence[d] / static_cast<double>(window - 1);
  int64_t farthest = 0;
  for (size_t d = 1; d < influence.size(); ++d) {
    if (influence[d] >= part * near) farthest = static_cast<int64_t>(d);
  }
  return farthest;
}

}  // namespace lt2
