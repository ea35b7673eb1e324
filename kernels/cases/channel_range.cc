#include "kernels/channel_range.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t rows, int64_t width, int64_t first, int64_t channels) {
  return {.op = "channel_range",
          .name = absl::StrCat(rows, "x", width, ", ", channels, " from ", first),
          .attributes = {{"first", static_cast<double>(first)},
                         {"channels", static_cast<double>(channels)}},
          .inputs = {{"x", RandomNormal(seed, "x", {rows, width})}}};
}

}  // namespace

OpCase ChannelRangeCase() {
  return {.op = "channel_range",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", ChannelRange(c.tape(), c.In("x"), static_cast<int64_t>(c.Number("first")),
                                       static_cast<int64_t>(c.Number("channels")))}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{
                    Instance(seed, 70, 18, 0, 16), Instance(seed, 1, 1, 0, 1),
                    Instance(seed, 33, 5, 0, 5),   Instance(seed, 9, 40, 39, 1),
                    Instance(seed, 50, 48, 16, 8), Instance(seed, 50, 48, 3, 8)};
              },
          .bench = [] { return Instance(0, 4096, 576, 0, 512); },
          .gpu_bench = [] { return Instance(0, 32768, 576, 0, 512); }};
}

}  // namespace lt2
