// Holds a checkpoint against its manifest, bit for bit.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoints/byte_file.h"
#include "checkpoints/manifest.h"
#include "checkpoints/scan.h"

namespace lt2 {

struct Damage {
  std::string file;    // its path
  std::string tensor;  // "param/embed.weight"; empty if no tensor's bytes are concerned
  std::string what;    // the whole message, naming both
};

// DataLoss listing up to ten of them, or OK if there are none.
absl::Status DamageStatus(const std::string& directory, const std::vector<std::string>& damages);

struct VerifyReport {
  std::string directory;
  Manifest manifest;  // empty if it could not be read
  std::vector<Damage> damages;
  bool sound() const { return damages.empty(); }
  absl::Status status() const;  // DamageStatus of them
};

// Reads every byte of the checkpoint, several files and boxes at once. Damage is what differs from
// the manifest and what is missing. A status only where nothing can be said: NotFound if
// `directory` does not exist, InvalidArgument if its format is newer than this program, else what
// kept a file from being read (PermissionDenied, Internal: an error of the disk, too many open
// files), which may pass.
absl::StatusOr<VerifyReport> Verify(const std::string& directory, const ScanOptions& options = {});

// Opens a file of a checkpoint and checks its size and frame: DataLoss naming the file, or what
// kept it from being read.
absl::StatusOr<ByteFile> OpenStoredFile(const std::string& directory, const Manifest& manifest,
                                        const StoredFile& stored);

}  // namespace lt2
