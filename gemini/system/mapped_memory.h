// SPDX-License-Identifier: Apache-2.0
// Maps a descriptor's bytes for one owner, and unmaps them when the owner is destroyed. It may also
// be a reservation: addresses without memory, to be filled with such mappings.
// Thread: one at a time; the bytes themselves are shared.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace boost::interprocess {
class mapped_region;
}  // namespace boost::interprocess

namespace gemini {

class MappedMemory {
 public:
  enum class Access { kReadOnly, kReadWrite };

  // Maps `size_bytes` (> 0) of `fd` from its start, shared, excluded from forked children
  // (MADV_DONTFORK). The descriptor may be closed afterwards. INVALID_ARGUMENT: the file is shorter
  // than that, perhaps because a peer made it so; the message has both sizes. Others: as mmap(2).
  static absl::StatusOr<MappedMemory> Map(int fd, int64_t size_bytes, Access access);
  // Where reservations begin: at a multiple of this, the size of a huge page on x86. A file that
  // has huge pages is mapped by them at such addresses alone.
  static constexpr int64_t kReservationAlignment = int64_t{2} << 20;
  // Reserves address space without memory, to be filled by MapAt.
  static absl::StatusOr<MappedMemory> Reserve(int64_t size_bytes);

  MappedMemory();
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  // Maps `size_bytes` of `fd` read-write over [offset, offset + size) of this reservation. Errors:
  // as Map.
  absl::Status MapAt(int64_t offset_bytes, int fd, int64_t size_bytes);

  std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  // The mapping that Map made. Empty for a reservation, which the destructor unmaps itself.
  std::unique_ptr<boost::interprocess::mapped_region> region_;
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

}  // namespace gemini
