// SPDX-License-Identifier: Apache-2.0
#include "server/reply_wire.h"

#include <algorithm>

#include "absl/strings/string_view.h"
#include "gemini/protocol.h"
#include "gemini/wire_generated.h"

namespace gemini::server {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

std::string Finish(FlatBufferBuilder& builder, uint64_t id, wire::Body type, Offset<void> body) {
  wire::FinishMessageBuffer(builder, wire::CreateMessage(builder, id, type, body));
  return std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
}

wire::TierBytes Bytes(const TierMap<int64_t>& bytes) {
  return {bytes[Tier::kDevice], bytes[Tier::kHost], bytes[Tier::kNvme]};
}

wire::TierSlots Slots(const TierMap<int64_t>& slots) {
  return {slots[Tier::kDevice], slots[Tier::kHost], slots[Tier::kNvme]};
}

Offset<wire::TierStatus> Status(FlatBufferBuilder& builder, const TierBudget& budget) {
  return wire::CreateTierStatus(builder, budget.capacity_bytes, budget.leased_bytes,
                                budget.reclaiming_bytes, budget.free_bytes());
}

wire::CostModel Costs(const CostModel& costs) {
  return {costs.host_to_device,
          costs.device_to_host,
          costs.nvme_read,
          costs.nvme_write,
          costs.update_elements_per_second,
          costs.device_update_elements_per_second,
          costs.copy_latency_ns};
}

std::string EncodeStatus(uint64_t id, const StatusAnswer& answer, size_t max_entries) {
  FlatBufferBuilder builder;
  std::vector<Offset<wire::TenantStatus>> tenants;
  for (const TenantAnswer& tenant : answer.tenants) {
    if (tenants.size() == max_entries) break;
    const auto label = builder.CreateString(tenant.label);
    const auto plan_refusal = builder.CreateString(tenant.plan_refusal);
    const auto granted = Bytes(tenant.granted);
    const auto floor = Bytes(tenant.floor);
    const auto used = Bytes(tenant.used);
    const auto want = Bytes(tenant.want);
    tenants.push_back(wire::CreateTenantStatus(
        builder, tenant.session, label, tenant.pid, tenant.uid, tenant.lease, tenant.generation,
        tenant.fenced, &granted, &floor, &used, tenant.requests, &want, tenant.epoch,
        tenant.device_target, plan_refusal));
  }
  std::vector<Offset<wire::SpaceStatus>> spaces;
  for (const SpaceStatusAnswer& space : answer.spaces) {
    if (spaces.size() == max_entries) break;
    const auto name = builder.CreateString(space.name);
    const auto slots = Slots(space.slots);
    const auto hold = Slots(space.counts.chunks_hold);
    const auto stalls = builder.CreateVector(space.counts.stall_by_cause_ns.data(),
                                             space.counts.stall_by_cause_ns.size());
    const auto divergences =
        builder.CreateVector(space.counts.divergences.data(), space.counts.divergences.size());
    wire::SpaceStatusBuilder status(builder);
    status.add_space(space.space);
    status.add_name(name);
    status.add_session(space.session);
    status.add_chunk_bytes(space.chunk_bytes);
    status.add_num_bundles(space.num_bundles);
    status.add_slots(&slots);
    status.add_chunks_free(space.counts.chunks_free);
    status.add_chunks_hold(&hold);
    status.add_chunks_compute(space.counts.chunks_compute);
    status.add_chunks_invalid(space.counts.chunks_invalid);
    status.add_step(space.counts.step);
    status.add_fetch_bytes(space.counts.fetch_bytes);
    status.add_evict_bytes(space.counts.evict_bytes);
    status.add_stall_ns(space.counts.stall_ns);
    status.add_min_commit_step(space.counts.commits.min_step);
    status.add_max_commit_step(space.counts.commits.max_step);
    status.add_device_used_bytes(space.counts.device_used_bytes);
    status.add_device_non_model_bytes(space.counts.device_non_model_bytes);
    status.add_stall_by_cause_ns(stalls);
    status.add_divergences(divergences);
    status.add_rounds(space.counts.rounds);
    status.add_planned_rounds(space.counts.planned_rounds);
    status.add_update_pending(space.counts.update_pending);
    status.add_damaged_chunks(space.counts.damaged_chunks);
    status.add_last_damaged(space.counts.last_damaged.value());
    status.add_failed_nvme_writes(space.counts.failed_nvme_writes);
    status.add_step_ns(space.counts.step_ns);
    status.add_step_stall_ns(space.counts.step_stall_ns);
    status.add_step_fetch_bytes(space.counts.step_fetch_bytes);
    status.add_step_evict_bytes(space.counts.step_evict_bytes);
    spaces.push_back(status.Finish());
  }
  std::vector<Offset<wire::NvmeWear>> wear;
  for (const DirectoryWear& directory : answer.nvme_wear) {
    if (wear.size() == max_entries) break;
    const auto path = builder.CreateString(directory.path);
    wear.push_back(wire::CreateNvmeWear(builder, path, directory.written_bytes,
                                        directory.written_today_bytes));
  }
  const auto device = Status(builder, answer.tiers[Tier::kDevice]);
  const auto host = Status(builder, answer.tiers[Tier::kHost]);
  const auto nvme = Status(builder, answer.tiers[Tier::kNvme]);
  const wire::CostModel costs = Costs(answer.costs);
  const auto tenant_list = builder.CreateVector(tenants);
  const auto space_list = builder.CreateVector(spaces);
  const auto build = builder.CreateString(answer.build);
  const auto wear_list = builder.CreateVector(wear);
  const auto gpu_uuid = builder.CreateString(answer.device_gpu_uuid);
  const auto body = wire::CreateStatusReply(builder, device, host, nvme, tenant_list, space_list,
                                            build, absl::ToInt64Nanoseconds(answer.uptime), &costs,
                                            wear_list, answer.nvme_daily_write_budget_bytes,
                                            gpu_uuid, answer.device_is_counted);
  return Finish(builder, id, wire::Body::StatusReply, body.Union());
}

}  // namespace

