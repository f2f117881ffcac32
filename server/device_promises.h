// SPDX-License-Identifier: Apache-2.0
// Where DEVICE is host memory, leases are granted it without pages, which come as the job touches
// them. Until then the machine counts them as free. This class counts them as promised, and checks
// that whatever is granted next leaves room for them.
// Owner:  the server thread.
#pragma once
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/sessions.h"
#include "server/tiers/tier_store.h"

namespace gemini::server {

class DevicePromises {
 public:
  // Both must outlive this.
  DevicePromises(const Sessions& sessions, const TierStore& device)
      : sessions_(sessions), device_(device) {}

  // Checks that the machine has `size_bytes` for the DEVICE of a lease that no session has yet,
  // beside what was promised to others; `charged_here` as in Lease. RESOURCE_EXHAUSTED: it has not;
  // the message has the numbers. OK if DEVICE is a GPU's, or the memory cannot be read.
  absl::Status CheckLease(int64_t size_bytes, bool charged_here) const;
  // Checks the same for `size_bytes` of HOST for `what`, which this process touches. What the
  // kernel has yet to allocate for another space that is being made is not counted.
  absl::Status CheckHost(int64_t size_bytes, absl::string_view what) const;

 private:
  absl::Status Check(int64_t size_bytes, bool charged_here, absl::string_view what) const;

  const Sessions& sessions_;
  const TierStore& device_;
};

}  // namespace gemini::server
