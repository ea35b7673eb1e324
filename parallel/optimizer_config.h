// The [optimizer] section of a run's configuration.
#pragma once

#include "core/config.h"

namespace lt2 {

struct OptimizerConfig {
  double lr = 3e-4;  // peak; the schedule scales it
  double beta1 = 0.9, beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;        // global norm of the mean gradient; 0: no clipping
  bool decay_all = false;   // weight decay also where the parameter's spec says no
  double z_loss = 0;        // weight of (log Z)² in the loss; read by the head
  int64_t skip_limit = 10;  // updates skipped in a row before the run is stopped; 0: never
  double spike_z = 0;       // skip if the norm is this many deviations above its mean; 0: off

  // Reads the table; what is wrong is noted in it.
  static OptimizerConfig Read(const ConfigTable& table);
  // Every key, resolved.
  void Write(ConfigTable* table) const;
};

}  // namespace lt2
