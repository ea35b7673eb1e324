// Attention beyond its case: documents, windows, grouped heads, decoding, recompute.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention_step.h"
#include "kernels/case.h"
#include "kernels/first_token_mass.h"

namespace lt2 {
namespace {

constexpr uint64_t kSeed = 7;
constexpr Device kCpuDevice{Backend::kCpu};

struct Inputs {
  Tensor q, k, v, dout;
};

struct Result {
  Tensor o, lse, dq, dk, dv;
};

Tensor Random(const std::string& name, const Shape& shape, DType dtype = DType::kF64,
              Device device = kCpuDevice) {
  return Tensor::FromHost(RandomNormal(kSeed, name, shape).values, shape, dtype, device);
}

Inputs RandomInputs(int64_t N, int64_t H, int64_t G, int64_t D, int64_t E,
                    DType dtype = DType::kF64) {
  return {Random("q", {N, H, D}, dtype), Random("k", {N, G, D}, dtype),
          Random("v", {N, G, E}, dtype), Random("dout", {N, H, E}, dtype)};
}

Result Attend(const Inputs& in, const Documents& documents, const AttentionOptions& options) {
  Stream stream{in.q.device()};
  Tape tape(stream);
  const Var q = tape.Input(in.q, true), k = tape.Input(in.k, true), v = tape.Input(in.v, true);
  Result result;
  const Var o = Attention(tape, q, k, v, options, documents, &result.lse);
  result.o = o.value;
  const std::vector<Var> wrt = {q, k, v};
  const std::vector<Tensor> grads = tape.Backward({{o, in.dout}}, wrt);
  result.dq = grads[0], result.dk = grads[1], result.dv = grads[2];
  return result;
}

void ExpectSameBits(const Tensor& a, const Tensor& b) { EXPECT_EQ(a.ToDoubles(), b.ToDoubles()); }

void ExpectClose(const Tensor& got, const Tensor& want, double tolerance) {
  EXPECT_LE(RelativeError({got.shape(), got.ToDoubles()}, {got.shape(), want.ToDoubles()}),
            tolerance);
}

// A document's values and gradients do not depend on what else is in the batch, to the bit.
TEST(Attention, DocumentsAreIndependent) {
  const std::vector<int32_t> cu = {0, 1, 64, 65, 200, 330};
  for (DType dtype : {DType::kF32, DType::kF64}) {
    for (int64_t window : {0, 17}) {
      const Inputs all = RandomInputs(330, 4, 2, 24, 40, dtype);
      const AttentionOptions options{.scale = 0.2, .window = window};
      const Result packed = Attend(all, Documents::Of(cu, kCpuDevice), options);
      for (size_t d = 0; d + 1 < cu.size(); ++d) {
        const auto rows = [&](const Tensor& t) { return t.Rows(cu[d], cu[d + 1]); };
        const Result alone = Attend({rows(all.q), rows(all.k), rows(all.v), rows(all.dout)},
                                    Documents::Rows(1, cu[d + 1] - cu[d], kCpuDevice), options);
        ExpectSameBits(alone.o, rows(packed.o));
        ExpectSameBits(alone.lse, rows(packed.lse));
        ExpectSameBits(alone.dq, rows(packed.dq));
        ExpectSameBits(alone.dk, rows(packed.dk));
        ExpectSameBits(alone.dv, rows(packed.dv));
      }
    }
  }
}

// Tokens behind a query, or before its window, change nothing in its output: not even NaN do.
TEST(Attention, InvisibleTokensDoNotMatter) {
  constexpr int64_t kTokens = 200, kQuery = 130, kWindow = 40;
  const Documents documents = Documents::Rows(1, kTokens, kCpuDevice);
  const Inputs clean = RandomInputs(kTokens, 1, 1, 16, 16, DType::kF32);
  const AttentionOptions options{.scale = 0.25, .window = kWindow};
  const Result want = Attend(clean, documents, options);
  Inputs changed = clean;
  changed.k = clean.k.Clone(), changed.v = clean.v.Clone();
  for (int64_t j = 0; j < kTokens; ++j) {
    if (j <= kQuery && j > kQuery - kWindow) continue;
    for (int64_t d = 0; d < 16; ++d) {
      changed.k.data<float>()[j * 16 + d] = 1e4f;
      changed.v.data<float>()[j * 16 + d] = 1e4f;
    }
  }
  ExpectSameBits(Attend(changed, documents, options).o.Rows(kQuery, kQuery + 1),
                 want.o.Rows(kQuery, kQuery + 1));
}

// Window w is the softmax over the last w keys, written out here without tiles.
TEST(Attention, WindowIsAMask) {
  constexpr int64_t kTokens = 150, kSize = 16;
  const Inputs in = RandomInputs(kTokens, 1, 1, kSize, kSize);
  const Documents documents = Documents::Rows(1, kTokens, kCpuDevice);
  for (int64_t window : {1, 2, 16, 63, 64, 65, 149, 150, 1000}) {
    SCOPED_TRACE(window);
    Tensor want = Tensor::Zeros({kTokens, 1, kSize}, DType::kF64, kCpuDevice);
    for (int64_t i = 0; i < kTokens; ++i) {
      double total = 0;
      for (int64_t j = 0; j < kTokens; ++j) {
        if (j > i || i - j >= window) continue;
        double score = 0;
        for (int64_t d = 0; d < kSize; ++d) {
          score += in.q.data<double>()[i * kSize + d] * in.k.data<double>()[j * kSize + d];
        }
        const double weight = std::exp(0.25 * score);
        total += weight;
        for (int64_t d = 0; d < kSize; ++d) {
          want.data<double>()[i * kSize + d] += weight * in.v.data<double>()[j * kSize + d];
        }
      }
      for (int64_t d = 0; d < kSize; ++d) want.data<double>()[i * kSize + d] /= total;
    }
    ExpectClose(Attend(in, documents, {.scale = 0.25, .window = window}).o, want, 1e-13);
  }
}

// One key/value head for three query heads is the same as three equal ones; their gradients add.
TEST(Attention, GroupedHeadsAreRepeatedHeads) {
  constexpr int64_t kTokens = 90, G = 2, kGroup = 3, D = 12;
  const Inputs grouped = RandomInputs(kTokens, G * kGroup, G, D, D);
  const auto repeat = [&](const Tensor& t) {
    Tensor out = Tensor::Empty({kTokens, G * kGroup, D}, DType::kF64, kCpuDevice);
    for (int64_t i = 0; i < kTokens * G * kGroup * D; ++i) {
      const int64_t head = i / D % (G * kGroup), token = i / D / (G * kGroup);
      out.data<double>()[i] = t.data<double>()[(token * G + head / kGroup) * D + i % D];
    }
    return out;
  };
  const auto sum_groups = [&](const Tensor& t) {
    Tensor out = Tensor::Zeros({kTokens, G, D}, DType::kF64, kCpuDevice);
    for (int64_t i = 0; i < t.size(); ++i) {
      const int64_t head = i / D % (G * kGroup), token = i / D / (G * kGroup);
      out.data<double>()[(token * G + head / kGroup) * D + i % D] += t.data<double>()[i];
    }
    return out;
  };
  const Documents documents = Documents::Of(std::vector<int32_t>{0, 70, 90}, kCpuDevice);
  const Result got = Attend(grouped, documents, {.scale = 0.3});
  const Result want = Attend({grouped.q, repeat(grouped.k), repeat(grouped.v), grouped.dout},
                             documents, {.scale = 0.3});
  ExpectSameBits(got.o, want.o);
  ExpectSameBits(got.dq, want.dq);
  ExpectClose(got.dk, sum_groups(want.dk), 1e-14);
  ExpectClose(got.dv, sum_groups(want.dv), 1e-14);
}

// Very large scores: one key takes all; the reference agrees and nothing overflows in float32.
TEST(Attention, HugeScores) {
  const AttentionOptions options{.scale = 1e4};
  const Inputs in = RandomInputs(100, 2, 2, 16, 16);
  const Device reference{Backend::kReference};
  const auto random = [&](const char* name) {
    return Random(name, {100, 2, 16}, DType::kF64, reference);
  };
  const Result got = Attend(in, Documents::Rows(1, 100, kCpuDevice), options);
  const Result want = Attend({random("q"), random("k"), random("v"), random("dout")},
                             Documents::Rows(1, 100, reference), options);
  ExpectClose(got.o, want.o, 1e-10);
  ExpectClose(got.lse, want.lse, 1e-14);
  ExpectClose(got.dv, want.dv, 1e-10);
  const Result narrow = Attend(RandomInputs(100, 2, 2, 16, 16, DType::kF32),
                               Documents::Rows(1, 100, kCpuDevice), options);
  for (const Tensor& t : {narrow.o, narrow.dq, narrow.dk, narrow.dv}) {
    for (double x : t.ToDoubles()) ASSERT_TRUE(std::isfinite(x));
  }
}

// Inside Recompute the forward runs once: o and lse are kept, and gradients have the same bits.
TEST(Attention, SurvivesRecompute) {
  const Inputs in = RandomInputs(100, 2, 1, 16, 16, DType::kF32);
  const Documents documents = Documents::Rows(1, 100, kCpuDevice);
  const AttentionOptions options{.scale = 0.25};
  const Result want = Attend(in, documents, options);
  Stream stream{kCpuDevice};
  Tape tape(stream);
  const std::vector<Var> vars = {tape.Input(in.q, true), tape.Input(in.k, true),
                                 tape.Input(in.v, true)};
  const Var o = tape.Recompute(vars, [&](Tape& inner, std::span<const Var> x) {
    return std::vector<Var>{Attention(inner, x[0], x[1], x[2], options, documents)};
  })[0];
  ExpectSameBits(o.value, want.o);
  const std::vector<Tensor> grads = tape.Backward({{o, in.dout}}, vars);
  ExpectSameBits(grads[0], want.dq);
  ExpectSameBits(grads[1], want.dk);
  ExpectSameBits(grads[2], want.dv);
}

// Decoding token by token gives the rows of full attention.
TEST(AttentionStep, IsTheLastRowOfAttention) {
  constexpr int64_t kTokens = 70, H = 4, G = 2, D = 16, E = 24, kCapacity = 80;
  for (Backend backend : {Backend::kReference, Backend::kCpu}) {
    for (int64_t window : {0, 9}) {
      Stream stream{{backend}};
      const Device device = stream.device;
      const AttentionOptions options{.scale = 0.25, .window = window};
      const auto random = [&](const std::string& name, const Shape& shape) {
        return Random(name, shape, DType::kF64, device);
      };
      const Inputs in{random("q", {kTokens, H, D}), random("k", {kTokens, G, D}),
                      random("v", {kTokens, G, E}), random("dout", {kTokens, H, E})};
      const Result full = Attend(in, Documents::Rows(1, kTokens, device), options);
      // Sequence 1 has other lengths than sequence 0; both caches begin with the same tokens.
      Tensor k = Tensor::Zeros({2, kCapacity, G, D}, DType::kF64, device);
      Tensor v = Tensor::Zeros({2, kCapacity, G, E}, DType::kF64, device);
      for (int64_t b = 0; b < 2; ++b) {
        k.Flat(b * kCapacity * G * D, kTokens * G * D).CopyFrom(in.k);
        v.Flat(b * kCapacity * G * E, kTokens * G * E).CopyFrom(in.v);
      }
      for (int32_t length : {1, 2, 9, 10, 64, 65, 70}) {
        const int32_t other = 1 + length / 2;
        Tensor q = Tensor::Empty({2, H, D}, DType::kF64, device);
        q.Rows(0, 1).CopyFrom(in.q.Rows(length - 1, length));
        q.Rows(1, 2).CopyFrom(in.q.Rows(other - 1, other));
        Tensor o = Tensor::Empty({2, H, E}, DType::kF64, device);
        AttentionStep(stream, {.q_BHD = q,
                               .k_BSGD = k,
                               .v_BSGE = v,
                               .lengths_B = Tensor::FromHost(std::vector<int32_t>{length, other},
                                                             {2}, device),
                               .o_BHE = o,
                               .options = options});
        ExpectClose(o.Rows(0, 1), full.o.Rows(length - 1, length), 1e-14);
        ExpectClose(o.Rows(1, 2), full.o.Rows(other - 1, other), 1e-14);
      }
    }
  }
}

// Against probabilities read off with values that mark the first token.
TEST(FirstTokenMass, IsTheOutputWhereOnlyTheFirstValueIsOne) {
  const std::vector<int32_t> cu = {0, 3, 4, 80};
  for (Backend backend : {Backend::kReference, Backend::kCpu}) {
    for (int64_t window : {0, 10}) {
      Stream stream{{backend}};
      const Device device = stream.device;
      const Documents documents = Documents::Of(cu, device);
      const AttentionOptions options{.scale = 0.25, .window = window};
      Inputs in{Random("q", {80, 4, 8}, DType::kF64, device),
                Random("k", {80, 2, 8}, DType::kF64, device),
                Tensor::Zeros({80, 2, 1}, DType::kF64, device),
                Random("dout", {80, 4, 1}, DType::kF64, device)};
      for (int32_t first : {0, 3, 4}) {
        for (int64_t g = 0; g < 2; ++g) in.v.data<double>()[first * 2 + g] = 1;
      }
      const Result result = Attend(in, documents, options);
      double want = 0;
      for (int64_t i = 0; i < 80; ++i) {
        if (documents.positions().data<int32_t>()[i] == 0) continue;
        for (int64_t h = 0; h < 4; ++h) want += result.o.data<double>()[i * 4 + h];
      }
      Tensor mass = Tensor::Zeros({2}, DType::kF64, device);
      for (int repeat = 1; repeat <= 2; ++repeat) {  // it accumulates
        FirstTokenMass(stream, {.q_NHD = in.q,
                                .k_NGD = in.k,
                                .lse_NH = result.lse,
                                .mass = mass,
                                .options = options,
                                .documents = documents});
        EXPECT_NEAR(mass.data<double>()[0], repeat * want, 1e-12);
        EXPECT_EQ(mass.data<double>()[1], repeat * (80 - 3) * 4);
      }
    }
  }
}

// What the GPU's backward keeps of scores: tiles of 64 x 64, of as many heads as 640 MiB hold, none
// where they do not hold one.
TEST(Attention, ADryRunCountsWhatTheBackwardKeepsOnGpus) {
  constexpr int64_t kHeads = 32, kTile = 64 * 64 * 2;
  const auto counted = [](int64_t tokens, DType dtype) {
    const Device device{Backend::kMeta};
    const MetaMeter meter;
    const Documents documents(tokens, 1, device);
    const Tensor x = Tensor::Empty({tokens, kHeads, 64}, dtype, device);
    const Result result = Attend({x, x, x, x}, documents, {.scale = 0.125, .window = 0});
    return meter.memory().peak - meter.memory().live;
  };
  // Memory is handed out in pieces of 256 bytes.
  const auto wanted = [](int64_t tokens, int64_t tiles, int64_t integers) {
    const int64_t stats = 2 * 8 * (tokens + 2) * kHeads;
    return (tiles * kTile + stats + 4 * integers + 255) / 256 * 256;
  };
  EXPECT_EQ(counted(4096, DType::kBF16), wanted(4096, kHeads * (64 * 65 / 2 + 1), 2 + 1));
  // Nine heads would fit: four passes of eight.
  EXPECT_EQ(counted(8192, DType::kBF16), wanted(8192, 8 * (128 * 129 / 2 + 1), 2 * 4 + 1));
  EXPECT_EQ(counted(65536, DType::kBF16), 0);
  EXPECT_EQ(counted(4096, DType::kF32), 0);
}

}  // namespace
}  // namespace lt2
