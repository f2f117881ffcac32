// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/round_of_run.h"

#include "trainer/families/vocabulary_cut.h"

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
          .has_documents = config.has_documents,
          .on_cpu = !config.gpu().has_value()};
}

int64_t VocabularyBlocks(const ModelSpec& spec, const RoundShape& round, int64_t device_bytes) {
  if (IsLayerWise(round.optimizer) || spec.vocab_size == 0) return 1;
  return NumBlocksFor(CutIntoPieces(spec.vocab_size, spec.embedding_width, round.on_cpu),
                      round.element, device_bytes);
}

int64_t VocabularyBlocks(const ModelSpec& spec, const RunConfig& config, int64_t device_bytes) {
  if (config.vocabulary_blocks > 0) return config.vocabulary_blocks;
  if (config.reference || config.rounding_seed() != 0) return 1;
  return VocabularyBlocks(spec, RoundOf(config), device_bytes);
}

}  // namespace gemini::trainer
