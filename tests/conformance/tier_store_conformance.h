// SPDX-License-Identifier: Apache-2.0
// What every TierStore must do; an implementation joins with one INSTANTIATE_TEST_SUITE_P.
#pragma once
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gemini/byte_size.h"
#include "server/tiers/tier_store.h"
#include "tests/status_matchers.h"

namespace gemini::server {

struct TierStoreCase {
  std::string name;
  std::function<std::unique_ptr<TierStore>(int64_t capacity_bytes)> make;
  bool goes_to_clients = true;   // Its descriptors are sent: nobody may resize them.
  bool freed_while_held = true;  // Destroy frees what somebody still has a descriptor of.
};

class TierStoreConformance : public ::testing::TestWithParam<TierStoreCase> {
 protected:
  static constexpr int64_t kCapacity = 8 * kMiB;
  static constexpr int64_t kSlot = 64 * kKiB;

  // One slot, at a page boundary: extents may be open with O_DIRECT.
  struct alignas(4096) Slot {
    std::array<std::byte, kSlot> bytes;
  };
  // The bytes of all extents.
  static std::vector<std::byte> ReadAll(const TierGrant& grant) {
    std::vector<std::byte> bytes;
    const auto slot = std::make_unique<Slot>();
    for (const TierExtent& extent : grant.extents) {
      const int64_t size = extent.num_slots * grant.slot_bytes;
      for (int64_t offset = 0; offset < size; offset += kSlot) {
        EXPECT_EQ(::pread(extent.fd.get(), slot->bytes.data(), kSlot, offset), kSlot);
        bytes.insert(bytes.end(), slot->bytes.begin(), slot->bytes.end());
      }
    }
    return bytes;
  }
  static void Fill(const TierGrant& grant, std::byte value) {
    const auto slot = std::make_unique<Slot>();
    slot->bytes.fill(value);
    for (const TierExtent& extent : grant.extents) {
      for (int64_t i = 0; i < extent.num_slots * grant.slot_bytes / kSlot; ++i) {
        EXPECT_EQ(::pwrite(extent.fd.get(), slot->bytes.data(), kSlot, i * kSlot), kSlot);
      }
    }
  }
  static bool AllZero(const std::vector<std::byte>& bytes) {
    for (std::byte byte : bytes) {
      if (byte != std::byte{0}) return false;
    }
    return true;
  }

  std::unique_ptr<TierStore> store_ = GetParam().make(kCapacity);
};

TEST_P(TierStoreConformance, AGrantHasTheSizeAskedForAndIsZero) {
  for (const int64_t slots : {0, 1, 3, 128}) {
    ASSERT_OK_AND_ASSIGN(TierGrant grant, store_->Make(kSlot, slots));
    EXPECT_EQ(grant.size_bytes(), slots * kSlot);
    EXPECT_TRUE(AllZero(ReadAll(grant)));
    store_->Destroy(std::move(grant));
  }
}

TEST_P(TierStoreConformance, BytesAreCountedFromMakeToDestroy) {
  EXPECT_EQ(store_->capacity_bytes(), kCapacity);
  ASSERT_OK_AND_ASSIGN(TierGrant first, store_->Make(kSlot, 10));
  ASSERT_OK_AND_ASSIGN(TierGrant second, store_->Make(2 * kSlot, 3));
  EXPECT_EQ(store_->granted_bytes(), 16 * kSlot);
  store_->Destroy(std::move(first));
  EXPECT_EQ(store_->granted_bytes(), 6 * kSlot);
  store_->Destroy(std::move(second));
  EXPECT_EQ(store_->granted_bytes(), 0);
}

TEST_P(TierStoreConformance, BeyondTheCapacityIsRefusedWithTheNumbersAndChangesNothing) {
  ASSERT_OK_AND_ASSIGN(TierGrant grant, store_->Make(kSlot, 96));
  EXPECT_THAT(store_->Make(kSlot, 33),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       ::testing::AllOf(::testing::HasSubstr("needs 2.1 MiB"),
                                        ::testing::HasSubstr(std::string(TierName(store_->tier()))),
                                        ::testing::HasSubstr("2 MiB of 8 MiB left"))));
  EXPECT_EQ(store_->granted_bytes(), 96 * kSlot);
  ASSERT_OK_AND_ASSIGN(TierGrant rest, store_->Make(kSlot, 32));
  store_->Destroy(std::move(rest));
  store_->Destroy(std::move(grant));
}

// A tenant's bytes are gone from the machine when Destroy returns, for most stores also where
// somebody still holds the descriptor, and the next tenant gets another object.
TEST_P(TierStoreConformance, NoForeignBytes) {
  ASSERT_OK_AND_ASSIGN(TierGrant grant, store_->Make(kSlot, 128));
  Fill(grant, std::byte{0x5a});
  const UniqueFd kept(::dup(grant.extents[0].fd.get()));
  struct stat old_object;
  ASSERT_EQ(::fstat(kept.get(), &old_object), 0);
  store_->Destroy(std::move(grant));
  if (GetParam().goes_to_clients && GetParam().freed_while_held) {
    struct stat info;
    ASSERT_EQ(::fstat(kept.get(), &info), 0);
    EXPECT_EQ(info.st_blocks, 0);
  }
  for (int round = 0; round < 3; ++round) {
    ASSERT_OK_AND_ASSIGN(TierGrant next, store_->Make(kSlot, 128));
    EXPECT_TRUE(AllZero(ReadAll(next)));
    for (const TierExtent& extent : next.extents) {
      struct stat object;
      ASSERT_EQ(::fstat(extent.fd.get(), &object), 0);
      EXPECT_NE(object.st_ino, old_object.st_ino);
    }
    Fill(next, std::byte{0x77});
    store_->Destroy(std::move(next));
  }
}

TEST_P(TierStoreConformance, WhoeverGetsADescriptorCannotResizeIt) {
  if (!GetParam().goes_to_clients) GTEST_SKIP() << "its descriptors never leave the server";
  ASSERT_OK_AND_ASSIGN(TierGrant grant, store_->Make(kSlot, 4));
  for (const TierExtent& extent : grant.extents) {
    EXPECT_EQ(::ftruncate(extent.fd.get(), 0), -1);
    EXPECT_EQ(::ftruncate(extent.fd.get(), 1 << 30), -1);
  }
  store_->Destroy(std::move(grant));
}

TEST_P(TierStoreConformance, WorkersMayMakeAndDestroyAtTheSameTime) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      for (int round = 0; round < 20; ++round) {
        absl::StatusOr<TierGrant> grant = store_->Make(kSlot, 1 + (i + round) % 30);
        ASSERT_OK(grant);  // 4 x 30 slots fit.
        store_->Destroy(*std::move(grant));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_->granted_bytes(), 0);
}

}  // namespace gemini::server
