// A run's configuration in TOML: refused with a message, or resolved to what reads back the same.
#include "core/check.h"
#include "launch/run_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = lt2::ParseRunConfig(text, "fuzz.toml");
  if (!config.ok()) {
    CHECK(absl::IsInvalidArgument(config.status()) || absl::IsNotFound(config.status()))
        << config.status();
    CHECK(!config.status().message().empty());
    return 0;
  }
  const std::string resolved = config->ToToml();
  const auto again = lt2::ParseRunConfig(resolved, "resolved.toml");
  CHECK(again.ok()) << again.status();
  CHECK(again->ToToml() == resolved);
  return 0;
}
