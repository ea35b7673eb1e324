#include "model/mixers/registry.h"

#include "model/mixers/deltanet/deltanet.h"
#include "model/mixers/dsa/dsa.h"
#include "model/mixers/full/full.h"
#include "model/mixers/gdn/gdn.h"
#include "model/mixers/gla/gla.h"
#include "model/mixers/hgrn2/hgrn2.h"
#include "model/mixers/kda/kda.h"
#include "model/mixers/linear/linear.h"
#include "model/mixers/mamba2/mamba2.h"
#include "model/mixers/mlstm/mlstm.h"
#include "model/mixers/nsa/nsa.h"
#include "model/mixers/retnet/retnet.h"
#include "model/mixers/window/window.h"

// Tests list mixers of their own as well.
#ifndef LT2_MIXERS
#define LT2_MIXERS "model/mixers/mixers.def"
#endif

namespace lt2 {
namespace {

// A copy: a table notes what it was asked for, and ranks may be threads that share the config.
ConfigTable OptionsOf(const std::string& kind, const ModelConfig& config) {
  ConfigTable options;
  const auto found = config.mixer_options.find(kind);
  if (found != config.mixer_options.end()) options.MergeDefaults(found->second);
  return options;
}

}  // namespace

std::vector<std::string> MixerKinds() {
  return {
#define MIXER(kind, Class) #kind,
#include LT2_MIXERS
#undef MIXER
  };
}

void CheckMixerOptions(const std::string& kind, const ModelConfig& config,
                       const ConfigTable& options) {
#define MIXER(name, Class) \
  if (kind == #name) return (void)Class::ReadOptions(config, options);
#include LT2_MIXERS
#undef MIXER
  CHECK(false) << "unknown mixer " << kind;
}

std::unique_ptr<Mixer> MakeMixer(const std::string& kind, const ModelConfig& config,
                                 const MixerSite& site) {
  const ConfigTable options = OptionsOf(kind, config);
#define MIXER(name, Class) \
  if (kind == #name) return std::make_unique<Class>(Class::ReadOptions(config, options), site);
#include LT2_MIXERS
#undef MIXER
  CHECK(false) << "unknown mixer " << kind;
  return nullptr;
}

std::vector<HeadCount> HeadCountsOf(const std::string& kind, const ModelConfig& config) {
  const ConfigTable options = OptionsOf(kind, config);
#define MIXER(name, Class) \
  if (kind == #name) return Class::HeadCounts(Class::ReadOptions(config, options));
#include LT2_MIXERS
#undef MIXER
  CHECK(false) << "unknown mixer " << kind;
  return {};
}

std::vector<SizeLimit> GpuLimitsOf(const std::string& kind, const ModelConfig& config,
                                   const RunSizes& run) {
  const ConfigTable options = OptionsOf(kind, config);
#define MIXER(name, Class) \
  if (kind == #name) return Class::GpuLimits(Class::ReadOptions(config, options), run);
#include LT2_MIXERS
#undef MIXER
  CHECK(false) << "unknown mixer " << kind;
  return {};
}

ForeignTable ForeignNamesOf(const std::string& kind) {
#define MIXER(name, Class) \
  if (kind == #name) return Class::ForeignNames();
#include LT2_MIXERS
#undef MIXER
  CHECK(false) << "unknown mixer " << kind;
  return {};
}

}  // namespace lt2
