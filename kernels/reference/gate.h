// The activations of gates and their slopes, from the definition.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/gated_product.h"

namespace lt2::reference {

inline double Sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

inline double LogSigmoid(double z) { return std::min(z, 0.0) - std::log1p(std::exp(-std::abs(z))); }

// log(1 + exp(z)), and z itself above 20.
inline double Softplus(double z) { return z > 20 ? z : std::log1p(std::exp(z)); }
inline double SoftplusSlope(double z) { return z > 20 ? 1 : Sigmoid(z); }

inline double Gate(GateKind kind, double z) {
  if (kind == GateKind::kNone) return z;
  return kind == GateKind::kSwish ? z * Sigmoid(z) : Sigmoid(z);
}

// σ' = σ (1 - σ); (z σ)' = σ + z σ'.
inline double GateSlope(GateKind kind, double z) {
  if (kind == GateKind::kNone) return 1;
  const double slope = Sigmoid(z) * (1 - Sigmoid(z));
  return kind == GateKind::kSwish ? Sigmoid(z) + z * slope : slope;
}

}  // namespace lt2::reference
