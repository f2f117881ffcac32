// SPDX-License-Identifier: Apache-2.0
// Makes a model's trace from that of a smaller one, which has fewer of the blocks that are equal:
// the operators of the blocks in the middle are repeated. So a model of 18,432 matrices is traced
// in a tenth of the time.
// Pure: no I/O, no clock.
#pragma once
#include <cstdint>
#include <optional>

#include "trainer/families/model_spec.h"
#include "trainer/forecast/named_trace.h"

namespace gemini::trainer {

// Blocks that come again and again, as one of full attention after five with windows does.
struct RepeatedBlocks {
  int64_t first = 0;     // The first block of the first period.
  int64_t period = 1;    // Blocks.
  int64_t left_out = 0;  // Periods that the smaller model lacks; it keeps kKeptPeriods.
};
// The first period and the last one have other neighbours than those between them, of which two
// show what one more period adds.
inline constexpr int64_t kKeptPeriods = 4;

// Returns what saves the most blocks; nothing if there are too few.
std::optional<RepeatedBlocks> FindRepeatedBlocks(const ModelSpec& spec);
// The smaller model.
ModelSpec WithFewerBlocks(ModelSpec spec, const RepeatedBlocks& repeated);
// Returns the trace of `spec` by `few`, that of the smaller model; nothing if one more period does
// not add the same to each operator.
std::optional<NamedTrace> RepeatBlocks(const NamedTrace& few, const ModelSpec& spec,
                                       const RepeatedBlocks& repeated);

}  // namespace gemini::trainer
