// SPDX-License-Identifier: Apache-2.0
#include "client/session/session.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/copy/copy_engine_host.h"
#include "client/wire/take_slabs.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/protocol.h"
#include "gemini/system/check.h"
#include "gemini/system/status_macros.h"
#include "gemini/system/update_team.h"

namespace gemini::client {
namespace {

constexpr absl::string_view kBuild = "gemini 0.1.0";

using flatbuffers::FlatBufferBuilder;

wire::TierBytes ToWire(const TierMap<int64_t>& bytes) {
  return wire::TierBytes(bytes[Tier::kDevice], bytes[Tier::kHost], bytes[Tier::kNvme]);
}

TierMap<int64_t> FromWire(const wire::TierBytes& bytes) {
  TierMap<int64_t> map;
  map[Tier::kDevice] = bytes.device();
  map[Tier::kHost] = bytes.host();
  map[Tier::kNvme] = bytes.nvme();
  return map;
}

// Tables without fields.
template <auto Create>
flatbuffers::Offset<void> Empty(FlatBufferBuilder& builder) {
  return Create(builder).Union();
}

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the server's answer has ", what));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Open(absl::string_view socket_path,
                                                       SessionOptions options) {
  GEMINI_ASSIGN_OR_RETURN(UniqueFd socket, Connection::Connect(socket_path));
  return Open(std::move(socket), std::move(options));
}

absl::StatusOr<std::unique_ptr<Session>> Session::Open(UniqueFd socket, SessionOptions options) {
  if (options.chunk_bytes <= 0 || options.chunk_bytes % kPageBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a chunk of ", options.chunk_bytes, " bytes is no positive multiple of ", kPageBytes));
  }
  if (options.device_bandwidth < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a DEVICE bandwidth of ", options.device_bandwidth, " bytes a second"));
  }
  if (options.apart_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.apart_bytes, " bytes of DEVICE that are not for chunks"));
  }
  if (options.update_threads < 0 || options.update_threads > kMaxUpdateThreads) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.update_threads, " threads for updates: 0 (by itself) to ", kMaxUpdateThreads));
  }
  auto connection = std::make_unique<Connection>(std::move(socket));
  GEMINI_ASSIGN_OR_RETURN(
      const Reply hello,
      connection->Call(
          wire::Body::Hello,
          [&options](FlatBufferBuilder& builder) {
            const auto build = builder.CreateString(kBuild.data(), kBuild.size());
            const auto label = builder.CreateString(options.label);
            return wire::CreateHello(builder, kProtocolVersion, build, wire::Role::kTrainer, label)
                .Union();
          },
          wire::Body::HelloReply));
  if (hello.As<wire::HelloReply>()->protocol() != kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the server speaks protocol ", hello.As<wire::HelloReply>()->protocol(),
                     " and this program ", kProtocolVersion, ": install both from one build"));
  }
  absl::StatusOr<Lease> lease = TakeLease(*connection, options);
  if (!lease.ok()) {
    // Nothing of it is mapped: what was granted need not wait for this process's end.
    connection->Call(wire::Body::CloseSession, Empty<wire::CreateCloseSession>, wire::Body::Done)
        .IgnoreError();
    return lease.status();
  }
  return std::unique_ptr<Session>(new Session(std::move(connection), *std::move(lease), options));
}

