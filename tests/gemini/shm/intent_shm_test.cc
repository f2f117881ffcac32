// SPDX-License-Identifier: Apache-2.0
#include "gemini/shm/intent_shm.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace gemini {
namespace {

constexpr int64_t kTensors = 3;
constexpr int64_t kBundles = 2;

// A segment's part with a complete intent for step 7 in slot 1.
struct Segment {
  std::atomic<uint64_t> word{0};
  alignas(8) std::byte bytes[2 * IntentSlotBytes(kTensors, kBundles)] = {};

  IntentShm* slots() { return reinterpret_cast<IntentShm*>(bytes); }
  IntentShm& slot() {
    return *reinterpret_cast<IntentShm*>(bytes + IntentSlotBytes(kTensors, kBundles));
  }
  std::atomic<uint64_t>& tensor(int64_t index) { return words()[2 * index]; }
  std::atomic<uint64_t>& trust_ratio(int64_t index) { return words()[2 * index + 1]; }
  std::atomic<uint64_t>& bundle(int64_t index) { return words()[2 * kTensors + index]; }
  IntentGroupShm& group(int64_t index) {
    return reinterpret_cast<IntentGroupShm*>(words() + 2 * kTensors + kBundles)[index];
  }
  std::atomic<uint64_t>* words() { return reinterpret_cast<std::atomic<uint64_t>*>(&slot() + 1); }

