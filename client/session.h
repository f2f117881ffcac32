// SPDX-License-Identifier: Apache-2.0
// One client's connection, lease and DEVICE arena, and the spaces that it opened. No Torch here:
// the hook (client/torch/) and other front ends stand on it. Thread: any, except Open and Close.
// Close, or the destructor, unmaps everything before it tells the
//         server, which only then gives the bytes to others.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/chunk_store.h"
#include "client/copy_engine.h"
#include "client/device_budget.h"
#include "client/residency.h"
#include "gemini/tier.h"
#include "gemini/unique_fd.h"

namespace gemini::client {

struct SessionOptions {
  TierMap<int64_t> want_bytes;   // Asked for; the server grants min(want, free) in each tier
  TierMap<int64_t> floor_bytes;  // and refuses below this.
  int64_t chunk_bytes = 0;       // A positive multiple of kPageBytes: the same in all spaces.
  std::string label;             // Shown by memstat; the program's name and job.
};

struct SpaceOptions {
  std::string name;  // 1 to 128 of [A-Za-z0-9._-].
  int64_t num_bundles = 0;
  int64_t host_slots = 0;
  int64_t nvme_slots = 0;
};

class Session {
 public:
  // Takes a connected socket (an embedded server's), says hello and takes the lease. Errors: the
  // server's refusal, with its numbers; UNAVAILABLE: nobody answers.
  static absl::StatusOr<std::unique_ptr<Session>> Open(UniqueFd socket, SessionOptions options);
  // Connects to the daemon's socket first. NOT_FOUND or UNAVAILABLE: no daemon there (says how to
  // start one). INVALID_ARGUMENT: the path is longer than an AF_UNIX address takes.
  static absl::StatusOr<std::unique_ptr<Session>> Open(absl::string_view socket_path,
                                                       SessionOptions options);
  virtual ~Session() = default;

  // Opens an ephemeral space and maps its slots. It lives until Close.
  virtual absl::StatusOr<ChunkStore*> OpenSpace(const SpaceOptions& options) = 0;

  virtual const TierMap<int64_t>& granted_bytes() const = 0;
  virtual int64_t chunk_bytes() const = 0;
  virtual DeviceBudget& device_budget() = 0;
  virtual Residency& residency() = 0;

  // The first error that any part of the session hit; OK until then. Once latched, no step commits.
  virtual absl::Status status() const = 0;
  virtual void Latch(absl::Status error) = 0;

  // Publishes the count of completed steps for memstat.
  virtual void PublishStep(int64_t step) = 0;

  // Gives everything back. The session is unusable afterwards; a second call does nothing.
  virtual absl::Status Close() = 0;
};

}  // namespace gemini::client
