// Sizes and initial gates of the mLSTM.
#include "model/mixers/mlstm/mlstm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/init.h"

namespace lt2 {
namespace {

std::unique_ptr<Mlstm> Make(const std::string& options, ParamSet& params, std::string* error,
                            int64_t width = 2048) {
  ModelConfig config;
  config.width = width, config.heads = 8;
  const ConfigTable table = *ConfigTable::Parse(options, "test");
  const Mlstm::Options read = Mlstm::ReadOptions(config, table);
  *error = std::string(table.Finish().message());
  if (!error->empty()) return nullptr;
  const ParamScope scope(params);
  return std::make_unique<Mlstm>(
      read, MixerSite{.scope = scope, .root = scope, .layer = 0, .layers = 12});
}

std::vector<double> InitialValues(const ParamSpec& spec) {
  const Tensor value = Tensor::Empty(spec.shape, DType::kF64, {Backend::kCpu});
  InitTensor(spec, Box::Whole(spec.shape), 1, value);
  return value.ToDoubles();
}

TEST(Mlstm, HasTheParametersOfItsFormula) {
  ParamSet params;
  std::string error;
  Make("", params, &error);
  EXPECT_EQ(params.elements(), 16812048);  // 4 d² + 2 d H + 2 H + d
}

TEST(Mlstm, GatesStartAsInitSays) {
  std::string error;
  ParamSet large, linearize, as_meant;
  Make("", large, &error);
  EXPECT_THAT(InitialValues(large.Find("igate_preact.bias")->spec), testing::Each(-10.0));
  EXPECT_THAT(InitialValues(large.Find("igate_preact.weight")->spec), testing::Each(0.0));
  const std::vector<double> forget = InitialValues(large.Find("fgate_preact.bias")->spec);
  EXPECT_EQ(forget.front(), 3);
  EXPECT_NEAR(forget.back(), 6, 1e-12);
  EXPECT_DOUBLE_EQ(large.Find("v.weight")->spec.init.a, std::sqrt(2.0 / (5 * 2048)));
  EXPECT_DOUBLE_EQ(large.Find("out_proj.weight")->spec.init.a, 2 / (12 * std::sqrt(2048.0)));

  Make("init = 'linearize'", linearize, &error);
  EXPECT_THAT(InitialValues(linearize.Find("igate_preact.bias")->spec),
              testing::Each(-std::log(2.0)));
  EXPECT_THAT(InitialValues(linearize.Find("fgate_preact.bias")->spec), testing::Each(0.0));
  Make("init = 'linearize-as-meant'", as_meant, &error);
  EXPECT_THAT(InitialValues(as_meant.Find("igate_preact.bias")->spec),
              testing::Each(std::log(2.0)));
  EXPECT_THAT(InitialValues(as_meant.Find("fgate_preact.bias")->spec),
              testing::Each(-std::log(2.0)));
  double largest = 0;
  for (double w : InitialValues(linearize.Find("fgate_preact.weight")->spec)) {
    largest = std::max(largest, std::abs(w));
  }
  EXPECT_NEAR(largest, 0.1 * std::sqrt(6.0 / (2048 + 8)), 1e-5);
}

TEST(Mlstm, MistakesSayWhatIsAllowed) {
  ParamSet params;
  std::string error;
  Make("qk_factor = 0.3", params, &error, 64);
  EXPECT_THAT(error, testing::HasSubstr("must be an integer from 1 to 4096"));
  Make("init = 'none'", params, &error);
  EXPECT_THAT(error, testing::HasSubstr("linearize"));
  Make("soft_cap = 0", params, &error);
  EXPECT_THAT(error, testing::HasSubstr("must be a finite number above 0"));
}

}  // namespace
}  // namespace lt2
