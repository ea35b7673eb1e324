// The whole contract between a token mixer and the rest of the program.
//
// A mixer is one folder under model/mixers/. It declares its parameters in its constructor,
// computes a layer's output from the normed input, and says what a decoding step must remember. It
// knows no communicator and no loop: the stack runs one mixer object T times per visit, and keeps
// one MixerState per (layer, loop). Where ranks divide its heads it declares whole parameters and
// how they are cut, and computes with the heads that it finds in them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/param_set.h"
#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/rank_link.h"
#include "kernels/row_sums.h"
#include "parallel/context_shard.h"
#include "parallel/tensor_split.h"

namespace lt2 {

// Where in a model a mixer stands, and where it declares its parameters.
struct MixerSite {
  ParamScope scope;  // its own: "layers.3.mixer."
  ParamScope root;   // of the model, for a parameter that all layers of a kind share
  int64_t layer = 0, layers = 1;
  TensorSplit split = {};  // of heads: who else holds some

  // Of a parameter whose rows, or columns, are those of one head after another.
  ParamSplit Rows(int64_t heads) const { return SplitRows(split.Parts(heads)); }
  ParamSplit Columns(int64_t heads) const { return SplitColumns(split.Parts(heads)); }
};

// Heads that ranks divide, by the name of their number: as many on every rank. Of keys and values
// that serve several heads each the ranks may be a multiple: then some hold the same.
struct HeadCount {
  std::string name;  // "kv_heads"
  int64_t heads = 0;
  bool shared = false;
  bool DividedBy(int64_t ranks) const {
    return heads % ranks == 0 || (shared && ranks % heads == 0);
  }
};

// A number that kernels of GPUs bound, and what to set where it is too large.
struct SizeLimit {
  std::string key;  // of [model.<kind>]: "head_dim"
  int64_t value = 0, most = 0;
  std::string what;       // the value counts
  std::string instead;    // "head_dim = 256 or less"
  bool of_model = false;  // the key is one of [model]
};

// What a run makes of a model's sizes.
struct RunSizes {
  int64_t tensor_ranks = 1;
  int64_t tokens = 0;  // of a micro-batch, on a rank; 0: nothing is trained
};

// One tensor that a decoding step carries from token to token.
struct StateEntry {
  std::string name;
  Shape shape;  // leading extent: sequences
  DType dtype;
};
// The tensors of StateSpec, in its order.
using MixerState = std::vector<Tensor>;

// What surrounds a forward pass over N tokens.
struct MixerContext {
  const Documents& documents;
  // Not null: the N tokens are a part of a row that other ranks hold the rest of, and `documents`
  // its documents().
  ContextShard* shard = nullptr;
  // Not null: other ranks hold the other heads. The output is this rank's summand; an auxiliary
  // loss is of all heads, its gradients here are summands.
  RankLink* heads = nullptr;
  // Not null: the output is the own rows of the sum over these ranks, by LinearSum.
  RowSums* sums = nullptr;
  int64_t loop = 0;  // of the model's loops, the first is 0
  // Prefill: each document is one sequence starting from nothing; Forward fills *state so that Step
  // can go on after the document's last token.
  MixerState* state = nullptr;
  // Diagnostics: F64 [2], attention mass on documents' first tokens and the number of rows summed.
  Tensor first_token_mass = {};
};

// What surrounds a decoding step of one token for each of B sequences.
struct StepContext {
  int64_t loop = 0;
  Tensor positions_B;  // I32: the new token's index in its sequence
  Tensor lengths_B;    // I32: positions + 1, the tokens there are with it
};

struct MixerOutput {
  Var y_ND;
  // F64 [1], summed over tokens; added to the objective. An undefined value where there is none.
  Var auxiliary_loss = {};
};

// How a mixer's sequence operator continues across ranks that hold neighbouring tokens: by states
// handed on, by all keys gathered, or by some tokens to the left (parallel/README.md).
enum class SequenceStrategy { kScan, kGather, kHalo };

// What another program (flash-linear-attention, for most) calls the same things. Every mixer class
// has a static ForeignNames() that returns one.
struct ForeignTable {
  struct Name {
    std::string ours, theirs;
    std::optional<int64_t> absent = {};  // an option's value where theirs is not given, if not ours
  };
  // Relative to the mixer, or to the model where layers share one. Several of ours with one name of
  // theirs are its rows, one after another.
  std::vector<Name> params;
  // Keys of [model.<kind>], constructor arguments over there.
  std::vector<Name> options;
  std::vector<Name> words = {};  // values of options, where theirs have another name
};

class Mixer {
 public:
  virtual ~Mixer() = default;
  // x_ND: normed block input of N tokens. Documents never see each other.
  virtual MixerOutput Forward(Tape& tape, const Var& x_ND, const MixerContext& context) = 0;
  // One token per sequence; x_BD and the result [B, width]; updates the state in place.
  virtual Tensor Step(Stream& stream, const Tensor& x_BD, MixerState& state,
                      const StepContext& context) = 0;
  // What Step remembers for `sequences` sequences of at most `capacity` tokens.
  virtual std::vector<StateEntry> StateSpec(int64_t sequences, int64_t capacity,
                                            DType dtype) const = 0;
  // Floating point operations of a forward pass per token (multiply-add = 2), in the convention of
  // model FLOPs: projections plus the recurrent form, causal attention at half.
  virtual double FlopsPerToken(int64_t sequence) const = 0;
  virtual SequenceStrategy strategy() const = 0;
  // Whether Forward gives an auxiliary loss.
  virtual bool has_auxiliary_loss() const { return false; }
};

}  // namespace lt2
