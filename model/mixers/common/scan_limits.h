// What GPUs bound of the mixers that scan (kernels/gpu_limits.h).
#pragma once

#include "core/strings.h"
#include "kernels/gpu_limits.h"
#include "model/mixer.h"

namespace lt2 {

// Of `heads` heads' keys. `key` names the option that gives their channels; `alone`: whatever the
// number of heads.
inline SizeLimit ScanKeyLimit(const std::string& key, int64_t channels, int64_t heads,
                              bool alone = false) {
  const int64_t most = gpu::kMostScanKeys, times = (channels + most - 1) / most;
  return {.key = key,
          .value = channels,
          .most = most,
          .what = "channels of a key",
          .instead = alone ? StrCat(key, " = ", most, " or less")
                           : StrCat("heads = ", heads * times, " or more, or a smaller ", key)};
}

}  // namespace lt2
