// A table of parameters without a model: values and gradients are functions of names and indices
// in the logical tensor, whichever part of it a rank holds.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/hash.h"
#include "core/param.h"
#include "core/philox.h"
#include "parallel/layout.h"

namespace lt2 {

struct Toy {
  std::vector<std::unique_ptr<Param>> owned;
  std::vector<Param*> params;
  int tp = 1, tp_rank = 0;

  Toy(const std::vector<ParamSpec>& specs, DType dtype, Device device = {}, int the_tp = 1,
      int the_tp_rank = 0)
      : tp(the_tp), tp_rank(the_tp_rank) {
    for (const ParamSpec& spec : specs) {
      owned.push_back(std::make_unique<Param>(spec));
      params.push_back(owned.back().get());
      params.back()->Hold(HeldBox(spec, tp, tp_rank));
      params.back()->BindValue(Tensor::Empty(params.back()->held.extent, dtype, device));
      if (device.backend == Backend::kCpu) Fill(*params.back());
    }
  }

  static void Fill(const Param& param) {
    DispatchFloat(param.value.dtype(), [&]<class T>() {
      ForEachElement(param, [&](int64_t here, int64_t i) {
        param.value.data<T>()[here] = static_cast<T>(Uniform(param.spec.name, 0, i));
      });
    });
  }

  // Where an element lies here, and in the logical tensor.
  template <class Fn>
  static void ForEachElement(const Param& param, const Fn& fn) {
    ForEachRun(param.held, Box::Whole(param.spec.shape),
               [&](int64_t here, int64_t whole, int64_t n) {
                 for (int64_t i = 0; i < n; ++i) fn(here + i, whole + i);
               });
  }

  // In (-1, 1).
  static double Uniform(const std::string& name, uint64_t stream, uint64_t index) {
    return 2 * OpenUniform(Philox(Hash64(name), index, stream)[0]) - 1;
  }
  // A small integer: sums of thousands are exact in any order and dtype.
  static double Integer(const std::string& name, uint64_t stream, uint64_t index) {
    return static_cast<double>(Philox(Hash64(name), index, stream)[0] % 17) - 8;
  }

  // One use of each parameter, last used first: adds value(name, stream, i) to its gradient.
  template <class Value>
  void Backward(uint64_t stream, Value value) {
    for (auto it = params.rbegin(); it != params.rend(); ++it) {
      const ParamSplit& split = (*it)->spec.split;
      const int copies = split.whole_gradient ? 1 : static_cast<int>(tp / split.parts);
      Use(**it, stream, value, copies, tp_rank % copies);
    }
  }
  // Of ranks that hold the same and sum their gradients, each has those of some elements.
  template <class Value>
  static void Use(Param& param, uint64_t stream, Value value, int copies = 1, int copy = 0) {
    param.Need();
    DispatchFloat(param.value.dtype(), [&]<class T>() {
      T* gradient = param.main_grad.data<T>();
      ForEachElement(param, [&](int64_t here, int64_t i) {
        if (i % copies != copy) return;
        gradient[here] += static_cast<T>(value(param.spec.name, stream, i));
      });
    });
    param.Arrive();
  }
};

inline std::vector<ParamSpec> ToySpecs() {
  return {{.name = "embed.weight", .shape = {97, 8}},
          {.name = "norm.weight", .shape = {8}, .decay = false},
          {.name = "ffn.weight", .shape = {24, 8}},
          {.name = "conv.weight", .shape = {5, 4}},
          {.name = "scalar", .shape = {}, .decay = false},
          {.name = "head.weight", .shape = {33, 8}}};
}

// Parameters of every kind that ranks along tp may hold: uneven rows, columns, fewer parts than
// ranks (tp = 2 or 4), and whole ones whose gradients are summed or computed alike.
inline std::vector<ParamSpec> SplitToySpecs(int tp) {
  const int64_t half = std::max(tp / 2, 1);
  const ParamSplit alike{.whole_gradient = true};
  return {{.name = "embed.weight", .shape = {97, 8}, .split = SplitRows(tp)},
          {.name = "norm.weight", .shape = {8}, .decay = false, .split = alike},
          {.name = "q.weight", .shape = {24, 8}, .split = SplitRows(tp)},
          {.name = "k.weight", .shape = {12, 8}, .split = SplitRows(half)},
          {.name = "q_norm.weight", .shape = {6}, .decay = false},
          {.name = "conv.weight", .shape = {8, 4}, .split = SplitRows(tp)},
          {.name = "o.weight", .shape = {8, 24}, .split = SplitColumns(tp)},
          {.name = "kv_bias", .shape = {12}, .split = {.parts = half, .whole_gradient = true}},
          {.name = "scalar", .shape = {}, .decay = false, .split = alike}};
}

}  // namespace lt2
