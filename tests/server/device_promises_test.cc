// SPDX-License-Identifier: Apache-2.0
#include "server/device_promises.h"

#include <unistd.h>

#include <deque>
#include <memory>
#include <string>

#include "gemini/byte_size.h"
#include "server/tiers/tier_store_arena.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

class DevicePromisesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(loop_, EventLoop::Make());
    sessions_ = std::make_unique<Sessions>(*loop_, [](PeerSession&) {});
  }
  Lease& AddLease(int64_t granted_bytes, bool reclaiming = false) {
    auto session = std::make_unique<PeerSession>();
    session->id = sessions_->NextId();
    LeaseTerms& terms = terms_.emplace_back();
    terms.granted[Tier::kDevice] = granted_bytes;
    terms.reclaiming = reclaiming;
    Lease& lease = session->lease.emplace(terms);
    sessions_->Add(std::move(session));
    return lease;
  }
  int64_t Promised() {
    promises_.Update(*sessions_, *device_);
    return promises_.Bytes();
  }

  DevicePromises promises_;
  std::deque<LeaseTerms> terms_;  // As a LeaseBook has them.
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Sessions> sessions_;
  const std::unique_ptr<TierStore> device_ = MakeArenaTierStore(64 * kMiB);
};

TEST_F(DevicePromisesTest, WhatLeasesWereGrantedIsPromisedUntilItHasPages) {
  EXPECT_EQ(Promised(), 0);
  AddLease(kMiB);  // Its arena is being made.
  EXPECT_EQ(Promised(), kMiB);
  Lease& made = AddLease(4 * kMiB);
  // It may grow to more than it was granted.
  ASSERT_OK_AND_ASSIGN(made.arena, device_->Make(kMiB, 16));
  EXPECT_EQ(Promised(), 5 * kMiB);
  const std::string bytes(4 * kMiB, 'x');
  ASSERT_EQ(::pwrite(made.arena.extents[0].fd.get(), bytes.data(), bytes.size(), 0), 4 * kMiB);
  EXPECT_EQ(Promised(), kMiB);
  // It has more than it was granted while it gives way.
  terms_.back().granted[Tier::kDevice] = kMiB;
  EXPECT_EQ(Promised(), kMiB);
  device_->Destroy(std::move(made.arena));
}

TEST_F(DevicePromisesTest, NobodyTouchesWhatIsReclaimed) {
  AddLease(kMiB, /*reclaiming=*/true);
  EXPECT_EQ(Promised(), 0);
}

}  // namespace
}  // namespace gemini::server
