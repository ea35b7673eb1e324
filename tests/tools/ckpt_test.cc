// lt2 ckpt as users meet it.
#include <gtest/gtest.h>

#include "tests/tools/program.h"

namespace lt2 {
namespace {

TEST_F(TrainedModel, ReshardsAndDiffers) {
  const std::string out = (path_ / "resharded").string();
  const Outcome made = Lt2("ckpt reshard " + run_ + " " + out + " --ranks 3 --json");
  ASSERT_EQ(made.exit, 0) << made.out;
  EXPECT_EQ(LastLine(made.out)["ranks"], 3) << made.out;
  EXPECT_EQ(Lt2("ckpt verify " + out).exit, 0);
  EXPECT_EQ(Lt2("ckpt reshard " + run_ + " " + out).exit, 2);  // is there already

  const Outcome same = Lt2("ckpt diff " + run_ + " " + out + " --fail --json");
  EXPECT_EQ(same.exit, 0) << same.out;
  EXPECT_EQ(LastLine(same.out)["equal"], true) << same.out;

  const std::string other = (path_ / "other").string();
  ASSERT_EQ(
      Lt2("train " + (path_ / "small.toml").string() + " --set run.seed=2 --run-dir " + other).exit,
      0);
  const Outcome told = Lt2("ckpt diff " + run_ + " " + other);
  EXPECT_EQ(told.exit, 0) << told.out;
  EXPECT_NE(told.out.find(" differ\n"), std::string::npos) << told.out;
  const Outcome failed = Lt2("ckpt diff " + run_ + " " + other + " --fail --json");
  EXPECT_EQ(failed.exit, 1) << failed.out;
  EXPECT_EQ(LastLine(failed.out)["equal"], false) << failed.out;
}

TEST_F(TrainedModel, ExportedAndImportedItScoresTheSame) {
  const std::string ids = Write("ids.txt", "1 2 3 70 80 90\n10 20\n");
  const auto log_probs = [&](const std::string& checkpoint) {
    const Outcome scored =
        Shell(LT2_PROGRAM " score " + checkpoint + " --ids-file " + ids + " --json 2>/dev/null");
    EXPECT_EQ(scored.exit, 0) << scored.out;
    return LastLine(scored.out)["log_probs"].dump();
  };
  const std::string expected = log_probs(run_);
  EXPECT_NE(expected.find("[[-"), std::string::npos) << expected;
  const std::string out = (path_ / "exported").string();
  const Outcome exported = Lt2("ckpt export " + run_ + " " + out + " --json");
  ASSERT_EQ(exported.exit, 0) << exported.out;
  EXPECT_GT(LastLine(exported.out)["tensors"], 10) << exported.out;
  EXPECT_EQ(LastLine(exported.out)["files"], 1) << exported.out;
  const Outcome imported = Lt2("ckpt import " + out + " " + out + "-back --json");
  ASSERT_EQ(imported.exit, 0) << imported.out;
  EXPECT_EQ(LastLine(imported.out)["step"], 1) << imported.out;
  EXPECT_EQ(Lt2("ckpt verify " + out + "-back").exit, 0);
  EXPECT_EQ(log_probs(out + "-back"), expected);

  EXPECT_EQ(Lt2("ckpt export " + run_ + " " + out).exit, 2);  // is there already
  EXPECT_EQ(Lt2("ckpt import " + out + " " + out + "-back").exit, 2);
  EXPECT_EQ(Lt2("train " + (path_ / "small.toml").string() + " --init-from " + out +
                "-back --run-dir " + out + "-run")
                .exit,
            0);

  const Outcome misfit = Lt2("ckpt import " + out + " " + out + "-not --set model.layers=3");
  EXPECT_EQ(misfit.exit, 2) << misfit.out;
  EXPECT_NE(misfit.out.find("missing: "), std::string::npos) << misfit.out;
  EXPECT_NE(misfit.out.find("layers.2.norm1.weight"), std::string::npos) << misfit.out;
  const Outcome cut =
      Shell("truncate -s -9 " + out + "/model.safetensors && " LT2_PROGRAM " ckpt import " + out +
            " " + out + "-not 2>&1");
  EXPECT_EQ(cut.exit, 3) << cut.out;
  EXPECT_NE(cut.out.find("model.safetensors: "), std::string::npos) << cut.out;
  EXPECT_FALSE(fs::exists(out + "-not"));
}

TEST_F(TrainedModel, ShowsStatistics) {
  const Outcome shown = Lt2("ckpt show " + run_ + " --stats");
  EXPECT_EQ(shown.exit, 0) << shown.out;
  EXPECT_NE(shown.out.find(" 0.0000%  2^"), std::string::npos) << shown.out;
  const nlohmann::json tensor =
      LastLine(Lt2("ckpt show " + run_ + " --stats --json").out)["tensors"][0];
  EXPECT_GT(tensor["norm"], 0.0) << tensor;
  EXPECT_EQ(tensor["not_finite"], 0) << tensor;
}

}  // namespace
}  // namespace lt2
