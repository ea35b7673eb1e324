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

// One rank, to which all rows are micro-batches. With a `jitter`, each parameter begins a rounding
// of the precision away from where it would, up or down by a random sign.
Trace TrainAlone(StepOptions options, const Problem& problem, uint64_t jitter = 0);

// One rank in a precision, and how far rounding alone takes a rank there.
struct Rounded {
  Trace want;
  std::vector<Trace> all;  // `want`, and some that began with a jitter
};
Rounded TrainRounded(const StepOptions& options, const Problem& problem);

// Whether one rank's rounded gradients are within 1e-3 of the exact ones: others are of problems so
// near a singular point that only their order of magnitude is known.
bool Resolves(const Trace& want, const Trace& exact);

// How far a mesh may be from one rank, for each number of a trace.
class Allowed {
 public:
  // `exact`: one rank in float64, from which each of `rounded` is as far as rounding takes it. In
  // float64 nothing but an error can differ by more than the order of sums. Rounded, a mesh may
  // also be some times as far from one rank as the farthest of those is from float64: some problems
  // amplify rounding, and of a single number one run may by chance be near.
  Allowed(DType dtype, const Rounded& rounded, const Trace& exact);
  // Nothing: every number of the mesh's is that of `want`.
  static Allowed Nothing(const Trace& want) { return Allowed(want); }

  double Loss(int step) const;
  double Norm(int step) const;
  double Reported(size_t i) const;
  double Gradient(size_t param) const;
  // Of what it has become, and of how it has moved, which is as exact as gradients are.
  double Parameter(size_t param) const;

 private:
  // Of numbers: relative, and of their distance from float64.
  struct Slack {
    double loss, norm, reported, gradient, parameter, own;
  };
  static Slack SlackOf(DType dtype);
  explicit Allowed(const Trace& want)
      : want_(want), gradients_(want.names.size()), parameters_(want.names.size()) {}

  const Trace& want_;
  Slack slack_ = {};
  // The largest distances of rounded runs from float64.
  double losses_ = 0, norms_ = 0, reported_ = 0;
  std::vector<double> gradients_, parameters_;
};

// One rank of the mesh, held to `want` by EXPECT.
void TrainAsRank(const RankGroups& groups, const MeshCase& mesh_case, const StepOptions& options,
                 const Problem& problem, const Trace& want, const Allowed& allowed);

}  // namespace lt2
