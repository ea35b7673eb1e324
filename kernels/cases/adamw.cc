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

// As many steps as there are rows of gradients, from zero moments.
std::map<std::string, Var> Run(CaseContext& c) {
  Stream& stream = c.tape().stream();
  const Device device = stream.device;
  Tensor param = c.Value("param"), grads = c.Value("grads");
  Tensor m = Tensor::Zeros(param.shape(), param.dtype(), device);
  Tensor v = Tensor::Zeros(param.shape(), param.dtype(), device);
  for (int64_t step = 0; step < grads.dim(0); ++step) {
    const double hyper[kAdamWHypers] = {c.Number("lr"), 1, double(step + 1), 0};
    const AdamWPiece piece{.param = param, .grad = grads.Rows(step, step + 1), .m = m, .v = v};
    AdamW(stream, {.pieces = {&piece, 1},
                   .hyper = Tensor::FromHost(hyper, {kAdamWHypers}, DType::kF64, device),
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
          .bench = [] { return Instance(0, 1 << 20, 1); }};
}

}  // namespace lt2
