// SGD with momentum: m ← μ m + g, w ← w − lr (m + λ w). The proof that the seam is not AdamW's.
#pragma once

#include "parallel/update_rule.h"

namespace lt2 {

class MomentumRule : public UpdateRule {
 public:
  explicit MomentumRule(double decay = 0.1, bool whole = false) : decay_(decay), whole_(whole) {}
  std::vector<std::string> StateNames() const override { return {"momentum"}; }
  bool NeedsWholeParameters() const override { return whole_; }
  void Update(Stream&, const UpdateArgs& args) const override {
    const double* hyper = args.hyper.data<double>();
    if (hyper[kHyperSkip] != 0) return;
    DispatchFloat(args.value.dtype(), [&]<class T>() {
      T* w = args.value.data<T>();
      T* m = args.states[0].data<T>();
      const T* g = args.gradient.data<T>();
      const T scale = static_cast<T>(hyper[kHyperGradScale]), lr = static_cast<T>(hyper[kHyperLr]);
      const T lambda = static_cast<T>(args.decay ? decay_ : 0);
      for (int64_t i = 0; i < args.value.size(); ++i) {
        m[i] = T(0.9) * m[i] + scale * g[i];
        w[i] -= lr * (m[i] + lambda * w[i]);
      }
    });
  }

 private:
  double decay_;
  bool whole_;
};

}  // namespace lt2
