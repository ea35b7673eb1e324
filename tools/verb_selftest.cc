// lt2 selftest: holds operators and layers against known answers.
#include <iostream>

#include "absl/strings/str_format.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "launch/known_answers.h"
#include "tools/device.h"
#include "tools/exit.h"

namespace lt2 {
namespace {

struct SelftestFlags {
  std::vector<std::string> paths;
  std::string device = "auto", dtype = "fp32", mesh = "cp=1";
};

// The ranks among which a layer's tokens and heads are shared.
absl::StatusOr<Mesh> ReadMesh(const std::string& text, Device device) {
  ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(text));
  if (mesh.dp > 1 || mesh.pp > 1) {
    return absl::InvalidArgumentError("--mesh: known answers are divided along cp and tp alone");
  }
  if (mesh.size() > 1 && device.backend != Backend::kCpu) {
    return absl::InvalidArgumentError(
        "--mesh: its ranks are threads, which share no GPU: add --device cpu");
  }
  return mesh;
}

std::string Describe(const KnownAnswerResult& result) {
  if (!result.skipped.empty()) return StrCat("skip  ", result.name, ": ", result.skipped);
  std::string text = StrCat(result.passed() ? "ok    " : "FAIL  ", result.name, ":");
  for (const KnownAnswerResult::Row& row : result.rows) {
    const bool bad = !(row.error <= row.allowed);
    absl::StrAppendFormat(&text, "  %s %.1e%s", row.tensor, row.error,
                          bad ? absl::StrFormat(" (allowed %.0e)", row.allowed) : "");
  }
  return text;
}

absl::Status RunSelftest(const SelftestFlags& flags, VerbOutput& output) {
  ASSIGN_OR_RETURN(const Device device, ChooseDevice(flags.device));
  ASSIGN_OR_RETURN(const DType dtype, ChooseDType(flags.dtype, device));
  ASSIGN_OR_RETURN(const Mesh mesh, ReadMesh(flags.mesh, device));
  ASSIGN_OR_RETURN(const std::vector<std::string> files, FindKnownAnswers(flags.paths));
  if (files.empty()) {
    return absl::InvalidArgumentError(StrCat("no .h5 file below ", flags.paths[0]));
  }
  int64_t passed = 0, failed = 0, skipped = 0;
  double worst = 0;
  for (const std::string& path : files) {
    ASSIGN_OR_RETURN(const KnownAnswerResult result, CheckKnownAnswer(path, device, dtype, mesh));
    ++(!result.skipped.empty() ? skipped : result.passed() ? passed : failed);
    for (const KnownAnswerResult::Row& row : result.rows) {
      worst = std::max(worst, row.error / row.allowed);
    }
    if (!output.json) std::cout << Describe(result) << std::endl;
  }
  if (!output.json) {
    std::cout << absl::StrFormat(
                     "%d passed, %d failed, %d skipped; the worst error is %.0f %% of what is "
                     "allowed",
                     passed, failed, skipped, 100 * worst)
              << std::endl;
  }
  output.result = {{"passed", passed},
                   {"failed", failed},
                   {"skipped", skipped},
                   {"worst_share_of_tolerance", worst}};
  if (failed > 0) output.exit_code = kExitFailed;
  return absl::OkStatus();
}

}  // namespace

Verb SelftestVerb() {
  return {.name = "selftest",
          .summary = "Holds operators and layers against files of known answers.",
          .example = "{lt2} selftest tests/golden",
          .add = [](CLI::App& app) -> VerbBody {
            auto flags = std::make_shared<SelftestFlags>();
            app.add_option("files", flags->paths, "HDF5 files, or folders of them")->required();
            app.add_option("--dtype", flags->dtype, "fp32, fp64 (CPU) or bf16 (GPU)")
                ->check(CLI::IsMember({"fp32", "fp64", "bf16"}));
            app.add_option("--mesh", flags->mesh,
                           "ranks that share tokens and a layer's heads: cp=2,tp=2");
            AddDeviceFlag(app, &flags->device);
            return [flags](VerbOutput& output) { return RunSelftest(*flags, output); };
          }};
}

}  // namespace lt2
