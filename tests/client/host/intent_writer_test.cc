// SPDX-License-Identifier: Apache-2.0
#include "client/host/intent_writer.h"

#include <cstddef>
#include <optional>
#include <thread>

#include "gtest/gtest.h"

namespace gemini::client {
namespace {

constexpr int64_t kTensors = 40;
constexpr int64_t kBundles = 12;

struct Segment {
  std::atomic<uint64_t> word{0};
  alignas(8) std::byte bytes[2 * IntentSlotBytes(kTensors, kBundles)] = {};
  IntentShm* slots() { return reinterpret_cast<IntentShm*>(bytes); }
};

Intent IntentFor(int64_t step) {
  Intent intent;
  intent.step = step;
  intent.learning_rate = 1.0 / static_cast<double>(step);
  intent.beta1 = 0.9;
  intent.gradient_scale = 1.0 / static_cast<double>(step);
  intent.skip = step % 5 == 0;
  intent.rounding_seed = static_cast<uint64_t>(step) << 40;
  for (int64_t i = 0; i < kTensors; ++i) {
    intent.tensors.push_back({(i + step) % 3 == 0, i % 2 == 0, step * 100 + i});
  }
  // Others at each step: what the step before put into the slot is not left behind.
  for (int64_t i = 0; i < kBundles; ++i) {
    if ((i + step) % 4 != 0) intent.on_device.push_back({BundleId(i), (step + i) % 80});
  }
  return intent;
}

TEST(IntentWriterTest, TheLatestIsReadAndTheOneBeforeIsLeftAlone) {
  Segment segment;
  IntentWriter writer(&segment.word, segment.slots(), kTensors, kBundles);
  // Steps of one parity, as after a jump: the slots alternate all the same.
  for (const int64_t step : {1, 3, 4, 8, 10}) {
    const uint64_t before = segment.word;
    writer.Record(IntentFor(step));
    EXPECT_EQ(TryReadIntent(segment.word, segment.slots(), kTensors, kBundles), IntentFor(step));
    if (before == 0) continue;
    const std::atomic<uint64_t> old_word{before};
    EXPECT_EQ(TryReadIntent(old_word, segment.slots(), kTensors, kBundles)->step,
              static_cast<int64_t>(before >> 1));
  }
}

// Property: whenever a reader looks, what it gets is one whole intent.
TEST(IntentWriterTest, AReaderAtAnyMomentFindsOneWholeIntent) {
  Segment segment;
  IntentWriter writer(&segment.word, segment.slots(), kTensors, kBundles);
  writer.Record(IntentFor(1));
  std::atomic<int64_t> reads{0};
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      if (const std::optional<Intent> seen =
              TryReadIntent(segment.word, segment.slots(), kTensors, kBundles)) {
        EXPECT_EQ(*seen, IntentFor(seen->step));
        ++reads;
      }
    }
  });
  for (int64_t step = 2; reads < 2'000; ++step) writer.Record(IntentFor(step));
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace gemini::client
