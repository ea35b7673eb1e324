#include "tests/launch/parity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <mutex>
#include <random>

#include "core/strings.h"

namespace lt2 {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}
  int64_t Below(int64_t n) { return static_cast<int64_t>(bits_() % static_cast<uint64_t>(n)); }
  template <class T>
  T Of(std::initializer_list<T> choices) {
    return choices.begin()[Below(static_cast<int64_t>(choices.size()))];
  }

 private:
  std::mt19937_64 bits_;
};

// Cuts anywhere, and on and beside the edges of shards.
std::vector<int32_t> RandomDocuments(int64_t tokens, const Mesh& mesh, Random& random) {
  std::vector<int32_t> cuts = {0, static_cast<int32_t>(tokens)};
  for (int64_t n = random.Below(6); n > 0; --n) {
    cuts.push_back(static_cast<int32_t>(1 + random.Below(tokens - 1)));
  }
  for (int rank = 1; rank < mesh.cp; ++rank) {
    if (random.Below(3) > 0) continue;
    const int64_t at = ShardBegin(tokens, mesh.cp, rank) + random.Below(3) - 1;
    if (0 < at && at < tokens) cuts.push_back(static_cast<int32_t>(at));
  }
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

}  // namespace

std::string Problem::ToString() const {
  std::string text = StrCat(tokens, " tokens, recompute ", Name(recompute), ", ", micro_batches,
                            " micro-batches", slow_decay ? ", slow decay" : "");
  for (const std::string& option : model) StrAppend(&text, ", ", option);
  for (const Batch& batch : batches[0]) {
    StrAppend(&text, ", documents");
    for (int32_t cut : batch.cu_seqlens) StrAppend(&text, " ", cut);
  }
  return text;
}

Problem RandomProblem(int64_t vocab, const Mesh& mesh, uint64_t seed, int tiles) {
  Random random(seed);
  Problem problem{.dp = mesh.dp};
  const bool stages = mesh.pp > 1;
  const int64_t loops = stages ? random.Of({1, 2, 4}) : random.Of({1, 3});
  problem.model = {StrCat("loops=", loops), StrCat("tie_embeddings=", random.Of({"true", "false"})),
                   StrCat("exit_gate=", loops > 1 && random.Below(2) == 0 ? "true" : "false")};
  problem.slow_decay = random.Below(2) == 0;
  problem.recompute =
      random.Of({RecomputePolicy::kNone, RecomputePolicy::kFfn, RecomputePolicy::kMixer,
                 RecomputePolicy::kBlock, RecomputePolicy::kLoop});
  problem.micro_batches = random.Of({1, 2});
  if (stages) {
    problem.micro_batches = mesh.pp + random.Of({0, 1, mesh.pp});
    problem.model.push_back(StrCat("layers=", mesh.pp + random.Of({0, 1})));
  }
  // Shards shorter than a convolution, and such of several chunks.
  problem.tokens = random.Of<int64_t>({9, 50, 150, 290}) / tiles * tiles;
  for (int step = 0; step < kParitySteps; ++step) {
    problem.batches.emplace_back();
    for (int64_t row = 0; row < mesh.dp * problem.micro_batches; ++row) {
      Batch batch{.cu_seqlens = RandomDocuments(problem.tokens, mesh, random), .rows = 1};
      for (int64_t t = 0; t < problem.tokens; ++t) {
        batch.ids.push_back(static_cast<int32_t>(random.Below(vocab)));
        const bool counts = random.Below(5) > 0;
        batch.targets.push_back(counts ? static_cast<int32_t>(random.Below(vocab))
                                       : kIgnoredTarget);
      }
      problem.batches.back().push_back(std::move(batch));
    }
  }
  return problem;
}

// AdamW's eps keeps gradients that are all rounding from being blown up to steps of full size.
StepOptions OptionsOf(const ModelConfig& model, const Problem& problem, const MeshCase& mesh) {
  return {.model = model,
          .optimizer = {.eps = 1e-2, .weight_decay = 0.1, .z_loss = 1e-3},
          .zero = mesh.zero,
          .state_exchange = mesh.exchange,
          .row_tiles = mesh.tiles,
          .sequence_parallel = mesh.sequence,
          .pipeline = mesh.pipeline,
          .recompute = problem.recompute,
          .dtype = DType::kF64,
          .sequence = problem.tokens,
          .micro_batches = problem.micro_batches,
          .max_documents = 64};
}

