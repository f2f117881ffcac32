// SPDX-License-Identifier: Apache-2.0
#include "client/host/space_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "gemini/layout.h"
#include "tests/status_matchers.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;

UniqueFd NewMemfd(int64_t size_bytes) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), size_bytes), 0);
  return fd;
}

// Maps a space of that shape in these slabs.
absl::StatusOr<SpaceMemory> MapSpace(const SpaceShape& shape, const std::vector<UniqueFd>& slabs) {
  const UniqueFd client = NewMemfd(ClientSegmentLayout(shape.num_bundles, 0).size_bytes);
  const UniqueFd server = NewMemfd(sizeof(ServerSegmentShm));
  return SpaceMemory::Map(shape, client.get(), server.get(), slabs);
}

std::byte ByteOf(int64_t slot) { return static_cast<std::byte>(slot + 1); }

TEST(SpaceMemoryTest, EachSlabBeginsWhereHugePagesDoAndEachSlotLiesInItsSlab) {
  constexpr int64_t kHugePage = 2 << 20;
  for (const int64_t chunk_bytes :
       {kPageBytes, 3 * kPageBytes, kHugePage, kHugePage + kPageBytes}) {
    SCOPED_TRACE(chunk_bytes);
    const SpaceShape shape = {
        .chunk_bytes = chunk_bytes, .num_bundles = 1, .host_slots = 8, .slots_per_slab = 3};
    std::vector<UniqueFd> slabs;
    for (const int64_t slots : {3, 3, 2}) slabs.push_back(NewMemfd(slots * chunk_bytes));
    ASSERT_OK_AND_ASSIGN(const SpaceMemory memory, MapSpace(shape, slabs));
    for (int64_t slot = 0; slot < shape.host_slots; ++slot) {
      std::byte* const bytes = memory.slot_address(SlotId(slot));
      bytes[0] = bytes[chunk_bytes - 1] = ByteOf(slot);
      if (slot % 3 == 0) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes) % kHugePage, 0u) << slot;
      } else {
        EXPECT_EQ(bytes, memory.slot_address(SlotId(slot - 1)) + chunk_bytes);
      }
    }
    for (int64_t slot = 0; slot < shape.host_slots; ++slot) {
      for (const int64_t at : {int64_t{0}, chunk_bytes - 1}) {
        std::byte found = {};
        ASSERT_EQ(::pread(slabs[slot / 3].get(), &found, 1, slot % 3 * chunk_bytes + at), 1);
        EXPECT_EQ(found, ByteOf(slot)) << slot;
      }
    }
  }
}

TEST(SpaceMemoryTest, SlabsThatHoldTooLittleAreRefused) {
  const auto refused = [](int64_t slots_per_slab, const std::vector<int64_t>& slots,
                          const char* text) {
    const SpaceShape shape = {.chunk_bytes = kPageBytes,
                              .num_bundles = 1,
                              .host_slots = 5,
                              .slots_per_slab = slots_per_slab};
    std::vector<UniqueFd> slabs;
    for (const int64_t count : slots) slabs.push_back(NewMemfd(count * kPageBytes));
    EXPECT_THAT(MapSpace(shape, slabs),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  refused(2, {2, 2}, "the server sent 2 slabs of 2 slots for a space of 5 slots");
  refused(0, {2, 2, 1}, "slabs of 0 slots");
  refused(std::numeric_limits<int64_t>::max(), {}, "the server sent 0 slabs");
  refused(3, {3, 1}, "a descriptor of 4096 bytes where 8192 are to be mapped");
}

}  // namespace
}  // namespace gemini::client
