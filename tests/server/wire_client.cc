// SPDX-License-Identifier: Apache-2.0
#include "tests/server/wire_client.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"

namespace gemini::server {

IoEntryShm& WireSpace::entry(uint64_t sequence) const {
  const ClientSegmentLayout layout(num_bundles, num_tensors);
  return reinterpret_cast<IoEntryShm*>(client_map.data() +
                                       layout.ring_offset)[sequence % kIoRingEntries];
}
std::atomic<uint64_t>& WireSpace::residency(int64_t chunk) const {
  const ClientSegmentLayout layout(num_bundles, num_tensors);
  return reinterpret_cast<std::atomic<uint64_t>*>(client_map.data() +
                                                  layout.residency_offset)[chunk];
}
std::atomic<uint64_t>& WireSpace::commit(int64_t bundle) const {
  const ClientSegmentLayout layout(num_bundles, num_tensors);
  return reinterpret_cast<std::atomic<uint64_t>*>(client_map.data() + layout.commit_offset)[bundle];
}
CommitRecordShm& WireSpace::record(int64_t index) const {
  const ClientSegmentLayout layout(num_bundles, num_tensors);
  return reinterpret_cast<CommitRecordShm*>(client_map.data() + layout.record_offset)[index];
}

uint64_t WireSpace::Submit(IoOperation operation, uint64_t host_slot, uint64_t nvme_slot,
                           uint64_t contents) {
  const uint64_t sequence = client().submit_tail.load();
  IoEntryShm& request = entry(sequence);
  request.operation.store(static_cast<uint64_t>(operation));
  request.host_slot.store(host_slot);
  request.nvme_slot.store(nvme_slot);
  request.contents.store(operation == IoOperation::kWrite ? contents : 0);
  client().submit_tail.store(sequence + 1);
  const uint64_t one = 1;
  (void)!::write(kick.get(), &one, sizeof(one));
  return sequence;
}

int WireSpace::WaitCompletion(uint64_t sequence, int timeout_ms) const {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const timespec until =
      absl::ToTimespec(absl::DurationFromTimespec(now) + absl::Milliseconds(timeout_ms));
  while (true) {
    const uint32_t seen = server().completion_count.load();
    const uint64_t word = server().completions[sequence % kIoRingEntries].load();
    if (word >> 8 == sequence + 1) return static_cast<int>(word & 0xff);
    const long woken = ::syscall(SYS_futex, &server().completion_count, FUTEX_WAIT_BITSET, seen,
                                 &until, nullptr, CompletionBit(sequence));
    if (woken != 0 && errno == ETIMEDOUT) return -1;  // Complete or not: nobody has said so.
  }
}

absl::StatusOr<WireClient> WireClient::ConnectTo(const std::string& socket_path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError("socket path too long");
  }
  std::memcpy(address.sun_path, socket_path.data(), socket_path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return ErrnoStatus(errno, "socket");
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("connect to ", socket_path));
  }
  return WireClient(std::move(socket));
}

absl::Status WireClient::SendRaw(absl::string_view bytes, absl::Span<const int> fds) {
  return SendPacket(socket_.get(), bytes, fds);
}

absl::StatusOr<WireReply> WireClient::Receive() {
  GEMINI_ASSIGN_OR_RETURN(Packet packet, ReceivePacket(socket_.get()));
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(packet.bytes.data()),
                                 packet.bytes.size());
  if (!wire::VerifyMessageBuffer(verifier)) return absl::DataLossError("an unverifiable reply");
  WireReply reply = {std::move(packet.bytes), std::move(packet.fds)};
  if (const wire::Refusal* refusal = reply.message().body_as_Refusal()) {
    return absl::Status(static_cast<absl::StatusCode>(refusal->code()), refusal->message()->str());
  }
  return reply;
}

bool WireClient::HasAnswer() const {
  pollfd state = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&state, 1, 0) > 0;
}