  Segment() {
    slot().step = 7;
    slot().learning_rate = std::bit_cast<uint64_t>(1e-3);
    slot().beta1 = std::bit_cast<uint64_t>(0.9);
    slot().beta2 = std::bit_cast<uint64_t>(0.999);
    slot().epsilon = std::bit_cast<uint64_t>(1e-8);
    slot().weight_decay = std::bit_cast<uint64_t>(0.01);
    slot().gradient_scale = std::bit_cast<uint64_t>(0.5);
    slot().kernel_version = 4;
    slot().num_tensors = kTensors;
    tensor(0) = PackTensorIntent({.has_gradient = true, .decayed = true, .step = 7});
    tensor(1) = PackTensorIntent({.has_gradient = false, .decayed = true, .step = 2});
    tensor(2) = PackTensorIntent({.has_gradient = true, .decayed = false, .step = 5});
    for (int64_t i = 0; i < kTensors; ++i) trust_ratio(i) = std::bit_cast<uint64_t>(0.25);
    slot().optimizer = static_cast<uint64_t>(OptimizerKind::kLars);
    slot().momentum = std::bit_cast<uint64_t>(0.75);
    slot().dampening = std::bit_cast<uint64_t>(0.125);
    bundle(1) = 5 + 1;
    // A second parameter group, of the last tensor.
    slot().num_more_groups = 1;
    tensor(2) = PackTensorIntent({.has_gradient = true, .decayed = false, .step = 5, .group = 1});
    group(0).learning_rate = std::bit_cast<uint64_t>(2e-3);
    group(0).beta1 = std::bit_cast<uint64_t>(0.8);
    group(0).beta2 = std::bit_cast<uint64_t>(0.99);
    group(0).epsilon = std::bit_cast<uint64_t>(1e-6);
    group(0).weight_decay = std::bit_cast<uint64_t>(0.1);
    group(0).momentum = std::bit_cast<uint64_t>(0.5);
    group(0).dampening = std::bit_cast<uint64_t>(0.25);
    group(0).nesterov = 1;
    word = PackIntentWord(7, 1);
  }
  std::optional<Intent> Read() { return TryReadIntent(word, slots(), kTensors, kBundles); }
};

TEST(IntentShmTest, ReadsWhatItsWordNames) {
  Segment segment;
  const Intent expected = {
      .step = 7,
      .learning_rate = 1e-3,
      .beta1 = 0.9,
      .beta2 = 0.999,
      .epsilon = 1e-8,
      .weight_decay = 0.01,
      .gradient_scale = 0.5,
      .optimizer = OptimizerKind::kLars,
      .momentum = 0.75,
      .dampening = 0.125,
      .more_groups = {{2e-3, 0.8, 0.99, 1e-6, 0.1, 0.5, 0.25, true}},
      .kernel_version = 4,
      .skip = false,
      .tensors = {{true, true, 7, 0.25}, {false, true, 2, 0.25}, {true, false, 5, 0.25, 1}},
      .on_device = {{BundleId(1), 5}}};
  EXPECT_EQ(segment.Read(), expected);
}

TEST(IntentShmTest, AFreshSegmentHasNone) {
  Segment segment;
  segment.word = 0;
  EXPECT_EQ(segment.Read(), std::nullopt);
}

TEST(IntentShmTest, WhatNoHonestClientWritesIsNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::function<void(Segment&)>> spoilers = {
      [](Segment& s) { s.word = PackIntentWord(7, 0); },  // An empty slot.
      [](Segment& s) { s.word = PackIntentWord(8, 1); },  // A slot of another step.
      [](Segment& s) { s.slot().step = 8; },
      [](Segment& s) { s.slot().step = 0, s.word = 1; },
      [](Segment& s) { s.slot().step = ~uint64_t{0} >> 1, s.word = ~uint64_t{0}; },
      [](Segment& s) { s.slot().skip = 2; },
      [](Segment& s) { s.slot().num_tensors = kTensors + 1; },
      [](Segment& s) { s.slot().num_tensors = ~uint64_t{0}; },
      [nan](Segment& s) { s.slot().learning_rate = std::bit_cast<uint64_t>(nan); },
      [nan](Segment& s) { s.slot().beta1 = std::bit_cast<uint64_t>(nan); },
      [](Segment& s) { s.slot().beta2 = std::bit_cast<uint64_t>(1.0); },
      [](Segment& s) { s.slot().epsilon = std::bit_cast<uint64_t>(-1.0); },
      [nan](Segment& s) { s.slot().weight_decay = std::bit_cast<uint64_t>(nan); },
      [](Segment& s) { s.slot().gradient_scale = std::bit_cast<uint64_t>(1.5); },
      [nan](Segment& s) { s.slot().gradient_scale = std::bit_cast<uint64_t>(nan); },
      [](Segment& s) { s.slot().optimizer = kNumOptimizerKinds; },
      [](Segment& s) { s.slot().momentum = std::bit_cast<uint64_t>(1.0); },
      [nan](Segment& s) { s.trust_ratio(2) = std::bit_cast<uint64_t>(nan); },
      [](Segment& s) { s.trust_ratio(0) = std::bit_cast<uint64_t>(-1.0); },
      [](Segment& s) { s.bundle(0) = NumCommitRecords(kBundles) + 1; },  // A record past the last.
      [](Segment& s) { s.bundle(1) = ~uint64_t{0}; },
      [nan](Segment& s) { s.slot().dampening = std::bit_cast<uint64_t>(nan); },
      [](Segment& s) { s.slot().nesterov = 2; },
      [](Segment& s) { s.slot().num_more_groups = kMaxParameterGroups; },
      [](Segment& s) { s.slot().num_more_groups = ~uint64_t{0}; },
      [](Segment& s) { s.slot().num_more_groups = 0; },  // Tensor 2 is of the second group.
      [nan](Segment& s) { s.group(0).learning_rate = std::bit_cast<uint64_t>(nan); },
      [](Segment& s) { s.group(0).beta1 = std::bit_cast<uint64_t>(1.0); },
      [](Segment& s) { s.group(0).nesterov = 2; },
  };
  for (size_t i = 0; i < spoilers.size(); ++i) {
    Segment segment;
    spoilers[i](segment);
    EXPECT_EQ(segment.Read(), std::nullopt) << "spoiler " << i;
  }
}

// Property: no bytes of a peer make the reader fail in another way than by giving nothing.
TEST(IntentShmTest, RandomBytesNeverHarm) {
  std::mt19937_64 random(/*seed=*/11);
  Segment segment;
  for (int round = 0; round < 2'000; ++round) {
    for (std::byte& byte : segment.bytes) byte = static_cast<std::byte>(random());
    segment.word = random();
    if (round % 2 == 0) segment.slot().step = segment.word >> 1, segment.slot().num_tensors = 3;
    const std::optional<Intent> intent = segment.Read();
    if (intent) {
      EXPECT_EQ(static_cast<uint64_t>(intent->step), segment.word >> 1);
    }
  }
}

TEST(IntentShmTest, TheLastRecordMayBeNamed) {
  Segment segment;
  segment.bundle(0) = NumCommitRecords(kBundles);
  const std::optional<Intent> intent = segment.Read();
  ASSERT_TRUE(intent.has_value());
  EXPECT_EQ(intent->on_device,
            (std::vector<IntendedRecord>{{BundleId(0), NumCommitRecords(kBundles) - 1},
                                         {BundleId(1), 5}}));
}

TEST(IntentShmTest, TheIntentsRecordIsValidOfBundlesBelowItsStepThatItNames) {
  Segment segment;
  const std::optional<Intent> intent = segment.Read();
  const CommitWord before = {.step = 6, .record = 3};
  const CommitWord at = {.step = 7, .record = 4};
  const CommitWord moved_on = {.step = 8, .record = 4};
  EXPECT_EQ(ValidVersion(before, intent, BundleId(1)), (CommitWord{.step = 7, .record = 5}));
  // Committed since, and perhaps moved: the word knows better.
  EXPECT_EQ(ValidVersion(at, intent, BundleId(1)), at);
  EXPECT_EQ(ValidVersion(moved_on, intent, BundleId(1)), moved_on);
  // Not updated on DEVICE: its update is still to be done.
  EXPECT_EQ(ValidVersion(before, intent, BundleId(0)), before);
  EXPECT_EQ(ValidVersion(before, std::nullopt, BundleId(1)), before);
}

TEST(IntentShmTest, ATensorWordHoldsItsFourParts) {
  for (const TensorIntent& tensor :
       {TensorIntent{}, TensorIntent{true, false, 1}, TensorIntent{false, true, 2},
        TensorIntent{true, true, (int64_t{1} << 56) - 1, 1, kMaxParameterGroups - 1}}) {
    EXPECT_EQ(UnpackTensorIntent(PackTensorIntent(tensor)), tensor);
  }
  EXPECT_EQ(PackTensorIntent({true, false, 5, 1, 3}), 5u << 8 | 3u << 2 | 1u);
}

}  // namespace
}  // namespace gemini
