// SGD with momentum: m ← μ m + g, w ← w − lr (m + λ w). The proof that the seam is not AdamW's.
#pragma once

#include "parallel/update_rule.h"

namespace lt2 {

class MomentumRule : public UpdateRule {
 public:
  explicit MomentumRule(double decay = 0.1, bool whole = false) : decay_(decay), whole_(whole) {}
  std::vector<std::string> StateNames() const override { return {"momentum"}; }
  bool NeedsWholeParameters() const override { return whole_; }
  void Update(Stream&, const Tensor& hyper, std::span<const UpdatePiece> pieces) const override {
    for (const UpdatePiece& piece : pieces) UpdateOne(hyper.data<double>(), piece);
  }

 private:
  void UpdateOne(const double* hyper, const UpdatePiece& piece) const {
    if (hyper[kHyperSkip] != 0) return;
    DispatchFloat(piece.value.dtype(), [&]<class T>() {
      T* w = piece.value.data<T>();
      T* m = piece.states[0].data<T>();
      const T* g = piece.gradient.data<T>();
      const T scale = static_cast<T>(hyper[kHyperGradScale]), lr = static_cast<T>(hyper[kHyperLr]);
      const T lambda = static_cast<T>(piece.decay ? decay_ : 0);
      for (int64_t i = 0; i < piece.value.size(); ++i) {
        m[i] = T(0.9) * m[i] + scale * g[i];
        w[i] -= lr * (m[i] + lambda * w[i]);
      }
    });
  }

  double decay_;
  bool whole_;
};

}  // namespace lt2
