// Files of known answers (tests/golden/README.md): operators and whole layers, held against ours.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device.h"
#include "kernels/case.h"
#include "parallel/mesh.h"

namespace lt2 {

// Expands directories to the .h5 files below them, sorted. NotFound for a path that is not there.
absl::StatusOr<std::vector<std::string>> FindKnownAnswers(const std::vector<std::string>& paths);

struct KnownAnswerResult {
  std::string name;     // the file's, without .h5
  std::string skipped;  // why it was not run: an operator or mixer this version does not have
  struct Row {
    std::string tensor;  // "o", "grad q"
    double error = 0;  // ‖ours − theirs‖ / ‖theirs‖, absolute where that norm is below 1e-6
    double allowed = 0;
  };
  std::vector<Row> rows;
  bool passed() const;
};

// DataLoss or InvalidArgument naming the file if it cannot be read as known answers. Only float32
// and float64 on host backends. mesh: its cp and tp ranks, threads of this process on the CPU,
// share a layer's tokens and heads, and the cp ranks an operator's tokens; its other axes are 1.
absl::StatusOr<KnownAnswerResult> CheckKnownAnswer(const std::string& path, Device device,
                                                   DType dtype, const Mesh& mesh = {});

}  // namespace lt2
