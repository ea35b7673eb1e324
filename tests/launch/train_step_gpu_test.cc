// A step on a GPU recorded once and repeated, against the same step run as it comes: every bit.
#include <gtest/gtest.h>

#include "core/cuda.h"
#include "tests/launch/training.h"
#include "tests/model/mixer_cases.h"

namespace lt2 {
namespace {

constexpr int64_t kSequence = 96, kRows = 2, kDocuments = 9;

StepOptions OptionsOf(const ModelConfig& model, DType dtype, bool graphs) {
  StepOptions options{.model = model, .dtype = dtype, .device = {Backend::kCuda}};
  options.optimizer.lr = 1e-3;
  options.sequence = kSequence;
  options.micro_batch = kRows;
  options.max_documents = kDocuments;
  options.graphs = graphs;
  return options;
}

class RecordedStep : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  }
};

ModelConfig Hybrid(const std::vector<std::string>& more = {}) {
  return ConfigOf(
      {.name = "hybrid", .mixers = {"gdn", "full"}, .overrides = {"attention_gate=true"}}, more);
}

TEST_F(RecordedStep, FiftyPackingsHaveTheBitsOfStepsThatAreNotRecorded) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t micro_batches : {1, 4}) {
      SCOPED_TRACE(testing::Message() << Name(dtype) << ", " << micro_batches << " micro-batches");
      StepOptions options = OptionsOf(Hybrid(), dtype, true);
      options.micro_batches = micro_batches;
      Training recorded(options);
      options.graphs = false;
      Training direct(options);
      for (int64_t number = 1; number <= 52; ++number) {
        SCOPED_TRACE(number);
        ExpectSame(recorded.Step(number), direct.Step(number));
      }
      EXPECT_EQ(recorded.State(), direct.State());
      EXPECT_EQ(recorded.step.optimizer().counters().norms, 52);
    }
  }
}

// Evaluation, diagnostics and other work on the GPU between repeated steps change nothing.
TEST_F(RecordedStep, OtherWorkMayComeBetween) {
  Training recorded(OptionsOf(Hybrid({"exit_gate=true"}), DType::kBF16, true));
  Training direct(OptionsOf(Hybrid({"exit_gate=true"}), DType::kBF16, false));
  std::vector<Tensor> others;
  for (int64_t number = 1; number <= 12; ++number) {
    SCOPED_TRACE(number);
    LoopDiagnostics of_recorded, of_direct;
    const bool diagnose = number % 4 == 0;
    ExpectSame(recorded.Step(number, diagnose ? &of_recorded : nullptr),
               direct.Step(number, diagnose ? &of_direct : nullptr));
    EXPECT_EQ(of_recorded.gradient_norm, of_direct.gradient_norm);
    const Batch batch = RandomBatch(recorded.step.options(), 1000 + number);
    EXPECT_EQ(recorded.step.Evaluate(batch).nll, direct.step.Evaluate(batch).nll);
    others.push_back(Tensor::Zeros({100'000 * number}, DType::kF32, {Backend::kCuda}));
  }
  EXPECT_EQ(recorded.State(), direct.State());
  for (const Tensor& other : others) {
    for (double x : other.ToDoubles()) ASSERT_EQ(x, 0);
  }
}

TEST_F(RecordedStep, ABadGradientSkipsARepeatedStep) {
  Training run(OptionsOf(Hybrid(), DType::kBF16, true));
  for (int64_t number = 1; number <= 4; ++number) EXPECT_STREQ(run.Step(number).skipped, "");
  const Param* norm = run.step.model().params().Find("norm.weight");
  const Tensor kept = norm->master.Clone();
  std::vector<double> values = kept.ToDoubles();
  values[3] = INFINITY;
  norm->master.CopyFrom(Tensor::FromHost(values, kept.shape(), DType::kF32, kept.device()));
  const std::vector<std::vector<double>> before = run.State();
  const StepReport bad = run.Step(5);
  EXPECT_STREQ(bad.skipped, "non-finite gradient");
  EXPECT_GT(bad.nonfinite, 0);
  EXPECT_EQ(run.State(), before);
  EXPECT_EQ(run.step.optimizer().counters().skipped_in_row, 1);
  norm->master.CopyFrom(kept);
  EXPECT_STREQ(run.Step(5).skipped, "");
  EXPECT_EQ(run.step.optimizer().counters().skipped_in_row, 0);
  EXPECT_EQ(run.step.optimizer().counters().skipped, 1);
  EXPECT_EQ(run.step.optimizer().counters().norms, 5);
}

TEST_F(RecordedStep, ARestoredRunGoesOnBitForBit) {
  const StepOptions options = OptionsOf(Hybrid(), DType::kBF16, true);
  Training run(options);
  for (int64_t number = 1; number <= 5; ++number) run.Step(number);
  const std::vector<std::vector<double>> saved = run.State();
  const OptimizerCounters counters = run.step.optimizer().counters();

  Training resumed(options);
  const std::vector<StatePiece> pieces = resumed.step.optimizer().Owned();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Tensor& data = pieces[i].data;
    data.CopyFrom(Tensor::FromHost(saved[i], data.shape(), data.dtype(), data.device()));
  }
  resumed.step.optimizer().MastersChanged();
  resumed.step.optimizer().set_counters(counters);
  for (int64_t number = 6; number <= 10; ++number) {
    SCOPED_TRACE(number);
    ExpectSame(resumed.Step(number), run.Step(number));
  }
  EXPECT_EQ(resumed.State(), run.State());
}

class RecordedMixer : public RecordedStep, public testing::WithParamInterface<MixerCase> {};

// No mixer waits for the GPU or reads what is on it, under any of its options.
TEST_P(RecordedMixer, CanBeRecorded) {
  Training recorded(OptionsOf(ConfigOf(GetParam()), DType::kBF16, true));
  Training direct(OptionsOf(ConfigOf(GetParam()), DType::kBF16, false));
  for (int64_t number = 1; number <= 5; ++number) {
    SCOPED_TRACE(number);
    ExpectSame(recorded.Step(number), direct.Step(number));
  }
  EXPECT_EQ(recorded.State(), direct.State());
}

INSTANTIATE_TEST_SUITE_P(Mixers, RecordedMixer, testing::ValuesIn(AllMixerCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lt2
