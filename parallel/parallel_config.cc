#include "parallel/parallel_config.h"

#include "absl/strings/numbers.h"
#include "core/strings.h"

namespace lt2 {
namespace {

const std::vector<std::string> kPrecisions = {"fp32", "bf16", "fp64"};
const std::vector<std::string> kPolicies = {"keep",  "none", "ffn", "mixer",
                                            "block", "loop", "auto"};
const std::vector<std::string> kExchanges = {"auto", "gather", "chain"};
const std::vector<std::string> kPipelines = {"ring", "ring-zb"};

void ReadDp(const ConfigTable& table, int64_t* dp) {
  std::string text;
  if (!table.ReadScalar("dp", &text) || text == "auto") return;
  if (!absl::SimpleAtoi(text, dp) || *dp < 1) {
    table.AddError("dp", StrCat("wants \"auto\" or a whole number of at least 1, got ", text));
    *dp = 0;
  }
}

void ReadAxis(const ConfigTable& table, const char* key, int64_t* extent) {
  table.Read(key, extent);
  if (*extent >= 1) return;
  table.AddError(key, StrCat(key, " = ", *extent, ": wants a whole number of at least 1"));
  *extent = 1;
}

void CheckTiles(const ConfigTable& table, const ParallelConfig& config) {
  if (config.row_tiles == 1) return;
  if (config.row_tiles % config.cp != 0) {
    table.AddError("row_tiles",
                   StrCat(config.row_tiles, " tiles cannot be shared by parallel.cp = ", config.cp,
                          " ranks; set a multiple of it, or 1"));
  }
  if (config.pp > 1 || config.zero > 1) {
    table.AddError("row_tiles",
                   "needs all layers and all gradients on a rank: parallel.pp = 1, zero = 0 or 1");
  }
}

}  // namespace

const char* Name(Precision precision) { return kPrecisions[static_cast<int>(precision)].c_str(); }
const char* Name(RecomputeChoice policy) { return kPolicies[static_cast<int>(policy)].c_str(); }

ParallelConfig ParallelConfig::Read(const ConfigTable& table) {
  ParallelConfig config;
  ReadDp(table, &config.dp);
  ReadAxis(table, "tp", &config.tp);
  ReadAxis(table, "cp", &config.cp);
  ReadAxis(table, "pp", &config.pp);
  table.Read("zero", &config.zero);
  if (config.zero < 0 || config.zero > 2) {
    table.AddError("zero", StrCat("zero = ", config.zero, ": wants 0, 1 or 2"));
    config.zero = 1;
  }
  config.state_exchange =
      static_cast<StateExchange>(table.ReadChoice("state_exchange", kExchanges, 0));
  ReadAxis(table, "row_tiles", &config.row_tiles);
  CheckTiles(table, config);
  table.Read("sequence_parallel", &config.sequence_parallel);
  if (config.sequence_parallel && config.tp == 1) {
    table.AddError("sequence_parallel", "needs ranks that share layers: parallel.tp > 1");
  }
  config.pipeline = static_cast<Pipeline>(table.ReadChoice("pipeline", kPipelines, 0));
  config.recompute = static_cast<RecomputeChoice>(
      table.ReadChoice("recompute", kPolicies, static_cast<int>(config.recompute)));
  config.precision = static_cast<Precision>(
      table.ReadChoice("precision", kPrecisions, static_cast<int>(config.precision)));
  return config;
}

void ParallelConfig::Write(ConfigTable* table) const {
  if (dp == 0) {
    table->Set("dp", std::string_view("auto"));
  } else {
    table->Set("dp", dp);
  }
  table->Set("tp", tp);
  table->Set("cp", cp);
  table->Set("pp", pp);
  table->Set("zero", zero);
  table->Set("state_exchange", std::string_view(kExchanges[static_cast<int>(state_exchange)]));
  table->Set("row_tiles", row_tiles);
  table->Set("sequence_parallel", sequence_parallel);
  table->Set("pipeline", std::string_view(kPipelines[static_cast<int>(pipeline)]));
  table->Set("recompute", std::string_view(Name(recompute)));
  table->Set("precision", std::string_view(Name(precision)));
}

absl::StatusOr<Mesh> ParallelConfig::MeshFor(int processes) const {
  const int64_t others = pp * cp * tp;
  const int64_t data = dp > 0 ? dp : processes / others;
  if (data * others != processes) {
    return absl::InvalidArgumentError(StrCat(
        "parallel: dp × cp × tp × pp = ", dp > 0 ? StrCat(data) : "auto", " × ", cp, " × ", tp,
        " × ", pp, " does not fit ", processes, processes == 1 ? " process" : " processes",
        "; start ", data > 0 ? data * others : others,
        " (mpirun -n, srun -n), or set parallel.dp = \"auto\""));
  }
  Mesh mesh{.pp = static_cast<int>(pp),
            .dp = static_cast<int>(data),
            .cp = static_cast<int>(cp),
            .tp = static_cast<int>(tp)};
  return mesh;
}

}  // namespace lt2
