#include "parallel/pipeline_links.h"

#include "core/strings.h"

namespace lt2 {

PipelineLinks MakePipelineLinks(Communicator& pp) {
  PipelineLinks links;
  const int P = pp.size(), rank = pp.rank();
  for (int sender = 0; P > 1 && sender < P; ++sender) {
    for (const bool gradient : {false, true}) {
      const int receiver = (sender + (gradient ? P - 1 : 1)) % P;
      const bool member = rank == sender || rank == receiver;
      auto link = pp.Split(
          member ? 0 : 1, rank == receiver ? PipelineLinks::kReceiver : PipelineLinks::kSender,
          StrCat(pp.name(), gradient ? " gradients " : " activations ", sender, " to ", receiver));
      if (rank == sender) {
        (gradient ? links.gradients_out : links.activations_out) = std::move(link);
      } else if (rank == receiver) {
        (gradient ? links.gradients_in : links.activations_in) = std::move(link);
      }
    }
  }
  return links;
}

PipelineLinks MakeMetaPipelineLinks(int stages) {
  if (stages == 1) return {};
  const auto in = [] { return MakeMetaCommunicator(PipelineLinks::kReceiver, 2); };
  const auto out = [] { return MakeMetaCommunicator(PipelineLinks::kSender, 2); };
  return {in(), out(), in(), out()};
}

}  // namespace lt2
