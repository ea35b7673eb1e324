// Prints how far a windowed model sees as the loops grow (receptive_field.h).
#include <CLI/CLI.hpp>
#include <iostream>

#include "absl/strings/str_format.h"
#include "core/strings.h"
#include "tools/claims/claim_model.h"
#include "tools/claims/receptive_field.h"

namespace {

void Print(const lt2::ClaimModel& model, int64_t window, int64_t rows, uint64_t seed) {
  const int64_t hops = model.model->config().layers * model.model->config().loops;
  const int64_t length = hops * (window - 1) + window;
  const absl::StatusOr<std::vector<int32_t>> ids = lt2::SampleBytes(rows, length, seed);
  CHECK(ids.ok()) << ids.status().ToString();
  const double w = static_cast<double>(window);
  for (int64_t loops = 1; loops <= model.model->config().loops; ++loops) {
    if (!lt2::IsShown(loops, model.model->config().loops)) continue;
    const lt2::ReceptiveField field = lt2::MeasureField(*model.model, loops, *ids, length, seed);
    const auto windows = [&](int64_t d) { return static_cast<double>(d) / w; };
    std::cout << absl::StrFormat(
        "| %s | %d | %d | %.2f | %.2f | %.2f | %.2f | %.4f | %.4f |\n", model.name, loops,
        field.reach, windows(field.reach), windows(field.Within(0.9)), windows(field.Within(0.99)),
        windows(field.Above(0.01, window)), field.Hop(2, window), field.Hop(3, window));
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The receptive field of T loops over windows.");
  std::vector<std::string> paths;
  uint64_t seed = 1;
  int64_t loops = 8, window = 16, rows = 16;
  app.add_option("checkpoints", paths, "run directories of `window` models; none: random weights");
  app.add_option("--seed", seed, "of weights, text and cotangents")->capture_default_str();
  app.add_option("--loops", loops, "T of the random models")->capture_default_str();
  app.add_option("--window", window, "w, of the checkpoints too")->capture_default_str();
  app.add_option("--rows", rows, "texts to average over")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  std::vector<lt2::ClaimModel> models;
  for (const std::string& path : paths) {
    absl::StatusOr<lt2::ClaimModel> model = lt2::LoadClaimModel(path);
    if (!model.ok()) return std::cerr << "error: " << model.status().message() << "\n", 2;
    models.push_back(std::move(*model));
  }
  for (const int layers : {1, 2}) {
    if (!paths.empty()) break;
    models.push_back(lt2::RandomClaimModel(
        lt2::StrCat(layers, layers == 1 ? " layer" : " layers"),
        lt2::StrCat("width = 128\nheads = 4\nffn = 256\nvocab = 256\nmixers = [\"window\"]\n",
                    "layers = ", layers, "\nloops = ", loops, "\n[window]\nwindow = ", window,
                    "\n"),
        seed));
  }
  std::cout << "| model | T | reach | reach / w | 90 % / w | 99 % / w | above 1 % / w | 2nd hop | "
               "3rd hop |\n|---|---|---|---|---|---|---|---|---|\n";
  for (const lt2::ClaimModel& model : models) Print(model, window, rows, seed);
}