std::string EncodeHelloReply(uint64_t id, const HelloAnswer& answer) {
  FlatBufferBuilder builder;
  const auto build = builder.CreateString(answer.build);
  const auto capacity = Bytes(answer.capacity);
  const auto free = Bytes(answer.free);
  const auto body =
      wire::CreateHelloReply(builder, kProtocolVersion, build, answer.session, &capacity, &free);
  return Finish(builder, id, wire::Body::HelloReply, body.Union());
}

std::string EncodeLeaseReply(uint64_t id, const LeaseAnswer& answer) {
  FlatBufferBuilder builder;
  const auto granted = Bytes(answer.granted);
  const auto uuid = builder.CreateString(answer.device_gpu_uuid);
  const auto body = wire::CreateLeaseReply(builder, answer.lease, answer.generation, &granted,
                                           answer.device_arena_bytes, answer.device_slab_bytes,
                                           uuid, answer.device_is_counted);
  return Finish(builder, id, wire::Body::LeaseReply, body.Union());
}

std::string EncodeSpaceReply(uint64_t id, const SpaceAnswer& answer) {
  FlatBufferBuilder builder;
  const auto body =
      wire::CreateSpaceReply(builder, answer.space, answer.generation, answer.slots_per_slab,
                             answer.num_slabs, answer.slabs_sent);
  return Finish(builder, id, wire::Body::SpaceReply, body.Union());
}

std::string EncodeSlabsReply(uint64_t id, int64_t slabs_sent) {
  FlatBufferBuilder builder;
  const auto body = wire::CreateSlabsReply(builder, slabs_sent);
  return Finish(builder, id, wire::Body::SlabsReply, body.Union());
}

std::string EncodeDone(uint64_t id) {
  FlatBufferBuilder builder;
  const auto body = wire::CreateDone(builder);
  return Finish(builder, id, wire::Body::Done, body.Union());
}

std::string EncodeTraceRoom(uint64_t id) {
  FlatBufferBuilder builder;
  const auto body = wire::CreateTraceRoom(builder);
  return Finish(builder, id, wire::Body::TraceRoom, body.Union());
}

