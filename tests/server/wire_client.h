// SPDX-License-Identifier: Apache-2.0
// A client of the raw protocol, for tests: it sends what the test says and judges nothing.
// Thread: one at a time.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemini/protocol.h"
#include "gemini/shm/lease_shm.h"
#include "gemini/shm/space_shm.h"
#include "gemini/shm/timeline_shm.h"
#include "gemini/system/mapped_memory.h"
#include "gemini/system/seqpacket.h"
#include "gemini/system/unique_fd.h"
#include "gemini/tier.h"
#include "gemini/wire_generated.h"

namespace gemini::server {

// A verified reply that is no Refusal, with its descriptors.
struct WireReply {
  std::string bytes;
  std::vector<UniqueFd> fds;
  const wire::Message& message() const { return *wire::GetMessage(bytes.data()); }
};

struct WireLease {
  uint64_t lease = 0;
  uint64_t generation = 0;
  TierMap<int64_t> granted;
  int64_t device_arena_bytes = 0;
  UniqueFd arena;
  MappedMemory segment_map;
  UniqueFd timeline_fd;
  MappedMemory timeline_map;
  TimelineShm& timeline() const { return *reinterpret_cast<TimelineShm*>(timeline_map.data()); }
  const LeaseSegmentShm& segment() const {
    return *reinterpret_cast<const LeaseSegmentShm*>(segment_map.data());
  }
};

struct WireSpace {
  uint64_t id = 0;
  uint64_t generation = 0;
  int64_t num_bundles = 0;
  int64_t num_tensors = 0;
  int64_t slots_per_slab = 0;
  int64_t num_slabs = 0;
  UniqueFd client_segment;
  UniqueFd server_segment;
  UniqueFd kick;
  std::vector<UniqueFd> slabs;
  MappedMemory client_map;
  MappedMemory server_map;

  ClientSegmentHeaderShm& client() const {
    return *reinterpret_cast<ClientSegmentHeaderShm*>(client_map.data());
  }
  const ServerSegmentShm& server() const {
    return *reinterpret_cast<const ServerSegmentShm*>(server_map.data());
  }
  IoEntryShm& entry(uint64_t sequence) const;
  std::atomic<uint64_t>& residency(int64_t chunk) const;
  std::atomic<uint64_t>& commit(int64_t bundle) const;
  CommitRecordShm& record(int64_t index) const;

  // Posts one request and kicks; returns its sequence. `contents`: of a write.
  uint64_t Submit(IoOperation operation, uint64_t host_slot, uint64_t nvme_slot,
                  uint64_t contents = kUncheckedContents);
  // Waits on the futex for its completion; the status code in it. -1: none within `timeout_ms`.
  int WaitCompletion(uint64_t sequence, int timeout_ms = 10'000) const;
};

struct SpaceWish {
  std::string name;
  int64_t chunk_bytes = 4096;
  int64_t num_bundles = 1;
  int64_t host_slots = 0;
  int64_t nvme_slots = 0;
  int64_t num_tensors = 0;
};

struct PlanWish {
  int64_t device_bytes = 0;
  int64_t chunk_bytes = 4096;
  int policy = 0;  // A PolicyKind.
  double param_fraction = 0;
  double optimizer_fraction = 0;
  double update_elements = 0;
  double device_update_elements = 0;
  double host_to_device = 0;
  double device_bandwidth = 0;
};

// What the reply's only descriptor holds.
std::string ContentOf(const WireReply& reply);

class WireClient {
 public:
  explicit WireClient(UniqueFd socket) : socket_(std::move(socket)) {}
  static absl::StatusOr<WireClient> ConnectTo(const std::string& socket_path);

  // A refusal comes back as its Status.
  absl::Status Hello(absl::string_view label, wire::Role role = wire::Role::kTrainer,
                     uint32_t protocol = kProtocolVersion);
  absl::StatusOr<WireLease> OpenLease(const TierMap<int64_t>& want, const TierMap<int64_t>& floor,
                                      bool takes_epochs = false);
  // The two halves of OpenLease, for a request that waits.
  absl::Status SendOpenLease(const TierMap<int64_t>& want, const TierMap<int64_t>& floor,
                             bool takes_epochs = false);
  absl::StatusOr<WireLease> ReceiveLease();
  absl::Status AckEpoch(uint64_t epoch, int64_t device_bytes);
  // How many slabs of DEVICE come; their descriptors are closed.
  absl::StatusOr<size_t> TakeDeviceSlabs(int64_t first, int64_t count);
  absl::Status KeepDeviceSlabs(int64_t num_slabs);
  absl::StatusOr<WireSpace> OpenSpace(const SpaceWish& wish);
  absl::Status CloseSpace(uint64_t space);
  absl::Status CloseSession();
  // OpenTrace, with `size_bytes` if it is not -1, and writes `trace` to what comes.
  absl::StatusOr<UniqueFd> WriteTrace(absl::string_view trace, int64_t size_bytes = -1);
  absl::StatusOr<WireReply> MakePlan(const PlanWish& wish);
  absl::StatusOr<WireReply> FindTrace(absl::string_view space, absl::string_view phase,
                                      uint64_t tensors_hash);
  absl::StatusOr<WireReply> FindPlanInputs(absl::string_view space, absl::string_view phase);
  absl::StatusOr<WireReply> ReadTimeline(absl::string_view space, uint64_t first);
  absl::StatusOr<WireReply> GetStatus();
  absl::StatusOr<WireReply> ListChunks(absl::string_view space, int64_t first, int64_t count);

  // One request of any kind.
  absl::StatusOr<WireReply> Call(flatbuffers::FlatBufferBuilder& builder, wire::Body type,
                                 flatbuffers::Offset<void> body);
  // Bytes as they are, and the next message of the server. UNAVAILABLE: it hung up.
  absl::Status SendRaw(absl::string_view bytes, absl::Span<const int> fds = {});
  absl::StatusOr<WireReply> Receive();
  // Whether Receive would return at once.
  bool HasAnswer() const;

  int fd() const { return socket_.get(); }
  void HangUp() { socket_.Reset(); }
  uint64_t session() const { return session_; }
  TierMap<int64_t> free_at_hello() const { return free_at_hello_; }

 private:
  UniqueFd socket_;
  uint64_t next_request_ = 1;
  uint64_t session_ = 0;
  TierMap<int64_t> free_at_hello_;
};

// The status's tier, by value.
struct TierNumbers {
  int64_t capacity = 0;
  int64_t leased = 0;
  int64_t reclaiming = 0;
  int64_t free = 0;
  bool operator==(const TierNumbers&) const = default;
};
TierNumbers NumbersOf(const WireReply& status, Tier tier);
// The tenant with this label, or null.
const wire::TenantStatus* TenantOf(const WireReply& status, absl::string_view label);

}  // namespace gemini::server
