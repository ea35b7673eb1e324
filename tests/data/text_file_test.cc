#include "data/text_file.h"

#include <gtest/gtest.h>

#include "core/philox.h"

namespace lt2 {
namespace {

using Starts = std::vector<int64_t>;

TEST(DocumentStarts, BlankLinesSeparate) {
  EXPECT_EQ(DocumentStarts(""), Starts{});
  EXPECT_EQ(DocumentStarts("a"), Starts{0});
  EXPECT_EQ(DocumentStarts("a\nb\n"), Starts{0});
  EXPECT_EQ(DocumentStarts("a\n\nb"), (Starts{0, 3}));
  EXPECT_EQ(DocumentStarts("a\n\n\n\nb\n\n"), (Starts{0, 5}));
  EXPECT_EQ(DocumentStarts("a\r\n \t\r\nb\r\n"), (Starts{0, 7}));
}

TEST(DocumentStarts, LeadingBlankLinesBelongToTheFirstDocument) {
  EXPECT_EQ(DocumentStarts("\n\na\n\nb"), (Starts{0, 5}));
  EXPECT_EQ(DocumentStarts("\n\n\n"), Starts{0});
}

TEST(DocumentStarts, EveryDocumentBeginsWithTextAfterABlankLine) {
  const uint64_t seed = 7;
  for (uint64_t trial = 0; trial < 300; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " trial " << trial);
    std::string text;
    for (uint64_t i = 0; i < 60; ++i) text += "a\n \nb\n"[Philox(seed, trial, i)[0] % 6];
    const Starts starts = DocumentStarts(text);
    ASSERT_FALSE(starts.empty());
    EXPECT_EQ(starts[0], 0);
    for (size_t d = 1; d < starts.size(); ++d) {
      ASSERT_GT(starts[d], starts[d - 1]);
      const std::string_view before = std::string_view(text).substr(0, starts[d]);
      const std::string_view document = std::string_view(text).substr(starts[d]);
      EXPECT_NE(document.substr(0, document.find('\n')).find_first_not_of(' '),
                std::string_view::npos);
      ASSERT_EQ(before.back(), '\n');
      const size_t line = before.find_last_of('\n', before.size() - 2);
      EXPECT_EQ(before.substr(line + 1).find_first_not_of(" \n"), std::string_view::npos);
    }
  }
}

}  // namespace
}  // namespace lt2