namespace {

// The distance between numbers of a precision above 1.
double UlpOf(DType dtype) {
  return std::ldexp(1, dtype == DType::kBF16 ? -8 : dtype == DType::kF32 ? -23 : -52);
}

void Jitter(TrainStep& step, uint64_t seed) {
  Random random(seed);
  const double ulp = UlpOf(step.options().dtype);
  for (Param* param : step.model().params().all()) {
    std::vector<double> values = param->master.ToDoubles();
    for (double& value : values) value *= 1 + random.Of({-ulp, ulp});
    param->master.CopyFrom(
        Tensor::FromHost(values, param->master.shape(), param->master.dtype(), {}));
  }
}

// Decay as slow as asked for, and loops that read each other, which they do not at first.
void Initialize(TrainStep& step, const Problem& problem, uint64_t jitter = 0) {
  step.InitializeParameters(7);
  const auto fill = [](Param& param, double value) {
    const std::vector<double> all(param.master.size(), value);
    param.master.CopyFrom(Tensor::FromHost(all, param.master.shape(), param.master.dtype(), {}));
  };
  for (Param* param : step.model().params().all()) {
    const std::string& name = param->spec.name;
    if (name.ends_with("A_log") && problem.slow_decay) fill(*param, std::log(0.05));
    if (name == "loop.residual") fill(*param, 0.25);
  }
  if (jitter != 0) Jitter(step, jitter);
  step.optimizer().MastersChanged();
}

// The micro-batches of step `s` of a data-parallel rank among `dp`. What the first step reports is
// added to *reported, but what it says of the first micro-batch alone is left out unless all have
// it, and this rank `knows`.
StepReport RunStep(TrainStep& step, const Problem& problem, int s, int dp, int rank, bool knows,
                   const std::function<void()>& before_update, std::vector<double>* reported) {
  const bool first = s == 0;
  LoopDiagnostics seen;
  step.Begin(/*diagnose=*/first);
  for (int64_t m = 0; m < step.options().micro_batches; ++m) {
    step.MicroBatch(problem.batches[s][m * dp + rank], first && m == 0 ? &seen : nullptr);
  }
  if (first) before_update();
  const StepReport report = step.Finish({.step = s + 1, .lr = 1e-4});
  if (!first) return report;
  for (const double sum : report.sums) reported->push_back(sum / report.counted_tokens);
  if (problem.dp > 1 || !knows) return report;
  for (const auto* numbers :
       {&seen.hidden_rms, &seen.gradient_norm, &seen.loss, &seen.first_token_mass}) {
    reported->insert(reported->end(), numbers->begin(), numbers->end());
  }
  return report;
}

double Norm(std::span<const double> x) {
  double sum = 0;
  for (double value : x) sum += value * value;
  return std::sqrt(sum);
}

double Distance(std::span<const double> a, std::span<const double> b) {
  std::vector<double> difference(a.begin(), a.end());
  for (size_t i = 0; i < difference.size(); ++i) difference[i] -= b[i];
  return Norm(difference);
}

}  // namespace

Trace TrainAlone(StepOptions options, const Problem& problem, uint64_t jitter) {
  options.zero = 0;
  options.micro_batches = static_cast<int64_t>(problem.batches[0].size());
  const std::unique_ptr<Communicator> world = MakeGroupOfOne();
  const RankGroups groups = MakeGroups(*world, {});
  TrainStep step(options, {}, groups);
  Initialize(step, problem, jitter);
  Trace trace;
  const auto parameters = [&] {
    std::vector<std::vector<double>> values;
    for (const Param* param : step.model().params().all()) {
      values.push_back(param->master.ToDoubles());
    }
    return values;
  };
  trace.start = parameters();
  for (const Param* param : step.model().params().all()) trace.names.push_back(param->spec.name);
  for (int s = 0; s < kParitySteps; ++s) {
    const auto look = [&] {
      for (const Param* param : step.model().params().all()) {
        trace.gradients.push_back(param->main_grad.ToDoubles());
      }
    };
    const StepReport report =
        RunStep(step, problem, s, 1, 0, /*knows=*/true, look, &trace.reported);
    trace.losses.push_back(report.sums[0] / report.counted_tokens);
    trace.norms.push_back(report.grad_norm);
  }
  step.optimizer().WaitForValues();
  trace.parameters = parameters();
  return trace;
}

Rounded TrainRounded(const StepOptions& options, const Problem& problem) {
  Rounded rounded{.want = TrainAlone(options, problem)};
  rounded.all = {rounded.want, TrainAlone(options, problem, 1), TrainAlone(options, problem, 2)};
  return rounded;
}

size_t Trace::IndexOf(const std::string& name) const {
  const auto found = std::ranges::find(names, name);
  CHECK(found != names.end()) << name;
  return found - names.begin();
}

bool Resolves(const Trace& want, const Trace& exact) {
  double largest = 0;
  for (const std::vector<double>& gradient : exact.gradients) {
    largest = std::max(largest, Norm(gradient));
  }
  for (size_t p = 0; p < exact.gradients.size(); ++p) {
    const double size = Norm(exact.gradients[p]) + 1e-3 * largest;
    if (Distance(want.gradients[p], exact.gradients[p]) > 1e-3 * size) return false;
  }
  return true;
}

Allowed::Slack Allowed::SlackOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return {1e-12, 1e-10, 1e-9, 1e-9, 1e-9, 0};
    case DType::kF32:
      return {1e-6, 1e-6, 1e-4, 1e-4, 1e-5, 5};
    default:
      return {1e-3, 1e-2, 2e-2, 1e-2, 1e-4, 4};
  }
}

