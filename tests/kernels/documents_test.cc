#include "kernels/documents.h"

#include <gtest/gtest.h>

namespace lt2 {
namespace {

constexpr Device kCpuDevice{Backend::kCpu};
using Ints = std::vector<int32_t>;

Ints Of(const Tensor& tensor) {
  const auto span = tensor.span<int32_t>();
  return Ints(span.begin(), span.end());
}

TEST(Documents, DescribeTheirTokens) {
  Documents documents(200, 4, kCpuDevice);
  documents.Fill(Ints{0, 130, 131, 200});
  EXPECT_EQ(documents.count(), 3);
  EXPECT_EQ(Of(documents.cu_seqlens()), (Ints{0, 130, 131, 200, 200}));
  EXPECT_EQ(Of(documents.first_chunks()), (Ints{0, 3, 4, 6, 6}));
  EXPECT_EQ(documents.chunk_count(), 6);
  EXPECT_EQ(Of(documents.chunks()),
            (Ints{0, 0,   64, 0, 64, 64, 0, 128, 2, 1, 130, 1, 2, 131, 64,  //
                  2, 195, 5,  0, 0,  0,  0, 0,   0}));
  const Ints positions = Of(documents.positions());
  for (int t = 0; t < 200; ++t) EXPECT_EQ(positions[t], t - (t < 130 ? 0 : t < 131 ? 130 : 131));
  EXPECT_EQ(Of(documents.whole_positions()), positions);
}

TEST(Documents, AllTokensAreQueriesUnlessSaid) {
  const Documents documents = Documents::Rows(3, 70, kCpuDevice);
  EXPECT_EQ(documents.query_begin(), 0);
  EXPECT_EQ(documents.query_end(), 210);
  EXPECT_EQ(documents.query_chunk_count(), documents.chunk_count());
  EXPECT_EQ(documents.query_chunks().raw(), documents.chunks().raw());
}

TEST(Documents, QueriesAreCutOutOfChunks) {
  Documents documents(200, 5, kCpuDevice, {70, 195});
  documents.Fill(Ints{0, 130, 131, 200});
  EXPECT_EQ(documents.query_tokens(), 125);
  EXPECT_EQ(documents.query_chunk_capacity(), 2 + 5);
  EXPECT_EQ(documents.query_chunk_count(), 4);
  EXPECT_EQ(Of(documents.query_chunks()),
            (Ints{0, 70, 58, 0, 128, 2, 1, 130, 1, 2, 131, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(documents.chunk_count(), 6);
  // Another filling forgets the one before.
  documents.Fill(Ints{0, 100, 200});
  EXPECT_EQ(Of(documents.query_chunks()),
            (Ints{0, 70, 30, 1, 100, 64, 1, 164, 31, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  documents.Fill(Ints{0, 200});
  EXPECT_EQ(Of(documents.query_chunks()),
            (Ints{0, 70, 58, 0, 128, 64, 0, 192, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
}

// Any range of any documents fits: no more chunks than there is room for.
TEST(Documents, QueryChunksFitTheirRoom) {
  const Ints cu = {0, 1, 63, 64, 191, 260, 261};
  for (int64_t begin = 0; begin < 261; ++begin) {
    for (int64_t end = begin + 1; end <= 261; ++end) {
      const Documents documents = Documents::Of(cu, kCpuDevice, {begin, end});
      ASSERT_LE(documents.query_chunk_count(), documents.query_chunk_capacity());
      int64_t at = begin;
      for (int64_t c = 0; c < documents.query_chunk_count(); ++c) {
        const int32_t* chunk = documents.query_chunks().data<int32_t>() + 3 * c;
        ASSERT_EQ(chunk[1], at);
        ASSERT_LE(cu[chunk[0]], at);
        ASSERT_LE(chunk[2], kChunk);
        at += chunk[2];
        ASSERT_LE(at, cu[chunk[0] + 1]);
      }
      ASSERT_EQ(at, end);
    }
  }
}

TEST(Documents, TheFirstMayHaveBegunBefore) {
  Documents documents(6, 2, kCpuDevice, {1, 5});
  documents.Fill(Ints{0, 4, 6}, 100);
  EXPECT_EQ(Of(documents.positions()), (Ints{0, 1, 2, 3, 0, 1}));
  EXPECT_EQ(Of(documents.whole_positions()), (Ints{100, 101, 102, 103, 0, 1}));
  EXPECT_EQ(Of(documents.query_positions()), (Ints{101, 102, 103, 0}));
  documents.Fill(Ints{0, 4, 6});
  EXPECT_EQ(Of(documents.whole_positions()), Of(documents.positions()));
}

TEST(Documents, WhatQueriesSeeIsSummed) {
  const Ints cu = {0, 5, 6, 40};
  const auto square = [](double length) { return length * length; };
  double total = 0;
  for (const TokenRange part : {TokenRange{0, 3}, TokenRange{3, 20}, TokenRange{20, 40}}) {
    total += SumOverQueries(Documents::Of(cu, kCpuDevice, part), square);
  }
  EXPECT_EQ(total, 5 * 5 + 1 + 34 * 34);
  EXPECT_EQ(SumOverQueries(Documents::Of(cu, kCpuDevice, {3, 8}), square), 25 - 9 + 1 + 4);
  // Lengths that the host does not know are equal: 8 documents of 5 tokens.
  const Documents unknown(40, 8, {Backend::kMeta}, {3, 17});
  EXPECT_EQ(SumOverQueries(unknown, square), 25 - 9 + 25 + 25 + 4);
}

}  // namespace
}  // namespace lt2
