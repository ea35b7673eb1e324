#include "checkpoints/load_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/checkpoints/sample_state.h"

namespace lt2 {
namespace {

using Wants = std::vector<std::vector<Want>>;

// Tensors of random shapes, each cut into random boxes.
Manifest RandomManifest(Dice& dice) {
  Manifest manifest;
  for (int64_t t = 1 + dice.Below(12); t > 0; --t) {
    StoredTensor& tensor = manifest.tensors.emplace_back();
    for (int64_t rank = 1 + dice.Below(3); rank > 0; --rank) {
      tensor.shape.push_back(1 + dice.Below(40));
    }
    for (const Box& box : RandomTiling(tensor.shape, 1 + dice.Below(6), dice)) {
      tensor.boxes.push_back({.box = box});
    }
  }
  return manifest;
}

int64_t BytesOf(const std::vector<LoadRound>& rounds) {
  int64_t bytes = 0;
  for (const LoadRound& round : rounds) {
    for (const LoadChunk& chunk : round) bytes += 4 * chunk.rows.size();
  }
  return bytes;
}

TEST(LoadPlan, EveryWantedBoxIsReadOnceFromFirstRowToLastByOneRank) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(seed);
    const Manifest manifest = RandomManifest(dice);
    Wants wants(1 + dice.Below(6));
    for (std::vector<Want>& mine : wants) {
      for (int64_t i = dice.Below(10); i > 0; --i) {
        const int tensor = static_cast<int>(dice.Below(manifest.tensors.size()));
        mine.push_back({tensor, RandomBox(manifest.tensors[tensor].shape, dice)});
      }
    }
    const LoadPlan plan = PlanLoad(manifest, wants, 1 + dice.Below(5000));
    ASSERT_EQ(plan.readers.size(), wants.size());

    std::map<std::pair<int, int>, std::pair<size_t, int64_t>> read;  // reader, next row, by box
    for (size_t reader = 0; reader < plan.readers.size(); ++reader) {
      EXPECT_LE(plan.readers[reader].size(), plan.rounds());
      for (const LoadRound& round : plan.readers[reader]) {
        for (const LoadChunk& chunk : round) {
          const Box& box = manifest.tensors[chunk.tensor].boxes[chunk.box].box;
          auto& [by, row] = read.try_emplace({chunk.tensor, chunk.box}, reader, 0).first->second;
          EXPECT_EQ(by, reader);
          Box rows = box;
          rows.begin[0] += row;
          rows.extent[0] = chunk.rows.extent[0];
          EXPECT_EQ(chunk.rows, rows);
          row += rows.extent[0];
        }
      }
    }
    for (int t = 0; t < static_cast<int>(manifest.tensors.size()); ++t) {
      for (int b = 0; b < static_cast<int>(manifest.tensors[t].boxes.size()); ++b) {
        const Box& box = manifest.tensors[t].boxes[b].box;
        bool wanted = false;
        for (const std::vector<Want>& mine : wants) {
          for (const Want& want : mine) {
            wanted |= want.tensor == t && Intersect(want.box, box).has_value();
          }
        }
        const auto at = read.find({t, b});
        ASSERT_EQ(at != read.end(), wanted);
        if (wanted) {
          EXPECT_EQ(at->second.second, box.extent[0]);
        }
      }
    }
  }
}

TEST(LoadPlan, WhoAloneWantsABoxReadsItAndTheOthersAreShared) {
  Manifest manifest;
  for (int t = 0; t < 40; ++t) {
    manifest.tensors.push_back({.shape = {12, 5}, .boxes = {{.box = {{0, 0}, {12, 5}}}}});
  }
  // Rank 2 alone wants the first ten; rank 1 more of the next ten than rank 0; all want the rest.
  Wants wants(4);
  for (int t = 0; t < 40; ++t) {
    const Box whole = Box::Whole({12, 5});
    if (t < 10) {
      wants[2].push_back({t, Box::RowsOf({12, 5}, 3, 4)});
    } else if (t < 20) {
      wants[0].push_back({t, Box::RowsOf({12, 5}, 0, 5)});
      wants[1].push_back({t, Box::RowsOf({12, 5}, 4, 12)});
    } else {
      for (std::vector<Want>& mine : wants) mine.push_back({t, whole});
    }
  }
  const LoadPlan plan = PlanLoad(manifest, wants, 1 << 20);
  std::vector<int> reader(40, -1);
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(BytesOf(plan.readers[r]), 10 * 240) << r;
    for (const LoadRound& round : plan.readers[r]) {
      for (const LoadChunk& chunk : round) reader[chunk.tensor] = r;
    }
  }
  for (int t = 0; t < 10; ++t) EXPECT_EQ(reader[t], 2);
  for (int t = 10; t < 20; ++t) EXPECT_EQ(reader[t], 1);
}

TEST(LoadPlan, RoundsAreFullAndNoFuller) {
  Manifest manifest;
  manifest.tensors.push_back({.shape = {1000, 8}, .boxes = {{.box = {{0, 0}, {1000, 8}}}}});
  for (int ranks : {1, 3}) {
    Wants wants(ranks, {{0, Box::Whole({1000, 8})}});
    const LoadPlan plan = PlanLoad(manifest, wants, 960);
    const int64_t rows = 960 / (32 * ranks);  // as many as may be passed on
    ASSERT_EQ(plan.rounds(), (1000 + rows - 1) / rows);
    for (size_t i = 0; i + 1 < plan.rounds(); ++i) {
      EXPECT_EQ(plan.readers[0][i].at(0).rows.extent[0], rows);
    }
  }
}

}  // namespace
}  // namespace lt2