Allowed::Allowed(DType dtype, const Rounded& rounded, const Trace& exact)
    : want_(rounded.want), slack_(SlackOf(dtype)) {
  gradients_.resize(exact.names.size());
  parameters_.resize(exact.names.size());
  const auto widen = [](double& most, const auto& from, const auto& to) {
    most = std::max(most, Distance(from, to));
  };
  for (const Trace& run : rounded.all) {
    widen(losses_, run.losses, exact.losses);
    widen(norms_, run.norms, exact.norms);
    widen(reported_, run.reported, exact.reported);
    for (size_t p = 0; p < exact.names.size(); ++p) {
      widen(gradients_[p], run.gradients[p], exact.gradients[p]);
      widen(parameters_[p], run.parameters[p], exact.parameters[p]);
    }
  }
}

double Allowed::Loss(int step) const {
  return slack_.loss * std::abs(want_.losses[step]) + slack_.own * losses_;
}
double Allowed::Norm(int step) const {
  return slack_.norm * want_.norms[step] + slack_.own * norms_;
}
double Allowed::Reported(size_t i) const {
  return slack_.reported * std::abs(want_.reported[i]) + slack_.own * reported_;
}
double Allowed::Gradient(size_t param) const {
  return slack_.gradient * lt2::Norm(want_.gradients[param]) + slack_.own * gradients_[param];
}
double Allowed::Parameter(size_t param) const {
  return slack_.parameter * lt2::Norm(want_.parameters[param]) +
         slack_.gradient * Distance(want_.parameters[param], want_.start[param]) +
         slack_.own * parameters_[param];
}

namespace {

// `box` of a whole parameter's numbers.
std::vector<double> PartOf(const std::vector<double>& whole, const Param& param, const Box& box) {
  std::vector<double> part(box.size());
  ForEachRun(Box::Whole(param.spec.shape), box, [&](int64_t from, int64_t to, int64_t count) {
    std::copy_n(whole.begin() + from, count, part.begin() + to);
  });
  return part;
}

}  // namespace

void TrainAsRank(const RankGroups& groups, const MeshCase& mesh_case, const StepOptions& options,
                 const Problem& problem, const Trace& want, const Allowed& allowed) {
  const Mesh& mesh = mesh_case.mesh;
  const int rank = groups.world->rank();
  TrainStep step(options, mesh, groups);
  Initialize(step, problem);
  const std::vector<Param*> params = step.model().params().all();
  const LayoutTable layout = Layout(step.model().params().specs(), mesh, options.zero,
                                    {.first_of_row = options.row_tiles > 1}, groups.tp->rank());
  static std::mutex one_at_a_time;
  for (int s = 0; s < kParitySteps; ++s) {
    const auto look = [&] {
      for (size_t p = 0; p < params.size(); ++p) {
        const size_t of_one = want.IndexOf(params[p]->spec.name);
        const Communicator& holders = HoldersOf(layout.buckets[layout.entries[p].bucket], groups);
        for (const OwnedPiece& piece : layout.entries[p].owners) {
          if (options.zero > 0 && piece.rank != holders.rank()) continue;
          const std::vector<double> got =
              step.reducer().Gradient(static_cast<int>(p), piece.box, piece.offset).ToDoubles();
          const double distance =
              Distance(got, PartOf(want.gradients[of_one], *params[p], piece.box));
          const std::lock_guard lock(one_at_a_time);
          EXPECT_LE(distance, allowed.Gradient(of_one))
              << "gradient of " << params[p]->spec.name << " on rank " << rank;
        }
      }
    };
    std::vector<double> reported;
    const StepReport report =
        RunStep(step, problem, s, mesh.dp, groups.dp, groups.pp->rank() == 0, look, &reported);
    const std::lock_guard lock(one_at_a_time);
    EXPECT_NEAR(report.sums[0] / report.counted_tokens, want.losses[s], allowed.Loss(s))
        << "loss of step " << s + 1 << " on rank " << rank;
    // Later ones are of parameters that differ by roundings, which near a singular point of a model
    // are blown up.
    if (s == 0) {
      EXPECT_NEAR(report.grad_norm, want.norms[s], allowed.Norm(s)) << "rank " << rank;
    }
    for (size_t i = 0; i < reported.size(); ++i) {
      EXPECT_NEAR(reported[i], want.reported[i], allowed.Reported(i))
          << "reported number " << i << " on rank " << rank;
    }
  }
  step.optimizer().WaitForValues();
  for (size_t p = 0; p < params.size(); ++p) {
    const size_t of_one = want.IndexOf(params[p]->spec.name);
    const std::vector<double> got = params[p]->master.ToDoubles();
    const std::lock_guard lock(one_at_a_time);
    EXPECT_LE(Distance(got, PartOf(want.parameters[of_one], *params[p], params[p]->held)),
              allowed.Parameter(of_one))
        << params[p]->spec.name << " after " << kParitySteps << " steps on rank " << rank;
  }
}

}  // namespace lt2
