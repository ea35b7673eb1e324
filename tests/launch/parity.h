// Training on a mesh against training on one rank that sees all of it: losses, the first step's
// gradient of every parameter on every rank and its norm, what is reported beside them, and the
// parameters after three steps, of random small models on random ragged documents.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "launch/train_step.h"

namespace lt2 {

constexpr int kParitySteps = 3;

struct MeshCase {
  std::string name;
  Mesh mesh;
  int zero = 0;
  StateExchange exchange = StateExchange::kAuto;
  bool sequence = false;  // sequence parallel
  Pipeline pipeline = Pipeline::kRing;
  int tiles = 1;  // of a row
};
inline void PrintTo(const MeshCase& mesh, std::ostream* os) { *os << mesh.name; }

// What is trained on: a model's options, and the documents of each micro-batch's row.
struct Problem {
  std::vector<std::string> model;
  bool slow_decay = false;
  RecomputePolicy recompute = RecomputePolicy::kNone;
  int64_t tokens = 0, micro_batches = 1;
  int dp = 1;
  std::vector<std::vector<Batch>> batches;  // [step][micro-batch · dp + data-parallel rank]

  std::string ToString() const;
};

// Rows that can be cut into `tiles`.
Problem RandomProblem(int64_t vocab, const Mesh& mesh, uint64_t seed, int tiles = 1);

// In float64 on a CPU.
StepOptions OptionsOf(const ModelConfig& model, const Problem& problem, const MeshCase& mesh);

// What training is held to.
struct Trace {
  std::vector<double> losses, norms;
  std::vector<double> reported;    // in the first step, of all micro-batches and of its first
  std::vector<std::string> names;  // of parameters, in the order of the next three
  std::vector<std::vector<double>> gradients;          // of the first step
  std::vector<std::vector<double>> start, parameters;  // before it, and at the end

  size_t IndexOf(const std::string& name) const;
};

// One rank, to which all rows are micro-batches.
Trace TrainAlone(StepOptions options, const Problem& problem);

// Whether one rank's rounded gradients are within 1e-3 of the exact ones: others are of problems so
// near a singular point that only their order of magnitude is known.
bool Resolves(const Trace& want, const Trace& exact);

// How far a mesh may be from one rank, for each number of a trace.
class Allowed {
 public:
  // `exact`: one rank in float64, from which `want` is as far as rounding takes it. In float64
  // nothing but an error can differ by more than the order of sums. Rounded, a mesh may also be
  // some times as far from one rank as that is from float64: some problems amplify rounding.
  Allowed(DType dtype, const Trace& want, const Trace& exact)
      : Allowed(SlackOf(dtype), want, exact) {}
  // Nothing: every number of the mesh's is that of `want`.
  static Allowed Nothing(const Trace& want) { return Allowed(Slack{}, want, want); }

  double Loss(int step) const;
  double Norm(int step) const;
  double Reported(size_t i) const;
  double Gradient(size_t param) const;
  // Of what it has become, and of how it has moved, which is as exact as gradients are.
  double Parameter(size_t param) const;

 private:
  // Relative, and of the distance of `want` from `exact`.
  struct Slack {
    double loss, norm, reported, gradient, parameter, own;
  };
  Allowed(const Slack& slack, const Trace& want, const Trace& exact)
      : slack_(slack), want_(want), exact_(exact) {}
  static Slack SlackOf(DType dtype);

  const Slack slack_;
  const Trace& want_;
  const Trace& exact_;
};

// One rank of the mesh, held to `want` by EXPECT.
void TrainAsRank(const RankGroups& groups, const MeshCase& mesh_case, const StepOptions& options,
                 const Problem& problem, const Trace& want, const Allowed& allowed);

}  // namespace lt2
