// SPDX-License-Identifier: Apache-2.0
#include "client/front/module_walk.h"

#include <limits>

#include "absl/status/statusor.h"
#include "gemini/byte_size.h"
#include "gemini/tier.h"
#include "policies/planner/chunk_size_search.h"

namespace gemini::client::front {
namespace {

// Elements that an operator computes with in a nanosecond: a guess for one core of a CPU and a
// batch of some tens. What it decides is only how much of a copy hides behind computing.
constexpr int64_t kBytesComputedInNs = 4;
// Of DEVICE, what activations and temporaries take: a guess, too.
constexpr int64_t kNonModelPart = 4;
constexpr int64_t kLeastChunkBytes = 64 * kKiB;
constexpr int64_t kMostBundles = 5'000;  // As in trainer/forecast: half a second of planning.

}  // namespace

Trace WalkOf(absl::Span<const hooks::ModuleTensor> tensors, const StateFormat& format,
             int64_t device_bytes) {
  Trace walk;
  walk.phase = "train";
  const auto add_operator = [&](int64_t compute_ns) {
    walk.operators.push_back({.first_use = static_cast<int32_t>(walk.uses.size()),
                              .num_uses = 0,
                              .compute_ns = compute_ns,
                              .non_model_peak_bytes = device_bytes / kNonModelPart});
  };
  const auto use = [&](int32_t tensor, ChunkKind kind, bool written) {
    walk.uses.push_back({.tensor = tensor, .kind = kind, .written = written});
    ++walk.operators.back().num_uses;
  };
  for (const hooks::ModuleTensor& tensor : tensors) {
    walk.tensors.push_back(
        {.size_bytes = tensor.tensor.numel() * ElementBytes(tensor.element),
         .group = tensor.group,
         .space = 0,
         .format = tensor.group == TensorGroup::kTrainable ? format : StateFormat{}});
  }
  const auto count = static_cast<int32_t>(tensors.size());
  for (int32_t i = 0; i < count; ++i) {
    add_operator(walk.tensors[i].size_bytes / kBytesComputedInNs);
    use(i, ChunkKind::kParam, walk.tensors[i].group == TensorGroup::kBuffer);
  }
  for (int32_t i = count - 1; i >= 0; --i) {
    if (walk.tensors[i].group != TensorGroup::kTrainable) continue;
    add_operator(2 * walk.tensors[i].size_bytes / kBytesComputedInNs);
    use(i, ChunkKind::kParam, false);
    walk.gradient_outs.push_back({.position = walk.num_positions() - 1, .tensor = i});
  }
  for (int32_t i = 0; i < count; ++i) {
    if (walk.tensors[i].group == TensorGroup::kTrainable) walk.updated.push_back(i);
  }
  if (walk.ends_with_update()) add_operator(0);
  return walk;
}

int64_t ChooseChunkBytes(const Trace& walk, int64_t device_bytes, int64_t most_chunk_bytes,
                         const PolicyOptions& policy) {
  policies::ChunkSizeSearchInputs search = {.trace = walk,
                                            .budget_bytes = {},
                                            .policy = policy,
                                            .least_chunk_bytes = kLeastChunkBytes,
                                            .most_chunk_bytes = most_chunk_bytes,
                                            .max_bundles = kMostBundles};
  search.budget_bytes[Tier::kDevice] = device_bytes;
  search.budget_bytes[Tier::kHost] = std::numeric_limits<int64_t>::max();
  const absl::StatusOr<policies::ChunkSizeChoice> found = policies::SearchChunkSize(search);
  return found.ok() ? found->plan.chunk_bytes : most_chunk_bytes;
}

}  // namespace gemini::client::front
