// The small sections of a run's configuration: [run], [batch], [checkpoint], [log].
//
// Each is a struct whose initialisers are the only defaults. Read notes every mistake on the table;
// Write sets every key, resolved, and reads back equal.
#pragma once

#include <string>

#include "core/config.h"
#include "core/quantity.h"

namespace lt2 {

struct RunSection {
  std::string name;  // default: the configuration file's name
  int64_t seed = 1;
  std::string dir;  // default: runs/NAME
  bool deterministic = true;
  bool graphs = true;              // CUDA graphs, where there is a GPU
  double stall_limit = 600;        // seconds without progress before all ranks end
  double first_step_limit = 1800;  // seconds for the first step, which compiles and warms up
  // How often ranks compare the bits of what they hold in common; 0: never.
  Quantity replica_check{.value = 1000, .unit = Quantity::Unit::kSteps};

  static RunSection Read(const ConfigTable& table, const std::string& default_name);
  void Write(ConfigTable* table) const;
};

struct BatchConfig {
  int64_t tokens = 0;       // of one step, over all ranks; required
  int64_t micro_batch = 1;  // sequences that one replica holds at once

  static BatchConfig Read(const ConfigTable& table);
  void Write(ConfigTable* table) const;
};

struct CheckpointConfig {
  Quantity every{.value = 1800, .unit = Quantity::Unit::kSeconds};  // 0: at the end only
  int64_t keep_last = 3;
  Quantity keep_every{.value = 0, .unit = Quantity::Unit::kSteps};  // 0: none is kept for ever
  bool async = true;           // training goes on while the files are written
  bool per_node = false;       // files = "node": the ranks of a host write one file together
  bool verify_writes = false;  // read back and compare before a checkpoint counts

  static CheckpointConfig Read(const ConfigTable& table);
  void Write(ConfigTable* table) const;
};

struct LogConfig {
  Quantity every{.value = 10, .unit = Quantity::Unit::kSteps};
  Quantity valid_every{.value = 0, .unit = Quantity::Unit::kSteps};  // 0: at the end only
  int64_t valid_tokens = 0;  // of the validation set at a time; 0: all

  static LogConfig Read(const ConfigTable& table);
  void Write(ConfigTable* table) const;
};

}  // namespace lt2
