// The [parallel] section of a run's configuration.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/config.h"
#include "core/dtype.h"
#include "parallel/mesh.h"
#include "parallel/pipeline_plan.h"
#include "parallel/state_passing.h"

namespace lt2 {

enum class Precision : uint8_t { kFp32, kBf16, kFp64 };
enum class RecomputeChoice : uint8_t { kKeep, kNone, kFfn, kMixer, kBlock, kLoop, kAuto };

struct ParallelConfig {
  int64_t dp = 0;  // 0: "auto", all the processes the other axes leave
  int64_t tp = 1, cp = 1, pp = 1;
  int64_t zero = 1;
  StateExchange state_exchange = StateExchange::kAuto;
  int64_t row_tiles = 1;  // 1: results have roundings of their own for each cp; else RowTiles
  bool sequence_parallel = false;
  Pipeline pipeline = Pipeline::kRing;
  RecomputeChoice recompute = RecomputeChoice::kNone;
  Precision precision = Precision::kFp32;

  // Reads the table; what is wrong, or not supported by this version, is noted in it.
  static ParallelConfig Read(const ConfigTable& table);
  // Every key, resolved.
  void Write(ConfigTable* table) const;

  // The mesh over `processes` ranks. InvalidArgument, with the sizes that fit, if they do not.
  absl::StatusOr<Mesh> MeshFor(int processes) const;
  DType compute_dtype() const {
    return precision == Precision::kFp64   ? DType::kF64
           : precision == Precision::kBf16 ? DType::kBF16
                                           : DType::kF32;
  }
};

const char* Name(Precision precision);
const char* Name(RecomputeChoice policy);

}  // namespace lt2
