// The [data] table of a configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"

namespace lt2 {

enum class DocumentMode : uint8_t {
  kReset,   // state, attention and positions restart at every document
  kIgnore,  // a window of tokens is one document
};

struct DataConfig {
  struct Train {
    std::string path;
    double weight = 1;
  };
  std::vector<Train> train;
  // Absent: the last tenth of the documents of every text among `train`. "": none.
  std::optional<std::string> valid;
  int64_t sequence = 1024;  // tokens
  std::string tokenizer = "bytes";
  DocumentMode documents = DocumentMode::kReset;
};

// Reads and checks what can be checked without data; mistakes are noted in the table.
void ReadDataConfig(const ConfigTable& data, DataConfig* config);
// The inverse, for the resolved configuration.
void WriteDataConfig(const DataConfig& config, ConfigTable* data);

}  // namespace lt2
