#include "tests/kernels/query_range.h"

#include <gtest/gtest.h>

#include "kernels/attention.h"
#include "kernels/compressed_attention.h"
#include "kernels/selected_attention.h"

namespace lt2 {
namespace {

constexpr RangeTolerance kTolerance{.outputs = 1e-12, .gradients = 1e-12};

class QueryRange : public testing::TestWithParam<RangeOperator> {};

TEST_P(QueryRange, PartsMakeTheWhole) {
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    ExpectPartsMakeTheWhole(GetParam(), {backend}, DType::kF64, kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Operators, QueryRange, testing::ValuesIn(AllRangeOperators()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(QueryRangeOfAWindow, NeedsNoMore) {
  for (const Backend backend : {Backend::kReference, Backend::kCpu}) {
    ExpectAWindowNeedsNoMore({backend}, DType::kF64, kTolerance);
  }
}

TEST(QueryRangePairs, AddUp) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const std::vector<int32_t> cu = RandomDocuments(seed, 300);
    SCOPED_TRACE(testing::Message() << "seed " << seed << " tokens " << cu.back());
    const Device device{Backend::kCpu};
    const Documents whole = Documents::Of(cu, device);
    double visible = 0, compressed = 0, selected = 0;
    for (const TokenRange& part : RandomPartition(seed, cu.back())) {
      const Documents documents = Documents::Of(cu, device, part);
      visible += VisiblePairs(documents, 9);
      compressed += CompressedPairs(documents, 4);
      selected += SelectedPairs(documents, 3, 4);
    }
    EXPECT_EQ(visible, VisiblePairs(whole, 9));
    EXPECT_EQ(compressed, CompressedPairs(whole, 4));
    EXPECT_EQ(selected, SelectedPairs(whole, 3, 4));
  }
}

}  // namespace
}  // namespace lt2