absl::StatusOr<WireReply> WireClient::Call(flatbuffers::FlatBufferBuilder& builder, wire::Body type,
                                           flatbuffers::Offset<void> body) {
  const uint64_t id = next_request_++;
  wire::FinishMessageBuffer(builder, wire::CreateMessage(builder, id, type, body));
  GEMINI_RETURN_IF_ERROR(SendRaw(absl::string_view(
      reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize())));
  GEMINI_ASSIGN_OR_RETURN(WireReply reply, Receive());
  if (reply.message().request_id() != id) return absl::DataLossError("a reply to another request");
  return reply;
}

absl::Status WireClient::Hello(absl::string_view label, wire::Role role, uint32_t protocol) {
  flatbuffers::FlatBufferBuilder builder;
  const auto build = builder.CreateString("wire client");
  const auto text = builder.CreateString(label.data(), label.size());
  const auto body = wire::CreateHello(builder, protocol, build, role, text);
  GEMINI_ASSIGN_OR_RETURN(WireReply reply, Call(builder, wire::Body::Hello, body.Union()));
  const wire::HelloReply* hello = reply.message().body_as_HelloReply();
  if (hello == nullptr) return absl::DataLossError("no HelloReply");
  session_ = hello->session();
  free_at_hello_ = {{hello->free()->device(), hello->free()->host(), hello->free()->nvme()}};
  return absl::OkStatus();
}

absl::StatusOr<WireLease> WireClient::OpenLease(const TierMap<int64_t>& want,
                                                const TierMap<int64_t>& floor, bool takes_epochs) {
  GEMINI_RETURN_IF_ERROR(SendOpenLease(want, floor, takes_epochs));
  return ReceiveLease();
}

absl::Status WireClient::SendOpenLease(const TierMap<int64_t>& want, const TierMap<int64_t>& floor,
                                       bool takes_epochs) {
  flatbuffers::FlatBufferBuilder builder;
  const wire::TierBytes wants(want[Tier::kDevice], want[Tier::kHost], want[Tier::kNvme]);
  const wire::TierBytes floors(floor[Tier::kDevice], floor[Tier::kHost], floor[Tier::kNvme]);
  const auto body = wire::CreateOpenLease(builder, &wants, &floors, takes_epochs);
  wire::FinishMessageBuffer(
      builder, wire::CreateMessage(builder, next_request_++, wire::Body::OpenLease, body.Union()));
  return SendRaw(absl::string_view(reinterpret_cast<const char*>(builder.GetBufferPointer()),
                                   builder.GetSize()));
}

absl::StatusOr<WireLease> WireClient::ReceiveLease() {
  GEMINI_ASSIGN_OR_RETURN(WireReply reply, Receive());
  const wire::LeaseReply* lease = reply.message().body_as_LeaseReply();
  if (lease == nullptr || reply.fds.size() < 2) return absl::DataLossError("no LeaseReply");
  WireLease opened;
  opened.lease = lease->lease();
  opened.generation = lease->generation();
  opened.granted = {
      {lease->granted()->device(), lease->granted()->host(), lease->granted()->nvme()}};
  opened.device_arena_bytes = lease->device_arena_bytes();
  GEMINI_ASSIGN_OR_RETURN(opened.segment_map,
                          MappedMemory::Map(reply.fds[0].get(), sizeof(LeaseSegmentShm),
                                            MappedMemory::Access::kReadOnly));
  GEMINI_ASSIGN_OR_RETURN(
      opened.timeline_map,
      MappedMemory::Map(reply.fds[1].get(), sizeof(TimelineShm), MappedMemory::Access::kReadWrite));
  opened.timeline_fd = std::move(reply.fds[1]);
  if (reply.fds.size() > 2) opened.arena = std::move(reply.fds[2]);
  return opened;
}

absl::Status WireClient::AckEpoch(uint64_t epoch, int64_t device_bytes) {
  flatbuffers::FlatBufferBuilder builder;
  const auto body = wire::CreateAckEpoch(builder, epoch, device_bytes);
  return Call(builder, wire::Body::AckEpoch, body.Union()).status();
}