absl::StatusOr<Session::Lease> Session::TakeLease(Connection& connection,
                                                  const SessionOptions& options) {
  const wire::TierBytes want = ToWire(options.want_bytes);
  const wire::TierBytes floor = ToWire(options.floor_bytes);
  GEMINI_ASSIGN_OR_RETURN(
      Reply reply,
      connection.Call(
          wire::Body::OpenLease,
          [&](FlatBufferBuilder& builder) {
            return wire::CreateOpenLease(builder, &want, &floor, options.takes_epochs).Union();
          },
          wire::Body::LeaseReply,
          // The machine may be given memory back first, and then others may have to give way.
          2 * kMaxEpochTimeout + ReserveTimeout({options.want_bytes[Tier::kDevice],
                                                 options.want_bytes[Tier::kHost]})));
  const wire::LeaseReply* granted = reply.As<wire::LeaseReply>();
  if (granted->granted() == nullptr) return Malformed("no grant");
  Lease lease;
  lease.granted_bytes = FromWire(*granted->granted());
  for (const Tier tier : kAllTiers) {
    if (lease.granted_bytes[tier] < options.floor_bytes[tier]) {
      return Malformed(absl::StrCat("a grant of ", TierName(tier), " below the floor"));
    }
  }
  // Its slots take memory of ours: there are as many as were asked for, in whole pages or slabs.
  const int64_t slab_bytes = granted->device_slab_bytes();
  if (granted->device_arena_bytes() < 0 ||
      granted->device_arena_bytes() - options.want_bytes[Tier::kDevice] >=
          (slab_bytes > 0 ? slab_bytes : kPageBytes)) {
    return Malformed(absl::StrCat("a DEVICE arena of ", granted->device_arena_bytes(),
                                  " bytes, where ", options.want_bytes[Tier::kDevice],
                                  " were asked for"));
  }
  // The lease's segment, the timeline, then DEVICE.
  if (reply.fds.size() < 2) return Malformed("no segment, or no timeline");
  GEMINI_ASSIGN_OR_RETURN(lease.segment,
                          MappedMemory::Map(reply.fds[0].get(), sizeof(LeaseSegmentShm),
                                            MappedMemory::Access::kReadOnly));
  GEMINI_ASSIGN_OR_RETURN(lease.timeline, MappedMemory::Map(reply.fds[1].get(), sizeof(TimelineShm),
                                                            MappedMemory::Access::kReadWrite));
  DeviceArena::Offer offer = {.size_bytes = granted->device_arena_bytes(),
                              .slab_bytes = slab_bytes,
                              .granted_bytes = lease.granted_bytes[Tier::kDevice],
                              .gpu_uuid = flatbuffers::GetString(granted->device_gpu_uuid()),
                              .is_counted = granted->device_is_counted(),
                              .fds = {}};
  std::move(reply.fds.begin() + 2, reply.fds.end(), std::back_inserter(offer.fds));
  GEMINI_ASSIGN_OR_RETURN(lease.arena,
                          DeviceArena::Map(connection, std::move(offer), options.make_slabs));
  const int64_t for_chunks =
      DeviceBytesForChunks(lease.granted_bytes[Tier::kDevice], options.apart_bytes, slab_bytes);
  if (const absl::Status grown = lease.arena->Grow(for_chunks);
      !grown.ok() &&
      (lease.arena->mapped_bytes() == 0 ||
       lease.arena->mapped_bytes() + options.apart_bytes < options.floor_bytes[Tier::kDevice])) {
    return grown;
  }
  auto* const timeline = reinterpret_cast<TimelineShm*>(lease.timeline.data());
  if (options.make_copies) {
    GEMINI_ASSIGN_OR_RETURN(lease.copies, options.make_copies(timeline));
  } else {
    const int64_t rate = options.device_bandwidth;
    lease.copies = std::make_unique<CopyEngineHost>(std::array<int64_t, 2>{rate, rate}, timeline);
  }
  return lease;
}

