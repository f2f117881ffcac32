// SPDX-License-Identifier: Apache-2.0
#include "policies/trace/host_uses.h"

#include <algorithm>

namespace gemini::policies {
namespace {

class Writer {
 public:
  Writer(const RangeTrace& trace, const Plan& plan, int64_t round_ns)
      : trace_(trace), plan_(plan), round_ns_(round_ns) {}

  void Add(const HostAccess& access) {
    access_ = access;
    switch (access.event) {
      case HostEvent::kFetch:
        AddRange(plan_.fetches[access.index].range, HostUseKind::kReads);
        break;
      case HostEvent::kWriteBack:
        AddRange(plan_.evictions[access.index].range, HostUseKind::kOverwrites);
        break;
      case HostEvent::kGradient:
        AddGradient(trace_.gradient_outs[access.index]);
        break;
      case HostEvent::kUpdate: {
        const PlannedRange& range = trace_.ranges[access.index];
        for (int64_t i = 0; i < range.num_bundles; ++i) {
          for (const ChunkKind kind : UpdatedKinds(trace_.format_of(range))) {
            if (trace_.states_on_nvme[range.space] && IsOptimizerState(kind)) continue;
            AddChunk(range, i, kind, HostUseKind::kChanges);
          }
          AddChunk(range, i, ChunkKind::kGrad, HostUseKind::kReads);
        }
        break;
      }
      case HostEvent::kGiveUp: {
        const PlannedUpdate& update = plan_.device_updates[access.index];
        for (const int32_t range : update.changed()) AddRange(range, HostUseKind::kGivesUp);
        break;
      }
    }
    ++num_accesses_;
  }

  std::vector<HostUse> Take() {
    std::stable_sort(uses_.begin(), uses_.end(),
                     [](const HostUse& a, const HostUse& b) { return a.asked_ns < b.asked_ns; });
    return std::move(uses_);
  }

 private:
  void AddRange(int32_t index, HostUseKind kind) {
    const PlannedRange& range = trace_.ranges[index];
    for (int64_t i = 0; i < range.num_bundles; ++i) AddChunk(range, i, range.kind, kind);
  }

  // A tensor that spans chunks has them alone; others share theirs.
  void AddGradient(const RangeTrace::GradOut& out) {
    const PlannedRange& range = trace_.ranges[out.range];
    const int64_t payload_bytes = trace_.PayloadOf(range);
    for (int64_t i = 0; i * payload_bytes < out.size_bytes; ++i) {
      const bool fills = out.size_bytes >= (i + 1) * payload_bytes;
      AddChunk(range, i, range.kind, fills ? HostUseKind::kOverwrites : HostUseKind::kChanges);
    }
  }

  void AddChunk(const PlannedRange& range, int64_t index, ChunkKind chunk, HostUseKind kind) {
    const int64_t asked_ns = access_.asked_ns + index * access_.chunk_ns;
    uses_.push_back({.space = range.space,
                     .chunk = ChunkOf(BundleId(range.first.value() + index), chunk),
                     .kind = kind,
                     .asked_ns = asked_ns % round_ns_,
                     .held_ns = access_.chunk_ns,
                     .rounds_after = asked_ns / round_ns_,
                     .access = num_accesses_,
                     .part = static_cast<int32_t>(index)});
  }

  const RangeTrace& trace_;
  const Plan& plan_;
  const int64_t round_ns_;
  HostAccess access_;
  int32_t num_accesses_ = 0;
  std::vector<HostUse> uses_;
};

}  // namespace

std::vector<HostUse> HostUses(const RangeTrace& trace, const Plan& plan,
                              absl::Span<const HostAccess> accesses, int64_t round_ns) {
  Writer writer(trace, plan, round_ns);
  for (const HostAccess& access : accesses) writer.Add(access);
  return writer.Take();
}

std::vector<PlannedHostUse> PlannedHostUses(absl::Span<const HostUse> uses) {
  std::vector<PlannedHostUse> planned;
  for (const HostUse& use : uses) {
    if (use.kind == HostUseKind::kGivesUp) continue;
    planned.push_back({.space = use.space,
                       .chunk = use.chunk,
                       .overwrites = use.kind == HostUseKind::kOverwrites,
                       .at_ns = use.asked_ns});
  }
  return planned;
}

}  // namespace gemini::policies
