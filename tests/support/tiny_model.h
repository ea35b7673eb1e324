// Small models with memory bound and parameters filled, for tests.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/language_model.h"

namespace lt2 {

// gdn, gdn, full with GQA, gate and two loops, on a width of 32: everything odd but legal.
ModelConfig TinyConfig();

// The part that `rank` of a tensor-parallel group holds of a parameter without memory.
void HoldPart(Param& param, const TensorSplit& split, int rank);
// Gives a parameter memory and, on a host, numbers away from its special initial value (zero gates,
// unit norms), which float32 holds exactly: models of either precision, and ranks that hold parts
// of one, have the same.
void BindRandom(Param& param, DType dtype, Device device, uint64_t seed);
// Adds what a rank holds of a gradient to the whole one.
void AddHeld(const Param& param, std::vector<double>* whole);

class TinyModel {
 public:
  // One rank's part of it where ranks divide it.
  TinyModel(const ModelConfig& config, DType dtype, Backend backend, uint64_t seed = 1,
            const TensorSplit& split = {}, int rank = 0);

  Stream stream;
  DType dtype;
  LanguageModel model;
  // What the mixers' own losses weigh in the objective that ForwardBackward differentiates.
  double auxiliary_weight = 1;
  Rebuild rebuild = Rebuild::kNothing;  // of the tape that ForwardBackward records

  // Loss (nll sum) and the gradient of every parameter, by name.
  struct Result {
    double loss = 0;
    std::map<std::string, std::vector<double>> grads;
  };
  struct Tokens {
    std::vector<int32_t> ids, targets, cu_seqlens;
  };
  Result ForwardBackward(const Tokens& tokens, const ForwardOptions& options = {},
                         double z_loss = 0);
  double LossOnly(const Tokens& tokens, double z_loss = 0);  // the objective
};

// Random tokens in `documents` ragged documents, every seventh target not counted.
TinyModel::Tokens RandomTokens(const ModelConfig& config, int64_t tokens, int64_t documents,
                               uint64_t seed);

// For each parameter how far the objective's derivative along random directions is from central
// differences at most, relative to the gradient's size (a direction nearly orthogonal to it has no
// digits); infinite where the gradient is 0. On ragged documents, in float64.
std::map<std::string, double> DerivativeErrors(const ModelConfig& config, Backend backend,
                                               int64_t tokens, int directions, uint64_t seed);

// ‖a − b‖ / ‖b‖.
double RelativeDifference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace lt2
