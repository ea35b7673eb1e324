#include "kernels/adamw.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t size, int64_t steps) {
  HostArray grads = RandomNormal(seed, "grads", {steps, size});
  for (int64_t i = 0; i < grads.shape.size(); i += 3) grads.values[i] *= 0x1p-20;  // shows eps
  return {.op = "adamw",
          .name = absl::StrCat(size, "x", steps),
          .attributes =
              {{"lr", 3e-3}, {"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}},
          .inputs = {{"param", RandomNormal(seed, "param", {size})}, {"grads", grads}}};
}

// Moments to go on from, and values in the run's dtype to round to.
CaseData Running(CaseData data) {
  const Shape shape = data.inputs.at("param").shape;
  data.inputs["moment1"] = RandomNormal(0, "moment1", shape);
  data.inputs["moment2"] = RandomUniform(0, "moment2", shape, 0, 1);
  data.inputs["value"] = data.inputs.at("param");
  return data;
}

// As many steps as there are rows of gradients, from zero moments where none are given.
std::map<std::string, Var> Run(CaseContext& c) {
  Stream& stream = c.tape().stream();
  Tensor param = c.Value("param"), grads = c.Value("grads");
  const auto moment = [&](const char* name) {
    return c.Has(name) ? c.Value(name) : Tensor::Zeros(param.shape(), param.dtype(), stream.device);
  };
  const Tensor m = moment("moment1"), v = moment("moment2");
  const bool rounds = c.Has("value") && c.dtype() == DType::kBF16;
  const Tensor value = rounds ? c.Value("value") : Tensor();
  for (int64_t step = 0; step < grads.dim(0); ++step) {
    const AdamWPiece piece{
        .param = param, .grad = grads.Rows(step, step + 1), .m = m, .v = v, .value = value};
    AdamW(stream, {.pieces = {&piece, 1},
                   .hyper = c.Doubles(absl::StrCat("hyper of step ", step),
                                      {c.Number("lr"), 1, double(step + 1), 0}),
                   .beta1 = c.Number("beta1"),
                   .beta2 = c.Number("beta2"),
                   .eps = c.Number("eps"),
                   .weight_decay = c.Number("weight_decay")});
  }
  return {{"param", {.value = param}}, {"m", {.value = m}}, {"v", {.value = v}}};
}

}  // namespace

OpCase AdamWCase() {
  return {.op = "adamw",
          .run = Run,
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, 1, 1), Instance(seed, 77, 3),
                                             Instance(seed, 9001, 5)};
              },
          .bench = [] { return Instance(0, 1 << 20, 1); },
          .gpu_bench = [] { return Running(Instance(0, 1 << 24, 1)); }};
}

}  // namespace lt2
