// SPDX-License-Identifier: Apache-2.0
// Counts the DEVICE memory that leases were granted and do not use yet, where DEVICE is host
// memory, and says how much is left for whatever is granted next. Leases get such DEVICE without
// pages, which come as the job touches them; until then the machine counts them as free.
// Owner:  the server thread.
#pragma once
#include <cstdint>

#include "absl/status/status.h"
#include "server/sessions.h"
#include "server/tiers/host_room.h"
#include "server/tiers/tier_store.h"

namespace gemini::server {

class DevicePromises {
 public:
  // Both must outlive this.
  DevicePromises(const Sessions& sessions, const TierStore& device)
      : sessions_(sessions), device_(device) {}

  // Returns what is promised to all sessions now: nothing if DEVICE is a GPU's. O(spaces).
  PromisedDevice Promised() const;
  // Returns the session's part of that.
  PromisedDevice PromisedTo(const PeerSession& session) const;
  // Returns how many bytes `memories` have for more DEVICE, beside what is `promised`. Returns the
  // largest number if DEVICE is a GPU's. `charged_here`: see PeerSession.
  int64_t DeviceRoom(const HostMemories& memories, const PromisedDevice& promised,
                     bool charged_here) const;
  // Checks that DeviceRoom is at least `size_bytes`. RESOURCE_EXHAUSTED: it is not; the message has
  // the numbers.
  absl::Status CheckDevice(const HostMemories& memories, const PromisedDevice& promised,
                           int64_t size_bytes, bool charged_here) const;

 private:
  const Sessions& sessions_;
  const TierStore& device_;
};

}  // namespace gemini::server
