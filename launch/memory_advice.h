// What a run that is out of memory says before it ends.
#pragma once

#include <string>

#include "launch/memory_plan.h"

namespace lt2 {

// What a step holds by kind, as planned for `rank`, and the setting nearest to the present one that
// is planned to need clearly less and fits `budget_bytes`: "by the plan a step holds weights 3.1
// GiB …; batch.micro_batch = 1 with parallel.recompute = \"block\" would need 20.1 GiB".
std::string MemoryAdvice(const StepOptions& options, const Mesh& mesh, int rank,
                         int64_t budget_bytes);

// From here on this is what the message of a GPU that is out of memory ends with; nothing on a
// host, where the system decides who ends.
void GiveMemoryAdvice(const StepOptions& options, const Mesh& mesh, int rank);

}  // namespace lt2
