// SPDX-License-Identifier: Apache-2.0
#include "gemini/plan/plan_wire.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/plan_generated.h"
#include "gemini/system/status_macros.h"
#include "gemini/wire_element.h"

namespace gemini {
namespace {

// 64 GiB of the smallest chunks, or 16 TiB of usual ones.
constexpr int64_t kMaxPlanSlots = int64_t{1} << 24;

template <typename To, typename From, typename Convert>
std::vector<To> Converted(const std::vector<From>& from, Convert convert) {
  std::vector<To> to;
  to.reserve(from.size());
  for (const From& element : from) to.push_back(convert(element));
  return to;
}

// Elements of a vector that may have been left out.
template <typename To, typename From, typename Convert>
std::vector<To> Converted(const flatbuffers::Vector<From>* from, Convert convert) {
  std::vector<To> to;
  if (from == nullptr) return to;
  to.reserve(from->size());
  for (flatbuffers::uoffset_t i = 0; i < from->size(); ++i) {
    to.push_back(ConvertElement(*from, i, convert));
  }
  return to;
}

std::vector<int32_t> Indices(const flatbuffers::Vector<int32_t>* from) {
  return Converted<int32_t>(from, [](int32_t index) { return index; });
}

std::string TextOf(const flatbuffers::String* text) {
  return text == nullptr ? std::string() : text->str();
}

wire::Prediction ToWire(const Prediction& from) {
  return wire::Prediction(from.round_ns, from.compute_ns, from.fetch_bytes, from.evict_bytes,
                          from.nvme_read_bytes, from.nvme_write_bytes, from.device_peak_bytes,
                          from.device_floor_bytes);
}

Prediction FromWire(const wire::Prediction* from, const flatbuffers::Vector<int64_t>* stall_ns) {
  Prediction to;
  if (from != nullptr) {
    to.round_ns = from->round_ns();
    to.compute_ns = from->compute_ns();
    to.fetch_bytes = from->fetch_bytes();
    to.evict_bytes = from->evict_bytes();
    to.nvme_read_bytes = from->nvme_read_bytes();
    to.nvme_write_bytes = from->nvme_write_bytes();
    to.device_peak_bytes = from->device_peak_bytes();
    to.device_floor_bytes = from->device_floor_bytes();
  }
  for (int i = 0; stall_ns != nullptr && i < kNumStallCauses; ++i) {
    if (i < static_cast<int>(stall_ns->size())) to.stall_ns[i] = ElementOf(*stall_ns, i);
  }
  return to;
}

}  // namespace

std::string EncodePlan(const Plan& plan) {
  flatbuffers::FlatBufferBuilder builder;
  const auto phase = builder.CreateString(plan.phase);
  const auto made_by = builder.CreateString(plan.made_by);
  const auto ranges = builder.CreateVectorOfStructs(
      Converted<wire::PlannedRange>(plan.ranges, [](const PlannedRange& range) {
        return wire::PlannedRange(range.first.value(), range.num_bundles, range.space,
                                  static_cast<uint8_t>(range.kind));
      }));
  const auto first_use = builder.CreateVector(plan.first_use);
  const auto uses = builder.CreateVector(plan.uses);
  const auto updated = builder.CreateVector(plan.updated);
  const auto device_updates = builder.CreateVectorOfStructs(
      Converted<wire::PlannedUpdate>(plan.device_updates, [](const PlannedUpdate& update) {
        return wire::PlannedUpdate(flatbuffers::span<const int32_t, kNumChunkKinds>(
            update.ranges.values.data(), kNumChunkKinds));
      }));
  const auto late_gradients = builder.CreateVector(plan.late_gradients);
  const auto initial = builder.CreateVectorOfStructs(Converted<wire::PlannedResident>(
      plan.initial,
      [](const PlannedResident& at) { return wire::PlannedResident(at.slot.value(), at.range); }));
  const auto fetches = builder.CreateVectorOfStructs(
      Converted<wire::PlannedFetch>(plan.fetches, [](const PlannedFetch& fetch) {
        return wire::PlannedFetch(fetch.slot.value(), fetch.range, fetch.after, fetch.needed_at,
                                  fetch.blank);
      }));
  const auto evictions = builder.CreateVectorOfStructs(
      Converted<wire::PlannedEviction>(plan.evictions, [](const PlannedEviction& eviction) {
        return wire::PlannedEviction(eviction.range, eviction.after, eviction.writes_back,
                                     eviction.stays);
      }));
  const auto host_uses = builder.CreateVectorOfStructs(
      Converted<wire::PlannedHostUse>(plan.host_uses, [](const PlannedHostUse& use) {
        return wire::PlannedHostUse(use.chunk.value(), use.at_ns, use.space, use.overwrites);
      }));
  const wire::Prediction prediction = ToWire(plan.prediction);
  const auto stall_ns =
      builder.CreateVector(plan.prediction.stall_ns.data(), plan.prediction.stall_ns.size());
  wire::FinishPlanBuffer(
      builder,
      wire::CreatePlan(builder, phase, plan.fingerprint, static_cast<uint8_t>(plan.policy.kind),
                       plan.policy.param_fraction, plan.policy.optimizer_fraction, made_by,
                       plan.chunk_bytes, plan.device_bytes, ranges, first_use, uses, updated,
                       device_updates, late_gradients, initial, fetches, evictions, host_uses,
                       plan.host_read_ns, &prediction, stall_ns));
  return std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
}

absl::StatusOr<Plan> DecodePlan(absl::string_view bytes) {
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  if (!wire::VerifyPlanBuffer(verifier)) {
    return absl::InvalidArgumentError(absl::StrCat(bytes.size(), " bytes that are no plan"));
  }
  const wire::Plan& from = *wire::GetPlan(bytes.data());
  if (from.policy() > static_cast<uint8_t>(PolicyKind::kOnline)) {
    return absl::InvalidArgumentError(absl::StrCat("a plan of policy ", from.policy()));
  }
  Plan plan;
  plan.phase = TextOf(from.phase());
  plan.fingerprint = from.fingerprint();
  plan.policy = {.kind = static_cast<PolicyKind>(from.policy()),
                 .param_fraction = from.param_fraction(),
                 .optimizer_fraction = from.optimizer_fraction()};
  plan.made_by = TextOf(from.made_by());
  plan.chunk_bytes = from.chunk_bytes();
  plan.device_bytes = from.device_bytes();
  plan.ranges = Converted<PlannedRange>(from.ranges(), [](const wire::PlannedRange* range) {
    return PlannedRange{range->space(), BundleId(range->first()), range->num_bundles(),
                        static_cast<ChunkKind>(range->kind())};
  });
  plan.first_use = Indices(from.first_use());
  plan.uses = Indices(from.uses());
  plan.updated = Indices(from.updated());
  plan.device_updates =
      Converted<PlannedUpdate>(from.device_updates(), [](const wire::PlannedUpdate* from_update) {
        PlannedUpdate update;
        for (const ChunkKind kind : kAllChunkKinds) {
          update.ranges[kind] =
              from_update->ranges()->Get(static_cast<flatbuffers::uoffset_t>(kind));
        }
        return update;
      });
  plan.late_gradients = Indices(from.late_gradients());
  plan.initial = Converted<PlannedResident>(from.initial(), [](const wire::PlannedResident* at) {
    return PlannedResident{at->range(), SlotId(at->slot())};
  });
  plan.fetches = Converted<PlannedFetch>(from.fetches(), [](const wire::PlannedFetch* fetch) {
    return PlannedFetch{fetch->range(), SlotId(fetch->slot()), fetch->after(), fetch->needed_at(),
                        fetch->blank()};
  });
  plan.evictions =
      Converted<PlannedEviction>(from.evictions(), [](const wire::PlannedEviction* eviction) {
        return PlannedEviction{eviction->range(), eviction->after(), eviction->writes_back(),
                               eviction->stays()};
      });
  plan.host_uses = Converted<PlannedHostUse>(from.host_uses(), [](const wire::PlannedHostUse* use) {
    return PlannedHostUse{use->space(), ChunkId(use->chunk()), use->overwrites(), use->at_ns()};
  });
  plan.host_read_ns = from.host_read_ns();
  plan.prediction = FromWire(from.prediction(), from.stall_ns());
  // CheckPlan keeps a word a slot: no memory for what a damaged number asks.
  if (plan.chunk_bytes <= 0 || plan.device_bytes / plan.chunk_bytes > kMaxPlanSlots) {
    return absl::InvalidArgumentError(absl::StrCat("a plan for ", plan.device_bytes,
                                                   " bytes of DEVICE in chunks of ",
                                                   plan.chunk_bytes, ", at most ", kMaxPlanSlots));
  }
  GEMINI_RETURN_IF_ERROR(CheckPlan(plan));
  return plan;
}

}  // namespace gemini
