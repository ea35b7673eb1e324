// One description of an operator feeds four users: unit tests against the reference backend,
// `lt2 selftest` against known answers, the gradient check, and `lt2 bench op`.
//
// A case says how to make inputs (values exact in float32, on the host) and how to run the operator
// on a tape from named inputs; the runner does the rest on any backend and dtype.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/scan.h"

namespace lt2 {

struct HostArray {
  Shape shape;
  std::vector<double> values;
  bool integer = false;
};
using HostArrays = std::map<std::string, HostArray>;
using Attributes = std::map<std::string, std::variant<double, std::string>>;

// One instance of a case. Expected values are there when it comes from a file of known answers.
struct CaseData {
  std::string op;    // which OpCase runs it
  std::string name;  // for people: sizes and options
  Attributes attributes;
  HostArrays inputs;
  HostArrays cotangents;      // one per differentiable output; made by the runner where empty
  HostArrays outputs, grads;  // expected
};

// What OpCase::run sees. Inputs become Vars or Params at first use, in the run's dtype; but in a
// bfloat16 run gates, decays, states and weights outside matrix products are float32, as are all
// parameter gradients.
class CaseContext {
 public:
  CaseContext(const CaseData& data, Tape& tape, DType dtype);

  Tape& tape() { return *tape_; }
  // Goes on on another tape: inputs made so far become its leaves. From the first move on what
  // Value, Ints and Doubles give is made once, so that later runs copy nothing from the host.
  void MoveTo(Tape& tape);
  DType dtype() const { return dtype_; }
  bool Has(const std::string& input) const { return data_.inputs.count(input) > 0; }
  Var In(const std::string& input);        // with its gradient
  Tensor Value(const std::string& input);  // without
  // F64, not an input: what a kernel reads from the device's memory, by a name of its own.
  Tensor Doubles(const std::string& name, const std::vector<double>& values);
  Param& Weight(const std::string& input);  // a parameter; expects one use per run
  Param& Matrix(const std::string& input);  // likewise, one that a matrix product reads
  // Rows [first, last) of such a one, held in part.
  Param& Part(const std::string& input, int64_t first, int64_t last);
  Tensor Ints(const std::string& input);  // I32
  double Number(const std::string& attribute) const;
  double Number(const std::string& attribute, double fallback) const;
  std::string Text(const std::string& attribute) const;
  // Sequence operators: inputs are [B, T, …]. In() keeps that shape; FlatIn gives [B·T, …], and
  // documents come from the input cu_seqlens, or are the B rows. `sequence` names an input [B, T,
  // …].
  Var FlatIn(const std::string& input);
  const Documents& documents(const std::string& sequence);
  // Not null: the inputs are a part of longer rows, of which there are no initial and final states.
  StateLink* link() const { return link_; }
  FinalStates final_states() const { return link_ ? FinalStates::kNone : FinalStates::kAll; }
  // The part's documents, and the link.
  void ShareRows(const Documents& documents, StateLink& link);

  // How often `run` will be called with this context (before the first Weight).
  void set_uses(int uses) { uses_ = uses; }
  const std::map<std::string, Var>& vars() const { return vars_; }
  const std::map<std::string, std::unique_ptr<Param>>& weights() const { return weights_; }

 private:
  const HostArray& Input(const std::string& input) const;
  Tensor Make(const std::string& input) const;
  Tensor MakeInts(const std::string& input) const;
  Tensor OnceMoved(const std::string& input, const std::function<Tensor()>& make);
  Param& MakeParam(const std::string& input, DType dtype, int uses);
  const CaseData& data_;
  Tape* tape_;
  DType dtype_;
  int uses_ = 1;
  bool moved_ = false;
  std::map<std::string, Tensor> constants_;
  std::map<std::string, Var> vars_;
  std::map<std::string, std::unique_ptr<Param>> weights_;
  std::map<std::pair<std::string, int64_t>, std::unique_ptr<Param>> parts_;  // by input and row
  std::unique_ptr<Documents> documents_;
  StateLink* link_ = nullptr;
};

struct OpCase {
  const char* op;
  // Outputs by name (those of the known answers), any shape of the right size.
  std::function<std::map<std::string, Var>(CaseContext&)> run;
  // Small instances for tests, random from the seed: ordinary, odd and extreme sizes.
  std::function<std::vector<CaseData>(uint64_t seed)> instances;
  // One instance of a size worth timing on a CPU.
  std::function<CaseData()> bench;
  // Likewise on a GPU in bfloat16: a model's own, moving far more than its caches hold. Null: as on
  // a CPU.
  std::function<CaseData()> gpu_bench = {};
};

// Every case, in the order of cases/cases.def.
const std::vector<OpCase>& AllOpCases();
const OpCase* FindOpCase(const std::string& op);

struct CaseResult {
  HostArrays outputs, grads;  // float64 copies of what came out
};
struct RunOptions {
  // How often the operator is applied to the same inputs on one tape: gradients come out as many
  // times as large, if every kernel adds where it must.
  int uses = 1;
  // CaseContext::ShareRows, if both are there.
  const Documents* documents = nullptr;
  StateLink* link = nullptr;
};
// Runs forward, and backward from the cotangents. Cotangents missing from `data` are drawn from its
// name, so that two runs agree. On kMeta the arrays have shapes and no values.
CaseResult RunCase(const OpCase& op_case, const CaseData& data, Stream& stream, DType dtype,
                   const RunOptions& options = {});

// ‖a − b‖ / ‖b‖, absolute where ‖b‖ < 1e-6; infinity if shapes differ or anything is not finite.
double RelativeError(const HostArray& a, const HostArray& b);

// Random inputs for instances: every value exact in float32, a pure function of (seed, name).
HostArray RandomNormal(uint64_t seed, const std::string& name, const Shape& shape,
                       double scale = 1.0);
HostArray RandomUniform(uint64_t seed, const std::string& name, const Shape& shape, double low,
                        double high);
HostArray RandomInts(uint64_t seed, const std::string& name, const Shape& shape, int64_t low,
                     int64_t high);  // [low, high)
HostArray IntArray(const std::vector<int64_t>& values);

}  // namespace lt2
