// SPDX-License-Identifier: Apache-2.0
// What every CopyEngine must do; an implementation joins with one INSTANTIATE_TEST_SUITE_P.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <memory_resource>
#include <random>
#include <thread>
#include <vector>

#include "client/copy/copy_engine.h"
#include "gtest/gtest.h"

namespace gemini::client {

struct CopyEngineCase {
  std::function<std::unique_ptr<CopyEngine>()> make;
  // What it copies from and to, which the test itself reads and writes.
  std::pmr::memory_resource* memory = std::pmr::new_delete_resource();
  // Waits for the calling thread's operators: behind it they have seen what CopyWithin did.
  std::function<void()> finish_operators = [] {};
};

class CopyEngineConformance : public ::testing::TestWithParam<CopyEngineCase> {
 protected:
  using Bytes = std::pmr::vector<std::byte>;
  static Bytes Filled(size_t size, int value) {
    return Bytes(size, static_cast<std::byte>(value), GetParam().memory);
  }
  static std::vector<Bytes> Several(int count, size_t size, int value) {
    std::vector<Bytes> all;
    for (int i = 0; i < count; ++i) all.push_back(Filled(size, value));
    return all;
  }
  std::unique_ptr<CopyEngine> engine_ = GetParam().make();
};

TEST_P(CopyEngineConformance, ADefaultEventIsDoneFromTheBeginning) {
  EXPECT_TRUE(engine_->Done(CopyEvent{}));
  engine_->Wait(CopyEvent{});
}

TEST_P(CopyEngineConformance, BytesArriveWhenTheEventIsDone) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{5 << 20}}) {
    const Bytes source = Filled(size, 7);
    Bytes destination = Filled(size, 0);
    const CopyEvent event =
        engine_->Copy(CopyStream::kFetch, destination.data(), source.data(), size, {});
    engine_->Wait(event);
    EXPECT_TRUE(engine_->Done(event));
    EXPECT_EQ(destination, source);
  }
}

// Whatever the streams are busy with.
TEST_P(CopyEngineConformance, WithinDeviceBytesAreThereAtOnce) {
  const Bytes slow = Filled(size_t{32} << 20, 1);
  Bytes elsewhere = Filled(slow.size(), 0);
  const CopyEvent event = engine_->Copy(CopyStream::kEvict, elsewhere.data(), slow.data(),
                                        static_cast<int64_t>(slow.size()), {});
  for (const size_t size : {size_t{0}, size_t{1}, size_t{5 << 20}}) {
    const Bytes source = Filled(size, 7);
    Bytes destination = Filled(size, 0);
    engine_->CopyWithin(destination.data(), source.data(), static_cast<int64_t>(size));
    GetParam().finish_operators();
    EXPECT_EQ(destination, source);
  }
  engine_->Wait(event);
}

TEST_P(CopyEngineConformance, AStreamKeepsItsOrder) {
  // Each copy reads what the one before wrote, large and small ones mixed.
  constexpr int kStages = 40;
  const size_t size = 256 * 1024;
  std::vector<Bytes> stages = Several(kStages, size, 0);
  std::fill(stages[0].begin(), stages[0].end(), std::byte{9});
  CopyEvent last;
  for (int i = 1; i < kStages; ++i) {
    if (i % 3 == 0) {  // As a small copy and a large one.
      last = engine_->Copy(CopyStream::kEvict, stages[i].data(), stages[i - 1].data(), 100, {});
      last = engine_->Copy(CopyStream::kEvict, stages[i].data() + 100, stages[i - 1].data() + 100,
                           size - 100, {});
    } else {
      last = engine_->Copy(CopyStream::kEvict, stages[i].data(), stages[i - 1].data(), size, {});
    }
  }
  engine_->Wait(last);
  EXPECT_EQ(stages[kStages - 1], stages[0]);
}

