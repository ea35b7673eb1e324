#include "kernels/head_loss.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"
#include "kernels/cases/link_to_nothing.h"

namespace lt2 {
namespace {

// loss [1] = (sum loss_i + z sum lse_i²) / counted; 0 where nothing is counted. `known`: the
// gradient of the sums, if it was told before.
Var MeanLoss(Tape& tape, Var sums, double z_loss, const Tensor& known) {
  const Device device = tape.device();
  const auto on_device = [device](std::initializer_list<double> values) {
    return Tensor::FromHost(std::vector<double>(values), {static_cast<int64_t>(values.size())},
                            DType::kF64, device);
  };
  std::vector<double> s(kHeadLossSums);
  if (device.backend != Backend::kMeta) s = sums.value.ToDoubles();
  const double scale = s[kCountedSum] > 0 ? 1 / s[kCountedSum] : 0;
  const auto backward = [on_device, device, scale, z_loss, known](std::span<const Tensor> dy,
                                                                  std::span<GradSlot> dx) {
    if (known.defined()) return dx[0].Set(known);
    const double a = device.backend != Backend::kMeta ? scale * dy[0].ToDoubles()[0] : 0;
    dx[0].Set(on_device({a, z_loss * a, 0}));
  };
  return tape.Record({sums}, on_device({scale * (s[kLossSum] + z_loss * s[kSquaredLseSum])}),
                     {.name = "mean_loss", .input_grad = backward});
}

CaseData Instance(uint64_t seed, int64_t N, int64_t D, int64_t V, double z_loss, double scale,
                  int64_t chunk_rows, bool keep = true) {
  HostArray targets = RandomInts(seed, "target", {N}, 0, V);
  for (int64_t i = 1; i < N; i += 5) targets.values[i] = -100;
  return {.op = "linear_cross_entropy",
          .name = absl::StrCat("n", N, "d", D, "v", V, "z", z_loss, "chunk", chunk_rows,
                               keep ? "" : "_again"),
          .attributes = {{"z_loss", z_loss},
                         {"chunk_rows", double(chunk_rows)},
                         {"keep", double(keep)}},
          .inputs = {{"x", RandomNormal(seed, "x", {N, D})},
                     {"w", RandomNormal(seed, "w", {V, D}, scale / std::sqrt(double(D)))},
                     {"target", targets}}};
}

// The loss's cotangent is known before the forward, which makes the gradients.
CaseData Known(CaseData data) {
  constexpr double kCotangent = 0.75;
  double counted = 0;
  for (double target : data.inputs.at("target").values) counted += target >= 0;
  data.name += "_known";
  data.attributes["known"] = kCotangent / counted;
  data.cotangents["loss"] = {.shape = {1}, .values = {kCotangent}};
  return data;
}

// Rows [first, last) of w are held, and the others by nobody.
CaseData Linked(CaseData data, int64_t first, int64_t last) {
  absl::StrAppend(&data.name, "_rows", first, "to", last);
  data.attributes["first"] = static_cast<double>(first);
  data.attributes["last"] = static_cast<double>(last);
  return data;
}

Param& HeldWeight(CaseContext& c) {
  const auto last = static_cast<int64_t>(c.Number("last", 0));
  return last == 0 ? c.Matrix("w") : c.Part("w", static_cast<int64_t>(c.Number("first")), last);
}

HeadLossOptions OptionsOf(CaseContext& c) {
  static LinkToNothing link;
  HeadLossOptions options;
  if (c.Number("last", 0) > 0) options.link = &link;
  options.chunk_rows = static_cast<int64_t>(c.Number("chunk_rows", 0));
  if (c.Number("keep", 1) == 0) options.keep_at_most = 0;
  if (const double a = c.Number("known", 0); a != 0) {
    options.dsums = c.Doubles("dsums", {a, c.Number("z_loss") * a, 0});
  }
  return options;
}

std::vector<CaseData> Instances(uint64_t seed) {
  return {Instance(seed, 33, 24, 97, 1e-4, 1, 0),
          Instance(seed, 1, 3, 1, 0, 1, 0),
          Instance(seed, 70, 8, 130, 0.01, 4, 16),
          Instance(seed, 70, 8, 130, 0.01, 2, 64, false),
          Instance(seed, 9, 16, 2100, 0, 1, 0, false),
          Linked(Instance(seed, 70, 8, 130, 0.01, 4, 16), 40, 130),
          Linked(Instance(seed, 70, 8, 130, 0.01, 2, 64, false), 0, 67)};
}

}  // namespace

OpCase HeadLossCase() {
  return {.op = "linear_cross_entropy",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            const HeadLossOptions options = OptionsOf(c);
            Var sums = HeadLoss(c.tape(), c.In("x"), HeldWeight(c), c.Ints("target"), options);
            return {{"loss", MeanLoss(c.tape(), sums, c.Number("z_loss", 0), options.dsums)}};
          },
          .instances =
              [](uint64_t seed) {
                std::vector<CaseData> instances = Instances(seed);
                for (CaseData& data : Instances(seed)) instances.push_back(Known(std::move(data)));
                return instances;
              },
          .bench = [] { return Instance(0, 2048, 128, 256, 0, 1, 0); },
          .gpu_bench = [] { return Instance(0, 8192, 2048, 32768, 0, 1, 0); }};
}

OpCase HeadLossPerTokenCase() {
  const auto renamed = [](CaseData data) {
    data.op = "head_loss_per_token";
    return data;
  };
  return {.op = "head_loss_per_token",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            const TokenLosses losses = HeadLossPerToken(c.tape(), c.In("x"), HeldWeight(c),
                                                        c.Ints("target"), OptionsOf(c));
            return {{"loss", losses.loss_N}, {"lse", losses.lse_N}};
          },
          .instances =
              [renamed](uint64_t seed) {
                std::vector<CaseData> instances = Instances(seed);
                for (CaseData& data : instances) data = renamed(std::move(data));
                return instances;
              },
          .bench = [renamed] { return renamed(Instance(0, 2048, 128, 256, 0, 1, 0)); },
          .gpu_bench = [renamed] { return renamed(Instance(0, 8192, 2048, 32768, 0, 1, 0)); }};
}

}  // namespace lt2
