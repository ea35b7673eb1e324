#include "parallel/optimizer_config.h"

#include "core/config_range.h"

namespace lt2 {
namespace {

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
  ReadInRange(table, "lr", 0.0, 1e3, &config.lr);
  ReadBetas(table, &config.beta1, &config.beta2);
  ReadPositive(table, "eps", &config.eps);
  ReadInRange(table, "weight_decay", 0.0, 1e3, &config.weight_decay);
  ReadInRange(table, "clip", 0.0, 1e30, &config.clip);
  table.Read("decay_all", &config.decay_all);
  ReadInRange(table, "z_loss", 0.0, 1e3, &config.z_loss);
  table.Read("skip_limit", &config.skip_limit);
  if (config.skip_limit < 0) table.AddError("skip_limit", "wants 0 (never) or more");
  ReadInRange(table, "spike_z", 0.0, 1e6, &config.spike_z);
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
