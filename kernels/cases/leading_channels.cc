#include "kernels/leading_channels.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t rows, int64_t width, int64_t channels) {
  return {.op = "leading_channels",
          .name = absl::StrCat(rows, "x", width, " to ", channels),
          .attributes = {{"channels", static_cast<double>(channels)}},
          .inputs = {{"x", RandomNormal(seed, "x", {rows, width})}}};
}

}  // namespace

OpCase LeadingChannelsCase() {
  return {.op = "leading_channels",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", LeadingChannels(c.tape(), c.In("x"),
                                          static_cast<int64_t>(c.Number("channels")))}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, 70, 18, 16), Instance(seed, 1, 1, 1),
                                             Instance(seed, 33, 5, 5), Instance(seed, 9, 40, 1)};
              },
          .bench = [] { return Instance(0, 4096, 576, 512); },
          .gpu_bench = [] { return Instance(0, 32768, 576, 512); }};
}

}  // namespace lt2
