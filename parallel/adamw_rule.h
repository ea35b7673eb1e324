// AdamW as an update rule: first and second moments, decoupled weight decay.
#pragma once

#include "parallel/optimizer_config.h"
#include "parallel/update_rule.h"

namespace lt2 {

class AdamWRule : public UpdateRule {
 public:
  explicit AdamWRule(const OptimizerConfig& config) : config_(config) {}
  std::vector<std::string> StateNames() const override { return {"adam_m", "adam_v"}; }
  void Update(Stream& stream, const Tensor& hyper,
              std::span<const UpdatePiece> pieces) const override;

 private:
  const OptimizerConfig config_;
};

}  // namespace lt2
