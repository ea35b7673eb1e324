#include "launch/shared_answers.h"

#include <cmath>
#include <set>

#include "core/strings.h"
#include "kernels/attention.h"
#include "kernels/gated_product.h"
#include "kernels/short_conv.h"
#include "parallel/row_attention.h"
#include "parallel/thread_communicator.h"
#include "parallel/token_exchange.h"

namespace lt2 {
namespace {

bool IsScan(const CaseData& data) {
  static const std::set<std::string> kScans = {
      "delta_rule", "gated_delta_rule", "gla", "kda",       "linear_attention",
      "mlstm",      "retention",        "ssd", "simple_gla"};
  return kScans.contains(data.op);
}

// What a scan's inputs are called.
const char* Query(const CaseData& data) { return data.op == "ssd" ? "C" : "q"; }
const char* Key(const CaseData& data) { return data.op == "ssd" ? "B" : "k"; }
const char* Value(const CaseData& data) {
  return data.op == "ssd" || data.op == "short_conv" ? "x" : "v";
}

// A token of the row that ranks share.
struct Token {
  enum class Kind { kOwn, kWrites, kReads } kind = Kind::kOwn;
  int64_t at = 0;               // kOwn: in the case's own, flat
  int64_t document = 0, i = 0;  // else: which row of which state
};

// The case's tokens in a row, with those that stand for states.
class Row {
 public:
  explicit Row(const CaseData& data) : data_(data), value_(data.inputs.at(Value(data)).shape) {
    std::vector<double> cu_seqlens;
    if (data.inputs.contains("cu_seqlens")) {
      cu_seqlens = data.inputs.at("cu_seqlens").values;
    } else {
      for (int64_t r = 0; r <= value_[0]; ++r) cu_seqlens.push_back(double(r * value_[1]));
    }
    if (IsScan(data)) K_ = data.inputs.at(Key(data)).shape[3];
    for (size_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
      const auto add_states = [&](Token::Kind kind, bool there) {
        for (int64_t i = 0; there && i < K_; ++i) {
          tokens_.push_back({.kind = kind, .document = static_cast<int64_t>(d), .i = i});
        }
      };
      add_states(Token::Kind::kWrites, data.inputs.contains("initial_state"));
      for (double t = cu_seqlens[d]; t < cu_seqlens[d + 1]; ++t) {
        tokens_.push_back({.at = static_cast<int64_t>(t)});
      }
      add_states(Token::Kind::kReads, data.outputs.contains("final_state"));
      cu_seqlens_.push_back(static_cast<int32_t>(tokens_.size()));
    }
  }

  int64_t tokens() const { return static_cast<int64_t>(tokens_.size()); }
  const std::vector<int32_t>& cu_seqlens() const { return cu_seqlens_; }
  bool Shares(const HostArray& array) const {
    return array.shape.rank() >= 2 && array.shape[0] == value_[0] && array.shape[1] == value_[1];
  }

  // The case of tokens [begin, end).
  CaseData Part(int64_t begin, int64_t end) const {
    CaseData part{.op = data_.op, .name = data_.name, .attributes = data_.attributes};
    for (const auto& [name, array] : data_.inputs) {
      if (name == "cu_seqlens" || name == "initial_state") continue;
      part.inputs[name] = Shares(array) ? Rows(name, array, begin, end) : array;
    }
    for (const auto& [name, array] : data_.cotangents) {
      if (name != "final_state") part.cotangents[name] = Rows("", array, begin, end);
    }
    return part;
  }

  // Puts rows [begin, …) of an output, which reads states, or of an input's gradient, which may
  // have written them, where they belong in the case's.
  void Put(const std::vector<double>& rows, int64_t begin, HostArray* own, Token::Kind of_state,
           HostArray* state) const {
    const int64_t width = own->shape.size() / (value_[0] * value_[1]);
    const auto count = static_cast<int64_t>(rows.size()) / width;
    for (int64_t t = 0; t < count; ++t) {
      const Token& token = tokens_[begin + t];
      const double* from = rows.data() + t * width;
      if (token.kind == Token::Kind::kOwn) {
        std::copy_n(from, width, own->values.begin() + token.at * width);
      } else if (token.kind == of_state && state != nullptr) {
        ForEachOfState(token, [&](int64_t at, int64_t in_state, double factor) {
          state->values[in_state] = factor * from[at];
        });
      }
    }
  }

