// Sandwich norms, norms between loops and the exit gate against their definition, written out in
// plain numbers for a model of softmax attention.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/exit_loss.h"
#include "tests/support/tiny_model.h"

namespace lt2 {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;  // one a token

// The whole objective, token by token, straight from the formulas.
class Definition {
 public:
  Definition(TinyModel& tiny, const TinyModel::Tokens& tokens)
      : tiny_(tiny), config_(tiny.model.config()), tokens_(tokens) {}

  // The sums of LanguageModel::Forward.
  Row Sums() const {
    Rows h = Embedded();
    std::vector<Rows> each;  // loop by loop
    for (int64_t t = 0; t < config_.loops; ++t) {
      const Rows before = h;
      for (int64_t i = 0; i < config_.layers; ++i) h = Block(i, h);
      if (config_.loop_residual) {
        const Row rho = Values("loop.residual");
        for (size_t n = 0; n < h.size(); ++n) {
          for (int64_t d = 0; d < config_.width; ++d) {
            h[n][d] += rho[t * config_.width + d] * before[n][d];
          }
        }
      }
      if (config_.loop_norm) h = Normed("norm.weight", h);
      each.push_back(config_.loop_norm ? h : Normed("norm.weight", h));
    }
    return Objective(each);
  }

 private:
  Row Values(const std::string& name) const {
    const Param* param = tiny_.model.params().Find(name);
    CHECK(param != nullptr) << name;
    return param->value.ToDoubles();
  }

  Rows Embedded() const {
    const Row embed = Values("embed.weight");
    Rows h;
    for (int32_t id : tokens_.ids) {
      const auto first = embed.begin() + id * config_.width;
      h.emplace_back(first, first + config_.width);
    }
    return h;
  }

  Rows Normed(const std::string& name, Rows x) const {
    const Row w = Values(name);
    for (Row& row : x) {
      double square = 0;
      for (double value : row) square += value * value;
      const double rstd =
          1 / std::sqrt(square / static_cast<double>(row.size()) + config_.norm_eps);
      for (size_t d = 0; d < row.size(); ++d) row[d] *= rstd * w[d];
    }
    return x;
  }

  Rows Project(const std::string& name, const Rows& x) const {
    const Row w = Values(name);
    const size_t in = x[0].size(), out = w.size() / in;
    Rows y(x.size(), Row(out, 0.0));
    for (size_t n = 0; n < x.size(); ++n) {
      for (size_t o = 0; o < out; ++o) {
        for (size_t i = 0; i < in; ++i) y[n][o] += w[o * in + i] * x[n][i];
      }
    }
    return y;
  }

  Rows Block(int64_t layer, const Rows& x) const {
    const std::string at = "layers." + std::to_string(layer) + ".";
    Rows mixed = Attention(at + "mixer.", Normed(at + "norm1.weight", x));
    if (config_.sandwich_norm) mixed = Normed(at + "norm1_post.weight", mixed);
    const Rows y = Sum(x, mixed), u = Normed(at + "norm2.weight", y);
    Rows hidden = Project(at + "ffn.gate.weight", u);
    const Rows up = Project(at + "ffn.up.weight", u);
    for (size_t n = 0; n < hidden.size(); ++n) {
      for (size_t i = 0; i < hidden[n].size(); ++i) {
        hidden[n][i] *= up[n][i] / (1 + std::exp(-hidden[n][i]));
      }
    }
    Rows out = Project(at + "ffn.down.weight", hidden);
    if (config_.sandwich_norm) out = Normed(at + "norm2_post.weight", out);
    return Sum(y, out);
  }

  static Rows Sum(Rows a, const Rows& b) {
    for (size_t n = 0; n < a.size(); ++n) {
      for (size_t d = 0; d < a[n].size(); ++d) a[n][d] += b[n][d];
    }
    return a;
  }

  // Pairs (i, i + D/2) of every head turn by position · theta^(-2i/D).
  void Rotate(Rows& x) const {
    const int64_t D = config_.head_dim;
    for (size_t n = 0; n < x.size(); ++n) {
      for (size_t head = 0; head < x[n].size(); head += D) {
        for (int64_t i = 0; i < D / 2; ++i) {
          const double angle = static_cast<double>(Position(n)) *
                               std::pow(config_.rope_theta, -2.0 * static_cast<double>(i) / D);
          double &a = x[n][head + i], &b = x[n][head + i + D / 2];
          const double turned = a * std::cos(angle) - b * std::sin(angle);
          b = a * std::sin(angle) + b * std::cos(angle);
          a = turned;
        }
      }
    }
  }

