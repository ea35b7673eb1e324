// What an optimizer does to pieces of parameters; everything else (which pieces, norms,
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

struct UpdatePiece {
  const ParamSpec* spec = nullptr;
  const Box* box = nullptr;  // the piece, in the logical tensor
  Tensor value, gradient;    // of the box's shape
  Tensor rounded;            // BF16, or undefined: value as products read it, written with it
  std::span<const Tensor> states;
  bool decay = true;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // One state tensor of the piece's shape and dtype for each name, zero at first. The names are
  // groups in checkpoints.
  virtual std::vector<std::string> StateNames() const = 0;
  // True if Update needs whole parameters: LayoutOptions::whole_parameters must be set then.
  virtual bool NeedsWholeParameters() const { return false; }
  // Values and states after the step. Must give the same bits however parameters are cut.
  virtual void Update(Stream& stream, const Tensor& hyper,
                      std::span<const UpdatePiece> pieces) const = 0;
};

}  // namespace lt2
