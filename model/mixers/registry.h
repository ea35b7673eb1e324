// The kinds of mixers.def, by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/param_set.h"
#include "model/config.h"
#include "model/mixer.h"

namespace lt2 {

std::vector<std::string> MixerKinds();

// Reads the kind's options and notes mistakes on the table.
void CheckMixerOptions(const std::string& kind, const ModelConfig& config,
                       const ConfigTable& options);

// Builds one layer's mixer; it declares its parameters at `site`. The options have been checked
// before.
std::unique_ptr<Mixer> MakeMixer(const std::string& kind, const ModelConfig& config,
                                 const MixerSite& site);

// The heads of a kind that ranks divide.
std::vector<HeadCount> HeadCountsOf(const std::string& kind, const ModelConfig& config);

// What GPUs bound of a kind.
std::vector<SizeLimit> GpuLimitsOf(const std::string& kind, const ModelConfig& config,
                                   const RunSizes& run);

// The import table of a kind.
ForeignTable ForeignNamesOf(const std::string& kind);

}  // namespace lt2