TEST_P(CopyEngineConformance, AStreamWaitsForAnEventOfTheOther) {
  // A slot's turn-over: its old bytes leave on one stream, new ones come in on the other. Without
  // the event the eviction would copy bytes of the next round.
  constexpr int kRounds = 200;
  const size_t size = 512 * 1024;
  Bytes slot = Filled(size, 0);
  std::vector<Bytes> incoming, outgoing;
  for (int i = 0; i < kRounds / 10; ++i) {
    incoming.push_back(Filled(size, i + 1));
    outgoing.push_back(Filled(size, 0));
  }
  CopyEvent fetched, evicted;
  for (int round = 0; round < kRounds; ++round) {
    const size_t i = static_cast<size_t>(round) % incoming.size();
    fetched = engine_->Copy(CopyStream::kFetch, slot.data(), incoming[i].data(), size, evicted);
    evicted = engine_->Copy(CopyStream::kEvict, outgoing[i].data(), slot.data(), size, fetched);
  }
  engine_->Wait(evicted);
  EXPECT_TRUE(engine_->Done(fetched));
  for (size_t i = 0; i < incoming.size(); ++i) EXPECT_EQ(outgoing[i], incoming[i]) << i;
}

TEST_P(CopyEngineConformance, NoSourceStandsForZeros) {
  for (const size_t size : {size_t{1}, size_t{5 << 20}}) {
    Bytes bytes = Filled(size, 7);
    engine_->Wait(engine_->Copy(CopyStream::kFetch, bytes.data(), nullptr, size, {}));
    EXPECT_EQ(bytes, Filled(size, 0));
  }
}

// What is copied within DEVICE is what an operator does.
TEST_P(CopyEngineConformance, OperatorsComeAfterWhatTheyWaitForAndCopiesAfterThem) {
  constexpr int kRounds = 100;
  const size_t size = 1 << 20;
  Bytes slot = Filled(size, 0);
  Bytes result = Filled(size, 0);
  std::vector<Bytes> incoming, outgoing;
  for (int i = 0; i < kRounds; ++i) {
    incoming.push_back(Filled(size, i + 1));
    outgoing.push_back(Filled(size, 0));
  }
  CopyEvent slot_used, result_left;
  for (int i = 0; i < kRounds; ++i) {
    CopyEvent ready =
        engine_->Copy(CopyStream::kFetch, slot.data(), incoming[i].data(), size, slot_used);
    ready.Join(result_left);
    engine_->MakeOperatorsWait(ready);
    engine_->CopyWithin(result.data(), slot.data(), size);
    slot_used = engine_->AfterOperators();
    result_left =
        engine_->Copy(CopyStream::kEvict, outgoing[i].data(), result.data(), size, slot_used);
  }
  engine_->Wait(result_left);
  EXPECT_TRUE(engine_->Done(slot_used));
  for (int i = 0; i < kRounds; ++i) EXPECT_EQ(outgoing[i], incoming[i]) << i;
}

TEST_P(CopyEngineConformance, AnEventOfBothStreamsIsBehindBoth) {
  const Bytes source = Filled(8 << 20, 5);
  for (const int64_t fetch_bytes : {int64_t{1}, int64_t{8 << 20}, int64_t{1}, int64_t{8 << 20}}) {
    Bytes fetched = Filled(8 << 20, 0), evicted = Filled(8 << 20, 0);
    CopyEvent both =
        engine_->Copy(CopyStream::kFetch, fetched.data(), source.data(), fetch_bytes, {});
    const int64_t evict_bytes = (8 << 20) + 1 - fetch_bytes;
    both.Join(engine_->Copy(CopyStream::kEvict, evicted.data(), source.data(), evict_bytes, {}));
    engine_->Wait(both);
    EXPECT_TRUE(engine_->Done(both));
    EXPECT_EQ(fetched[fetch_bytes - 1], source[0]);
    EXPECT_EQ(evicted[evict_bytes - 1], source[0]);
  }
  EXPECT_TRUE(engine_->status().ok());
}

TEST_P(CopyEngineConformance, ThreadsMayEnqueueAndWaitAtOnce) {
  constexpr int kThreads = 4;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 200; ++i) {
        const size_t size = random() % (200 * 1024);
        const Bytes source = Filled(size, t + 1);
        Bytes destination = Filled(size, 0);
        const auto stream = static_cast<CopyStream>(random() % 2);
        engine_->Wait(engine_->Copy(stream, destination.data(), source.data(), size, {}));
        if (destination != source) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(CopyEngineConformance, DestructionFinishesWhatIsEnqueued) {
  const size_t size = 2 << 20;
  const Bytes source = Filled(size, 3);
  std::vector<Bytes> destinations = Several(8, size, 0);
  for (Bytes& destination : destinations) {
    engine_->Copy(CopyStream::kFetch, destination.data(), source.data(), size, {});
  }
  engine_.reset();
  for (const Bytes& destination : destinations) EXPECT_EQ(destination, source);
}

}  // namespace gemini::client
