// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/model_stages.h"

#include <algorithm>

#include "gemini/system/check.h"

namespace gemini::trainer {

ModelStages::ModelStages(int64_t num_ranks, const std::vector<int64_t>& blocks_of_stage)
    : num_ranks_(num_ranks) {
  GEMINI_CHECK(num_ranks > 0 && !blocks_of_stage.empty() &&
               static_cast<int64_t>(blocks_of_stage.size()) % num_ranks == 0);
  int64_t begin = 0;
  for (const int64_t count : blocks_of_stage) {
    stages_.push_back({.begin = begin, .end = begin + count});
    begin += count;
  }
}

int64_t ModelStages::RankOfBlock(int64_t block) const {
  const auto behind = std::ranges::upper_bound(stages_, block, {}, &Blocks::end);
  GEMINI_CHECK(block >= 0 && behind != stages_.end());
  return RankOf(behind - stages_.begin());
}

}  // namespace gemini::trainer
