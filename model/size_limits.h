// Which models a kind of device takes at all: what its kernels would end a run for is refused
// before it begins.
#pragma once

#include "absl/status/status.h"
#include "core/device.h"
#include "model/config.h"
#include "model/mixer.h"

namespace lt2 {

// InvalidArgument names every size that kernels of the backend do not take, what they take at most
// and what to set instead.
absl::Status CheckSizes(const ModelConfig& config, Backend backend, const RunSizes& run);

}  // namespace lt2
