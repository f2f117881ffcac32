// SPDX-License-Identifier: Apache-2.0
#include "tests/trainer/parallel/sent_bytes.h"

#include <memory>
#include <utility>

#include "tests/trainer/parallel/thread_ranks.h"
#include "torch/torch.h"
#include "trainer/parallel/model_of_ranks.h"

namespace gemini::trainer {
namespace {

// Replicas add up their gradients. Ranks with shards add these up in parts, and gather each block
// once for forward and once for backward. The last unit stays in between; the first, the embedding,
// is needed in backward by none, but by a head that is tied to it. All count who has a gradient, a
// number a tensor.
Sent BytesOfUnits(const GatheredModel& model, const StepOfRanks& step) {
  const int64_t ranks = static_cast<int64_t>(step.layout.parts().front().size());
  const int64_t element_bytes = static_cast<int64_t>(torch::elementSize(step.type));
  const bool in_shards = step.division == UnitDivision::kShards;
  Sent sent;
  for (const auto& unit : model.units()) {
    const int64_t elements = unit->cut().num_elements();
    const bool is_last = unit == model.units().back();
    const bool is_once = is_last || (unit == model.units().front() && !step.spec.tied_head);
    if (in_shards) {
      sent[{kReduceScatter, "shards", "gradients of"}] +=
          PanelBytes(elements * element_bytes, ranks);
      sent[{kAllGather, "shards", "gather"}] +=
          (is_once ? 1 : 2) * PanelBytes(elements * element_bytes, ranks);
    } else {
      sent[{kAllReduce, "shards", "gradients of"}] += SumBytes(elements, ranks, element_bytes);
    }
    sent[{kAllReduce, "shards", "which gradients of"}] +=
        SumBytes(static_cast<int64_t>(unit->tensors().size()), ranks);
  }
  std::erase_if(sent, [](const auto& one) { return one.second == 0; });
  return sent;
}

// A unit's site without its name.
std::string SiteOf(const SentBytes& one) {
  for (const char* const of_units : {"gather", "gradients of", "which gradients of"}) {
    const std::string site = of_units;
    if (one.group == "shards" && one.site.starts_with(site + " ")) return site;
  }
  return one.site;
}

}  // namespace

int64_t PanelBytes(int64_t bytes, int64_t ranks) { return bytes / ranks * (ranks - 1); }

int64_t SumBytes(int64_t elements, int64_t ranks, int64_t element_bytes) {
  return 2 * PanelBytes((elements + ranks - 1) / ranks * ranks * element_bytes, ranks);
}

std::vector<SentInStep> RunStep(const StepOfRanks& step) {
  torch::set_num_threads(1);
  const int64_t num_ranks = step.layout.num_ranks();
  std::vector<SentInStep> all(static_cast<size_t>(num_ranks));
  RunThreadRanks(num_ranks, [&](Communicator& me) {
    ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<GatheredModel> model,
        MakeModelOfRank(step.spec, step.type, me, step.layout,
                        {.division = step.division, .block_elements = kBlockElements}));
    model->set_recompute(step.recompute);
    const torch::Tensor tokens =
        torch::randint(0, step.spec.vocab_size, {step.sequences, step.tokens}, torch::kInt64);
    model->Losses(tokens, LossFactors()).Backward(LossFactors());
    SentInStep& mine = all[static_cast<size_t>(me.rank())];
    for (const SentBytes& one : me.sent()) {
      if (one.bytes == 0) continue;
      mine.sent[{std::string(CollectiveKindName(one.kind)), one.group, SiteOf(one)}] += one.bytes;
    }
    mine.of_units = BytesOfUnits(*model, step);
    for (const auto& unit : model->units()) mine.unit_elements += unit->cut().num_elements();
  });
  return all;
}

}  // namespace gemini::trainer
