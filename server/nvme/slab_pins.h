// SPDX-License-Identifier: Apache-2.0
// Keeps pages of slabs pinned for an io_uring, as its registered buffers, so that a transfer need
// not map memory or look pages up. Slabs are registered in windows of kWindowBytes when they are
// first used while none of their pages is swapped out. No window stays mapped: the kernel keeps the
// pages, and uses a window's old address only to say where inside it a transfer begins.
// Thread: the one that uses the ring. Registering a window takes it 2 to 3 ms.
// Errors: if the kernel refuses (the limit on locked memory, an old kernel), windows are not
//         registered, with one line in the log. The caller then copies what it transfers.
#pragma once
#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/nvme/swapped_pages.h"

namespace gemini::server {

class SlabPins {
 public:
  // A ring takes 16,384 registrations, which is 256 GiB of slabs. What is beyond is not registered.
  static constexpr int64_t kWindowBytes = int64_t{16} << 20;

  // What a fixed read or write names for a place in a slab.
  struct Place {
    int buffer = 0;
    std::byte* address = nullptr;  // Not mapped.
  };

  // `ring` is initialised, and outlives this. Tests put another in the place of IsSwappedOut.
  explicit SlabPins(io_uring& ring, decltype(&IsSwappedOut) is_swapped_out = IsSwappedOut)
      : ring_(ring), is_swapped_out_(is_swapped_out) {}
  SlabPins(const SlabPins&) = delete;
  SlabPins& operator=(const SlabPins&) = delete;
  // Unpins everything and calls every `forgotten`. No I/O is in flight.
  ~SlabPins();

  // Returns the place of `offset_bytes` in the slab, and registers its window if it is not yet.
  // Returns no value if that fails, or if pages of the window are swapped out: this thread does not
  // wait for them. Whoever moves the bytes instead brings their pages. A transfer from there must
  // end in the same window. `host_fd` names the same slab until Forget.
  std::optional<Place> Find(int host_fd, int64_t offset_bytes);
  int64_t windows_made() const { return windows_made_; }

  // Calls `forgotten` when no page of these slabs is pinned any more: at once, if none is.
  void Forget(absl::Span<const int> host_fds, absl::AnyInvocable<void()> forgotten);
  // Releases at most `max_windows` of forgotten slabs. Returns whether more are left. Errors: the
  // kernel's.
  absl::StatusOr<bool> Release(int max_windows);
  // Returns whether a completion of the ring says that the pages of a released window are unpinned.
  // It is then for HandleRelease.
  static bool IsRelease(uint64_t user_data) { return (user_data & kReleaseBit) != 0; }
  void HandleRelease(uint64_t user_data);

 private:
  static constexpr uint64_t kReleaseBit = uint64_t{1} << 63;
  static constexpr int kNone = -1;
  struct Forgetting {
    int64_t windows_left = 0;
    absl::AnyInvocable<void()> forgotten;
  };
  struct Slab {
    int64_t size_bytes = 0;
    std::vector<int> buffers;  // By window; kNone.
  };
  struct Buffer {
    std::byte* address = nullptr;
    std::shared_ptr<Forgetting> forgetting;  // Null until its slab is forgotten.
  };

  absl::StatusOr<Slab*> FindSlab(int host_fd);
  absl::Status MakeTable();
  absl::StatusOr<int> Register(int host_fd, int64_t offset_bytes, int64_t size_bytes);
  void Refuse(const absl::Status& why);

  io_uring& ring_;
  const decltype(&IsSwappedOut) is_swapped_out_;
  std::unordered_map<int, Slab> slabs_;  // By descriptor.
  std::vector<Buffer> buffers_;          // The ring's table; empty until it is made.
  std::vector<int> free_buffers_;
  std::deque<int> to_release_;
  int64_t windows_made_ = 0;
  bool refused_ = false;  // Until a slab is forgotten, which may leave room under the limit.
  bool warned_ = false;
};

}  // namespace gemini::server
