#include "core/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/config_range.h"
#include "core/philox.h"
#include "core/strings.h"

namespace lt2 {
namespace {

ConfigTable Parsed(std::string_view text) {
  absl::StatusOr<ConfigTable> table = ConfigTable::Parse(text, "run.toml");
  EXPECT_TRUE(table.ok()) << table.status();
  return table.ok() ? *table : ConfigTable();
}

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

// Reads a fixed set of keys, as a section of the program would.
absl::Status ReadAll(const ConfigTable& root) {
  const ConfigTable model = root.Table("model");
  int64_t integer = 0;
  double number = 0;
  bool flag = false;
  std::string text;
  std::vector<int64_t> integers;
  std::vector<double> numbers;
  std::vector<std::string> texts;
  model.Read("layers", &integer);
  model.Read("theta", &number);
  model.Read("gate", &flag);
  model.Read("name", &text);
  model.Read("ids", &integers);
  model.Read("betas", &numbers);
  model.Read("mixers", &texts);
  model.ReadChoice("kind", {"cosine", "wsd"}, 0);
  model.Table("gdn").Read("heads", &integer);
  for (const ConfigTable& train : root.Table("data").Tables("train")) train.Read("path", &text);
  return root.Finish();
}

struct ErrorCase {
  const char* text;
  const char* message;
};
class ConfigErrors : public testing::TestWithParam<ErrorCase> {};

TEST_P(ConfigErrors, NameLineKeyAndRemedy) {
  const absl::Status status = ReadAll(Parsed(GetParam().text));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MessageOf(status), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Table, ConfigErrors,
    testing::Values(
        ErrorCase{"[model]\nlayrs = 3",
                  "run.toml:2: model.layrs: unknown key; did you mean 'layers'?"},
        ErrorCase{"[modle]\nx = 3", "run.toml:1: modle: unknown key; did you mean 'model'?"},
        ErrorCase{"[model.gdn]\nhead = 3",
                  "run.toml:2: model.gdn.head: unknown key; did you mean 'heads'?"},
        ErrorCase{"[model.gdn]\nzzz = 3",
                  "run.toml:2: model.gdn.zzz: unknown key; known here: heads"},
        ErrorCase{"[model]\nlayers = 2.5",
                  "run.toml:2: model.layers: wants an integer, got the number 2.5"},
        ErrorCase{"[model]\nlayers = \"2\"",
                  "run.toml:2: model.layers: wants an integer, got the string \"2\""},
        ErrorCase{"[model]\ntheta = true",
                  "run.toml:2: model.theta: wants a number, got the boolean true"},
        ErrorCase{"[model]\ngate = 1",
                  "run.toml:2: model.gate: wants true or false, got the integer 1"},
        ErrorCase{"[model]\nname = 1979-05-27",
                  "run.toml:2: model.name: wants a string, got the date or time 1979-05-27"},
        ErrorCase{"[model]\nids = [1, \"a\"]",
                  "run.toml:2: model.ids: wants a list of integers, got the list [1, \"a\"]"},
        ErrorCase{"[model]\nmixers = \"gdn\"",
                  "run.toml:2: model.mixers: wants a list of strings, got the string \"gdn\""},
        ErrorCase{
            "[model]\nkind = \"cosin\"",
            "run.toml:2: model.kind: wants one of \"cosine\", \"wsd\", got \"cosin\"; did you "
            "mean \"cosine\"?"},
        ErrorCase{"model = 3", "run.toml:1: model: wants a table, got the integer 3"},
        ErrorCase{"[data]\ntrain = [\"a\"]",
                  "run.toml:2: data.train: wants a list of tables, got the list [\"a\"]"},
        ErrorCase{"[[data.train]]\npth = \"a\"",
                  "run.toml:2: data.train.pth: unknown key; did you mean 'path'?"}));

TEST(Config, WhatNoKeyBeginsWithIsReportedWithItsLine) {
  for (const char* text : {"[run]\n[!model]\n", "[run]\n[[ \x01]]\n", "[run]\n\u019a = 1\n",
                           "[run]\nname\u00e9 = 1\n", "[run]\na = \u3042\n"}) {
    const absl::Status status = ConfigTable::Parse(text, "a.toml").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << status;
    EXPECT_NE(status.message().find("a.toml:2: not TOML: "), std::string::npos) << status;
  }
}

TEST(Config, ReportsEveryMistakeOnce) {
  const ConfigTable root = Parsed("[model]\nlayers = \"a\"\nnam = 1\ngate = 0\n[x]\n");
  ASSERT_FALSE(ReadAll(root).ok());
  root.Table("model").AddError("layers", "must be positive");  // follows from the first
  EXPECT_TRUE(root.Table("model").Wrong("layers"));
  EXPECT_FALSE(root.Table("model").Wrong("width"));
  root.Table("model").AddError("width", "is required");
  EXPECT_EQ(MessageOf(ReadAll(root)),  // the second reading adds nothing
            "run.toml:2: model.layers: wants an integer, got the string \"a\"\n"
            "run.toml:4: model.gate: wants true or false, got the integer 0\n"
            "run.toml:1: model.width: is required\n"
            "run.toml:3: model.nam: unknown key; did you mean 'name'?\n"
            "run.toml:5: x: unknown key; known here: model, data");
}

TEST(Config, TextThatIsNoToml) {
  const absl::Status status = ConfigTable::Parse("a = 1\nb = [1,\n", "bad.toml").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(MessageOf(status).starts_with("bad.toml:")) << status;
  const absl::Status endless = ConfigTable::ParseFile("/dev/zero").status();
  EXPECT_EQ(endless.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(MessageOf(endless).starts_with("/dev/zero: has more than")) << endless;
  EXPECT_EQ(ConfigTable::ParseFile("/nowhere/at/all.toml").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(Config, AbsentKeysLeaveTheValue) {
  const ConfigTable root = Parsed("[model]\nlayers = 7\n");
  int64_t layers = 1, width = 2;
  double theta = 3;
  root.Table("model").Read("layers", &layers);
  root.Table("model").Read("width", &width);
  root.Table("model").Read("layers", &theta);  // an integer is a number
  root.Table("none").Read("width", &width);
  EXPECT_EQ(layers, 7);
  EXPECT_EQ(width, 2);
  EXPECT_EQ(theta, 7);
  EXPECT_TRUE(root.Finish().ok());
}

TEST(Config, ErrorsOfAbsentTablesReachTheRoot) {
  const ConfigTable root = Parsed("");
  root.Table("model").Table("gdn").AddError("heads", "is required");
  EXPECT_EQ(MessageOf(root.Finish()), "run.toml: model.gdn.heads: is required");
}

TEST(Config, WhatIsNoTableHasNoMissingKeys) {
  const ConfigTable root = Parsed("model = 3\n");
  root.Table("model").AddError("width", "is required");
  root.Table("model").Table("gdn").AddError("heads", "is required");
  EXPECT_EQ(MessageOf(root.Finish()), "run.toml:1: model: wants a table, got the integer 3");
}

TEST(ConfigRange, MistakesNameWhatIsAllowed) {
  const ConfigTable root = Parsed(
      "low = 0\nhigh = 11\ntext = \"5\"\nfive = 5\nnan = nan\nzero = 0.0\ninf = inf\nhalf = 0.5\n");
  int64_t five = 1, number = 1;
  for (const char* key : {"low", "high", "text"}) ReadInRange(root, key, 1, 10, &number);
  ReadInRange(root, "five", 1, 10, &five);
  double half = 1, value = 1;
  ReadInRange(root, "nan", 0.0, 1.0, &value);
  ReadPositive(root, "zero", &value);
  ReadPositive(root, "inf", &value);
  ReadPositive(root, "half", &half);
  EXPECT_EQ(five, 5);
  EXPECT_EQ(half, 0.5);
  EXPECT_EQ(MessageOf(root.Finish()),
            "run.toml:1: low: must be from 1 to 10, is 0\n"
            "run.toml:2: high: must be from 1 to 10, is 11\n"
            "run.toml:3: text: wants an integer, got the string \"5\"\n"
            "run.toml:5: nan: must be from 0 to 1, is nan\n"
            "run.toml:6: zero: must be a finite number above 0, is 0\n"
            "run.toml:7: inf: must be a finite number above 0, is inf");
}

TEST(Config, AcceptTakesATableWhole) {
  const ConfigTable root = Parsed("[model.kda]\nanything = 1\n");
  root.Table("model").Accept("kda");
  EXPECT_TRUE(root.Finish().ok()) << root.Finish();
  root.Table("model").Table("kda");
  EXPECT_FALSE(root.Finish().ok());
}

TEST(Config, OverridesTakeTomlOrBareWords) {
  ConfigTable root = Parsed("[model]\nlayers = 7\n");
  for (const char* set :
       {"model.layers=4", "model.layers = 5", "run.dir=runs/a", "run.a.b=[1, 2]", "run.on=true",
        "schedule.total=2e9 tokens", "run.day=1979-05-27", "run.quoted=\"x y\"", "run.empty="}) {
    EXPECT_TRUE(root.Override(set).ok()) << set << root.Override(set);
  }
  EXPECT_EQ(root.ToToml(),
            "[model]\nlayers = 5\n\n[run]\ndir = \"runs/a\"\non = true\nday = \"1979-05-27\"\n"
            "quoted = \"x y\"\nempty = \"\"\n\n[run.a]\nb = [1, 2]\n\n"
            "[schedule]\ntotal = \"2e9 tokens\"\n");
  for (const char* set :
       {"model.layers", "model..layers=3", "=3", "model.layers.x=3", "model.ids=[1, "}) {
    const absl::Status status = root.Override(set);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << set;
    EXPECT_TRUE(MessageOf(status).starts_with("--set ")) << status;
  }
  ASSERT_TRUE(root.Override("model.layers=many").ok());
  EXPECT_EQ(MessageOf(ReadAll(root)).substr(0, 79),
            "--set model.layers: model.layers: wants an integer, got the string \"many\"\n--set")
      << ReadAll(root);
}

TEST(Config, TextReadsBackEqual) {
  ConfigTable root;
  root.Set("text", std::string_view("a \"quoted\"\\ line\n\ttab \x01 é"));
  root.Set("list", std::vector<std::string>{"", "b"});
  root.Set("none", std::vector<int64_t>{});
  ConfigTable inner;
  inner.Set("odd key.", int64_t{-5});
  inner.Set("big", std::numeric_limits<int64_t>::min());
  root.SetTable("inner", inner);
  root.SetTable("empty", ConfigTable());
  root.SetTables("tables", {inner, inner});
  const ConfigTable again = Parsed(root.ToToml());
  EXPECT_EQ(again.ToToml(), root.ToToml());
  std::string text;
  again.Read("text", &text);
  EXPECT_EQ(text, "a \"quoted\"\\ line\n\ttab \x01 é");
  EXPECT_TRUE(again.Has("empty"));
  EXPECT_EQ(again.Tables("tables").size(), 2u);
}

TEST(Config, DoublesReadBackExactly) {
  std::vector<double> values = {0.0,
                                -0.0,
                                1.0,
                                1e22,
                                1e-6,
                                6e-3,
                                1e300,
                                5e-324,
                                0.1,
                                1.0 / 3,
                                123456789012345680.0,
                                std::numeric_limits<double>::max(),
                                std::numeric_limits<double>::infinity()};
  const uint64_t seed = 7;
  SCOPED_TRACE(StrCat("Philox key ", seed));
  for (uint64_t i = 0; i < 200; ++i) {
    const Philox4 words = Philox(seed, i);
    const double value = std::ldexp(OpenUniform(words[0]) + OpenUniform(words[1]) * 0x1p-32,
                                    static_cast<int>(words[2] % 600) - 300);
    values.push_back(words[3] % 2 ? value : -value);
  }
  ConfigTable root;
  root.Set("values", values);
  std::vector<double> read;
  const ConfigTable again = Parsed(root.ToToml());
  again.Read("values", &read);
  ASSERT_EQ(read.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(read[i], values[i]);
    EXPECT_EQ(std::signbit(read[i]), std::signbit(values[i]));
  }
  EXPECT_EQ(again.ToToml(), root.ToToml());
}

TEST(Config, MergeFillsWhatIsMissingAtAnyDepth) {
  ConfigTable mine = Parsed("[model]\nlayers = 7\n[model.gdn]\nheads = 2\n");
  const ConfigTable preset = *ConfigTable::Parse(
      "[model]\nlayers = 1\nwidth = 8\n[model.gdn]\nheads = 4\nheadz = 3\n[model.kda]\na = 1\n",
      "p.toml");
  mine.MergeDefaults(preset);
  EXPECT_EQ(mine.ToToml(),
            "[model]\nlayers = 7\nwidth = 8\n\n[model.gdn]\nheads = 2\nheadz = 3\n\n"
            "[model.kda]\na = 1\n");
  // A mistake in the preset is reported where it stands.
  const std::string message = MessageOf(ReadAll(mine));
  EXPECT_NE(message.find("p.toml:6: model.gdn.headz: unknown key; did you mean 'heads'?"),
            std::string::npos)
      << message;
  EXPECT_EQ(preset.ToToml().find("layers = 7"), std::string::npos);  // untouched
}

TEST(Config, KeysAsDeepAsNobodyMeansAreRefused) {
  std::string key = "a";
  for (int i = 0; i < 100000; ++i) key += ".a";
  for (const std::string& text : {"x = 1\n[" + key + "]\n", "x = 1\n" + key + " = 1\n"}) {
    EXPECT_EQ(MessageOf(ConfigTable::Parse(text, "deep.toml").status()),
              "deep.toml:2: a key of more than 32 parts");
  }
  EXPECT_EQ(MessageOf(ConfigTable().Override(key + "=1")), "--set: a key of more than 32 parts");
}

TEST(NearestName, IsNearOrNothing) {
  EXPECT_EQ(NearestName("layer", {"loops", "layers"}), "layers");
  EXPECT_EQ(NearestName("LAYERS", {"loops", "layers"}), "layers");
  EXPECT_EQ(NearestName("micro", {"tokens", "micro_batch"}), "micro_batch");
  EXPECT_EQ(NearestName("gnd", {"gla", "gdn"}), "gdn");
  EXPECT_EQ(NearestName("xy", {"lr"}), "");
  EXPECT_EQ(NearestName("completely", {"different"}), "");
  EXPECT_EQ(NearestName("x", {}), "");
}

}  // namespace
}  // namespace lt2
