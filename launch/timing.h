// Medians of repeated runs on the CPU or a GPU.
#pragma once

#include <algorithm>
#include <vector>

#include "core/cuda.h"
#include "core/trace.h"
#include "kernels/kernel.h"

namespace lt2 {

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <class Fn>
double SecondsOf(const Fn& fn) {
  const double begun = MonotonicSeconds();
  fn();
  return MonotonicSeconds() - begun;
}

// One run's, the first of which warms up.
template <class Fn>
double MedianSeconds(int repeats, const Fn& fn) {
  std::vector<double> seconds;
  for (int i = 0; i <= repeats; ++i) {
    const double taken = SecondsOf(fn);
    if (i > 0) seconds.push_back(taken);
  }
  return Median(seconds);
}

// One run's where as many are queued as a graph as it takes for what the host adds not to show.
template <class Fn>
double MedianSecondsReplayed(int repeats, const Fn& fn) {
  constexpr double kLongEnough = 0.01;
  constexpr int kMost = 200;
  fn();
  cuda::Synchronize();
  const double rough = SecondsOf([&] {
    fn();
    cuda::Synchronize();
  });
  const int runs = std::clamp(static_cast<int>(kLongEnough / rough) + 1, 1, kMost);
  cuda::Graph graph;
  graph.BeginCapture();
  for (int i = 0; i < runs; ++i) fn();
  graph.EndCapture();
  return MedianSeconds(repeats,
                       [&] {
                         graph.Launch();
                         cuda::Synchronize();
                       }) /
         runs;
}

template <class Fn>
double MedianSeconds(const Stream& stream, int repeats, const Fn& fn) {
  if (stream.device.backend == Backend::kCuda) return MedianSecondsReplayed(repeats, fn);
  return MedianSeconds(repeats, fn);
}

}  // namespace lt2
