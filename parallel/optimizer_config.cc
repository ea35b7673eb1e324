#include "parallel/optimizer_config.h"

#include <cmath>

#include "core/strings.h"

namespace lt2 {
namespace {

void ReadAtLeastZero(const ConfigTable& table, const char* key, double* value) {
  table.Read(key, value);
  if (std::isfinite(*value) && *value >= 0) return;
  table.AddError(key, StrCat("wants a number of at least 0, got ", *value));
}

void ReadBetas(const ConfigTable& table, double* beta1, double* beta2) {
  std::vector<double> betas = {*beta1, *beta2};
  table.Read("betas", &betas);
  const auto sound = [](double beta) { return beta >= 0 && beta < 1; };
  if (betas.size() == 2 && sound(betas[0]) && sound(betas[1])) {
    *beta1 = betas[0];
    *beta2 = betas[1];
  } else {
    table.AddError("betas", "wants two numbers from 0 to below 1, as in [0.9, 0.95]");
  }
}

}  // namespace

OptimizerConfig OptimizerConfig::Read(const ConfigTable& table) {
  OptimizerConfig config;
  ReadAtLeastZero(table, "lr", &config.lr);
  ReadBetas(table, &config.beta1, &config.beta2);
  ReadAtLeastZero(table, "eps", &config.eps);
  ReadAtLeastZero(table, "weight_decay", &config.weight_decay);
  ReadAtLeastZero(table, "clip", &config.clip);
  table.Read("decay_all", &config.decay_all);
  ReadAtLeastZero(table, "z_loss", &config.z_loss);
  table.Read("skip_limit", &config.skip_limit);
  if (config.skip_limit < 0) table.AddError("skip_limit", "wants 0 (never) or more");
  ReadAtLeastZero(table, "spike_z", &config.spike_z);
  return config;
}

void OptimizerConfig::Write(ConfigTable* table) const {
  table->Set("lr", lr);
  table->Set("betas", std::vector<double>{beta1, beta2});
  table->Set("eps", eps);
  table->Set("weight_decay", weight_decay);
  table->Set("clip", clip);
  table->Set("decay_all", decay_all);
  table->Set("z_loss", z_loss);
  table->Set("skip_limit", skip_limit);
  table->Set("spike_z", spike_z);
}

}  // namespace lt2