std::string EncodePlanReply(uint64_t id, int64_t size_bytes, int64_t device_floor_bytes) {
  FlatBufferBuilder builder;
  const auto body = wire::CreatePlanReply(builder, size_bytes, device_floor_bytes);
  return Finish(builder, id, wire::Body::PlanReply, body.Union());
}

std::string EncodeTraceReply(uint64_t id, int64_t size_bytes) {
  FlatBufferBuilder builder;
  const auto body = wire::CreateTraceReply(builder, size_bytes);
  return Finish(builder, id, wire::Body::TraceReply, body.Union());
}

std::string EncodeStatusReply(uint64_t id, const StatusAnswer& answer) {
  size_t max_entries = std::min(
      kMaxStatusEntries,
      std::max<size_t>({1, answer.tenants.size(), answer.spaces.size(), answer.nvme_wear.size()}));
  while (true) {
    std::string bytes = EncodeStatus(id, answer, max_entries);
    if (static_cast<int64_t>(bytes.size()) <= kMaxMessageBytes || max_entries == 0) return bytes;
    max_entries /= 2;
  }
}

std::string EncodeChunksReply(uint64_t id, const ChunksAnswer& answer) {
  FlatBufferBuilder builder;
  std::vector<Offset<wire::ChunkStatus>> chunks;
  for (const ListedChunk& chunk : answer.chunks) {
    chunks.push_back(wire::CreateChunkStatus(
        builder, chunk.chunk.value(), static_cast<uint8_t>(chunk.residency.state),
        static_cast<uint8_t>(chunk.residency.tier), chunk.residency.dirty, chunk.residency.pins,
        chunk.residency.slot.value(), chunk.commit_step, chunk.invalid));
  }
  const auto list = builder.CreateVector(chunks);
  const auto body =
      wire::CreateChunksReply(builder, answer.num_chunks, answer.chunk_bytes, answer.first, list);
  return Finish(builder, id, wire::Body::ChunksReply, body.Union());
}

std::string EncodeTimelineReply(uint64_t id, const TimelineAnswer& answer) {
  FlatBufferBuilder builder;
  std::vector<wire::TimelineEvent> events;
  for (const auto& [number, event] : answer.events) {
    events.emplace_back(number, event.begin_ns, event.end_ns, event.stall_ns, event.size_bytes,
                        event.subject, event.space, static_cast<uint8_t>(event.lane),
                        static_cast<uint8_t>(event.cause));
  }
  std::vector<Offset<wire::TimelineSpace>> spaces;
  for (const auto& [index, name] : answer.spaces) {
    spaces.push_back(wire::CreateTimelineSpace(builder, index, builder.CreateString(name)));
  }
  const auto space_list = builder.CreateVector(spaces);
  const auto list = builder.CreateVectorOfStructs(events);
  const auto body =
      wire::CreateTimelineReply(builder, answer.written, answer.next, space_list, list);
  return Finish(builder, id, wire::Body::TimelineReply, body.Union());
}

std::string EncodePlanInputsReply(uint64_t id, const PlanRecipe& inputs) {
  FlatBufferBuilder builder;
  const wire::TierBytes budget = Bytes(inputs.budget_bytes);
  const wire::CostModel costs = Costs(inputs.costs);
  const auto body = wire::CreatePlanInputsReply(
      builder, &budget, inputs.chunk_bytes, static_cast<uint8_t>(inputs.policy.kind),
      inputs.policy.param_fraction, inputs.policy.optimizer_fraction, &costs);
  return Finish(builder, id, wire::Body::PlanInputsReply, body.Union());
}

std::string EncodeRefusal(uint64_t id, const absl::Status& status) {
  // 4 KiB: more than any message of ours; a peer's text inside one is already limited.
  const absl::string_view text = status.message().substr(0, 4096);
  FlatBufferBuilder builder;
  const auto message = builder.CreateString(text.data(), text.size());
  const auto body = wire::CreateRefusal(builder, static_cast<int32_t>(status.code()), message);
  return Finish(builder, id, wire::Body::Refusal, body.Union());
}

}  // namespace gemini::server
