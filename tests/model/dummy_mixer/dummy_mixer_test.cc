// The known answer of the tests' own mixer, and what its line in a .def makes of it. Everything
// else about it is the suite's business.
#include "tests/model/dummy_mixer/dummy_mixer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/mixers/registry.h"

namespace lt2 {
namespace {

TEST(DummyMixer, IsKnownByItsLine) {
  EXPECT_THAT(MixerKinds(), testing::Contains("dummy"));
  EXPECT_THAT(MixerKinds(), testing::Contains("full"));
  const ConfigTable table = *ConfigTable::Parse(
      "width = 8\nlayers = 1\nheads = 2\nvocab = 5\nmixers = ['dummy']\n[dummy]\nchannels = 0",
      "test");
  ReadModelConfig(table);
  EXPECT_THAT(std::string(table.Finish().message()), testing::HasSubstr("dummy.channels"));
}

// With unit projections of one channel: each token plus half of the one before it.
TEST(DummyMixer, GivesItsKnownAnswer) {
  ParamSet params;
  const ParamScope scope(params);
  DummyMixer mixer({.width = 1, .channels = 1, .gate = false}, {.scope = scope, .root = scope});
  Stream stream{.device = {Backend::kCpu}};
  for (Param* param : params.all()) {
    const std::vector<double> conv = {0, 0, 0.5, 1}, one = {1};
    param->BindValue(Tensor::FromHost(param->spec.shape.size() == 4 ? conv : one, param->spec.shape,
                                      DType::kF64, stream.device));
  }
  Tape tape(stream);
  const std::vector<int32_t> cu_seqlens = {0, 3, 5};
  const Documents documents = Documents::Of(cu_seqlens, stream.device);
  const std::vector<double> x = {1, 2, 4, 8, 16};
  const Var y =
      mixer
          .Forward(tape, tape.Input(Tensor::FromHost(x, {5, 1}, DType::kF64, stream.device)),
                   {.documents = documents})
          .y_ND;
  EXPECT_THAT(y.value.ToDoubles(), testing::ElementsAre(1, 2.5, 5, 8, 20));
}

}  // namespace
}  // namespace lt2