  size_t DocumentBegin(size_t n) const {
    size_t begin = 0;
    for (int32_t cut : tokens_.cu_seqlens) {
      if (static_cast<size_t>(cut) <= n) begin = cut;
    }
    return begin;
  }
  size_t Position(size_t n) const { return n - DocumentBegin(n); }

  Rows Attention(const std::string& at, const Rows& u) const {
    Rows q = Project(at + "q_proj.weight", u), k = Project(at + "k_proj.weight", u);
    const Rows v = Project(at + "v_proj.weight", u);
    Rotate(q);
    Rotate(k);
    const int64_t D = config_.head_dim;
    Rows out(u.size(), Row(q[0].size(), 0.0));
    for (size_t n = 0; n < u.size(); ++n) {
      for (size_t head = 0; head < q[n].size(); head += D) {
        Row weight;
        double sum = 0;
        for (size_t m = DocumentBegin(n); m <= n; ++m) {
          double score = 0;
          for (int64_t d = 0; d < D; ++d) score += q[n][head + d] * k[m][head + d];
          weight.push_back(std::exp(score / std::sqrt(static_cast<double>(D))));
          sum += weight.back();
        }
        for (size_t j = 0; j < weight.size(); ++j) {
          const Row& value = v[DocumentBegin(n) + j];
          for (int64_t d = 0; d < D; ++d) out[n][head + d] += weight[j] / sum * value[head + d];
        }
      }
    }
    return Project(at + "o_proj.weight", out);
  }

  Row Objective(const std::vector<Rows>& each) const {
    const size_t loops = each.size();
    const bool exits = config_.exit_gate;
    Row sums(exits ? kExitProbabilitySums + loops : size_t{kHeadLossSums}, 0.0);
    std::vector<Rows> logits(loops), gates(loops);
    for (size_t t = 0; t < loops; ++t) {
      logits[t] = Project(config_.tie_embeddings ? "embed.weight" : "head.weight", each[t]);
      if (exits) gates[t] = Project("exit_gate.weight", each[t]);
    }
    for (size_t n = 0; n < tokens_.ids.size(); ++n) {
      const int32_t target = tokens_.targets[n];
      if (target < 0) continue;
      sums[kCountedSum] += 1;
      double left = 1;
      for (size_t t = exits ? 0 : loops - 1; t < loops; ++t) {
        double total = 0;
        for (double z : logits[t][n]) total += std::exp(z);
        const double lse = std::log(total), loss = lse - logits[t][n][target];
        double p = left;
        if (exits && t + 1 < loops) {
          p *= 1 / (1 + std::exp(-gates[t][n][0] - Values("exit_gate.bias")[0]));
        }
        left -= p;
        sums[kLossSum] += p * loss;
        sums[kSquaredLseSum] += p * lse * lse;
        if (!exits) continue;
        sums[kExitEntropySum] -= p * std::log(p);
        sums[kExitProbabilitySums + t] += p;
      }
    }
    return sums;
  }

  TinyModel& tiny_;
  const ModelConfig& config_;
  const TinyModel::Tokens& tokens_;
};

class LoopOptionsDefinition : public testing::TestWithParam<int> {};

TEST_P(LoopOptionsDefinition, EveryCombination) {
  ModelConfig config;
  config.width = 12;
  config.layers = 2;
  config.loops = 3;
  config.heads = config.kv_heads = 2;
  config.head_dim = 4;
  config.ffn = 10;
  config.vocab = 17;
  config.sandwich_norm = (GetParam() & 1) != 0;
  config.loop_norm = (GetParam() & 2) != 0;
  config.exit_gate = (GetParam() & 4) != 0;
  config.loop_residual = (GetParam() & 8) != 0;
  config.tie_embeddings = (GetParam() & 16) != 0;
  constexpr int64_t kTokens = 24;
  const TinyModel::Tokens tokens = RandomTokens(config, kTokens, 3, 5);
  TinyModel tiny(config, DType::kF64, Backend::kCpu, 7);
  Tape tape(tiny.stream);
  tape.set_recording(false);
  const Documents documents = Documents::Of(tokens.cu_seqlens, tiny.stream.device);
  const Row got =
      tiny.model
          .Forward(tape, Tensor::FromHost(tokens.ids, {kTokens}, tiny.stream.device),
                   Tensor::FromHost(tokens.targets, {kTokens}, tiny.stream.device), documents)
          .sums.value.ToDoubles();
  const Row want = Definition(tiny, tokens).Sums();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-11 * want[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(All, LoopOptionsDefinition, testing::Range(0, 32));

}  // namespace
}  // namespace lt2
