// SPDX-License-Identifier: Apache-2.0
// Holds what a client has of a server: the connection, the lease, the DEVICE arena and the spaces
// that it opened, and a team of threads for updates and norms. It does not depend on Torch; the
// hook (client/torch/) and other front ends are built on it.
// Thread: any, except Open and Close. Close unmaps everything before it informs the server, which
// only after that gives the bytes to others.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/copy/copy_engine.h"
#include "client/device/device_arena.h"
#include "client/device/device_budget.h"
#include "client/device/residency.h"
#include "client/host/chunk_store.h"
#include "client/session/host_pins.h"
#include "client/session/leased_device.h"
#include "client/session/server_plan_source.h"
#include "client/wire/connection.h"
#include "gemini/policy_options.h"
#include "gemini/shm/timeline_shm.h"
#include "gemini/system/mapped_memory.h"
#include "gemini/system/mutex.h"
#include "gemini/system/unique_fd.h"
#include "gemini/system/worker_team.h"
#include "gemini/tier.h"

namespace gemini::client {

struct SessionOptions {
  // Requested. The server grants what is wanted of each tier, or less where less is there, but no
  // less than the floor: else it refuses. It may wait before, for memory that is given back and for
  // others to give way.
  TierMap<int64_t> want_bytes;
  TierMap<int64_t> floor_bytes;
  // Whether the grant of DEVICE may change later, between the floor and what is wanted.
  // The caller then calls device().TakeChange between operators.
  bool takes_epochs = false;
  // If DEVICE is granted in slabs: the bytes of it that are at first not for chunks, but for what
  // the process itself takes of the GPU.
  int64_t apart_bytes = 0;
  int64_t chunk_bytes = 0;  // A positive multiple of kPageBytes: the same in all spaces.
  std::string label;        // Shown by memstat; the program's name and job.
  // Bytes a second, in each direction, of the link between HOST and the DEVICE arena; 0 means no
  // limit.
  int64_t device_bandwidth = 0;
  // If DEVICE is a GPU's: reserves the addresses for its slabs. Null if it is host memory.
  MakeDeviceSlabs make_slabs = nullptr;
  // Makes the copy engine, which moves bytes to DEVICE and back. It shows its copies in the
  // timeline, which outlives it. If null, a CopyEngineHost over that link is used.
  std::function<absl::StatusOr<std::unique_ptr<CopyEngine>>(TimelineShm*)> make_copies = nullptr;
  // Registers HOST memory with a GPU's driver, for its copies. Null members mean that nothing needs
  // this.
  PinHost pin_host = {};
  PolicyOptions policy = {};  // For the plans that are requested.
  // Whether chunks read from NVMe are compared with their checksum. Turned off to measure what that
  // costs.
  bool nvme_checksums = true;
  // Threads of one update or norm, 0 to kMaxUpdateThreads. 0 stands for DefaultUpdateThreads of the
  // processors that the process may use. The bits do not depend on the number.
  int update_threads = 0;
};

struct SpaceOptions {
  std::string name;  // 1 to 128 of [A-Za-z0-9._-].
  int64_t num_bundles = 0;
  int64_t host_slots = 0;
  int64_t nvme_slots = 0;
  // Tensors of the model: they need room for intents in the client segment.
  int64_t num_tensors = 0;
  StateFormat format = {};  // Format of its trainable bundles.
  // Whether optimizer states are kept on NVME, and in HOST only around their update. HOST then has
  // room for all other chunks, and for SpareSlots and StateWindowSlots beside them.
  bool states_on_nvme = false;
};

class Session {
 public:
  // Takes a connected socket (an embedded server's), says hello and takes the lease. Errors: the
  // server's refusal, with its numbers. UNAVAILABLE: there is no answer. INVALID_ARGUMENT:
  // chunk_bytes, device_bandwidth, apart_bytes or update_threads is out of range. Errors of
  // make_copies pass through.
  static absl::StatusOr<std::unique_ptr<Session>> Open(UniqueFd socket, SessionOptions options);
  // Connects to the daemon's socket first. NOT_FOUND, UNAVAILABLE: there is no daemon; the message
  // says how to start one. INVALID_ARGUMENT: the path is longer than an AF_UNIX address takes.
  static absl::StatusOr<std::unique_ptr<Session>> Open(absl::string_view socket_path,
                                                       SessionOptions options);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  // Opens an ephemeral space and maps its slots. It lives until Close. Errors: the server's
  // refusal. FAILED_PRECONDITION: closed. INVALID_ARGUMENT: a size is negative, or states have
  // their home on NVMe, which has no slots.
  absl::StatusOr<ChunkStore*> OpenSpace(const SpaceOptions& options);

