// SPDX-License-Identifier: Apache-2.0
#include "client/session/host_pins.h"

#include <algorithm>
#include <array>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "client/copy/timeline_clock.h"
#include "gmock/gmock.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

// A driver that keeps account, and touches what it is given.
class Driver {
 public:
  PinHost functions() {
    return {.pin = [this](std::byte* data, int64_t size_bytes) { return Pin(data, size_bytes); },
            .unpin = [this](std::byte* data) { Unpin(data); }};
  }
  std::vector<std::pair<std::byte*, int64_t>> pinned() const {
    MutexLock lock(mutex_);
    return pinned_;
  }
  int num_calls() const {
    MutexLock lock(mutex_);
    return num_calls_;
  }
  bool is_called() const {
    MutexLock lock(mutex_);
    return is_called_;
  }
  // From then on.
  void RefuseAfter(int calls) {
    MutexLock lock(mutex_);
    refuse_after_ = calls;
  }
  // Until it is set no call returns.
  std::shared_future<void> go_on;

 private:
  absl::Status Pin(std::byte* data, int64_t size_bytes) {
    {
      MutexLock lock(mutex_);
      is_called_ = true;
    }
    if (go_on.valid()) go_on.wait();
    MutexLock lock(mutex_);
    if (num_calls_++ == refuse_after_) return absl::ResourceExhaustedError("no more can be locked");
    data[0] = data[size_bytes - 1] = std::byte{1};
    pinned_.emplace_back(data, size_bytes);
    return absl::OkStatus();
  }
  void Unpin(std::byte* data) {
    MutexLock lock(mutex_);
    data[0] = std::byte{2};  // It is mapped still.
    const auto found = std::ranges::find(pinned_, data, [](const auto& one) { return one.first; });
    ASSERT_NE(found, pinned_.end());
    pinned_.erase(found);
  }

  mutable Mutex mutex_;
  std::vector<std::pair<std::byte*, int64_t>> pinned_ ABSL_GUARDED_BY(mutex_);
  bool is_called_ ABSL_GUARDED_BY(mutex_) = false;  // Perhaps by a call that has not returned.
  int num_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  int refuse_after_ ABSL_GUARDED_BY(mutex_) = -1;
};

TEST(HostPinsTest, SlabsArePinnedInTheirOrderWhileOthersGoOn) {
  std::array<std::byte, 6> memory = {};
  Driver driver;
  std::promise<void> go_on;
  driver.go_on = go_on.get_future().share();
  {
    HostPins pins(driver.functions());
    pins.Add(memory.data(), 1);
    pins.Add(memory.data() + 1, 2);
    pins.Add(memory.data() + 3, 3);
    EXPECT_EQ(pins.pinned_bytes(), 0);
    go_on.set_value();
    while (pins.pinned_bytes() < 6) std::this_thread::yield();
    EXPECT_THAT(driver.pinned(),
                ElementsAre(std::pair(memory.data(), 1), std::pair(memory.data() + 1, 2),
                            std::pair(memory.data() + 3, 3)));
    EXPECT_OK(pins.status());
  }
  EXPECT_THAT(driver.pinned(), IsEmpty());
  EXPECT_EQ(memory[1], std::byte{2});
}