Session::Session(std::unique_ptr<Connection> connection, Lease lease, const SessionOptions& options)
    : connection_(std::move(connection)),
      granted_bytes_(lease.granted_bytes),
      options_(options),
      update_team_(MakeUpdateTeam(options.update_threads)),
      device_budget_(std::make_shared<DeviceBudget>(lease.granted_bytes[Tier::kDevice])),
      timeline_(std::move(lease.timeline)),
      copies_(std::move(lease.copies)),
      host_pins_(options.pin_host.pin ? std::make_unique<HostPins>(options.pin_host) : nullptr) {
  const int64_t mapped_bytes = lease.arena->mapped_bytes();
  device_ = std::make_unique<LeasedDevice>(*connection_, *copies_, std::move(lease.segment),
                                           std::move(lease.arena), options.apart_bytes);
  residency_ = std::make_unique<Residency>(*device_budget_, *copies_, device_->data(),
                                           device_->size_bytes() / chunk_bytes(), chunk_bytes());
  // The arena may be larger than what is granted of it, and slabs fewer.
  const int64_t for_chunks = device_->ForChunks(granted_bytes_[Tier::kDevice]);
  GEMINI_CHECK(residency_->SetBudget(std::min(for_chunks, mapped_bytes)).ok());
}

Session::~Session() { Close().IgnoreError(); }

absl::StatusOr<ChunkStore*> Session::OpenSpace(const SpaceOptions& options) {
  const auto closed = [] { return absl::FailedPreconditionError("the session is closed"); };
  int64_t device_slots = 0;
  {
    MutexLock lock(mutex_);
    if (closed_) return closed();
    device_slots = device_->size_bytes() / chunk_bytes();
  }
  if (options.states_on_nvme && options.nvme_slots == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "space ", options.name, " keeps optimizer states on NVME and has no NVME slot"));
  }
  if (options.num_bundles < 0 || options.host_slots < 0 || options.nvme_slots < 0 ||
      options.num_tensors < 0) {
    return absl::InvalidArgumentError(absl::StrCat("space ", options.name, " has a negative size"));
  }
  GEMINI_ASSIGN_OR_RETURN(Reply reply, connection_->Call(
                                           wire::Body::OpenSpace,
                                           [&](FlatBufferBuilder& builder) {
                                             const auto name = builder.CreateString(options.name);
                                             return wire::CreateOpenSpace(
                                                        builder, name, chunk_bytes(),
                                                        options.num_bundles, options.host_slots,
                                                        options.nvme_slots, options.num_tensors)
                                                 .Union();
                                           },
                                           wire::Body::SpaceReply,
                                           ReserveTimeout({options.host_slots * chunk_bytes(),
                                                           options.nvme_slots * chunk_bytes()})));
  const wire::SpaceReply* opened = reply.As<wire::SpaceReply>();
  // Client segment, server segment, kick: then slabs.
  constexpr size_t kFirstSlab = 3;
  if (reply.fds.size() < kFirstSlab) return Malformed("no segments of a space");
  std::vector<UniqueFd> slabs;
  std::move(reply.fds.begin() + kFirstSlab, reply.fds.end(), std::back_inserter(slabs));
  const uint64_t space = opened->space();
  GEMINI_RETURN_IF_ERROR(TakeSlabs(*connection_, space, 0, opened->num_slabs(), slabs));
  const SpaceShape shape = {.chunk_bytes = chunk_bytes(),
                            .num_bundles = options.num_bundles,
                            .host_slots = options.host_slots,
                            .nvme_slots = options.nvme_slots,
                            .device_slots = device_slots,
                            .slots_per_slab = opened->slots_per_slab(),
                            .num_tensors = options.num_tensors,
                            .format = options.format,
                            .states_on_nvme = options.states_on_nvme};
  GEMINI_ASSIGN_OR_RETURN(SpaceMemory memory,
                          SpaceMemory::Map(shape, reply.fds[0].get(), reply.fds[1].get(), slabs));
  MutexLock lock(mutex_);
  // The server has taken it back with all others.
  if (closed_) return closed();
  // No copy spans two slabs: a chunk is in one.
  const int64_t slab_slots = host_pins_ != nullptr ? shape.slots_per_slab : 0;
  for (int64_t first = 0; slab_slots > 0 && first < shape.host_slots; first += slab_slots) {
    host_pins_->Add(memory.slot_address(SlotId(first)),
                    std::min(slab_slots, shape.host_slots - first) * chunk_bytes());
  }
  const SpaceTimeline timeline = {.ring = this->timeline(),
                                  .space = static_cast<uint16_t>(spaces_.size())};
  spaces_.push_back({.id = space,
                     .store = std::make_unique<ChunkStore>(
                         options.name, std::move(memory), std::move(reply.fds[2]), *connection_,
                         opened->generation(), timeline, options_.nvme_checksums)});
  return spaces_.back().store.get();
}