 private:
  // fn(where it is in a token's [heads, V], where in the states [D, heads, K, V], factor) for all
  // that a token writes or reads of a state. Where every token decays the factor undoes that.
  template <class Fn>
  void ForEachOfState(const Token& token, const Fn& fn) const {
    const int64_t heads = value_[2], V = value_[3];
    const auto decay = data_.inputs.find("log_gamma");
    const auto steps =
        static_cast<double>(token.kind == Token::Kind::kWrites ? K_ - 1 - token.i : token.i + 1);
    for (int64_t h = 0; h < heads; ++h) {
      const double factor =
          decay == data_.inputs.end() ? 1 : std::exp(-steps * decay->second.values[h]);
      for (int64_t v = 0; v < V; ++v) {
        fn(h * V + v, ((token.document * heads + h) * K_ + token.i) * V + v, factor);
      }
    }
  }

  // name: of an input, or none for the output's cotangent.
  HostArray Rows(const std::string& name, const HostArray& array, int64_t begin,
                 int64_t end) const {
    Shape shape = array.shape;
    shape[0] = 1;
    shape[1] = end - begin;
    HostArray rows{.shape = shape, .values = std::vector<double>(shape.size())};
    const int64_t width = array.shape.size() / (value_[0] * value_[1]);
    for (int64_t t = begin; t < end; ++t) {
      double* to = rows.values.data() + (t - begin) * width;
      const Token& token = tokens_[t];
      if (token.kind == Token::Kind::kOwn) {
        std::copy_n(array.values.begin() + token.at * width, width, to);
      } else {
        FillOfState(token, name, width, to);
      }
    }
    return rows;
  }

  void FillOfState(const Token& token, const std::string& name, int64_t width, double* to) const {
    const bool writes = token.kind == Token::Kind::kWrites;
    const auto unit = [&](double one) {
      for (int64_t at = token.i; at < width; at += K_) to[at] = one;
    };
    if (name == Value(data_) && writes) {
      CopyState(token, data_.inputs.at("initial_state"), to);
    } else if (name.empty() && !writes) {
      CopyState(token, data_.cotangents.at("final_state"), to);
    } else if (name == Key(data_) && writes) {
      unit(1);
    } else if (name == Query(data_) && !writes) {
      const auto scale = data_.attributes.find("scale");
      unit(scale == data_.attributes.end() ? 1 : 1 / std::get<double>(scale->second));
    } else if (name == "beta") {
      std::fill_n(to, width, writes ? 1.0 : 0.0);
    } else if (name == "dt") {
      std::fill_n(to, width, -100.0);  // before the softplus: no time passes
    }
  }

  void CopyState(const Token& token, const HostArray& state, double* to) const {
    ForEachOfState(token, [&](int64_t at, int64_t in_state, double factor) {
      to[at] = factor * state.values[in_state];
    });
  }

