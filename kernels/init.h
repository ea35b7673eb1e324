// Initial values of parameters: a pure function of (seed, parameter's name, element's index).
//
// Element i of a logical tensor (row-major) is made from word i % 4 of
// Philox(key = seed, counter = (i / 4, hash of the name)), in double, then rounded: the bits do not
// depend on how the tensor is cut into boxes, stored, or spread over ranks.
#pragma once

#include "core/box.h"
#include "core/param.h"

namespace lt2 {

// Fills `value` (the box's extents, a float dtype, on the host) with the box's part of the logical
// tensor. Nothing happens on kMeta.
void InitTensor(const ParamSpec& spec, const Box& box, uint64_t seed, const Tensor& value);

// What is held of the parameter's master, wherever it lives.
void InitParam(const Param& param, uint64_t seed);

// One element of the logical tensor, before rounding to its dtype.
double InitialValue(const Init& init, uint64_t seed, uint64_t name_hash, int64_t index);

// x with Phi(x) = p for the standard normal distribution function Phi, to double precision for
// 1e-4 < p < 1 - 1e-4.
double NormalQuantile(double p);

}  // namespace lt2