absl::StatusOr<size_t> WireClient::TakeDeviceSlabs(int64_t first, int64_t count) {
  flatbuffers::FlatBufferBuilder builder;
  const auto body = wire::CreateTakeSlabs(builder, /*space=*/0, first, count);
  GEMINI_ASSIGN_OR_RETURN(const WireReply reply,
                          Call(builder, wire::Body::TakeSlabs, body.Union()));
  return reply.fds.size();
}

absl::Status WireClient::KeepDeviceSlabs(int64_t num_slabs) {
  flatbuffers::FlatBufferBuilder builder;
  const auto body = wire::CreateKeepSlabs(builder, num_slabs);
  return Call(builder, wire::Body::KeepSlabs, body.Union()).status();
}

absl::StatusOr<WireSpace> WireClient::OpenSpace(const SpaceWish& wish) {
  flatbuffers::FlatBufferBuilder builder;
  const auto name = builder.CreateString(wish.name);
  const auto body = wire::CreateOpenSpace(builder, name, wish.chunk_bytes, wish.num_bundles,
                                          wish.host_slots, wish.nvme_slots, wish.num_tensors);
  GEMINI_ASSIGN_OR_RETURN(WireReply reply, Call(builder, wire::Body::OpenSpace, body.Union()));
  const wire::SpaceReply* opened = reply.message().body_as_SpaceReply();
  if (opened == nullptr || reply.fds.size() < 3) return absl::DataLossError("no SpaceReply");
  WireSpace space;
  space.id = opened->space();
  space.generation = opened->generation();
  space.num_bundles = wish.num_bundles;
  space.num_tensors = wish.num_tensors;
  space.slots_per_slab = opened->slots_per_slab();
  space.num_slabs = opened->num_slabs();
  space.client_segment = std::move(reply.fds[0]);
  space.server_segment = std::move(reply.fds[1]);
  space.kick = std::move(reply.fds[2]);
  for (size_t i = 3; i < reply.fds.size(); ++i) space.slabs.push_back(std::move(reply.fds[i]));
  while (static_cast<int64_t>(space.slabs.size()) < space.num_slabs) {
    flatbuffers::FlatBufferBuilder more;
    const auto take =
        wire::CreateTakeSlabs(more, space.id, static_cast<int64_t>(space.slabs.size()));
    GEMINI_ASSIGN_OR_RETURN(WireReply slabs, Call(more, wire::Body::TakeSlabs, take.Union()));
    if (slabs.fds.empty()) return absl::DataLossError("no slabs");
    for (UniqueFd& fd : slabs.fds) space.slabs.push_back(std::move(fd));
  }
  GEMINI_ASSIGN_OR_RETURN(
      space.client_map,
      MappedMemory::Map(space.client_segment.get(),
                        ClientSegmentLayout(wish.num_bundles, wish.num_tensors).size_bytes,
                        MappedMemory::Access::kReadWrite));
  GEMINI_ASSIGN_OR_RETURN(space.server_map,
                          MappedMemory::Map(space.server_segment.get(), sizeof(ServerSegmentShm),
                                            MappedMemory::Access::kReadOnly));
  return space;
}

absl::Status WireClient::CloseSpace(uint64_t space) {
  flatbuffers::FlatBufferBuilder builder;
  const auto body = wire::CreateCloseSpace(builder, space);
  return Call(builder, wire::Body::CloseSpace, body.Union()).status();
}

absl::Status WireClient::CloseSession() {
  flatbuffers::FlatBufferBuilder builder;
  const auto body = wire::CreateCloseSession(builder);
  return Call(builder, wire::Body::CloseSession, body.Union()).status();
}

absl::StatusOr<UniqueFd> WireClient::WriteTrace(absl::string_view trace, int64_t size_bytes) {
  flatbuffers::FlatBufferBuilder builder;
  const auto body = wire::CreateOpenTrace(
      builder, size_bytes < 0 ? static_cast<int64_t>(trace.size()) : size_bytes);
  GEMINI_ASSIGN_OR_RETURN(WireReply reply, Call(builder, wire::Body::OpenTrace, body.Union()));
  if (reply.fds.size() != 1) return absl::DataLossError("no room for a trace");
  if (::pwrite(reply.fds[0].get(), trace.data(), trace.size(), 0) !=
      static_cast<ssize_t>(trace.size())) {
    return ErrnoStatus(errno, "write a trace");
  }
  return std::move(reply.fds[0]);
}

