// SPDX-License-Identifier: Apache-2.0
#include "client/device/device_arena.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/wire/take_slabs.h"
#include "gemini/byte_size.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

// The most slabs of a lease. Descriptors limit them long before.
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
  GEMINI_ASSIGN_OR_RETURN(arena->slabs_, make_slabs({.slab_bytes = slab_bytes,
                                                     .num_slabs = offer.size_bytes / slab_bytes,
                                                     .gpu_uuid = std::move(offer.gpu_uuid),
                                                     .is_counted = offer.is_counted}));
  return arena;
}

absl::Status DeviceArena::Grow(int64_t size_bytes) {
  const int64_t mapped = mapped_bytes();
  if (slabs_ == nullptr || size_bytes <= mapped) return absl::OkStatus();
  const int64_t count = (size_bytes - mapped + slab_bytes_ - 1) / slab_bytes_;
  std::vector<UniqueFd> fds;
  // Those that came before an error are of use.
  absl::Status status = TakeSlabs(connection_, /*space=*/0, mapped / slab_bytes_, count, fds);
  for (const UniqueFd& fd : fds) {
    if (const absl::Status is_mapped = slabs_->Map(fd.get()); !is_mapped.ok()) {
      // No use of those behind it either.
      fds.clear();
      status = is_mapped;
      status.Update(GiveBackUnmapped());
      break;
    }
  }
  return status;
}

absl::Status DeviceArena::Cut(int64_t size_bytes) {
  if (slabs_ == nullptr || size_bytes >= mapped_bytes()) return absl::OkStatus();
  GEMINI_RETURN_IF_ERROR(slabs_->Keep((size_bytes + slab_bytes_ - 1) / slab_bytes_));
  return GiveBackUnmapped();
}

absl::Status DeviceArena::GiveBackUnmapped() {
  return connection_
      .Call(
          wire::Body::KeepSlabs,
          [kept = slabs_->num_mapped()](flatbuffers::FlatBufferBuilder& builder) {
            return wire::CreateKeepSlabs(builder, kept).Union();
          },
          wire::Body::Done, kSlabsTimeout)
      .status();
}

}  // namespace gemini::client
