// One optimizer step over boxes: the global norm, clipping, skipping, the rule's update of what
// this rank owns (ZeRO 1) or of everything (ZeRO 0), and the gathering of new values. All of it
// where the parameters are: the host hands over a few numbers before and reads some after.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/upload.h"
#include "parallel/layout.h"
#include "parallel/optimizer_config.h"
#include "parallel/reducer.h"
#include "parallel/update_rule.h"

namespace lt2 {

// What a step needs and what may ride along in its one exchange. Of ranks along tp, which have the
// same tokens, losses and sums, only the first one's are added.
struct StepInput {
  int64_t step = 0;                 // of the run, the first is 1
  double lr = 0;                    // from the schedule
  double counted_tokens = 0;        // of this rank: those whose losses the gradients are sums over
  double bad_losses = 0;            // of this rank: losses that are not finite
  std::vector<double> sums, maxes;  // of this rank: to be summed, or maximised, over ranks
  // Sums of this rank on the device, F64, or undefined: summed over ranks too. One that is not
  // finite is a bad loss; tokens_at: which of them is added to counted_tokens, -1 for none.
  Tensor losses;
  int64_t tokens_at = -1;
};

struct StepReport {
  // Of the mean gradient over counted tokens, before clipping; NaN if some of it is not finite.
  double grad_norm = 0;
  double clip_factor = 1;
  double counted_tokens = 0;  // over ranks
  double nonfinite = 0;       // pieces of parameters with a bad gradient, and losses, over ranks
  const char* skipped = "";  // why nothing was updated: "", "non-finite gradient", "norm spike", …
  std::vector<double> losses, sums, maxes;
};

// What decides about skips besides the step itself: saved with a checkpoint and restored on resume,
// where a row of skips begins anew.
struct OptimizerCounters {
  int64_t skipped = 0;                      // in all
  int64_t skipped_in_row = 0;               // up to now
  int64_t norms = 0;                        // updates made, skipped ones left out
  double norm_mean = 0, norm_variance = 0;  // of grad_norm, exponential with a memory of 50 steps
};

// A part of the state as a checkpoint sees it: `data` is `box` of the logical tensor `name` in
// `group`, "param" or one of the rule's state names.
struct StatePiece {
  std::string group, name;
  Box box;
  Tensor data;
};

class Optimizer {
 public:
  // Moves the parameters' values into flat buffers, one a bucket. params: in the layout's order.
  // The references must outlive the optimizer.
  Optimizer(std::span<Param* const> params, const LayoutTable& layout, const RankGroups& groups,
            const Reducer& gradients, std::unique_ptr<UpdateRule> rule,
            const OptimizerConfig& config);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;

  // After the reducer's Finish: the three below.
  StepReport Step(Stream& stream, const StepInput& input);
  // Hands the device what the host says of the step. `input` has as many numbers each time.
  void Prepare(const StepInput& input);
  // Reads the gradients; decides, updates, and with `gather` starts the gathering of values but
  // does not wait; otherwise they stay with their owners. Everything happens on the device, so that
  // the call can be recorded once and repeated; then Updated says that it was.
  void Update(Stream& stream, bool gather = true);
  void Updated(bool gather) { gathered_ = gather || !Gathers(); }
  // What came of it. Waits for the decision.
  StepReport Report();

  // Before values are read: the next forward, a checkpoint, the end. Gathers values that are still
  // with their owners, and rounds masters to values where the update has not. Collective.
  void WaitForValues();
  // The same in parts, beside a forward: first the start, then a wait before the first `end`
  // parameters are read. `again`: also where values are gathered, for a record to be repeated; then
  // Gathered says that it was.
  void GatherValues(bool again = false);
  void WaitForValues(int end);
  void Gathered() { gathered_ = true; }
  // True if an update leaves values with their owners.
  bool Gathers() const { return gathers_any_; }
  // Whoever has written masters says so before WaitForValues.
  void MastersChanged() { rounded_ = false; }
  // What WaitForValues does after that, alone.
  void RoundMasters();

  // Pieces that, over all ranks, tile every logical tensor exactly once: what this rank saves.
  std::vector<StatePiece> Owned() const;
  // Everything this rank needs: what it loads, before the next WaitForValues.
  std::vector<StatePiece> Held();

  // As of the last Report.
  const OptimizerCounters& counters() const { return counters_; }
  void set_counters(const OptimizerCounters& counters);
  // True once skip_limit updates in a row were skipped: the run should stop.
  bool TooManySkips() const {
    return config_.skip_limit > 0 && counters_.skipped_in_row >= config_.skip_limit;
  }
  const UpdateRule& rule() const { return *rule_; }

 private:
  // What this rank updates of one parameter.
  struct Piece {
    int param = 0;
    Box box;
    Tensor value, gradient, rounded;
    std::vector<Tensor> states;
  };

  Piece MakePiece(int param, const Box& box, int64_t offset, const Reducer& gradients) const;
  std::vector<UpdatePiece> UpdatesOf(const std::vector<Piece>& pieces) const;
  std::vector<StatePiece> List(bool owned) const;
  void MakeScalars(const StepInput& input);
  void WarnOfBadGradients() const;
  void UpdateValues(Stream& stream, bool gather);
  void GatherBucket(int bucket);
  void WaitForBucket(int bucket);
  void Round(Param& param);

  const std::vector<Param*> params_;
  const LayoutTable& layout_;
  const RankGroups& groups_;
  const std::unique_ptr<UpdateRule> rule_;
  const OptimizerConfig config_;
  const bool gathers_any_;
  OptimizerCounters counters_;

  std::vector<Tensor> values_;              // by bucket
  std::vector<std::vector<Piece>> pieces_;  // by bucket
  std::vector<Tensor> unique_gradients_;    // this rank's part of the global norm
  std::vector<int> unique_params_;          // whose they are
  std::vector<Pending> gathers_;            // by bucket
  std::vector<bool> awaited_;               // by bucket: its gathering has not been waited for
  bool gathered_ = true;                    // masters are the same on every rank, or about to be
  bool rounded_ = false;                    // all values are what masters round to

  // Of kernels/step_decision.h, all F64.
  Tensor squares_, scalars_, hyper_, report_, step_counters_;
  Upload inputs_;
  Tensor losses_, no_losses_;  // the step's input, and what a rank adds whose are counted elsewhere
  int64_t tokens_at_ = -1;
  int64_t sums_ = 0, maxes_ = 0;
};

}  // namespace lt2
