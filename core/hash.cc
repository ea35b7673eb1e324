#include "core/hash.h"

#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lt2 {
namespace {

std::string ToText(const XXH128_hash_t& hash) {
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

}  // namespace

std::string Hash128(std::span<const std::byte> bytes) {
  return ToText(XXH3_128bits(bytes.data(), bytes.size()));
}

uint64_t Hash64(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

struct Hasher128::State {
  XXH3_state_t value;
};

Hasher128::Hasher128() : state_(std::make_unique<State>()) {
  XXH3_INITSTATE(&state_->value);
  XXH3_128bits_reset(&state_->value);
}
Hasher128::Hasher128(Hasher128&&) noexcept = default;
Hasher128& Hasher128::operator=(Hasher128&&) noexcept = default;
Hasher128::~Hasher128() = default;

void Hasher128::Add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->value, bytes.data(), bytes.size());
}

std::string Hasher128::Digest() const { return ToText(XXH3_128bits_digest(&state_->value)); }

}  // namespace lt2
