// SPDX-License-Identifier: Apache-2.0
// Describes the optimizer of a model with its hyper-parameters, and the options and the result of
// one step.
#pragma once
#include <cstdint>
#include <vector>

#include "gemini/moment_format.h"
#include "gemini/optimizer_kind.h"

namespace gemini::client {

class StepExchange;

// The optimizer (client/kernels/update_rules.h has the formulas). A kind ignores what its formula
// does not name. Weight decay applies to parameters of at least `decay_min_dimensions` dimensions.
struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  double momentum = 0.9;             // For SGD and LARS.
  double dampening = 0;              // For SGD.
  bool nesterov = false;             // For SGD.
  double trust_coefficient = 1e-3;   // For LARS: eta.
  int64_t decay_min_dimensions = 2;  // With 0 all are decayed, as torch::optim::AdamW does.
  MomentFormat moments = MomentFormat::kFp32;
  uint64_t rounding_seed = 0;  // For stochastic rounding of 8-bit moments; 0 rounds to nearest.
};

struct StepOptions {
  double learning_rate = -1;  // If negative, the specification's. Ignored with `groups`.
  // The hyper-parameters of this step, by the parameter group of a tensor (ManagedModel::SetGroup):
  // one for each group, up to the last that a tensor is in. In each, the kind, the moments' format,
  // the seed and decay_min_dimensions stay those of the specification. If empty, the
  // specification's serve all.
  std::vector<OptimizerSpec> groups = {};
  double max_grad_norm = 0;  // Clips by global norm when > 0.
  // If true, Step returns when the update is decided; it is carried out while the next forward
  // runs, which waits for each parameter where it needs it. If false, Step returns when the update
  // is done. The bits are the same.
  bool overlap_update = true;
  // What the loss was multiplied by before backward, for gradients of 16 bits; >= 1.
  double loss_scale = 1;
  // Whether a NaN or an infinity in a gradient is no error: nothing is updated then, and
  // StepResult::skipped is set.
  bool skip_non_finite = false;
  // With the other processes that train this model (client/update/step_exchange.h). Null: this
  // process has the whole model.
  StepExchange* exchange = nullptr;
};

struct StepResult {
  // Completed steps, with this one unless it was skipped or no process had a gradient.
  int64_t step = 0;
  // Norm of the unscaled gradients of all processes, before clipping; 0 if no parameter had one.
  double grad_norm = 0;
  double clip_coefficient = 1;
  bool skipped = false;  // By StepOptions::skip_non_finite.
};

}  // namespace gemini::client
