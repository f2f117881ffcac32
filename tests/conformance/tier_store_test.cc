// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <stdlib.h>

#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/tiers/tier_store_arena.h"
#include "server/tiers/tier_store_host.h"
#include "server/tiers/tier_store_nvme.h"
#include "tests/conformance/tier_store_conformance.h"
#include "tests/server/denied_calls.h"

namespace gemini::server {
namespace {

// Removed with the store. Two directories, so that grants span them.
class NvmeInTemporaryDirectories : public TierStore {
 public:
  explicit NvmeInTemporaryDirectories(int64_t capacity_bytes) {
    std::string name = ::testing::TempDir() + "/nvme-XXXXXX";
    root_ = ::mkdtemp(name.data());
    for (const char* part : {"/a", "/b"}) std::filesystem::create_directory(root_ + part);
    store_ = *MakeNvmeTierStore(
        {{root_ + "/a", capacity_bytes / 4}, {root_ + "/b", capacity_bytes - capacity_bytes / 4}});
  }
  ~NvmeInTemporaryDirectories() override {
    // Nothing is left behind by name, whatever was granted.
    for (const char* part : {"/a", "/b"}) EXPECT_TRUE(std::filesystem::is_empty(root_ + part));
    store_.reset();
    std::filesystem::remove_all(root_);
  }
  Tier tier() const override { return store_->tier(); }
  int64_t capacity_bytes() const override { return store_->capacity_bytes(); }
  int64_t granted_bytes() const override { return store_->granted_bytes(); }
  absl::StatusOr<TierGrant> Make(int64_t slot_bytes, int64_t num_slots) override {
    return store_->Make(slot_bytes, num_slots);
  }
  void Destroy(TierGrant grant) override { store_->Destroy(std::move(grant)); }

 private:
  std::string root_;
  std::unique_ptr<TierStore> store_;
};

INSTANTIATE_TEST_SUITE_P(
    Tiers, TierStoreConformance,
    ::testing::Values(TierStoreCase{"Arena", MakeArenaTierStore, true},
                      TierStoreCase{"Host", MakeHostTierStore, true},
                      TierStoreCase{"Nvme",
                                    [](int64_t capacity_bytes) -> std::unique_ptr<TierStore> {
                                      return std::make_unique<NvmeInTemporaryDirectories>(
                                          capacity_bytes);
                                    },
                                    false}),
    [](const auto& tested) { return tested.param.name; });

class NvmeDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/nvme-XXXXXX";
    root_ = ::mkdtemp(name.data());
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string root_;
};

TEST_F(NvmeDirectoryTest, ASymbolicLinkIsNotFollowed) {
  std::filesystem::create_directory_symlink("/tmp", root_ + "/link");
  EXPECT_THAT(MakeNvmeTierStore({{root_ + "/link", 4096}}),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("/link")));
}

TEST_F(NvmeDirectoryTest, ADirectoryThatIsNoneIsNamed) {
  EXPECT_THAT(MakeNvmeTierStore({{root_ + "/none", 4096}}),
              StatusIs(absl::StatusCode::kNotFound, ::testing::HasSubstr("/none")));
}

