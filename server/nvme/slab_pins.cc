// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/slab_pins.h"

#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"
#include "server/loop/server_log.h"
#include "server/nvme/slab_window.h"

namespace gemini::server {
namespace {

constexpr int kTableEntries = 1 << 14;  // IORING_MAX_REG_BUFFERS.

}  // namespace

SlabPins::~SlabPins() {
  // Closing the ring alone would unpin too, but some time later.
  if (!buffers_.empty()) io_uring_unregister_buffers(&ring_);
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (buffers_[i].forgetting != nullptr) HandleRelease(kReleaseBit | i);
  }
}

std::optional<SlabPins::Place> SlabPins::Find(int host_fd, int64_t offset_bytes) {
  const absl::StatusOr<Slab*> slab = FindSlab(host_fd);
  if (!slab.ok()) return std::nullopt;
  const int64_t window = offset_bytes / kWindowBytes;
  if (window >= static_cast<int64_t>((*slab)->buffers.size())) return std::nullopt;
  const int64_t begin = window * kWindowBytes;
  int& buffer = (*slab)->buffers[window];
  if (buffer == kNone) {
    if (refused_) return std::nullopt;
    const int64_t size_bytes = std::min(kWindowBytes, (*slab)->size_bytes - begin);
    if (is_swapped_out_(host_fd, begin, size_bytes)) return std::nullopt;
    const absl::StatusOr<int> made = Register(host_fd, begin, size_bytes);
    if (!made.ok()) {
      Refuse(made.status());
      return std::nullopt;
    }
    buffer = *made;
  }
  return Place{buffer, buffers_[buffer].address + (offset_bytes - begin)};
}

absl::StatusOr<SlabPins::Slab*> SlabPins::FindSlab(int host_fd) {
  Slab& slab = slabs_[host_fd];
  if (slab.size_bytes == 0) {
    struct stat info;
    if (::fstat(host_fd, &info) != 0) return ErrnoStatus(errno, "fstat of a slab");
    slab.size_bytes = info.st_size;  // Sealed: it never changes.
    slab.buffers.assign((slab.size_bytes + kWindowBytes - 1) / kWindowBytes, kNone);
  }
  return &slab;
}

absl::Status SlabPins::MakeTable() {
  const int error = io_uring_register_buffers_sparse(&ring_, kTableEntries);
  if (error < 0) return ErrnoStatus(-error, "make a table of registered buffers");
  buffers_.resize(kTableEntries);
  for (int i = kTableEntries; i-- > 0;) free_buffers_.push_back(i);
  return absl::OkStatus();
}

absl::StatusOr<int> SlabPins::Register(int host_fd, int64_t offset_bytes, int64_t size_bytes) {
  if (buffers_.empty()) GEMINI_RETURN_IF_ERROR(MakeTable());
  if (free_buffers_.empty()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", kTableEntries, " registered buffers are in use"));
  }
  GEMINI_ASSIGN_OR_RETURN(const SlabWindow mapped,
                          SlabWindow::Map(host_fd, offset_bytes, size_bytes));
  const int buffer = free_buffers_.back();
  const iovec pages = {.iov_base = mapped.data(), .iov_len = static_cast<size_t>(size_bytes)};
  const __u64 tag = kReleaseBit | static_cast<uint64_t>(buffer);
  const int done = io_uring_register_buffers_update_tag(&ring_, buffer, &pages, &tag, 1);
  if (done < 0) {
    return ErrnoStatus(-done, absl::StrCat("register ", FormatByteSize(size_bytes), " of a slab"));
  }
  free_buffers_.pop_back();
  buffers_[buffer].address = mapped.data();
  ++windows_made_;
  return buffer;
}

void SlabPins::Refuse(const absl::Status& why) {
  refused_ = true;
  if (std::exchange(warned_, true)) return;
  ServerLog().warn(
      "NVMe I/O copies chunks through a buffer, which costs processor time: {}; to let slabs stay "
      "registered, raise the limit on locked memory (ulimit -l, LimitMEMLOCK=) to the HOST "
      "capacity",
      why.ToString());
}

void SlabPins::Forget(absl::Span<const int> host_fds, absl::AnyInvocable<void()> forgotten) {
  auto forgetting = std::make_shared<Forgetting>();
  for (const int host_fd : host_fds) {
    const auto slab = slabs_.find(host_fd);
    if (slab == slabs_.end()) continue;
    for (const int buffer : slab->second.buffers) {
      if (buffer == kNone) continue;
      buffers_[buffer].forgetting = forgetting;
      to_release_.push_back(buffer);
      ++forgetting->windows_left;
    }
    slabs_.erase(slab);
  }
  if (forgetting->windows_left == 0) {
    forgotten();
    return;
  }
  forgetting->forgotten = std::move(forgotten);
}

absl::StatusOr<bool> SlabPins::Release(int max_windows) {
  for (int i = 0; i < max_windows && !to_release_.empty(); ++i) {
    const iovec nothing = {};
    const __u64 no_tag = 0;
    const int done =
        io_uring_register_buffers_update_tag(&ring_, to_release_.front(), &nothing, &no_tag, 1);
    if (done < 0) return ErrnoStatus(-done, "unregister a window of a slab");
    to_release_.pop_front();
  }
  return !to_release_.empty();
}

void SlabPins::HandleRelease(uint64_t user_data) {
  const int buffer = static_cast<int>(user_data & ~kReleaseBit);
  const std::shared_ptr<Forgetting> forgetting =
      std::exchange(buffers_[buffer].forgetting, nullptr);
  free_buffers_.push_back(buffer);
  refused_ = false;
  if (--forgetting->windows_left == 0) forgetting->forgotten();
}

}  // namespace gemini::server