absl::StatusOr<WireReply> WireClient::MakePlan(const PlanWish& wish) {
  flatbuffers::FlatBufferBuilder builder;
  const wire::MeasuredRates measured(wish.host_to_device, 0, 0, 0, wish.update_elements,
                                     wish.device_update_elements);
  const auto body = wire::CreateMakePlan(builder, wish.device_bytes, wish.chunk_bytes,
                                         static_cast<uint8_t>(wish.policy), wish.param_fraction,
                                         wish.optimizer_fraction, &measured, wish.device_bandwidth);
  return Call(builder, wire::Body::MakePlan, body.Union());
}

absl::StatusOr<WireReply> WireClient::FindTrace(absl::string_view space, absl::string_view phase,
                                                uint64_t tensors_hash) {
  flatbuffers::FlatBufferBuilder builder;
  const auto space_name = builder.CreateString(space.data(), space.size());
  const auto phase_name = builder.CreateString(phase.data(), phase.size());
  const auto body = wire::CreateFindTrace(builder, space_name, phase_name, tensors_hash);
  return Call(builder, wire::Body::FindTrace, body.Union());
}

absl::StatusOr<WireReply> WireClient::FindPlanInputs(absl::string_view space,
                                                     absl::string_view phase) {
  flatbuffers::FlatBufferBuilder builder;
  const auto space_name = builder.CreateString(space.data(), space.size());
  const auto phase_name = builder.CreateString(phase.data(), phase.size());
  const auto body = wire::CreateFindPlanInputs(builder, space_name, phase_name);
  return Call(builder, wire::Body::FindPlanInputs, body.Union());
}

absl::StatusOr<WireReply> WireClient::ReadTimeline(absl::string_view space, uint64_t first) {
  flatbuffers::FlatBufferBuilder builder;
  const auto space_name = builder.CreateString(space.data(), space.size());
  const auto body = wire::CreateReadTimeline(builder, space_name, first);
  return Call(builder, wire::Body::ReadTimeline, body.Union());
}

std::string ContentOf(const WireReply& reply) {
  struct stat info = {};
  if (reply.fds.size() != 1 || ::fstat(reply.fds[0].get(), &info) != 0) return "";
  std::string bytes(info.st_size, '\0');
  const ssize_t got = ::pread(reply.fds[0].get(), bytes.data(), bytes.size(), 0);
  bytes.resize(got < 0 ? 0 : got);
  return bytes;
}

absl::StatusOr<WireReply> WireClient::GetStatus() {
  flatbuffers::FlatBufferBuilder builder;
  const auto body = wire::CreateGetStatus(builder);
  return Call(builder, wire::Body::GetStatus, body.Union());
}

absl::StatusOr<WireReply> WireClient::ListChunks(absl::string_view space, int64_t first,
                                                 int64_t count) {
  flatbuffers::FlatBufferBuilder builder;
  const auto name = builder.CreateString(space.data(), space.size());
  const auto body = wire::CreateListChunks(builder, name, first, count);
  return Call(builder, wire::Body::ListChunks, body.Union());
}

TierNumbers NumbersOf(const WireReply& status, Tier tier) {
  const wire::StatusReply& reply = *status.message().body_as_StatusReply();
  const wire::TierStatus& numbers = tier == Tier::kDevice ? *reply.device()
                                    : tier == Tier::kHost ? *reply.host()
                                                          : *reply.nvme();
  return {numbers.capacity(), numbers.leased(), numbers.reclaiming(), numbers.free()};
}

const wire::TenantStatus* TenantOf(const WireReply& status, absl::string_view label) {
  for (const wire::TenantStatus* tenant : *status.message().body_as_StatusReply()->tenants()) {
    if (tenant->label()->str() == label) return tenant;
  }
  return nullptr;
}

}  // namespace gemini::server