  // Returns what the server grants of DEVICE, and its changes. Not after Close.
  LeasedDevice& device() { return *device_; }

  // Makes a source of plans by the session's policy from this session's server; valid until Close.
  std::unique_ptr<ServerPlanSource> MakePlanSource();

  const TierMap<int64_t>& granted_bytes() const { return granted_bytes_; }
  int64_t chunk_bytes() const { return options_.chunk_bytes; }
  const PolicyOptions& policy() const { return options_.policy; }
  DeviceBudget& device_budget() { return *device_budget_; }
  CopyEngine& copies() { return *copies_; }
  // For updates and norms; valid until the session is destroyed.
  WorkerTeam& update_team() { return *update_team_; }
  // Not after Close.
  Residency& residency() { return *residency_; }
  // For `memstat trace`; valid until the session is destroyed.
  TimelineShm* timeline() { return reinterpret_cast<TimelineShm*>(timeline_.data()); }

  // Returns how far HOST is registered with a GPU's driver, or null if it need not be. Not after
  // Close.
  const HostPins* host_pins() const { return host_pins_.get(); }

  // Returns how many requests the server did not answer in time. Any thread.
  int64_t requests_given_up() const { return connection_->num_given_up(); }
  // Returns the first error of any part of the session, OK until then. Once latched, no step
  // commits.
  absl::Status status() const;
  // Latches `error` if it is the first; an OK status does nothing.
  void Latch(absl::Status error);
  // Latches UNAVAILABLE if the server is gone, and returns status(). Any thread; not after Close.
  absl::Status CheckServer();

  // Publishes the count of completed steps, the figures of the last one and DEVICE's use, for
  // memstat. `outside_bytes`: as in DeviceBudget. Not after Close.
  void PublishStep(int64_t step, int64_t outside_bytes = 0);

  // Gives everything back to the server. No HostChunk and no pin may be left. A second call does
  // nothing. UNAVAILABLE: the server is gone; all memory is unmapped nevertheless.
  absl::Status Close();

 private:
  struct Lease {
    TierMap<int64_t> granted_bytes;
    MappedMemory segment;
    MappedMemory timeline;
    std::unique_ptr<DeviceArena> arena;
    std::unique_ptr<CopyEngine> copies;
  };
  struct OpenedSpace {
    uint64_t id = 0;
    std::unique_ptr<ChunkStore> store;
  };
  // The time of the last call of PublishStep, 0 before the first, and the statistics at that time.
  struct Published {
    int64_t ns = 0;
    ResidencyStats stats;
  };

  Session(std::unique_ptr<Connection> connection, Lease lease, const SessionOptions& options);
  static absl::StatusOr<Lease> TakeLease(Connection& connection, const SessionOptions& options);

  const std::unique_ptr<Connection> connection_;
  const TierMap<int64_t> granted_bytes_;
  const SessionOptions options_;
  const std::unique_ptr<WorkerTeam> update_team_;
  const std::shared_ptr<DeviceBudget> device_budget_;
  // Stays mapped for longer than the lease lasts, because the copy workers write to it. Its bytes
  // are given to no one else.
  const MappedMemory timeline_;
  const std::unique_ptr<CopyEngine> copies_;
  std::unique_ptr<HostPins> host_pins_;  // For all spaces; null if nothing is to be pinned.

  // Never held over a request.
  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<OpenedSpace> spaces_ ABSL_GUARDED_BY(mutex_);
  Published published_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<LeasedDevice> device_;
  std::unique_ptr<Residency> residency_;
};

}  // namespace gemini::client
