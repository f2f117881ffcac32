// SPDX-License-Identifier: Apache-2.0
// Where DEVICE is host memory, leases are granted it without pages, which come as the job touches
// them. Until then the machine counts them as free. This class counts them as promised, and says
// what is left for whatever is granted next.
// Owner:  the server thread.
#pragma once
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/sessions.h"
#include "server/tiers/host_memory.h"
#include "server/tiers/tier_store.h"

namespace gemini::server {

class DevicePromises {
 public:
  // Both must outlive this.
  DevicePromises(const Sessions& sessions, const TierStore& device)
      : sessions_(sessions), device_(device) {}

  // Returns how many bytes the machine has for more DEVICE, beside what was promised. Returns the
  // largest number if DEVICE is a GPU's, or the memory cannot be read. `charged_here`: see Lease.
  int64_t DeviceRoom(bool charged_here) const;
  // Checks that they are at least `size_bytes`. RESOURCE_EXHAUSTED: they are not; the message has
  // the numbers.
  absl::Status CheckDevice(int64_t size_bytes, bool charged_here) const;
  // Checks the same for `size_bytes` of HOST for `what`, which this process touches. Returns OK
  // while a lease or a space gives memory back, for then nobody knows how much there will be. What
  // the kernel has yet to allocate for another space that is being made is not counted.
  absl::Status CheckHost(int64_t size_bytes, absl::string_view what) const;

 private:
  // Calls `look` with each memory that limits what is granted, and with what is promised of it.
  void ForEachMemory(
      bool charged_here,
      absl::FunctionRef<void(const HostMemory& memory, int64_t promised_bytes)> look) const;
  absl::Status Check(int64_t size_bytes, bool charged_here, absl::string_view what) const;

  const Sessions& sessions_;
  const TierStore& device_;
};

}  // namespace gemini::server
