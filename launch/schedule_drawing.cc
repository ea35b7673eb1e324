#include "launch/schedule_drawing.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/strings.h"

namespace lt2 {
namespace {

using Kind = PipelineJob::Kind;

struct Look {
  char letter;
  const char* colour;
};
Look LookOf(Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return {'F', "#4c78a8"};
    case Kind::kBackwardInput:
      return {'B', "#e49444"};
    case Kind::kBackwardWeight:
      return {'W', "#85b66f"};
    default:
      return {'H', "#a8559c"};
  }
}

std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

std::string Title(const PipelineTimes& times) {
  return StrCat(times.spans.size(), " stages, ", absl::StrFormat("%g", times.makespan),
                " units of time; the bubble is ", Percent(times.bubble()),
                " of what the busiest stage works");
}

}  // namespace

std::string DrawSchedule(const PipelineTimes& times, int width) {
  const int columns = static_cast<int>(std::ceil(times.makespan - 1e-9));
  std::vector<std::string> lines(times.spans.size(), std::string(columns, '.'));
  for (size_t stage = 0; stage < lines.size(); ++stage) {
    for (const PipelineTimes::Span& span : times.spans[stage]) {
      // A column belongs to what runs in its middle.
      const int end = static_cast<int>(std::ceil(span.end - 0.5));
      for (int at = static_cast<int>(std::ceil(span.begin - 0.5)); at < end; ++at) {
        lines[stage][at] = LookOf(span.job.kind).letter;
      }
    }
  }
  std::string text = StrCat(Title(times),
                            "\nF forward, B gradients of the input, W of the weights, H head, . "
                            "idle\n");
  for (int begin = 0; begin < columns; begin += width) {
    StrAppend(&text, "\n");
    for (size_t stage = 0; stage < lines.size(); ++stage) {
      StrAppend(&text, absl::StrFormat("%3d ", stage), lines[stage].substr(begin, width), "\n");
    }
  }
  StrAppend(&text, "\nstage    works  visits held\n");
  for (size_t stage = 0; stage < lines.size(); ++stage) {
    StrAppend(&text,
              absl::StrFormat("%5d %8s %12d\n", stage, Percent(times.busy[stage] / times.makespan),
                              times.peak_visits[stage]));
  }
  return text;
}

std::string ScheduleSvg(const PipelineTimes& times) {
  constexpr double kHeight = 24, kGap = 4, kLeft = 30, kTop = 44, kLabelled = 22;
  const double unit = std::clamp(1600 / times.makespan, 4.0, 24.0);
  const double width = kLeft + times.makespan * unit + kGap;
  const double height = kTop + static_cast<double>(times.spans.size()) * (kHeight + kGap);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"%g\" "
      "y=\"16\">%s</text>\n",
      width, height, kGap, Title(times));
  double at = kGap;
  for (const Kind kind :
       {Kind::kForward, Kind::kBackwardInput, Kind::kBackwardWeight, Kind::kHead}) {
    absl::StrAppendFormat(&svg,
                          "<rect x=\"%g\" y=\"24\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                          "<text x=\"%g\" y=\"34\">%s</text>\n",
                          at, LookOf(kind).colour, at + 16, Name(kind));
    at += 110;
  }
  for (size_t stage = 0; stage < times.spans.size(); ++stage) {
    const double y = kTop + static_cast<double>(stage) * (kHeight + kGap);
    absl::StrAppendFormat(&svg,
                          "<text x=\"%g\" y=\"%g\">%d</text><rect x=\"%g\" y=\"%g\" width=\"%g\" "
                          "height=\"%g\" fill=\"#eeeeee\"/>\n",
                          kGap, y + 16, stage, kLeft, y, times.makespan * unit, kHeight);
    for (const PipelineTimes::Span& span : times.spans[stage]) {
      const double x = kLeft + span.begin * unit, wide = (span.end - span.begin) * unit;
      if (wide <= 0) continue;
      const std::string visit = StrCat(span.job.micro_batch, ".", span.job.loop);
      absl::StrAppendFormat(
          &svg,
          "<g><title>%s, micro-batch %d, loop %d</title><rect x=\"%g\" y=\"%g\" width=\"%g\" "
          "height=\"%g\" fill=\"%s\" stroke=\"white\" stroke-width=\"0.5\"/>%s</g>\n",
          Name(span.job.kind), span.job.micro_batch, span.job.loop, x, y, wide, kHeight,
          LookOf(span.job.kind).colour,
          wide >= kLabelled ? absl::StrFormat("<text x=\"%g\" y=\"%g\" fill=\"white\" "
                                              "text-anchor=\"middle\">%s</text>",
                                              x + wide / 2, y + 16, visit)
                            : "");
    }
  }
  return svg + "</svg>\n";
}

}  // namespace lt2
