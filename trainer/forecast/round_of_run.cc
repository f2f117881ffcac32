// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/round_of_run.h"

namespace gemini::trainer {

RoundShape RoundOf(const RunConfig& config) {
  const bool vertical = config.micro_batch_schedule == "vertical";
  return {.train = true,
          .batch = config.batch,
          .sequence = config.sequence,
          .micro_batches = vertical ? 1 : config.accumulate,
          .recompute = vertical || config.recompute,
          .element = config.element(),
          .optimizer = config.optimizer_kind(),
          .moments = config.format().moments,
          .states_on_nvme = config.states_on_nvme(),
          .on_cpu = !config.gpu().has_value()};
}

}  // namespace gemini::trainer
