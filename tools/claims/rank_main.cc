// Prints how the rank of the state update grows with the loops (effective_rank.h).
#include <CLI/CLI.hpp>
#include <iostream>

#include "absl/strings/str_format.h"
#include "core/strings.h"
#include "tools/claims/claim_model.h"
#include "tools/claims/effective_rank.h"

namespace {

constexpr const char* kShape = "width = 128\nlayers = 2\nheads = 4\nffn = 256\nvocab = 256\n";
struct Kind {
  const char *name, *kind, *options;
};
// Heads of 32 key channels each: ranks up to 16 are seen.
const Kind kKinds[] = {{"deltanet", "deltanet", ""},
                       {"deltanet, beta up to 2", "deltanet", "allow_neg_eigval = true"},
                       {"gdn", "gdn", "head_dim = 32"},
                       {"kda", "kda", ""},
                       {"linear", "linear", ""},
                       {"retnet", "retnet", ""},
                       {"gla", "gla", "expand_k = 1"},
                       {"hgrn2", "hgrn2", ""},
                       {"mamba2", "mamba2", "state_dim = 32"}};

void Print(const lt2::ClaimModel& model, const std::vector<lt2::RankRow>& rows) {
  for (const lt2::RankRow& row : rows) {
    if (!lt2::IsShown(row.loops, static_cast<int64_t>(rows.size()))) continue;
    if (rows.back().rank == 0 && row.loops < rows.back().loops) continue;  // one line says it
    std::cout << absl::StrFormat(
        "| %s | %d | %.2f | %.2f | %.2f | %s |\n", model.name, row.loops, row.rank, row.rank_1_pct,
        row.effective, row.rank == 0 || row.loops == 1 ? "" : absl::StrFormat("%.2f", row.overlap));
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The rank of the product of T loops' state transitions.");
  std::vector<std::string> paths;
  uint64_t seed = 1;
  int64_t loops = 8, tokens = 24;
  app.add_option("checkpoints", paths, "run directories; none: random weights, every kind");
  app.add_option("--seed", seed, "of weights and text")->capture_default_str();
  app.add_option("--loops", loops, "T of the random models")->capture_default_str();
  app.add_option("--tokens", tokens, "decoded; the last half is measured")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  std::vector<lt2::ClaimModel> models;
  for (const std::string& path : paths) {
    absl::StatusOr<lt2::ClaimModel> model = lt2::LoadClaimModel(path);
    if (!model.ok()) return std::cerr << "error: " << model.status().message() << "\n", 2;
    models.push_back(std::move(*model));
  }
  for (const Kind& kind : kKinds) {
    if (!paths.empty()) break;
    models.push_back(
        lt2::RandomClaimModel(kind.name,
                              lt2::StrCat(kShape, "loops = ", loops, "\nmixers = [\"", kind.kind,
                                          "\"]\n[", kind.kind, "]\n", kind.options, "\n"),
                              seed));
  }
  const absl::StatusOr<std::vector<int32_t>> ids = lt2::SampleBytes(1, tokens, seed);
  if (!ids.ok()) return std::cerr << "error: " << ids.status().message() << "\n", 2;
  std::cout << "| model | T | rank | above 1 % | effective rank | keys' overlap |\n"
               "|---|---|---|---|---|---|\n";
  for (const lt2::ClaimModel& model : models) {
    Print(model, lt2::MeasureRank(*model.model, *ids, tokens / 2));
  }
}
