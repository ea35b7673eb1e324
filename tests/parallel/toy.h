// A table of parameters without a model: values and gradients are functions of names and indices.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/hash.h"
#include "core/param.h"
#include "core/philox.h"

namespace lt2 {

struct Toy {
  std::vector<std::unique_ptr<Param>> owned;
  std::vector<Param*> params;

  Toy(const std::vector<ParamSpec>& specs, DType dtype, Device device = {}) {
    for (const ParamSpec& spec : specs) {
      owned.push_back(std::make_unique<Param>(spec, dtype, device));
      params.push_back(owned.back().get());
      if (device.backend == Backend::kCpu) Fill(*params.back());
    }
  }

  static void Fill(const Param& param) {
    DispatchFloat(param.value.dtype(), [&]<class T>() {
      for (int64_t i = 0; i < param.value.size(); ++i) {
        param.value.data<T>()[i] = static_cast<T>(Uniform(param.spec.name, 0, i));
      }
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
    for (auto it = params.rbegin(); it != params.rend(); ++it) Use(**it, stream, value);
  }
  template <class Value>
  static void Use(Param& param, uint64_t stream, Value value) {
    DispatchFloat(param.value.dtype(), [&]<class T>() {
      T* gradient = param.main_grad.data<T>();
      for (int64_t i = 0; i < param.value.size(); ++i) {
        gradient[i] += static_cast<T>(value(param.spec.name, stream, i));
      }
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

}  // namespace lt2
