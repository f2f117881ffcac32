// SPDX-License-Identifier: Apache-2.0
// A place on the disk that takes no write, ever.
#include "tests/client/session/faulty_session_fixture.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kHostSlots = 2;
constexpr int64_t kNvmeSlots = 5;

class BadNvmeSlotTest : public FaultySessionFixture {};

TEST_F(BadNvmeSlotTest, OneThatCouldNotBeWrittenIsTriedAgainAfterAllOthers) {
  OpenSession(/*device_slots=*/4, kHostSlots, kNvmeSlots);
  ASSERT_FALSE(HasFatalFailure());
  ChunkStore* const store = OpenSpace("job", kHostSlots + kNvmeSlots, kHostSlots, kNvmeSlots);
  ASSERT_NE(store, nullptr);
  const auto fill = [store](int64_t bundle) {
    const auto chunk = store->AcquireToOverwrite(ChunkOf(BundleId(bundle), ChunkKind::kGrad));
    if (chunk.ok()) FillChunk(chunk->data(), bundle);
    return chunk.status();
  };
  faults_.BreakPlace(0);  // Of the slot that is taken first.
  ASSERT_OK(fill(0));
  ASSERT_OK(fill(1));
  EXPECT_THAT(fill(2), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("NVME slot 0")));
  for (int64_t bundle = 2; bundle < kHostSlots + kNvmeSlots - 1; ++bundle) {
    EXPECT_OK(fill(bundle)) << bundle;
  }
  EXPECT_EQ(faults_.writes_to_broken_place(), 1);
  EXPECT_THAT(fill(kHostSlots + kNvmeSlots - 1),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("NVME slot 0")));
  EXPECT_EQ(faults_.writes_to_broken_place(), 2);
  const std::unique_ptr<Connection> observer = ConnectObserver(*server_);
  ASSERT_OK_AND_ASSIGN(const Reply status, GetStatus(*observer));
  EXPECT_EQ(status.As<wire::StatusReply>()->spaces()->Get(0)->failed_nvme_writes(), 2);
  // Nothing was lost. A chunk that is read gives its slot to the one that makes room.
  store->Free(ChunkOf(BundleId(1), ChunkKind::kGrad));
  for (const int64_t bundle : {0, 2, 3, 4, 5}) {
    const auto chunk = store->Acquire(ChunkOf(BundleId(bundle), ChunkKind::kGrad));
    ASSERT_OK(chunk);
    EXPECT_TRUE(ChunkHolds(chunk->data(), bundle)) << bundle;
  }
  EXPECT_EQ(faults_.writes_to_broken_place(), 2);
}

}  // namespace
}  // namespace gemini::client
