// SPDX-License-Identifier: Apache-2.0
#include "policies/chunk_size_search.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/status_macros.h"
#include "policies/planner.h"
#include "policies/range_trace.h"

namespace gemini::policies {
namespace {

bool IsChunkSize(int64_t bytes) {
  return bytes >= kPageBytes && bytes <= kMaxChunkBytes &&
         std::has_single_bit(static_cast<uint64_t>(bytes));
}

struct Packed {
  RangeTrace ranges;
  int64_t num_bundles = 0;
};

absl::StatusOr<Packed> Pack(const Trace& trace, int64_t chunk_bytes) {
  GEMINI_ASSIGN_OR_RETURN(RangeTrace ranges, PackTrace(trace, chunk_bytes));
  Packed packed = {.ranges = std::move(ranges)};
  for (const PlannedRange& range : packed.ranges.ranges) {
    if (range.kind == ChunkKind::kParam) packed.num_bundles += range.num_bundles;
  }
  return packed;
}

}  // namespace

absl::StatusOr<ChunkSizeChoice> SearchChunkSize(const ChunkSizeSearchInputs& inputs) {
  if (!IsChunkSize(inputs.least_chunk_bytes) || !IsChunkSize(inputs.most_chunk_bytes) ||
      inputs.least_chunk_bytes > inputs.most_chunk_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk sizes from ", inputs.least_chunk_bytes, " to ", inputs.most_chunk_bytes,
                     ": both must be powers of two of at least ", kPageBytes));
  }
  GEMINI_RETURN_IF_ERROR(CheckTrace(inputs.trace));
  int64_t tensor_bytes = 0;
  for (const TracedTensor& tensor : inputs.trace.tensors) tensor_bytes += tensor.size_bytes;

  ChunkSizeChoice choice;
  std::vector<std::optional<Plan>> plans;
  int64_t lowest_floor = std::numeric_limits<int64_t>::max();
  absl::Status lowest_status;
  for (int64_t size = inputs.least_chunk_bytes; size <= inputs.most_chunk_bytes; size *= 2) {
    TriedChunkSize& tried = choice.tried.emplace_back();
    plans.emplace_back();
    tried.chunk_bytes = size;
    tried.num_bundles = tensor_bytes / size;  // At least; packing them would take its time.
    if (tried.num_bundles <= inputs.max_bundles) {
      GEMINI_ASSIGN_OR_RETURN(const Packed packed, Pack(inputs.trace, size));
      tried.num_bundles = packed.num_bundles;
      tried.padding_bytes = packed.num_bundles * size - tensor_bytes;
      if (packed.num_bundles <= inputs.max_bundles) {
        absl::StatusOr<Plan> plan =
            MakePlan({packed.ranges, inputs.budget_bytes, inputs.costs, inputs.policy});
        if (plan.ok()) {
          tried.prediction = plan->prediction;
          plans.back() = *std::move(plan);
          continue;
        }
        tried.status = plan.status();
        if (!absl::IsResourceExhausted(tried.status)) return tried.status;
        if (const int64_t floor = DeviceFloorBytes(packed.ranges); floor < lowest_floor) {
          lowest_floor = floor;
          lowest_status = tried.status;
        }
        continue;
      }
    }
    tried.status = absl::ResourceExhaustedError(
        absl::StrCat("chunks of ", FormatByteSize(size), " would be ", tried.num_bundles,
                     " bundles: more than ", inputs.max_bundles));
  }

  int64_t fastest_ns = std::numeric_limits<int64_t>::max();
  for (const std::optional<Plan>& plan : plans) {
    if (plan) fastest_ns = std::min(fastest_ns, plan->prediction.round_ns);
  }
  const double limit_ns = static_cast<double>(fastest_ns) * (1 + kChunkSizeTie);
  for (auto plan = plans.rbegin(); plan != plans.rend(); ++plan) {
    if (!*plan || static_cast<double>((*plan)->prediction.round_ns) > limit_ns) continue;
    choice.plan = **std::move(plan);
    return choice;
  }
  // Nothing was planned: all are below their floor, or have too many bundles.
  return lowest_status.ok() ? choice.tried.back().status : lowest_status;
}

}  // namespace gemini::policies
