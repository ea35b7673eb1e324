// The registry again, with one mixer more.
#include "tests/model/dummy_mixer/dummy_mixer.h"

#define LT2_MIXERS "tests/model/dummy_mixer/mixers.def"
#include "model/mixers/registry.cc"
