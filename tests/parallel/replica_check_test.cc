#include "parallel/replica_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "core/param_set.h"
#include "core/strings.h"
#include "parallel/thread_communicator.h"

namespace lt2 {
namespace {

// What each rank is told where one bit of `drifted`'s master of `name` is another.
std::vector<absl::Status> CheckWith(const Mesh& mesh, int drifted, const std::string& name) {
  std::vector<absl::Status> told(mesh.size());
  RunRanks(mesh.size(), [&](Communicator& world) {
    ParamSet set;
    const ParamScope scope(set);
    scope.Add("shared", {4, 8}, {.kind = Init::Kind::kOnes});
    scope.Add("divided", {4, 8}, {.kind = Init::Kind::kOnes}, true, SplitRows(mesh.tp));
    const RankGroups groups = MakeGroups(world, mesh);
    const LayoutTable layout = Layout(set.specs(), mesh, 1, {}, groups.tp->rank());
    const std::vector<Param*> params = set.all();
    for (size_t p = 0; p < params.size(); ++p) {
      params[p]->Hold(layout.entries[p].held);
      // Parts along tp differ, as they may.
      const std::vector<double> values(params[p]->held.size(),
                                       p == 0 ? 1.0 : 1.0 + groups.tp->rank());
      params[p]->BindMaster(Tensor::FromHost(values, params[p]->held.extent, DType::kF32, {}));
    }
    if (world.rank() == drifted) static_cast<uint32_t*>(set.Find(name)->master.raw())[5] ^= 1;
    Stream stream;
    told[world.rank()] = CheckReplicas(stream, params, layout, groups);
  });
  return told;
}

TEST(ReplicaCheck, EqualBitsPass) {
  for (const Mesh& mesh : {Mesh{.dp = 3}, Mesh{.dp = 2, .tp = 2}, Mesh{.pp = 2, .cp = 2}}) {
    for (const absl::Status& status : CheckWith(mesh, -1, "")) EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(ReplicaCheck, TheRankWithAnotherBitIsNamed) {
  for (const absl::Status& status : CheckWith({.dp = 3}, 1, "divided")) {
    EXPECT_THAT(status.ToString(), testing::HasSubstr("rank-1-on-"));
    EXPECT_THAT(status.ToString(), testing::HasSubstr("does not hold the others' bits of divided"));
    EXPECT_THAT(status.ToString(), testing::Not(testing::HasSubstr("rank-0")));
  }
}

TEST(ReplicaCheck, OfTwoBothAreNamedAndOthersAreNotConcerned) {
  const std::vector<absl::Status> told = CheckWith({.dp = 2, .tp = 2}, 3, "divided");
  for (const int rank : {1, 3}) {
    EXPECT_THAT(told[rank].ToString(), testing::HasSubstr("rank-3-on-"));
    EXPECT_THAT(told[rank].ToString(), testing::HasSubstr("rank-1-on-"));
  }
  EXPECT_TRUE(told[0].ok() && told[2].ok());
  for (const absl::Status& status : CheckWith({.dp = 2, .tp = 2}, 3, "shared")) {
    EXPECT_THAT(status.ToString(), testing::HasSubstr("rank-3-on-"));
    EXPECT_THAT(status.ToString(), testing::HasSubstr("of shared"));
  }
}

}  // namespace
}  // namespace lt2
