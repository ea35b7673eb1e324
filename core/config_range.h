// Numbers of a configuration that have bounds.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/config.h"

namespace lt2 {

// Reads the key as ConfigTable::Read does; a value outside [least, most], or no number, is noted on
// the table with what is allowed. *value, also where the key is absent, is what gets checked.
void ReadInRange(const ConfigTable& table, std::string_view key, int64_t least, int64_t most,
                 int64_t* value);
void ReadInRange(const ConfigTable& table, std::string_view key, double least, double most,
                 double* value);
// The same for finite numbers above 0.
void ReadPositive(const ConfigTable& table, std::string_view key, double* value);

}  // namespace lt2
