#include "kernels/exit_select.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd.h"

namespace lt2::cpu {
namespace {

template <class T>
void Run(const ExitSelectArgs& args) {
  const int64_t N = args.h_ND.dim(0), D = args.h_ND.dim(1);
  const T *h = args.h_ND.data<T>(), *gate = DataOrNull<T>(args.gate_N);
  T *left = args.left_N.data<T>(), *out = args.out_ND.data<T>();
  const double threshold = args.threshold;
  ForEachBlock(N, 32, N * D, [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (left[i] < 0) continue;
      if (gate != nullptr) {
        left[i] *= Sigmoid(-gate[i]);
        if (1.0 - left[i] < threshold) continue;
      }
      left[i] = -1;
      std::copy(h + i * D, h + (i + 1) * D, out + i * D);
    }
  });
}

}  // namespace

void ExitSelect(Stream&, const ExitSelectArgs& args) {
  DispatchFloat(args.h_ND.dtype(), [&]<class T>() { Run<T>(args); });
}

}  // namespace lt2::cpu
