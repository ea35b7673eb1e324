// One rank's run of a toy: parameters, and steps whose gradients are those of samples shared out.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/adamw_rule.h"
#include "parallel/optimizer.h"
#include "parallel/reducer.h"
#include "tests/parallel/momentum_rule.h"
#include "tests/parallel/toy.h"

namespace lt2 {

constexpr LayoutOptions kSmallBuckets{.bucket_elements = 200};
using MakeRule = std::function<std::unique_ptr<UpdateRule>()>;

inline std::unique_ptr<UpdateRule> Momentum() { return std::make_unique<MomentumRule>(); }
inline std::unique_ptr<UpdateRule> Adam() { return std::make_unique<AdamWRule>(OptimizerConfig{}); }

struct ToyRun {
  ToyRun(Communicator& world, const Mesh& the_mesh, int zero, DType dtype, const MakeRule& make,
         OptimizerConfig config = {.clip = 0.05}, const std::vector<ParamSpec>& specs = ToySpecs())
      : mesh(the_mesh),
        groups(MakeGroups(world, mesh)),
        toy(specs, dtype, {}, mesh.tp, groups.tp->rank()),
        layout(Layout(specs, mesh, zero, kSmallBuckets, groups.tp->rank())),
        reducer(toy.params, layout, groups),
        optimizer(toy.params, layout, groups, reducer, make(), config) {}

  // `value(name, stream, i)` is the gradient of sample `stream`; a step has 12 samples.
  template <class Value>
  StepReport Step(int64_t step, Value value, std::vector<double> sums = {},
                  std::vector<double> maxes = {}, bool gather = true) {
    constexpr int kSamples = 12;
    const int mine = kSamples / mesh.replicas();
    reducer.BeginStep(std::vector<int>(toy.params.size(), 1), mine);
    for (int i = 0; i < mine; ++i) {
      toy.Backward(step * 100 + groups.replicas->rank() * mine + i, value);
    }
    reducer.Finish();
    optimizer.Prepare({.step = step,
                       .lr = 1e-2,
                       .counted_tokens = 1.0 * mine,
                       .sums = std::move(sums),
                       .maxes = std::move(maxes)});
    optimizer.Update(stream, gather);
    optimizer.Updated(gather);
    return optimizer.Report();
  }

  std::vector<double> Values() {
    optimizer.WaitForValues();
    std::vector<double> all;
    for (Param* param : toy.params) {
      for (double value : param->value.ToDoubles()) all.push_back(value);
    }
    return all;
  }

  const Mesh mesh;
  Stream stream;
  RankGroups groups;
  Toy toy;
  LayoutTable layout;
  Reducer reducer;
  Optimizer optimizer;
};

}  // namespace lt2
