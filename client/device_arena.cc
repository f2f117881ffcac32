// SPDX-License-Identifier: Apache-2.0
#include "client/device_arena.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/take_slabs.h"
#include "gemini/byte_size.h"
#include "gemini/status_macros.h"

namespace gemini::client {
namespace {

// Of a lease: descriptors are what limits them, long before.
constexpr int64_t kMaxSlabs = 1 << 20;
// Above those of any GPU, which has some 200.
constexpr int64_t kMaxSlabBytes = 16 * kGiB;

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceArena>> DeviceArena::Map(Connection& connection, Offer offer,
                                                              const MakeDeviceSlabs& make_slabs) {
  const int64_t slab_bytes = offer.slab_bytes;
  if (offer.granted_bytes > offer.size_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the server's answer has a DEVICE arena of ",
                                                   offer.size_bytes, " bytes for a grant of ",
                                                   offer.granted_bytes));
  }
  std::unique_ptr<DeviceArena> arena(new DeviceArena(connection, offer));
  if (offer.size_bytes == 0) return arena;
  if (slab_bytes == 0) {
    if (make_slabs) {
      return absl::FailedPreconditionError(
          "the server's DEVICE is host memory, and this session is to use a GPU: use a server that "
          "has "
          "one, or open the session without");
    }
    if (offer.fds.empty()) {
      return absl::InvalidArgumentError("the server's answer has no DEVICE arena");
    }
    GEMINI_ASSIGN_OR_RETURN(arena->memory_, MappedMemory::Map(offer.fds[0].get(), offer.size_bytes,
                                                              MappedMemory::Access::kReadWrite));
    return arena;
  }
  if (slab_bytes < 0 || slab_bytes > kMaxSlabBytes || offer.size_bytes % slab_bytes != 0 ||
      offer.size_bytes / slab_bytes > kMaxSlabs || offer.granted_bytes % slab_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the server's answer has ", offer.granted_bytes,
                                                   " of ", offer.size_bytes,
                                                   " bytes of DEVICE in slabs of ", slab_bytes));
  }
  if (!make_slabs) {
    return absl::FailedPreconditionError(
        "the server's DEVICE is a GPU, and this session is for host memory: open it for the GPU, "
        "or use "
        "a server without one");
  }
  GEMINI_ASSIGN_OR_RETURN(arena->slabs_, make_slabs(slab_bytes, offer.size_bytes / slab_bytes));
  GEMINI_RETURN_IF_ERROR(arena->MapAll(std::move(offer.fds)));
  GEMINI_RETURN_IF_ERROR(arena->Grow(offer.granted_bytes));
  return arena;
}

absl::Status DeviceArena::Grow(int64_t size_bytes) {
  const int64_t mapped = mapped_bytes();
  if (slabs_ == nullptr || size_bytes <= mapped) return absl::OkStatus();
  const int64_t count = (size_bytes - mapped + slab_bytes_ - 1) / slab_bytes_;
  std::vector<UniqueFd> fds;
  GEMINI_RETURN_IF_ERROR(TakeSlabs(connection_, /*space=*/0, mapped / slab_bytes_, count, fds));
  // It sends what the lease has, which may be more: an epoch that was not taken.
  fds.resize(static_cast<size_t>(count));
  return MapAll(std::move(fds));
}

absl::Status DeviceArena::Cut(int64_t size_bytes) {
  if (slabs_ == nullptr) return absl::OkStatus();
  return slabs_->Keep((size_bytes + slab_bytes_ - 1) / slab_bytes_);
}

absl::Status DeviceArena::MapAll(std::vector<UniqueFd> fds) {
  for (const UniqueFd& fd : fds) GEMINI_RETURN_IF_ERROR(slabs_->Map(fd.get()));
  return absl::OkStatus();
}

}  // namespace gemini::client
