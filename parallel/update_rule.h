// What an optimizer does to one piece of a parameter; everything else (which pieces, norms,
// clipping, skipping, gathering, checkpoints) is Optimizer's and the same for every rule.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/box.h"
#include "core/param.h"

namespace lt2 {

// The numbers of a step, as they lie in device memory: one F64 tensor [kHyperSize], so that a
// captured step reads new ones each time.
enum HyperIndex : int {
  kHyperLr = 0,         // learning rate
  kHyperGradScale = 1,  // gradients are sums over tokens: clip factor / counted tokens
  kHyperStep = 2,       // this update counted without the skipped ones: the first is 1
  kHyperSkip = 3,       // not 0: leave value and states as they are
  kHyperSize = 4,
};

struct UpdateArgs {
  const ParamSpec* spec = nullptr;
  const Box* box = nullptr;  // the piece, in the logical tensor
  Tensor value, gradient;    // of the box's shape
  std::span<const Tensor> states;
  bool decay = true;
  Tensor hyper;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // One state tensor of the piece's shape and dtype for each name, zero at first. The names are
  // groups in checkpoints.
  virtual std::vector<std::string> StateNames() const = 0;
  // True if Update needs whole parameters: LayoutOptions::whole_parameters must be set then.
  virtual bool NeedsWholeParameters() const { return false; }
  // value and states after the step. Must give the same bits however the parameter is cut.
  virtual void Update(Stream& stream, const UpdateArgs& args) const = 0;
};

}  // namespace lt2
