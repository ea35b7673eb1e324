#include "checkpoints/tensor_set.h"

#include <gtest/gtest.h>

#include "parallel/thread_communicator.h"
#include "tests/checkpoints/sample_state.h"

namespace lt2 {
namespace {

StoredTensor Stored(const SampleTensor& tensor) {
  return {.group = tensor.group,
          .name = tensor.name,
          .dtype = tensor.dtype,
          .shape = tensor.shape,
          .boxes = {}};
}

// The status of comparing `stored` with `held`, of which each of two ranks holds every other one.
absl::Status Compare(const std::vector<SampleTensor>& stored, const std::vector<SampleTensor>& held,
                     std::string_view group = "") {
  Manifest manifest;
  for (const SampleTensor& tensor : stored) manifest.tensors.push_back(Stored(tensor));
  std::vector<absl::Status> statuses(2);
  RunRanks(2, [&](Communicator& world) {
    std::vector<TensorPiece> pieces;
    for (size_t i = world.rank(); i < held.size(); i += 2) {
      pieces.push_back(EmptyPiece(held[i], Box::Whole(held[i].shape)));
    }
    statuses[world.rank()] = CheckSameTensors(manifest, pieces, group, world);
  });
  EXPECT_EQ(statuses[0], statuses[1]);
  return statuses[0];
}

TEST(TensorSet, RanksTogetherHoldTheSame) {
  EXPECT_TRUE(Compare(SampleTensors(), SampleTensors()).ok());
}

TEST(TensorSet, OneMoreOneLessAndOneReshapedAreNamed) {
  std::vector<SampleTensor> held = SampleTensors();
  const std::string dropped = held.back().path();
  held.pop_back();
  held.push_back({"param", "new.weight", DType::kF32, {2}});
  held[0].shape = {40, 16};
  const absl::Status status = Compare(SampleTensors(), held);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  for (const std::string& part : {"only in the checkpoint: 1 tensors: " + dropped,
                                  std::string("only in this run: 1 tensors: param/new.weight"),
                                  held[0].path() + " [37, 16] -> [40, 16]"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << " in " << status;
  }
}

TEST(TensorSet, AGroupIsComparedAlone) {
  std::vector<SampleTensor> params = SampleTensors();
  std::erase_if(params, [](const SampleTensor& tensor) { return tensor.group != "param"; });
  EXPECT_TRUE(Compare(SampleTensors(), params, "param").ok());
  EXPECT_FALSE(Compare(SampleTensors(), params).ok());
  params.pop_back();
  EXPECT_FALSE(Compare(SampleTensors(), params, "param").ok());
}

}  // namespace
}  // namespace lt2
