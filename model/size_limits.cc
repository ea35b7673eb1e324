#include "model/size_limits.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_join.h"
#include "core/strings.h"
#include "kernels/gpu_limits.h"
#include "model/mixers/registry.h"

namespace lt2 {
namespace {

std::vector<SizeLimit> OfModel(const ModelConfig& config) {
  const int64_t row = gpu::MostNormedRow(config.width);
  std::vector<SizeLimit> limits = {{.key = "width",
                                    .value = config.width,
                                    .most = row,
                                    .what = "channels of a row to be normed",
                                    .instead = StrCat("width = ", row, " or less")}};
  if (config.exit_gate) {
    limits.push_back(
        {.key = "loops",
         .value = config.loops,
         .most = gpu::kMostExitLoops,
         .what = "loops beside an exit gate",
         .instead = StrCat("loops = ", gpu::kMostExitLoops, " or less, or exit_gate = false")});
  }
  return limits;
}

void Note(const std::string& table, const std::vector<SizeLimit>& limits,
          std::vector<std::string>* wrong) {
  for (const SizeLimit& limit : limits) {
    if (limit.value <= limit.most) continue;
    const std::string of = limit.of_model ? "model" : table;
    wrong->push_back(StrCat(of, ".", limit.key, ": ", limit.value, " ", limit.what,
                            ", and GPUs take at most ", limit.most, "; set ", limit.instead,
                            " in [", of, "], or use --device cpu"));
  }
}

}  // namespace

absl::Status CheckSizes(const ModelConfig& config, Backend backend, const RunSizes& run) {
  if (backend != Backend::kCuda) return absl::OkStatus();
  std::vector<std::string> wrong;
  Note("model", OfModel(config), &wrong);
  const std::vector<std::string> layers = *LayerKinds(config);
  for (const std::string& kind : std::set<std::string>(layers.begin(), layers.end())) {
    Note(StrCat("model.", kind), GpuLimitsOf(kind, config, run), &wrong);
  }
  if (wrong.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(wrong, "\n"));
}

}  // namespace lt2
