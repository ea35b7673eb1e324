#include "kernels/rope.h"

#include <cmath>
#include <vector>

#include "kernels/cpu/blocks.h"

namespace lt2::cpu {
namespace {

// cos and sin of position · frequency_i in double, from two short tables: position = 256 high +
// low, and e^(i(a + b)) = e^(ia) e^(ib). So a position costs a few products per pair, not a sine.
class Angles {
 public:
  // Tables for positions [0, last]; they grow with `last`.
  void Prepare(double theta, int64_t half, int64_t last) {
    if (theta != theta_ || half != half_) {
      theta_ = theta, half_ = half;
      low_ = Table(kLow, 1);
      high_ = {};
    }
    const int64_t needed = last / kLow + 1;
    if (static_cast<int64_t>(high_.size()) < needed * 2 * half) high_ = Table(needed, kLow);
  }

  template <class T>
  void At(int64_t position, T sign, T* cosine, T* sine) const {
    const double* low_cos = low_.data() + position % kLow * 2 * half_;
    const double* high_cos = high_.data() + position / kLow * 2 * half_;
    const double *low_sin = low_cos + half_, *high_sin = high_cos + half_;
#pragma omp simd
    for (int64_t i = 0; i < half_; ++i) {
      cosine[i] = static_cast<T>(low_cos[i] * high_cos[i] - low_sin[i] * high_sin[i]);
      sine[i] = sign * static_cast<T>(low_sin[i] * high_cos[i] + low_cos[i] * high_sin[i]);
    }
  }

 private:
  static constexpr int64_t kLow = 256;

  // Lines of half cosines then half sines, of positions 0, step, 2 step, …
  std::vector<double> Table(int64_t lines, int64_t step) const {
    std::vector<double> table(lines * 2 * half_);
    for (int64_t line = 0; line < lines; ++line) {
      for (int64_t i = 0; i < half_; ++i) {
        const double angle = double(line * step) * std::pow(theta_, -double(i) / double(half_));
        table[(2 * line) * half_ + i] = std::cos(angle);
        table[(2 * line + 1) * half_ + i] = std::sin(angle);
      }
    }
    return table;
  }

  double theta_ = 0;
  int64_t half_ = 0;
  std::vector<double> low_, high_;
};

template <class T, bool accumulate>
void Turn(const T* x, const T* cosine, const T* sine, int64_t half, int64_t stride, int64_t second,
          T* y) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const T a = x[i * stride], b = x[i * stride + second];
    const T turned_a = a * cosine[i] - b * sine[i], turned_b = a * sine[i] + b * cosine[i];
    y[i * stride] = accumulate ? y[i * stride] + turned_a : turned_a;
    y[i * stride + second] = accumulate ? y[i * stride + second] + turned_b : turned_b;
  }
}

template <class T, bool accumulate>
void Run(const RopeArgs& args) {
  const int64_t tokens = args.x.dim(0), heads = args.x.dim(1), d = args.x.dim(2), half = d / 2;
  const int32_t* positions = args.positions.data<int32_t>();
  int32_t last = 0;
  for (int64_t n = 0; n < tokens; ++n) {
    CHECK_GE(positions[n], 0);
    last = std::max(last, positions[n]);
  }
  thread_local Angles this_thread;
  this_thread.Prepare(args.options.theta, half, last);
  const Angles& angles = this_thread;  // the caller's, for every thread of the loop
  const T* x_NHD = args.x.data<T>();
  T* y_NHD = args.y.data<T>();
  const T sign = args.inverse ? T(-1) : T(1);
  const bool interleaved = args.options.style == RopeStyle::kInterleaved;
  ForEachBlock(tokens, 32, args.x.size(), [&, half](int64_t, int64_t begin, int64_t end) {
    thread_local std::vector<T> turn;
    if (static_cast<int64_t>(turn.size()) < d) turn.resize(d);
    T *cosine = turn.data(), *sine = cosine + half;
    for (int64_t n = begin; n < end; ++n) {
      angles.At(positions[n], sign, cosine, sine);
      for (int64_t head = n * heads; head < (n + 1) * heads; ++head) {
        const T* x = x_NHD + head * d;
        T* y = y_NHD + head * d;
        if (interleaved) {
          Turn<T, accumulate>(x, cosine, sine, half, 2, 1, y);
        } else {
          Turn<T, accumulate>(x, cosine, sine, half, 1, half, y);
        }
      }
    }
  });
}

}  // namespace

void Rope(Stream&, const RopeArgs& args) {
  DispatchFloat(args.x.dtype(),
                [&]<class T>() { args.accumulate ? Run<T, true>(args) : Run<T, false>(args); });
}

}  // namespace lt2::cpu
