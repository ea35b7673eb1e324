// The small models over which tests of all mixers run.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "model/config.h"

namespace lt2 {

struct MixerCase {
  std::string name;
  std::vector<std::string> mixers;
  std::vector<std::string> overrides = {};  // of [model]: "gdn.v_heads=8"
};
inline void PrintTo(const MixerCase& mixer_case, std::ostream* os) { *os << mixer_case.name; }

// For every line of mixers.def, in its order: the kind alone, the kind and full attention in turn,
// and the kind under other options.
std::vector<MixerCase> AllMixerCases();

// Whether a kind of the case chooses which keys a token reads: its outputs jump where a choice
// changes.
bool ChoosesKeys(const MixerCase& mixer_case);
// Whether nothing else than such choices decides what a token reads of the others.
bool ReadsChosenKeysOnly(const MixerCase& mixer_case);

// Two layers and two loops on a width of 32; `more` comes after the case's overrides.
ModelConfig ConfigOf(const MixerCase& mixer_case, const std::vector<std::string>& more = {});

}  // namespace lt2