TEST_F(NvmeDirectoryTest, ExtentsPassThePageCacheWhereTheFileSystemLetsThem) {
  const UniqueFd tried(
      ::open(root_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_DIRECT, S_IRUSR | S_IWUSR));
  if (!tried) GTEST_SKIP() << root_ << " has no O_DIRECT";
  const auto is_direct = [&] {
    const auto store = MakeNvmeTierStore({{root_, kMiB}});
    TierGrant grant = *(*store)->Make(4096, 4);
    const bool direct = (::fcntl(grant.extents[0].fd.get(), F_GETFL) & O_DIRECT) != 0;
    (*store)->Destroy(std::move(grant));
    return direct;
  };
  EXPECT_TRUE(is_direct());
  std::thread([&] {
    DenyDirect();
    EXPECT_FALSE(is_direct());
  }).join();
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

// The C library would write each block instead, for hours, or say that an argument is wrong.
TEST_F(NvmeDirectoryTest, WhereTheFileSystemAllocatesNothingRoomIsRefusedAtOnce) {
  std::thread([&] {
    DenyAllocation();
    const auto store = MakeNvmeTierStore({{root_, kMiB}});
    ASSERT_OK(store);
    EXPECT_THAT((*store)->Make(4096, 4),
                StatusIs(absl::StatusCode::kUnimplemented, ::testing::HasSubstr("ext4 or XFS")));
    EXPECT_EQ((*store)->granted_bytes(), 0);
  }).join();
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

// Nobody else on that disk is brought to its last byte meanwhile.
TEST_F(NvmeDirectoryTest, MoreThanTheDiskHasIsRefusedBeforeItIsFilled) {
  const int64_t free_bytes = static_cast<int64_t>(std::filesystem::space(root_).available);
  const int64_t asked_bytes = (free_bytes / 4096 + (1 << 20)) * 4096;
  const auto store = MakeNvmeTierStore({{root_, asked_bytes}});
  ASSERT_OK(store);
  EXPECT_THAT(
      (*store)->Make(4096, asked_bytes / 4096),
      StatusIs(absl::StatusCode::kResourceExhausted,
               ::testing::AllOf(::testing::HasSubstr("has free"), ::testing::HasSubstr("--nvme"))));
}

TEST_F(NvmeDirectoryTest, AServerThatEndsWaitsForNoAllocation) {
  const auto store = MakeNvmeTierStore({{root_, kMiB}});
  ASSERT_OK(store);
  (*store)->Stop();
  EXPECT_THAT((*store)->Make(4096, 4), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ((*store)->granted_bytes(), 0);
}

// Several directories.
class NvmeDirectoriesTest : public NvmeDirectoryTest {
 protected:
  static constexpr int64_t kSlot = 4096;
  // With so many slots in each.
  std::unique_ptr<TierStore> Make(const std::vector<int64_t>& slots) {
    std::vector<NvmeDirectory> directories;
    for (size_t i = 0; i < slots.size(); ++i) {
      directories.push_back({.path = PathOf(i), .capacity_bytes = slots[i] * kSlot});
      std::filesystem::create_directory(PathOf(i));
    }
    return *MakeNvmeTierStore(directories);
  }
  std::string PathOf(size_t directory) const { return absl::StrCat(root_, "/", directory); }
  // Of a grant: slots by directory.
  static std::map<int64_t, int64_t> SlotsOf(const TierGrant& grant) {
    std::map<int64_t, int64_t> slots;
    for (const TierExtent& extent : grant.extents) slots[extent.place] += extent.num_slots;
    return slots;
  }
  using Slots = std::map<int64_t, int64_t>;
};

TEST_F(NvmeDirectoriesTest, AGrantSpansThemInProportionToTheirRoom) {
  const std::unique_ptr<TierStore> store = Make({100, 300, 0});
  ASSERT_OK_AND_ASSIGN(TierGrant first, store->Make(kSlot, 40));
  EXPECT_EQ(SlotsOf(first), (Slots{{0, 10}, {1, 30}}));
  ASSERT_OK_AND_ASSIGN(TierGrant rest, store->Make(kSlot, 360));
  EXPECT_EQ(SlotsOf(rest), (Slots{{0, 90}, {1, 270}}));
  store->Destroy(std::move(first));
  store->Destroy(std::move(rest));
  EXPECT_EQ(store->granted_bytes(), 0);
}

TEST_F(NvmeDirectoriesTest, WhatOneRefusesTheOthersGive) {
  const std::unique_ptr<TierStore> store = Make({100, 100, 100});
  std::filesystem::remove(PathOf(1));  // No file can be made in it any more.
  ASSERT_OK_AND_ASSIGN(TierGrant grant, store->Make(kSlot, 90));
  EXPECT_EQ(SlotsOf(grant), (Slots{{0, 45}, {2, 45}}));
  EXPECT_EQ(store->granted_bytes(), 90 * kSlot);
  // Beyond what the others have, the refusal is the answer, and nothing is held.
  EXPECT_THAT(store->Make(kSlot, 111),
              StatusIs(absl::StatusCode::kNotFound, ::testing::HasSubstr(PathOf(1))));
  EXPECT_EQ(store->granted_bytes(), 90 * kSlot);
  ASSERT_OK_AND_ASSIGN(TierGrant rest, store->Make(kSlot, 110));
  store->Destroy(std::move(grant));
  store->Destroy(std::move(rest));
  EXPECT_EQ(store->granted_bytes(), 0);
}

TEST_F(NvmeDirectoryTest, TheFileIsPrivateAndHasNoName) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TierStore> store, MakeNvmeTierStore({{root_, kMiB}}));
  ASSERT_OK_AND_ASSIGN(TierGrant grant, store->Make(4096, 4));
  EXPECT_TRUE(std::filesystem::is_empty(root_));
  struct stat info;
  ASSERT_EQ(::fstat(grant.extents[0].fd.get(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
  EXPECT_EQ(info.st_nlink, 0);
  store->Destroy(std::move(grant));
}

}  // namespace
}  // namespace gemini::server