TEST(HostPinsTest, ItsEndWaitsForOneAndLeavesTheOthers) {
  std::array<std::byte, 2> memory = {};
  Driver driver;
  std::promise<void> go_on;
  driver.go_on = go_on.get_future().share();
  auto pins = std::make_unique<HostPins>(driver.functions());
  pins->Add(memory.data(), 1);
  pins->Add(memory.data() + 1, 1);
  while (!driver.is_called()) std::this_thread::yield();
  std::future<void> end = std::async(std::launch::async, [&pins] { pins.reset(); });
  EXPECT_EQ(end.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  go_on.set_value();
  end.get();
  EXPECT_LE(driver.num_calls(), 2);
  EXPECT_THAT(driver.pinned(), IsEmpty());
}

TEST(HostPinsTest, TheFirstRefusalIsTheLastTry) {
  std::array<std::byte, 4> memory = {};
  Driver driver;
  driver.RefuseAfter(1);
  {
    HostPins pins(driver.functions());
    for (std::byte& slab : memory) pins.Add(&slab, 1);
    while (pins.status().ok()) std::this_thread::yield();
    EXPECT_THAT(pins.status(),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no more can be locked")));
    pins.Add(memory.data(), 1);
    EXPECT_EQ(pins.pinned_bytes(), 1);
  }
  EXPECT_EQ(driver.num_calls(), 2);
  EXPECT_THAT(driver.pinned(), IsEmpty());
}

TEST(HostPinsTest, ItsProgressSaysSinceWhenCopiesAreAsFastAsTheyAreGoingToBe) {
  std::array<std::byte, 4> memory = {};
  Driver driver;
  std::promise<void> go_on;
  driver.go_on = go_on.get_future().share();
  driver.RefuseAfter(2);
  std::shared_ptr<const PinProgress> progress;
  {
    HostPins pins(driver.functions());
    progress = pins.progress();
    pins.Add(memory.data(), 1);
    pins.Add(memory.data() + 1, 1);
    const int64_t before_ns = TimelineNowNs();
    EXPECT_EQ(progress->num_rests, 0);
    EXPECT_GT(progress->resting_since_ns, before_ns);
    go_on.set_value();
    while (progress->num_rests == 0) std::this_thread::yield();
    EXPECT_EQ(pins.pinned_bytes(), 2);
    EXPECT_GE(progress->resting_since_ns, before_ns);
    EXPECT_LE(progress->resting_since_ns, TimelineNowNs());
    std::promise<void> refuse;
    driver.go_on = refuse.get_future().share();
    pins.Add(memory.data() + 2, 1);  // Is refused: no more comes.
    pins.Add(memory.data() + 3, 1);
    EXPECT_GT(progress->resting_since_ns, TimelineNowNs());
    refuse.set_value();
    while (progress->num_rests == 1) std::this_thread::yield();
    EXPECT_FALSE(pins.status().ok());
    EXPECT_LE(progress->resting_since_ns, TimelineNowNs());
  }
  EXPECT_EQ(progress->num_rests, 2);
}

using HostPinsSessionTest = SessionFixture;

TEST_F(HostPinsSessionTest, ASessionPinsTheSlabsOfItsSpacesUntilItCloses) {
  Driver driver;
  StartServer(DefaultServer());
  ASSERT_OK_AND_ASSIGN(UniqueFd socket, server_->Connect());
  SessionOptions options;
  options.chunk_bytes = chunk_bytes_;
  options.want_bytes[Tier::kHost] = 20 * chunk_bytes_;
  options.pin_host = driver.functions();
  ASSERT_OK_AND_ASSIGN(session_, Session::Open(std::move(socket), options));
  std::vector<std::pair<std::byte*, int64_t>> expected;
  for (const int64_t slots : {5, 0, 9}) {
    ASSERT_OK_AND_ASSIGN(
        ChunkStore * store,
        session_->OpenSpace(
            {.name = "space" + std::to_string(slots), .num_bundles = 2, .host_slots = slots}));
    const SpaceMemory& memory = store->memory();
    const int64_t slab_slots = memory.shape().slots_per_slab;
    for (int64_t first = 0; first < slots; first += slab_slots) {
      expected.emplace_back(memory.slot_address(SlotId(first)),
                            std::min(slab_slots, slots - first) * chunk_bytes_);
    }
  }
  while (session_->host_pins()->pinned_bytes() < 14 * chunk_bytes_) std::this_thread::yield();
  EXPECT_THAT(driver.pinned(), UnorderedElementsAreArray(expected));
  EXPECT_OK(session_->host_pins()->status());
  ASSERT_OK(session_->Close());
  EXPECT_THAT(driver.pinned(), IsEmpty());
}

}  // namespace
}  // namespace gemini::client
