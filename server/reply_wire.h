// SPDX-License-Identifier: Apache-2.0
// Encodes the server's answers as messages of the protocol.
// Thread: any.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gemini/cost_model.h"
#include "gemini/shm/residency_shm.h"
#include "gemini/shm/timeline_shm.h"
#include "gemini/system/seqpacket.h"
#include "gemini/tier.h"
#include "server/leases/budgets.h"
#include "server/nvme/nvme_wear.h"
#include "server/plans/plan_recipe.h"
#include "server/spaces/space_reader.h"

namespace gemini::server {

struct HelloAnswer {
  std::string build;
  uint64_t session = 0;
  TierMap<int64_t> capacity;
  TierMap<int64_t> free;
};
struct LeaseAnswer {
  uint64_t lease = 0;
  uint64_t generation = 0;
  TierMap<int64_t> granted;
  int64_t device_arena_bytes = 0;
  int64_t device_slab_bytes = 0;
  std::string device_gpu_uuid;
  bool device_is_counted = false;
};
struct SpaceAnswer {
  uint64_t space = 0;
  uint64_t generation = 0;
  int64_t slots_per_slab = 0;
  int64_t num_slabs = 0;
  int64_t slabs_sent = 0;
};
struct TenantAnswer {
  uint64_t session = 0;
  std::string label;
  int pid = 0;
  uint32_t uid = 0;
  uint64_t lease = 0;
  uint64_t generation = 0;
  bool fenced = false;
  TierMap<int64_t> granted;
  TierMap<int64_t> floor;
  TierMap<int64_t> used;
  uint64_t requests = 0;
  TierMap<int64_t> want;
  uint64_t epoch = 0;
  int64_t device_target = 0;
  std::string plan_refusal;
};
// A status has no more spaces, of which each takes more than 256 bytes of a message, and no more
// tenants.
inline constexpr size_t kMaxStatusEntries = kMaxMessageBytes / 256;

struct SpaceStatusAnswer {
  uint64_t space = 0;
  std::string name;
  uint64_t session = 0;
  int64_t chunk_bytes = 0;
  int64_t num_bundles = 0;
  TierMap<int64_t> slots;
  SpaceCounts counts;
};
struct StatusAnswer {
  TierMap<TierBudget> tiers;
  std::vector<TenantAnswer> tenants;
  std::vector<SpaceStatusAnswer> spaces;
  std::string build;
  absl::Duration uptime;
  CostModel costs;
  std::vector<DirectoryWear> nvme_wear;
  int64_t nvme_daily_write_budget_bytes = 0;  // 0: none.
  std::string device_gpu_uuid;                // As LeaseAnswer, and the next.
  bool device_is_counted = false;
};
struct ChunksAnswer {
  int64_t num_chunks = 0;
  int64_t chunk_bytes = 0;
  int64_t first = 0;
  std::vector<ListedChunk> chunks;
};
struct NumberedEvent {
  uint64_t number = 0;
  TimelineEvent event;
};
// The most events of one TimelineAnswer: with the names of 64 spaces they fit a message.
inline constexpr int64_t kMaxTimelineEvents = 1000;
struct TimelineAnswer {
  uint64_t written = 0;
  uint64_t next = 0;
  std::vector<std::pair<uint16_t, std::string>> spaces;  // By index.
  std::vector<NumberedEvent> events;
};

// Each answers the request `id`.
std::string EncodeHelloReply(uint64_t id, const HelloAnswer& answer);
std::string EncodeLeaseReply(uint64_t id, const LeaseAnswer& answer);
std::string EncodeSpaceReply(uint64_t id, const SpaceAnswer& answer);
std::string EncodeSlabsReply(uint64_t id, int64_t slabs_sent);
std::string EncodeDone(uint64_t id);
std::string EncodeTraceRoom(uint64_t id);
std::string EncodePlanReply(uint64_t id, int64_t size_bytes, int64_t device_floor_bytes);
std::string EncodeTraceReply(uint64_t id, int64_t size_bytes);
std::string EncodeTimelineReply(uint64_t id, const TimelineAnswer& answer);
std::string EncodePlanInputsReply(uint64_t id, const PlanRecipe& inputs);
// Tenants, spaces and directories that do not fit one message are left out, the last ones first.
std::string EncodeStatusReply(uint64_t id, const StatusAnswer& answer);
std::string EncodeChunksReply(uint64_t id, const ChunksAnswer& answer);
// `status` is not OK. A long message is cut.
std::string EncodeRefusal(uint64_t id, const absl::Status& status);

}  // namespace gemini::server
