// The parameters of a checkpoint as safetensors, under their logical names.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoints/float_values.h"
#include "checkpoints/reader.h"
#include "checkpoints/scan.h"

namespace lt2 {

// What the files say of the run, under `__metadata__`, and what import reads of it again.
inline constexpr char kMetadataConfig[] = "lt2.config";  // the resolved configuration, TOML
inline constexpr char kMetadataStep[] = "lt2.step";
inline constexpr char kMetadataTokens[] = "lt2.tokens";
inline constexpr char kMetadataTokenizer[] = "lt2.tokenizer";
inline constexpr char kMetadataTokenizerHash[] = "lt2.tokenizer_hash";

struct ExportOptions {
  std::optional<FloatType> type;  // none: as stored, bit for bit
  int64_t file_bytes = 0;         // of tensors in a file, or one larger tensor alone; 0: no limit
};

struct ExportedModel {
  int64_t bytes = 0;  // of all tensors
  int64_t tensors = 0, values = 0;
  int files = 0;
};

// Makes the folder `to`, which must not exist: model.safetensors, or
// model-0000K-of-0000N.safetensors with model.safetensors.index.json; config.toml. Whole or absent.
// Every stored byte is read once and held against its hash, in bounded memory. InvalidArgument if
// `to` exists; DataLoss naming file and tensor; ResourceExhausted or Internal naming a file.
absl::StatusOr<ExportedModel> ExportSafetensors(const Checkpoint& from, const std::string& to,
                                                const ExportOptions& options,
                                                const ScanOptions& scan = {});

}  // namespace lt2
