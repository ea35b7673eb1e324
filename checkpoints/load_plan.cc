#include "checkpoints/load_plan.h"

#include <algorithm>
#include <optional>

namespace lt2 {
namespace {

struct RankWant {
  int rank;
  const Box* box;
};

std::vector<std::vector<RankWant>> ByTensor(const Manifest& manifest,
                                            std::span<const std::vector<Want>> wants) {
  std::vector<std::vector<RankWant>> by_tensor(manifest.tensors.size());
  for (size_t r = 0; r < wants.size(); ++r) {
    for (const Want& want : wants[r]) {
      by_tensor[want.tensor].push_back({static_cast<int>(r), &want.box});
    }
  }
  return by_tensor;
}

// What a rank reads, as it is found.
struct Share {
  std::vector<LoadRound> rounds;
  int64_t room = 0;   // bytes left in the last round
  int64_t bytes = 0;  // in all

  // `traffic`: bytes that are read or passed on of the box, whichever are more.
  void Add(int tensor, int index, const Box& box, int64_t traffic, int64_t round_bytes) {
    const int64_t rows = box.extent[0];
    const int64_t row_bytes = (traffic + rows - 1) / rows;
    for (int64_t row = 0; row < rows;) {
      if (room < row_bytes) {
        rounds.emplace_back();
        room = std::max(round_bytes, row_bytes);
      }
      const int64_t taken = std::min(rows - row, room / row_bytes);
      LoadChunk& chunk = rounds.back().emplace_back(LoadChunk{tensor, index, box});
      chunk.rows.begin[0] += row;
      chunk.rows.extent[0] = taken;
      room -= taken * row_bytes;
      row += taken;
    }
  }
};

}  // namespace

size_t LoadPlan::rounds() const {
  size_t most = 0;
  for (const std::vector<LoadRound>& rounds : readers) most = std::max(most, rounds.size());
  return most;
}

LoadPlan PlanLoad(const Manifest& manifest, std::span<const std::vector<Want>> wants,
                  int64_t round_bytes) {
  const std::vector<std::vector<RankWant>> by_tensor = ByTensor(manifest, wants);
  std::vector<Share> shares(wants.size());
  for (size_t t = 0; t < manifest.tensors.size(); ++t) {
    const StoredTensor& tensor = manifest.tensors[t];
    for (size_t b = 0; b < tensor.boxes.size(); ++b) {
      const Box& box = tensor.boxes[b].box;
      std::vector<int64_t> wanted(wants.size());  // elements, by rank
      int64_t all = 0;
      for (const RankWant& want : by_tensor[t]) {
        const std::optional<Box> both = Intersect(box, *want.box);
        if (!both) continue;
        wanted[want.rank] += both->size();
        all += both->size();
      }
      if (all == 0) continue;
      size_t reader = 0;
      for (size_t r = 1; r < shares.size(); ++r) {
        if (wanted[r] > wanted[reader] ||
            (wanted[r] == wanted[reader] && shares[r].bytes < shares[reader].bytes)) {
          reader = r;
        }
      }
      const int64_t size = SizeOf(tensor.dtype);
      shares[reader].bytes += box.size() * size;
      shares[reader].Add(static_cast<int>(t), static_cast<int>(b), box,
                         std::max(box.size(), all) * size, round_bytes);
    }
  }
  LoadPlan plan;
  for (Share& share : shares) plan.readers.push_back(std::move(share.rounds));
  return plan;
}

}  // namespace lt2
