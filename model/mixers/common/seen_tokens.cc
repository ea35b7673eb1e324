#include "model/mixers/common/seen_tokens.h"

#include "parallel/token_exchange.h"

namespace lt2 {

const Documents& SeenTokens(Tape& tape, const MixerContext& context, int64_t reach,
                            std::initializer_list<Var*> keys) {
  ContextShard* const shard = context.shard;
  if (shard == nullptr || reach == 0) return context.documents;
  std::vector<Var> own;
  for (const Var* key : keys) own.push_back(*key);
  const std::vector<Var> seen =
      reach == kAllBefore ? GatherTokens(tape, own, *shard) : LeftContext(tape, own, *shard, reach);
  auto next = seen.begin();
  for (Var* key : keys) *key = *next++;
  return reach == kAllBefore ? shard->row() : shard->context(reach);
}

}  // namespace lt2
