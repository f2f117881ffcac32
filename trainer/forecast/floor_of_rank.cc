// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/floor_of_rank.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/torch/model/element_types.h"
#include "gemini/system/status_macros.h"
#include "trainer/forecast/traced_step.h"
#include "trainer/models/staged_model.h"
#include "trainer/parallel/communicator_dry.h"
#include "trainer/parallel/model_of_ranks.h"

namespace gemini::trainer {
namespace {

// Finds what operators of a trace need, in their order.
class OperatorFloors {
 public:
  OperatorFloors(const GatheredModel& model, ElementType element, const NamedTrace& step)
      : model_(model), element_(element), step_(step) {
    for (size_t u = 0; u < model.units().size(); ++u) {
      for (const UnitTensor& tensor : model.units()[u]->tensors()) units_[tensor.name] = u;
    }
  }

  DeviceNeed FindMost() {
    DeviceNeed most;
    for (int32_t at = 0; at < step_.trace.num_positions(); ++at) {
      const DeviceNeed need = NeedAt(at);
      if (IsHere(at) && need.bytes() > most.bytes()) most = need;
    }
    return most;
  }

 private:
  // Returns the number of the unit whose parameters an operator reads, or nothing: it reads none.
  std::optional<size_t> NumberAt(int32_t at) const {
    if (at < 0 || at == step_.trace.num_positions()) return std::nullopt;
    const absl::Span<const TensorUse> uses = step_.trace.uses_of(at);
    if (uses.empty() || uses.front().kind != ChunkKind::kParam) return std::nullopt;
    const auto found = units_.find(step_.tensor_names[uses.front().tensor]);
    return found == units_.end() ? std::nullopt : std::optional(found->second);
  }
  const GatheredUnit* UnitAt(int32_t at) const {
    const std::optional<size_t> number = NumberAt(at);
    return number.has_value() ? model_.units()[*number].get() : nullptr;
  }

  // Whether this rank of a pipeline runs an operator. Positions come in their order. One that reads
  // nothing belongs to the unit that was read last.
  bool IsHere(int32_t at) {
    const size_t num_blocks = model_.blocks().size();
    if (const std::optional<size_t> number = NumberAt(at); number.has_value()) {
      // A tied table is read by the head where the last block was read before it.
      const bool is_head = *number == 0 && last_ >= 2 && last_ >= num_blocks;
      last_ = is_head ? num_blocks + 1 : *number;
    }
    const int64_t last_rank = model_.place().stages.num_ranks() - 1;
    return last_ > num_blocks ? model_.place().rank == last_rank
                              : model_.FirstRankWith(last_) == model_.place().rank;
  }

  DeviceNeed NeedAt(int32_t at) {
    const GatheredUnit* const unit = UnitAt(at);
    int64_t chunk_bytes = 0, unit_bytes = 0;
    if (unit != nullptr && unit->gathers()) {
      unit_bytes = unit->cut().num_elements() * ElementBytes(element_);
    } else if (unit != nullptr) {
      for (const TensorUse& use : step_.trace.uses_of(at)) {
        chunk_bytes = std::max(chunk_bytes, step_.trace.tensors[use.tensor].size_bytes);
      }
    }
    // Gradients stay until all of the unit are there.
    if (unit != UnitAt(at - 1)) gradient_bytes_ = 0;
    const OperatorNeed& need = step_.needs[at];
    const DeviceNeed reading = {
        .who = step_.operator_names[at],
        .chunk_bytes = chunk_bytes,
        .non_model_bytes = gradient_bytes_ + unit_bytes + need.pinned_bytes};
    // A unit that the next operator reads, too, is held until then.
    const int64_t held_bytes = unit == UnitAt(at + 1) ? unit_bytes : 0;
    const DeviceNeed behind = {.who = reading.who,
                               .non_model_bytes = gradient_bytes_ + held_bytes + need.bytes};
    for (; out_ != step_.trace.gradient_outs.end() && out_->position == at; ++out_) {
      gradient_bytes_ += step_.trace.tensors[out_->tensor].size_bytes;
    }
    return reading.bytes() > behind.bytes() ? reading : behind;
  }

  const GatheredModel& model_;
  const ElementType element_;
  const NamedTrace& step_;
  absl::flat_hash_map<absl::string_view, size_t> units_;  // Their numbers, by tensors' names.
  size_t last_ = 0;  // The unit that was read last; one behind the blocks stands for the head.
  std::vector<GradientOut>::const_iterator out_ = step_.trace.gradient_outs.begin();
  int64_t gradient_bytes_ = 0;  // Of the unit, that are there.
};

}  // namespace

absl::StatusOr<NamedTrace> TraceStepOfRank(const ModelSpec& spec, RoundShape round,
                                           const RankLayout& layout, int64_t rank) {
  round.counts_kernels = false;
  round.micro_batches = 1;  // Later ones need as much, and more that is not counted.
  if (layout.ranks_of_row() == 1) return TraceStep(spec, round, ComputeRate());
  CommunicatorDry communicator(rank, layout.num_ranks());
  const auto make = [&](const ModelSpec& of) -> absl::StatusOr<std::unique_ptr<StagedModel>> {
    GEMINI_ASSIGN_OR_RETURN(
        const std::unique_ptr<TensorLayers> layers,
        MakeLayersOfRank(of, client::hooks::ScalarTypeOf(round.element), communicator, layout));
    return MakeStagedModel(of, *layers);
  };
  return TraceStep(spec, round, ComputeRate(), make);
}

DeviceNeed FindFloorOfRank(const GatheredModel& model, ElementType element,
                           const NamedTrace& step) {
  DeviceNeed most = OperatorFloors(model, element, step).FindMost();
  for (size_t u = 0; u < model.units().size(); ++u) {
    const std::unique_ptr<GatheredUnit>& unit = model.units()[u];
    if (!model.HasUnit(model.place().rank, u) || unit->is_alone()) continue;  // It adds nothing.
    // The sum's buffer, and before they are in it, the gradients.
    int64_t elements = unit->cut().num_elements();
    for (size_t i = 0; i < unit->tensors().size(); ++i) {
      elements += unit->cut().size(static_cast<int64_t>(i));
    }
    const DeviceNeed sum = {.who = absl::StrCat("adding up the gradients of ", unit->name()),
                            .non_model_bytes = elements * ElementBytes(element)};
    if (sum.bytes() > most.bytes()) most = sum;
  }
  return most;
}

}  // namespace gemini::trainer
