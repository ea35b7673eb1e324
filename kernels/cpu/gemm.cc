#include "kernels/gemm.h"

#include "kernels/cpu/blas.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/scratch.h"

namespace lt2::cpu {
namespace {

// A product whose right operand fits the second-level cache needs no packing of the left one, which
// is most of what a BLAS call adds at a model's shapes: rows of tokens times a weight.
template <class T>
struct TiledGemm {
  static constexpr int64_t kPanel = 4 * kMicroLanes<T>;  // lanes
  static constexpr int64_t kRows = 96, kInner = 192;     // a block: measured on [1024, 96 … 256]

  bool ta, tb, accumulate;
  int64_t m, n, k;
  const T *a, *b;
  T* c;

  static bool Pays(int64_t n, int64_t k) {
    constexpr int64_t kCached = int64_t{1} << 20;  // bytes
    return n >= kMicroLanes<T> && n * k * static_cast<int64_t>(sizeof(T)) <= kCached;
  }

  // Panels [k, kPanel] of op(B), zero beyond n.
  T* Pack() const {
    const int64_t panels = (n + kPanel - 1) / kPanel;
    T* packed = Scratch::Restart().Take<T>(panels * k * kPanel);
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t width = std::min(kPanel, n - p * kPanel);
      T* to = packed + p * k * kPanel;
      if (width < kPanel) std::fill_n(to, k * kPanel, T(0));
      for (int64_t j = 0; tb && j < width; ++j) {
        const T* from = b + (p * kPanel + j) * k;
        for (int64_t i = 0; i < k; ++i) to[i * kPanel + j] = from[i];
      }
      for (int64_t i = 0; !tb && i < k; ++i) {
        std::copy_n(b + i * n + p * kPanel, width, to + i * kPanel);
      }
    }
    return packed;
  }

  // Every element of C is summed in one order, whatever the number of threads.
  void Run() const {
    const bool pack = tb || n % kMicroLanes<T> != 0;
    const T* packed = pack ? Pack() : nullptr;
    const int64_t blocks = (m + kRows - 1) / kRows;
    constexpr int64_t kThreadingPays = 1000000;  // multiply-adds
#pragma omp parallel for schedule(static) if (m * n * k > kThreadingPays && blocks > 1)
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t row = block * kRows;
      for (int64_t i = 0; i < k; i += kInner) {
        for (int64_t lane = 0; lane < n; lane += kPanel) {
          const MicroGemmArgs<T> args{.rows = std::min(kRows, m - row),
                                      .lanes = std::min(kPanel, n - lane),
                                      .inner = std::min(kInner, k - i),
                                      .a = a + (ta ? i * m + row : row * k + i),
                                      .a_row = ta ? 1 : k,
                                      .a_inner = ta ? m : 1,
                                      .b = pack ? packed + lane * k + i * kPanel : b + i * n + lane,
                                      .ldb = pack ? kPanel : n,
                                      .c = c + row * n + lane,
                                      .ldc = n};
          if (accumulate || i > 0) {
            MicroGemm<true>(args);
          } else {
            MicroGemm<false>(args);
          }
        }
      }
    }
  }
};

}  // namespace

void Gemm(Stream&, const GemmArgs& args) {
  const auto [m, n, k] = SizesOf(args);
  const bool ta = args.transpose_a, tb = args.transpose_b;
  if (args.addend.defined()) args.c.CopyFrom(args.addend);
  const bool accumulate = args.accumulate || args.addend.defined();
  DispatchFloat(args.c.dtype(), [&, m = m, n = n, k = k]<class T>() {
    const T *a = args.a.data<T>(), *b = args.b.data<T>();
    T* c = args.c.data<T>();
    if (k > 0 && TiledGemm<T>::Pays(n, k)) {
      return TiledGemm<T>{ta, tb, accumulate, m, n, k, a, b, c}.Run();
    }
    Gemm<T>(ta, tb, m, n, k, T(1), a, ta ? m : k, b, tb ? k : n, accumulate ? T(1) : T(0), c, n);
  });
}

}  // namespace lt2::cpu
