// SPDX-License-Identifier: Apache-2.0
// The seam for moving whole chunks between HOST slabs and NVMe extents. Tenants share the disk by
// bytes in turn (server/nvme/nvme_queue.h).
// Thread: one calls; `done` is called once for each transfer, from any thread, and never inside
//         Submit.
// Errors: what the kernel says reaches `done` as a Status; a transfer that fails may have moved
//         some of its bytes.
#pragma once
#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gemini/shm/space_shm.h"

namespace gemini::server {

// The descriptors stay open until `done` is called. Offsets and size are multiples of kPageBytes
// and lie inside both objects.
struct NvmeTransfer {
  IoOperation operation = IoOperation::kRead;
  int host_fd = -1;
  int64_t host_offset_bytes = 0;
  int nvme_fd = -1;
  int64_t nvme_offset_bytes = 0;
  int64_t size_bytes = 0;  // > 0.
  uint64_t tenant = 0;     // Whose turn it is moved in.
  uint64_t space = 0;      // Of the tenant's: what Cancel names.
};

class NvmeIo {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  // Waits until every `done` and `forgotten` was called. Transfers that have not begun end with
  // ABORTED.
  virtual ~NvmeIo() = default;
  // Queues the transfer and returns. DATA_LOSS: the device failed, or the data end early.
  // RESOURCE_EXHAUSTED: no space.
  virtual void Submit(const NvmeTransfer& transfer, Done done) = 0;
  // Ends the space's transfers with ABORTED. Those that have not begun end inside this call. Of the
  // others no further piece begins, and they end when the pieces in the kernel are done.
  virtual void Cancel(uint64_t tenant, uint64_t space) = 0;
  // Must be called before slabs that transfers have named are closed or destroyed, with no transfer
  // of theirs in flight. Calls `forgotten` once, here or later, when the engine pins no page of
  // them any more.
  virtual void Forget(absl::Span<const int> host_fds, absl::AnyInvocable<void()> forgotten) = 0;
};

}  // namespace gemini::server
