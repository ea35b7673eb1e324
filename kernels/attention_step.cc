#include "kernels/attention_step.h"

namespace lt2 {

// Full caches: lengths are the device's.
Cost CostOf(const AttentionStepArgs& args) {
  const double keys = args.options.window > 0
                          ? std::min<double>(args.k_BSGD.dim(1), args.options.window)
                          : args.k_BSGD.dim(1);
  const double D = args.k_BSGD.dim(3), E = args.v_BSGE.dim(3), B = args.q_BHD.dim(0);
  return {.flops = 2 * B * args.q_BHD.dim(1) * keys * (D + E),
          .bytes = B * keys * args.k_BSGD.dim(2) * (D + E) * SizeOf(args.k_BSGD.dtype()) +
                   args.q_BHD.bytes() + args.o_BHE.bytes()};
}

}  // namespace lt2
