#include "kernels/first_token_mass.h"

namespace lt2 {

Cost CostOf(const FirstTokenMassArgs& args) {
  return {.flops = 2.0 * args.q_NHD.size(),
          .bytes = static_cast<double>(args.q_NHD.bytes() + args.lse_NH.bytes())};
}

}  // namespace lt2