  const CaseData& data_;
  const Shape value_;  // [B, T, …]
  int64_t K_ = 0;
  std::vector<Token> tokens_;
  std::vector<int32_t> cu_seqlens_ = {0};
};

// As mixers go.
std::map<std::string, Var> RunConv(CaseContext& c, ContextShard& shard) {
  Param& w_CW = c.Weight("w");
  const int64_t reach = w_CW.value.dim(1) - 1;
  const Var x = c.FlatIn("x");
  const Var y = ShortConv(c.tape(), LeftContext(c.tape(), std::span(&x, 1), shard, reach)[0], w_CW,
                          c.Has("bias") ? &c.Weight("bias") : nullptr,
                          c.Text("activation") == "silu", shard.context(reach));
  return {{"y", OwnTokens(c.tape(), y, shard, reach)}};
}

std::map<std::string, Var> RunAttention(CaseContext& c, ContextShard& shard) {
  const AttentionOptions options{.scale = c.Number("scale"),
                                 .window = static_cast<int64_t>(c.Number("window", 0))};
  const Var q = c.FlatIn("q"), k = c.FlatIn("k"), v = c.FlatIn("v");
  Var o;
  if (options.window > 0) {
    const int64_t reach = options.window - 1;
    const std::vector<Var> seen = LeftContext(c.tape(), std::vector<Var>{k, v}, shard, reach);
    o = Attention(c.tape(), q, seen[0], seen[1], options, shard.context(reach));
  } else {
    o = RowAttention(c.tape(), q, k, v, options, shard);
  }
  if (c.Has("gate")) o = SigmoidGate(c.tape(), o, c.FlatIn("gate"));
  return {{"o", o}};
}

OpCase Shared(const OpCase& op_case, ContextShard& shard) {
  OpCase shared = op_case;
  if (shared.op == std::string("short_conv")) {
    shared.run = [&shard](CaseContext& c) { return RunConv(c, shard); };
  } else if (shared.op == std::string("attention")) {
    shared.run = [&shard](CaseContext& c) { return RunAttention(c, shard); };
  }
  return shared;
}

}  // namespace

std::string WhyNotShared(const CaseData& data, int cp) {
  if (!IsScan(data) && data.op != "short_conv" && data.op != "attention") {
    return "ranks share tokens of scans, convolutions and attention";
  }
  const bool writes = data.op != "ssd" && data.op != "mlstm";
  if (!writes && data.inputs.contains("initial_state")) {
    return StrCat("no token of ", data.op, " writes a state and nothing else");
  }
  return Row(data).tokens() < 2 * cp ? TooFewTokens(cp) : "";
}

CaseResult RunShared(const OpCase& op_case, const CaseData& data, int cp, DType dtype) {
  const Row row(data);
  std::vector<CaseResult> parts(cp);
  RunRanks(cp, [&](Communicator& world) {
    const auto documents = static_cast<int64_t>(row.cu_seqlens().size()) - 1;
    ContextShard shard(world, row.tokens(), documents, {});
    shard.Fill(row.cu_seqlens());
    Stream stream;
    parts[world.rank()] =
        RunCase(Shared(op_case, shard), row.Part(shard.begin(), shard.begin() + shard.tokens()),
                stream, dtype, {.documents = &shard.documents(), .link = &shard.link()});
  });
  CaseResult result;
  const auto zeros = [](const HostArray& like) {
    return HostArray{.shape = like.shape, .values = std::vector<double>(like.values.size())};
  };
  for (const auto& [name, like] : data.outputs) result.outputs[name] = zeros(like);
  for (const auto& [name, like] : data.grads) result.grads[name] = zeros(like);
  const auto find = [](HostArrays& arrays, const char* name) {
    const auto found = arrays.find(name);
    return found == arrays.end() ? nullptr : &found->second;
  };
  for (int rank = 0; rank < cp; ++rank) {
    const int64_t begin = ShardBegin(row.tokens(), cp, rank);
    for (auto& [name, part] : parts[rank].outputs) {
      row.Put(part.values, begin, &result.outputs[name], Token::Kind::kReads,
              find(result.outputs, "final_state"));
    }
    for (auto& [name, part] : parts[rank].grads) {
      HostArray* const to = find(result.grads, name.c_str());
      if (to == nullptr) continue;
      if (row.Shares(*to)) {
        const bool value = name == Value(data);
        row.Put(part.values, begin, to, Token::Kind::kWrites,
                value ? find(result.grads, "initial_state") : nullptr);
      } else {
        for (size_t i = 0; i < to->values.size(); ++i) to->values[i] += part.values[i];
      }
    }
  }
  return result;
}

}  // namespace lt2
