#include "launch/schedule_drawing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/strings.h"

namespace lt2 {
namespace {

using testing::HasSubstr;

PipelineTimes TimesOf(const PipelineShape& shape) {
  return Simulate(MakePipelinePlan(shape), shape.costs);
}

int Count(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(ScheduleDrawing, IsTheSchedule) {
  const std::string plain =
      DrawSchedule(TimesOf({.pipeline = Pipeline::kRing, .stages = 2, .micro_batches = 2}), 80);
  EXPECT_THAT(plain, HasSubstr("\n  0 FF..BW.BW\n  1 .FBWFBW..\n"));
  EXPECT_THAT(plain, HasSubstr("the bubble is 50.0 %"));
  EXPECT_THAT(plain, HasSubstr("stage    works  visits held\n    0"));
}

TEST(ScheduleDrawing, PanelsAreNoWiderThanAskedFor) {
  const PipelineShape shape{.pipeline = Pipeline::kRingZb,
                            .stages = 4,
                            .loops = 2,
                            .micro_batches = 8,
                            .costs = {.head = 2}};
  const PipelineTimes times = TimesOf(shape);
  for (const int width : {7, 40, 1000}) {
    const std::string text = DrawSchedule(times, width);
    std::string drawn[4];
    int panels = 0;
    for (size_t at = 0; at < text.size();) {
      const std::string line = text.substr(at, text.find('\n', at) - at);
      at += line.size() + 1;
      const bool row = line.size() > 4 && line.substr(0, 2) == "  " && line[3] == ' ' &&
                       line.find('%') == std::string::npos;
      if (!row) continue;
      EXPECT_LE(line.size(), 4U + width);
      drawn[line[2] - '0'] += line.substr(4);
      panels += line[2] == '0';
    }
    EXPECT_EQ(panels, (static_cast<int>(times.makespan) + width - 1) / width);
    for (int stage = 0; stage < 4; ++stage) {
      EXPECT_EQ(Count(drawn[stage], "F"), 16);
      EXPECT_EQ(Count(drawn[stage], "B"), 16);
      EXPECT_EQ(Count(drawn[stage], "W"), 16);
      EXPECT_EQ(Count(drawn[stage], "H"), stage == 0 ? 16 : 0);
      EXPECT_EQ(static_cast<double>(drawn[stage].size()), times.makespan);
      EXPECT_EQ(Count(drawn[stage], "."), times.makespan - times.busy[stage]);
    }
  }
}

TEST(ScheduleDrawing, TheSvgHasEveryJob) {
  const PipelineTimes times =
      TimesOf({.pipeline = Pipeline::kRing, .stages = 3, .loops = 2, .micro_batches = 4});
  const std::string svg = ScheduleSvg(times);
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  for (const char* kind : {"forward", "backward input", "backward weight"}) {
    EXPECT_EQ(Count(svg, StrCat("<title>", kind, ", micro-batch")), 3 * 2 * 4) << kind;
  }
  EXPECT_EQ(Count(svg, "<title>head"), 0);  // it takes no time
  EXPECT_EQ(Count(svg, "<g>"), Count(svg, "</g>"));
}

}  // namespace
}  // namespace lt2
