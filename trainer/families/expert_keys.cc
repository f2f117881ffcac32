// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/expert_keys.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gemini::trainer {

void ReadExpertKeys(ConfigKeys& keys, ModelSpec& spec,
                    std::initializer_list<const char*> count_keys) {
  ExpertsSpec& experts = *spec.experts;
  keys.Size(count_keys, experts.count);
  keys.Size({"num_experts_per_tok"}, experts.chosen);
  keys.MustNotExceed("num_experts_per_tok", experts.chosen, "the number of experts", experts.count);
  bool adds_loss = false;
  keys.Flag("output_router_logits", adds_loss);
  double coefficient = 0.001;
  keys.NotNegative("router_aux_loss_coef", coefficient);
  if (adds_loss) experts.router_loss_coefficient = coefficient;
}

void ReadExpertBlocks(ConfigKeys& keys, ModelSpec& spec) {
  int64_t step = 1;
  keys.Size({"decoder_sparse_step"}, step);
  std::vector<int64_t> without;
  keys.Sizes("mlp_only_layers", without);
  for (int64_t i = 0; i < spec.num_blocks; ++i) {
    const bool listed = std::ranges::find(without, i) != without.end();
    spec.has_experts.push_back(!listed && (i + 1) % step == 0);
  }
}

}  // namespace gemini::trainer
