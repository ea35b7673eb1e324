// Flags, messages and exit codes of the program, run as a process.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/tools/program.h"

namespace lt2 {
namespace {

TEST(Cli, HelpListsEveryVerb) {
  const Outcome help = Lt2("--help");
  EXPECT_EQ(help.exit, 0);
  for (const char* verb : {"train", "data", "generate", "score", "ckpt", "bench", "selftest",
                           "config", "plan", "doctor"}) {
    EXPECT_NE(help.out.find(std::string("\n  ") + verb + " "), std::string::npos) << verb;
    const Outcome one = Lt2(std::string(verb) + " --help");
    EXPECT_EQ(one.exit, 0) << one.out;
    const size_t example = one.out.find("Example:\n  " LT2_PROGRAM " ");
    ASSERT_NE(example, std::string::npos) << one.out;
    EXPECT_NE(one.out.find(std::string(LT2_PROGRAM) + " " + verb, example), std::string::npos)
        << one.out;
    EXPECT_NE(one.out.find("--json"), std::string::npos) << one.out;
  }
}

TEST(Cli, EveryFlagShowsItsDefault) {
  for (const char* verb :
       {"train",       "generate",      "score",        "bench step",  "bench op",
        "selftest",    "data tokenize", "data inspect", "config show", "config check",
        "ckpt ls",     "ckpt show",     "ckpt verify",  "ckpt diff",   "ckpt reshard",
        "ckpt import", "ckpt export",   "plan",         "bench comm",  "bench machine",
        "doctor"}) {
    const Outcome help = Lt2(std::string(verb) + " --help");
    ASSERT_EQ(help.exit, 0) << verb << help.out;
    // A description may run over several lines; its flag begins one.
    std::string flag;
    std::istringstream lines(help.out + "\nend");
    for (std::string line; std::getline(lines, line);) {
      const bool begins = line.starts_with("  -") || line.starts_with("end");
      if (begins && !flag.empty() && flag.find("--help") == std::string::npos) {
        EXPECT_TRUE(flag.find("(default: ") != std::string::npos ||
                    flag.find("(required)") != std::string::npos)
            << verb << ": " << flag;
      }
      if (begins) flag.clear();
      if (begins || !flag.empty()) flag += line + "\n";
    }
  }
}

TEST(Cli, TheExamplesOfLightVerbsWork) {
  for (const char* verb :
       {"config", "config show", "config check", "config presets", "plan", "doctor"}) {
    const std::string help = Lt2(std::string(verb) + " --help").out;
    const std::string mark = "Example:\n  ";
    const size_t at = help.rfind(mark);
    ASSERT_NE(at, std::string::npos) << help;
    const std::string example = help.substr(at + mark.size());
    const Outcome run = Shell(example.substr(0, example.find('\n')) + " 2>&1");
    EXPECT_EQ(run.exit, 0) << verb << "\n" << run.out;
    EXPECT_FALSE(run.out.empty());
  }
}

TEST_F(Folder, TokenizeAndInspect) {
  const std::string text = Write("a.txt", "first document\n\nsecond\n\nthird\n");
  const std::string shards = (path_ / "shards").string();
  const Outcome made =
      Lt2("data tokenize " + text + " --tokenizer bytes --out " + shards + " --json");
  ASSERT_EQ(made.exit, 0) << made.out;
  EXPECT_EQ(LastLine(made.out)["documents"], 3) << made.out;
  EXPECT_EQ(LastLine(made.out)["exit"], 0);
  const Outcome shown = Lt2("data inspect " + shards);
  EXPECT_EQ(shown.exit, 0) << shown.out;
  EXPECT_NE(shown.out.find("first document"), std::string::npos) << shown.out;

  EXPECT_EQ(Lt2("data tokenize " + text + " --out " + shards).exit, 2);  // not empty
  EXPECT_EQ(Lt2("data tokenize " + text + ".none --out " + shards + "2").exit, 2);
  EXPECT_EQ(Lt2("data inspect " + shards + "2").exit, 2);

  const Outcome cut = Shell("truncate -s -9 " + shards + "/*.h5 && " LT2_PROGRAM " data inspect " +
                            shards + " 2>&1");
  EXPECT_EQ(cut.exit, 3) << cut.out;
  EXPECT_NE(cut.out.find(".h5"), std::string::npos) << cut.out;
}

struct BadUse {
  const char* arguments;
  const char* message;
};
class CliBadUse : public testing::TestWithParam<BadUse> {};

TEST_P(CliBadUse, ExitsWithTwoAndSaysWhat) {
  const Outcome outcome = Lt2(GetParam().arguments);
  EXPECT_EQ(outcome.exit, 2) << outcome.out;
  EXPECT_NE(outcome.out.find(GetParam().message), std::string::npos) << outcome.out;
  EXPECT_TRUE(outcome.out.starts_with("error: ")) << outcome.out;
}

INSTANTIATE_TEST_SUITE_P(
    Table, CliBadUse,
    testing::Values(
        BadUse{"", "a verb is wanted"},
        BadUse{"trian lt2-tiny", "unknown verb 'trian'; did you mean 'train'?"},
        BadUse{"--versoin", "unknown flag '--versoin'; did you mean '--version'?"},
        BadUse{"train lt2-tiny --max-step 3",
               "unknown flag '--max-step'; did you mean '--max-steps'?"},
        BadUse{"train lt2-tiny --max-steps=many", "--max-steps"},
        BadUse{"train", "config is required"}, BadUse{"config", "a verb is wanted: show"},
        BadUse{"config shwo lt2-tiny", "unknown verb 'shwo'; did you mean 'show'?"},
        BadUse{"config show lt2-tiny --sett a=1", "unknown flag '--sett'; did you mean '--set'?"},
        BadUse{"config show lt2-tiny more", "unexpected argument 'more'"},
        BadUse{"config show lt2-tyni", "did you mean 'lt2-tiny'?"},
        BadUse{"config show lt2-tiny --set model.layrs=3",
               "model.layrs: unknown key; did you mean 'layers'?"},
        BadUse{"config show lt2-tiny --set nonsense", "wants section.key=value"},
        BadUse{"config show lt2-tiny --set model.mixers=[]", "must name at least one kind"},
        BadUse{"data tokenize", "Try: " LT2_PROGRAM " data tokenize --help"},
        BadUse{"train lt2-tiny --max-steps -1", "wants a whole number of at least 0, got -1"},
        BadUse{"train lt2-tiny --max-minutes nan", "wants a number of at least 0, got nan"},
        BadUse{"train lt2-tiny --max-minutes -1", "wants a number of at least 0, got -1"},
        BadUse{"generate x --prompt a --temperature nan", "wants a number of at least 0, got nan"},
        BadUse{"generate x --prompt a --top-p 0", "wants a number above 0 and up to 1, got 0"},
        BadUse{"generate x --prompt a --top-p nan", "wants a number above 0 and up to 1, got nan"},
        BadUse{"generate x --prompt a --max-tokens 0", "from 1 to 1073741824, got 0"},
        BadUse{"generate x --prompt a --ids 1", "--ids"},
        BadUse{"score x --ids-file a --out ./a", "would replace --ids-file"},
        BadUse{"score x --ids-file a --out a", "would replace --ids-file"},
        BadUse{"config check lt2-tiny --ranks 3", "is not a multiple of"},
        BadUse{"plan lt2-tiny --gpus 3", "legal on 3 ranks: cp=3"},
        BadUse{"plan lt2-tiny --gpu h20", "did you mean 'h200'?"},
        BadUse{"plan lt2-tiny --gpu h200 --set parallel.precision=fp64",
               "machine h200 has figures for"},
        BadUse{"plan lt2-tiny --schedule", "parallel.pp = 1 is no pipeline"},
        BadUse{"plan lt2-tiny --svg a.svg", "--svg requires --schedule"},
        BadUse{"config check lt2-tiny --set data.valid=none.txt", "none.txt: no such file"},
        BadUse{"config check lt2-tiny --set model.vocab=100", "has 256 tokens"},
        BadUse{"bench machine --out no/such/m.toml", "no/such is no folder: make it first"},
        BadUse{"data inspect /nowhere/at/all", "/nowhere/at/all"},
        BadUse{"ckpt show /nowhere/at/all", "/nowhere/at/all"},
        BadUse{"ckpt verify /nowhere/at/all", "/nowhere/at/all"},
        BadUse{"ckpt diff /nowhere/at/all /", "/nowhere/at/all"},
        BadUse{"ckpt reshard a b --ranks 0", "from 1 to 65536, got 0"},
        BadUse{"ckpt export /nowhere/at/all b", "/nowhere/at/all"},
        BadUse{"ckpt export a b --dtype fp8", "--dtype"},
        BadUse{"ckpt import /nowhere/at/all b", "/nowhere/at/all"},
        BadUse{"ckpt import . b", "holds neither model.safetensors nor"}),
    [](const auto& info) { return "Case" + std::to_string(info.index); });

TEST(Cli, SetTakesOneValueAndTheLastOneWins) {
  const Outcome shown =
      Lt2("config show --set model.loops=3 --set model.mixers='[\"full\"]' lt2-tiny --set "
          "model.loops=4");
  ASSERT_EQ(shown.exit, 0) << shown.out;
  EXPECT_NE(shown.out.find("\nloops = 4\n"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("\nmixers = [\"full\"]\n"), std::string::npos) << shown.out;
}

TEST(Cli, APlanForGpusRefusesWhatTheirKernelsDoNotTake) {
  const std::string wide =
      " --set model.width=2048 --set model.mixers='[\"gla\"]' "
      "--set model.gla.heads=2 --gpus 1 --best 1 --most 1";
  const Outcome refused = Lt2("plan lt2-tiny --gpu h200" + wide);
  EXPECT_EQ(refused.exit, 2) << refused.out;
  EXPECT_NE(refused.out.find("model.gla.expand_k: 512 channels of a key, and GPUs take at most "
                             "256; set heads = 4 or more"),
            std::string::npos)
      << refused.out;
  EXPECT_EQ(Lt2("plan lt2-tiny --gpu h200" + wide + " --set model.gla.heads=4").exit, 0);
}

TEST_F(Folder, PlanTellsMeshesAndDrawsPipelines) {
  const nlohmann::json plan = LastLine(
      Lt2("plan lt2-tiny --gpus 4 --gpu h200 --best 2 --most 8 --set batch.tokens=8192 --json")
          .out);
  ASSERT_TRUE(plan.is_object());
  ASSERT_EQ(plan["meshes"].size(), 2U);
  EXPECT_EQ(plan["scaling"].size(), 4U);
  EXPECT_EQ(plan["meshes"][0]["memory"]["peak_bytes"], plan["policies"]["none"]["peak_bytes"]);
  EXPECT_GT(plan["meshes"][0]["step"]["sent"]["dp"]["bytes"], 1e6);
  EXPECT_LE(plan["meshes"][0]["step"]["seconds"], plan["meshes"][1]["step"]["seconds"]);

  const std::string svg = (path_ / "pipeline.svg").string();
  const Outcome drawn = Lt2("plan lt2-tiny --gpus 2 --set parallel.pp=2 --schedule --svg " + svg);
  EXPECT_EQ(drawn.exit, 0) << drawn.out;
  EXPECT_NE(drawn.out.find("ring, 2 loops, 2 micro-batches, 2 stages"), std::string::npos)
      << drawn.out;
  EXPECT_NE(drawn.out.find("\n  1 .F"), std::string::npos) << drawn.out;
  EXPECT_GT(fs::file_size(svg), 1000U);
}

TEST(Cli, JsonIsTheLastLineAlsoOfAnError) {
  const nlohmann::json good = LastLine(Lt2("config check lt2-tiny --json").out);
  ASSERT_TRUE(good.is_object());
  EXPECT_EQ(good["exit"], 0);
  EXPECT_GT(good["steps"], 0);
  const Outcome bad =
      Shell(LT2_PROGRAM " config check lt2-tiny --set run.sede=1 --json 2>/dev/null");
  EXPECT_EQ(bad.exit, 2);
  EXPECT_EQ(LastLine(bad.out)["exit"], 2) << bad.out;
  EXPECT_NE(std::string(LastLine(bad.out)["error"]).find("did you mean 'seed'?"),
            std::string::npos);
}

TEST(Cli, JsonIsTheLastLineOfWrongFlagsToo) {
  for (const char* arguments : {"train lt2-tiny --max-step 3 --json", "trian --json",
                                "data tokenize --json", "config --json shwo"}) {
    const Outcome bad = Shell(std::string(LT2_PROGRAM " ") + arguments + " 2>/dev/null");
    EXPECT_EQ(bad.exit, 2) << arguments;
    const nlohmann::json line = LastLine(bad.out);
    ASSERT_TRUE(line.is_object()) << arguments << ": " << bad.out;
    EXPECT_EQ(line["exit"], 2) << arguments;
    EXPECT_FALSE(std::string(line["error"]).empty()) << arguments;
  }
}

TEST(Cli, TextThatIsNoUtf8StillGivesJson) {
  const Outcome bad =
      Shell("printf 'x\\377y' | xargs " LT2_PROGRAM " ckpt show --json 2>/dev/null");
  const nlohmann::json line = LastLine(bad.out);
  ASSERT_TRUE(line.is_object()) << bad.out;
  EXPECT_EQ(line["exit"], 2);
}

TEST(Cli, AnUnknownLogLevelIsToldOnce) {
  const Outcome outcome = Shell("LT2_LOG=bogus " LT2_PROGRAM " config presets 2>&1 >/dev/null");
  EXPECT_EQ(outcome.exit, 0);
  EXPECT_EQ(outcome.out, "warning: LT2_LOG=bogus is none of debug, info, warn; info is taken\n");
}

TEST_F(TrainedModel, TheRunKnowsItsFolder) {
  const Outcome config = Shell("cat " + run_ + "/config.toml");
  EXPECT_NE(config.out.find("\ndir = \"" + run_ + "\"\n"), std::string::npos) << config.out;
  const Outcome listed = Lt2("ckpt ls " + run_);
  EXPECT_NE(listed.out.find(" opens "), std::string::npos) << listed.out;
}

TEST_F(TrainedModel, GeneratesWithinMemoryAndInJson) {
  const Outcome made = Shell(LT2_PROGRAM " generate " + run_ +
                             " --prompt a --max-tokens 40 --json --temperature 5 2>/dev/null");
  EXPECT_EQ(made.exit, 0) << made.out;
  const nlohmann::json line = LastLine(made.out);
  ASSERT_TRUE(line.is_object()) << made.out;
  EXPECT_EQ(line["ids"].size(), 40u);
  const Outcome large = Lt2("generate " + run_ + " --prompt a --max-tokens 1073741824");
  EXPECT_EQ(large.exit, 2) << large.out;
  EXPECT_NE(large.out.find("sample fewer tokens"), std::string::npos) << large.out;
  const Outcome both = Lt2("generate " + run_ + " --prompt a --ids 1");
  EXPECT_EQ(both.exit, 2) << both.out;
}

TEST_F(TrainedModel, ScoreNamesTheLineOfAnIdThatIsNone) {
  const std::string good = Write("good.txt", "1 2,3\n\n4\t5\r\n");
  const Outcome scored = Lt2("score " + run_ + " --ids-file " + good);
  EXPECT_EQ(scored.exit, 0) << scored.out;
  for (const char* word : {"99999999999999999999", "256", "-1", "x", "1.5"}) {
    const std::string bad = Write("bad.txt", std::string("1 2\n3 ") + word + "\n");
    const Outcome outcome = Lt2("score " + run_ + " --ids-file " + bad);
    EXPECT_EQ(outcome.exit, 2) << outcome.out;
    EXPECT_NE(outcome.out.find("bad.txt:2: '" + std::string(word) + "' is no token id"),
              std::string::npos)
        << outcome.out;
  }
}

TEST(Cli, VersionNamesTheLibraries) {
  const Outcome version = Lt2("--version");
  EXPECT_EQ(version.exit, 0);
  for (const char* name : {"commit", "compiler", "mpi", "hdf5", "cuda", "nccl"}) {
    EXPECT_NE(version.out.find(std::string("\n") + name + " "), std::string::npos) << version.out;
  }
}

TEST_F(Folder, ACheckoutIsNotNeededToUseAPreset) {
  const Outcome shown =
      Shell(LT2_PROGRAM " config check lt2-tiny 2>&1", path_.string());  // samples are found too
  EXPECT_EQ(shown.exit, 0) << shown.out;
}

}  // namespace
}  // namespace lt2