std::unique_ptr<ServerPlanSource> Session::MakePlanSource() {
  return std::make_unique<ServerPlanSource>(
      *connection_,
      ServerPlanOptions{.chunk_bytes = chunk_bytes(),
                        .policy = options_.policy,
                        .device_bandwidth = options_.device_bandwidth,
                        .timeline = timeline(),
                        .apart_bytes = device_->apart(),
                        .pins = host_pins_ == nullptr ? nullptr : host_pins_->progress()});
}

absl::Status Session::status() const {
  MutexLock lock(mutex_);
  return status_.ok() ? copies_->status() : status_;
}

void Session::Latch(absl::Status error) {
  MutexLock lock(mutex_);
  if (status_.ok()) status_ = std::move(error);
}

absl::Status Session::CheckServer() {
  Latch(connection_->CheckPeer());
  return status();
}

void Session::PublishStep(int64_t step, int64_t outside_bytes) {
  device_budget_->set_outside_bytes(outside_bytes);
  const ResidencyStats stats = residency_->stats();
  MutexLock lock(mutex_);
  for (const OpenedSpace& space : spaces_) {
    space.store->counters().SetStep(step);
    space.store->counters().SetDeviceBytes(device_budget_->used_bytes() + outside_bytes,
                                           device_budget_->non_model_bytes() + outside_bytes);
  }
  const int64_t now_ns = TimelineNowNs();
  const Published before = std::exchange(published_, {.ns = now_ns, .stats = stats});
  // The first has no beginning.
  if (before.ns == 0 || spaces_.empty()) return;
  spaces_[0].store->counters().SetLastStep(
      now_ns - before.ns, stats.stall_ns - before.stats.stall_ns,
      stats.fetch_bytes - before.stats.fetch_bytes, stats.evict_bytes - before.stats.evict_bytes);
}

absl::Status Session::Close() {
  std::vector<OpenedSpace> spaces;
  {
    MutexLock lock(mutex_);
    if (std::exchange(closed_, true)) return absl::OkStatus();
    spaces.swap(spaces_);
  }
  std::vector<uint64_t> ids;
  for (const OpenedSpace& space : spaces) ids.push_back(space.id);
  // Operators and copies end before their memory goes: a copy of nothing is behind all of its
  // stream.
  CopyEvent last = copies_->AfterOperators();
  for (const CopyStream stream : {CopyStream::kFetch, CopyStream::kEvict}) {
    last.Join(copies_->Copy(stream, nullptr, nullptr, 0, {}));
  }
  copies_->Wait(last);
  // The server gives the bytes to others after this message, so nothing is mapped by then.
  host_pins_.reset();
  residency_.reset();
  spaces.clear();
  device_.reset();
  // A refusal of one does not keep the others' bytes: all are told, and the first error is
  // returned.
  absl::Status status;
  // The server answers when the memory is back, and gives the bytes to nobody before.
  const absl::Duration timeout =
      ReserveTimeout({granted_bytes_[Tier::kHost], granted_bytes_[Tier::kNvme]});
  for (const uint64_t id : ids) {
    status.Update(connection_
                      ->Call(
                          wire::Body::CloseSpace,
                          [id](FlatBufferBuilder& builder) {
                            return wire::CreateCloseSpace(builder, id).Union();
                          },
                          wire::Body::Done, timeout)
                      .status());
  }
  status.Update(
      connection_->Call(wire::Body::CloseSession, Empty<wire::CreateCloseSession>, wire::Body::Done)
          .status());
  return status;
}

}  // namespace gemini::client
