// SPDX-License-Identifier: Apache-2.0
#include "policies/planner/chunk_size_search.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/plan/spare_slots.h"
#include "gemini/system/status_macros.h"
#include "policies/planner/plan_effort.h"
#include "policies/planner/planner.h"
#include "policies/trace/range_trace.h"

namespace gemini::policies {
namespace {

// Sizes of an octave that are looked at: 32 KiB apart at 16 MiB.
constexpr int64_t kSizesOfOctave = 256;

bool IsEnd(int64_t bytes) {
  return bytes >= kPageBytes && bytes <= kMaxChunkBytes &&
         std::has_single_bit(static_cast<uint64_t>(bytes));
}

struct SpaceTensors {
  std::vector<TensorSpec> tensors;
  StateFormat format;
};

std::vector<SpaceTensors> TensorsOfSpaces(const Trace& trace) {
  std::vector<SpaceTensors> spaces;
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    const TracedTensor& tensor = trace.tensors[i];
    if (i == 0 || tensor.space != trace.tensors[i - 1].space) spaces.emplace_back();
    spaces.back().tensors.push_back({"", tensor.size_bytes, tensor.group});
    if (tensor.group == TensorGroup::kTrainable) spaces.back().format = tensor.format;
  }
  return spaces;
}

absl::StatusOr<int64_t> NumBundles(absl::Span<const SpaceTensors> spaces, int64_t chunk_bytes) {
  int64_t sum = 0;
  for (const SpaceTensors& space : spaces) {
    GEMINI_ASSIGN_OR_RETURN(const Layout layout,
                            Layout::Pack(space.tensors, chunk_bytes, space.format));
    sum += layout.num_bundles();
  }
  return sum;
}

struct PackedSize {
  int64_t chunk_bytes = 0;
  int64_t num_bundles = 0;
};

// Returns the size above half of `end`, up to it, that takes the fewest bytes in at most
// `max_bundles`; of equals the largest. None: `end`.
absl::StatusOr<PackedSize> LeanestOfOctave(absl::Span<const SpaceTensors> spaces, int64_t least,
                                           int64_t end, int64_t max_bundles) {
  PackedSize leanest = {.chunk_bytes = end};
  GEMINI_ASSIGN_OR_RETURN(leanest.num_bundles, NumBundles(spaces, end));
  // Chunks of 8-bit moments are of whole double pages.
  const int64_t step = std::max(2 * kPageBytes, end / (2 * kSizesOfOctave));
  for (int64_t size = end - step; size > end / 2 && size >= least; size -= step) {
    GEMINI_ASSIGN_OR_RETURN(const int64_t num_bundles, NumBundles(spaces, size));
    if (num_bundles <= max_bundles &&
        num_bundles * size < leanest.num_bundles * leanest.chunk_bytes) {
      leanest = {size, num_bundles};
    }
  }
  return leanest;
}

int64_t HostBytes(const RangeTrace& packed) {
  int64_t slots = 0;
  for (size_t space = 0; space < packed.formats.size(); ++space) {
    slots += packed.chunks_of_space[space] + packed.SpareSlotsOf(space);
  }
  return slots * packed.chunk_bytes;
}

struct Planned {
  TriedChunkSize tried;
  std::optional<Plan> plan;
  int64_t floor_bytes = std::numeric_limits<int64_t>::max();
};

absl::StatusOr<Planned> PlanOctave(const ChunkSizeSearchInputs& inputs,
                                   absl::Span<const SpaceTensors> spaces, int64_t tensor_bytes,
                                   int64_t end) {
  Planned planned;
  TriedChunkSize& tried = planned.tried;
  tried.chunk_bytes = end;
  tried.num_bundles = tensor_bytes / end;  // At least; packing them would take its time.
  if (tried.num_bundles <= inputs.max_bundles) {
    GEMINI_ASSIGN_OR_RETURN(const PackedSize size, LeanestOfOctave(spaces, inputs.least_chunk_bytes,
                                                                   end, inputs.max_bundles));
    tried.chunk_bytes = size.chunk_bytes;
    tried.num_bundles = size.num_bundles;
    tried.padding_bytes = size.num_bundles * size.chunk_bytes - tensor_bytes;
  }
  if (tried.num_bundles > inputs.max_bundles) {
    tried.status = absl::ResourceExhaustedError(
        absl::StrCat("chunks of ", FormatByteSize(tried.chunk_bytes), " would be ",
                     tried.num_bundles, " bundles: more than ", inputs.max_bundles));
    return planned;
  }
  tried.status = CheckPlanSteps(PlanSteps(inputs.trace, tried.chunk_bytes));
  if (!tried.status.ok()) return planned;
  GEMINI_ASSIGN_OR_RETURN(const RangeTrace packed, PackTrace(inputs.trace, tried.chunk_bytes));
  absl::StatusOr<Plan> plan = MakePlan({packed, inputs.budget_bytes, inputs.costs, inputs.policy});
  if (plan.ok()) {
    tried.prediction = plan->prediction;
    tried.host_bytes = HostBytes(packed);
    planned.plan = *std::move(plan);
    return planned;
  }
  tried.status = plan.status();
  if (!absl::IsResourceExhausted(tried.status)) return tried.status;
  planned.floor_bytes = DeviceFloorBytes(packed);
  return planned;
}

// The one that the header says; null: none was planned.
Planned* Choose(std::vector<Planned>& planned) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t leanest_bytes = kNone;
  for (const Planned& size : planned) {
    if (size.plan) leanest_bytes = std::min(leanest_bytes, size.tried.host_bytes);
  }
  const auto is_lean = [&](const Planned& size) {
    const auto fraction =
        static_cast<int64_t>(static_cast<double>(leanest_bytes) * kHostTieFraction);
    return size.tried.host_bytes - leanest_bytes <= std::max(kHostTieBytes, fraction);
  };
  int64_t fastest_ns = kNone;
  int64_t fastest_lean_ns = kNone;
  for (const Planned& size : planned) {
    if (!size.plan) continue;
    const int64_t round_ns = size.tried.prediction.round_ns;
    fastest_ns = std::min(fastest_ns, round_ns);
    if (is_lean(size)) fastest_lean_ns = std::min(fastest_lean_ns, round_ns);
  }
  const bool lean_only =
      static_cast<double>(fastest_lean_ns) <= static_cast<double>(fastest_ns) * (1 + kLeanTie);
  const double limit_ns =
      static_cast<double>(lean_only ? fastest_lean_ns : fastest_ns) * (1 + kChunkSizeTie);
  for (auto size = planned.rbegin(); size != planned.rend(); ++size) {
    if (!size->plan || (lean_only && !is_lean(*size))) continue;
    if (static_cast<double>(size->tried.prediction.round_ns) <= limit_ns) return &*size;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<ChunkSizeChoice> SearchChunkSize(const ChunkSizeSearchInputs& inputs) {
  if (!IsEnd(inputs.least_chunk_bytes) || !IsEnd(inputs.most_chunk_bytes) ||
      inputs.least_chunk_bytes > inputs.most_chunk_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk sizes from ", inputs.least_chunk_bytes, " to ", inputs.most_chunk_bytes,
                     ": both must be powers of two of at least ", kPageBytes));
  }
  GEMINI_RETURN_IF_ERROR(CheckTrace(inputs.trace));
  const std::vector<SpaceTensors> spaces = TensorsOfSpaces(inputs.trace);
  int64_t tensor_bytes = 0;
  for (const TracedTensor& tensor : inputs.trace.tensors) tensor_bytes += tensor.size_bytes;

  std::vector<Planned> planned;
  for (int64_t end = inputs.least_chunk_bytes; end <= inputs.most_chunk_bytes; end *= 2) {
    GEMINI_ASSIGN_OR_RETURN(Planned size, PlanOctave(inputs, spaces, tensor_bytes, end));
    planned.push_back(std::move(size));
  }
  Planned* const chosen = Choose(planned);
  if (chosen == nullptr) {  // All are below their floor, or have too many bundles.
    const auto lowest = std::ranges::min_element(planned, {}, &Planned::floor_bytes);
    const bool has_floor = lowest->floor_bytes < std::numeric_limits<int64_t>::max();
    return has_floor ? lowest->tried.status : planned.back().tried.status;
  }
  ChunkSizeChoice choice;
  choice.plan = *std::move(chosen->plan);
  for (Planned& size : planned) choice.tried.push_back(std::move(size.tried));
  return choice;
}

}  // namespace gemini::policies
