// SPDX-License-Identifier: Apache-2.0
// Versions that are made on DEVICE: what is valid at every moment, and that nobody gets older
// bytes.
#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "client/host/chunk_store.h"
#include "gemini/plan/spare_slots.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

using ::testing::HasSubstr;

constexpr ChunkKind kParam = ChunkKind::kParam;
constexpr ChunkKind kExpAvg = ChunkKind::kExpAvg;
constexpr ChunkKind kExpAvgSq = ChunkKind::kExpAvgSq;
constexpr ChunkKind kGrad = ChunkKind::kGrad;
constexpr std::array kUpdated = {kParam, kExpAvg, kExpAvgSq};
constexpr int64_t kDeviceSlots = 24;

ChunkId Chunk(int64_t bundle, ChunkKind kind) { return ChunkOf(BundleId(bundle), kind); }

Intent IntentFor(int64_t step) {
  Intent intent;
  intent.step = step;
  return intent;
}

// In the three slots from 3 * place on.
DeviceVersion VersionAt(int64_t bundle, int64_t place) {
  DeviceVersion version = {.bundle = BundleId(bundle), .slots = {}};
  int64_t slot = 3 * place;
  for (const ChunkKind kind : UpdatedKinds(StateFormat())) version.slots[kind] = SlotId(slot++);
  return version;
}

// What a reader without trust finds in a segment, or in a copy of one.
class SegmentReader {
 public:
  SegmentReader(const std::byte* segment, int64_t num_bundles)
      : segment_(segment), layout_(num_bundles), num_bundles_(num_bundles) {}

  std::optional<Intent> ReadIntent() const {
    return TryReadIntent(header().intent,
                         reinterpret_cast<const IntentShm*>(segment_ + layout_.intent_offset),
                         /*num_tensors=*/0, num_bundles_);
  }
  uint64_t intent_word() const { return header().intent.load(std::memory_order_acquire); }
  uint64_t commit_word(int64_t bundle) const {
    return Words(layout_.commit_offset)[bundle].load(std::memory_order_acquire);
  }
  CommitRecord ReadRecord(int64_t index) const {
    CommitRecord record;
    for (int kind = 0; kind < kNumChunkKinds; ++kind) {
      record[kind] = Words(layout_.record_offset)[index * kNumChunkKinds + kind].load(
          std::memory_order_acquire);
    }
    return record;
  }
  CommitWord Valid(int64_t bundle, const std::optional<Intent>& intent) const {
    return ValidVersion(*UnpackCommitWord(commit_word(bundle), layout_.num_records), intent,
                        BundleId(bundle));
  }
  ChunkSlot ValidPlace(int64_t bundle, ChunkKind kind) const {
    const CommitRecord record = ReadRecord(Valid(bundle, ReadIntent()).record);
    return *UnpackChunkSlot(record[static_cast<int>(kind)], {{kDeviceSlots, 100, 100}});
  }

 private:
  const ClientSegmentHeaderShm& header() const {
    return *reinterpret_cast<const ClientSegmentHeaderShm*>(segment_);
  }
  const std::atomic<uint64_t>* Words(int64_t offset) const {
    return reinterpret_cast<const std::atomic<uint64_t>*>(segment_ + offset);
  }

  const std::byte* const segment_;
  const ClientSegmentLayout layout_;
  const int64_t num_bundles_;
};

class ChunkStoreDeviceTest : public SessionFixture {
 protected:
  // A space whose bundles are committed at 0: param with tag 100 + bundle, moments 200 and 300 +;
  // their gradients are 400 +.
  void Open(int64_t num_bundles, int64_t host_slots, int64_t nvme_slots) {
    OpenSession(kDeviceSlots, host_slots, nvme_slots);
    if (HasFatalFailure()) return;
    store_ = OpenSpace("store", num_bundles, host_slots, nvme_slots);
    ASSERT_NE(store_, nullptr);
    for (int64_t i = 0; i < num_bundles; ++i) {
      for (size_t k = 0; k < kUpdated.size(); ++k) {
        ASSERT_OK(CommitTag(*store_, BundleId(i), kUpdated[k], 0, 100 * (k + 1) + i));
      }
      ASSERT_OK_AND_ASSIGN(const HostChunk grad, store_->AcquireToOverwrite(Chunk(i, kGrad)));
      FillChunk(grad.data(), 400 + i);
    }
  }
  // As an updater does it, in HOST.
  absl::Status UpdateInHost(int64_t bundle, int64_t step, uint64_t tag) {
    std::vector<std::pair<ChunkKind, HostChunk>> fresh;
    for (const ChunkKind kind : kUpdated) {
      auto old = store_->AcquireForUpdate(Chunk(bundle, kind));
      if (!old.ok()) return old.status();
      auto spare = store_->AcquireSpareForUpdate();
      if (!spare.ok()) return spare.status();
      FillChunk(spare->data(), tag);
      fresh.emplace_back(kind, *std::move(spare));
    }
    return store_->Commit(BundleId(bundle), step, absl::MakeSpan(fresh));
  }
  absl::Status WriteBack(int64_t bundle, ChunkKind kind, uint64_t tag) {
    auto spare = store_->AcquireSpare();
    if (!spare.ok()) return spare.status();
    FillChunk(spare->data(), tag);
    return store_->Replace(Chunk(bundle, kind), *std::move(spare));
  }
  void ExpectTag(int64_t bundle, ChunkKind kind, uint64_t tag) {
    ASSERT_OK_AND_ASSIGN(const HostChunk host, store_->Acquire(Chunk(bundle, kind)));
    EXPECT_TRUE(ChunkHolds(host.data(), tag)) << bundle << " " << ChunkKindName(kind);
  }
  // All is as Open left it.
  void ExpectUnchanged() {
    const SegmentReader segment(Segment(), store_->num_bundles());
    EXPECT_EQ(segment.intent_word(), 0);
    for (int64_t i = 0; i < store_->num_bundles(); ++i) {
      EXPECT_EQ(store_->CommittedStep(BundleId(i)), 0);
      EXPECT_FALSE(store_->AwaitsCommit(Chunk(i, kParam)));
      for (size_t k = 0; k < kUpdated.size(); ++k) ExpectTag(i, kUpdated[k], 100 * (k + 1) + i);
    }
  }
  const std::byte* Segment() const {
    return reinterpret_cast<const std::byte*>(store_->memory().header());
  }

  ChunkStore* store_ = nullptr;
};

TEST_F(ChunkStoreDeviceTest, AVersionMadeOnDeviceIsCommittedWithTheIntentAndTheOthersAwaitTheirs) {
  Open(3, 32, 0);
  if (HasFatalFailure()) return;
  const int64_t host_bytes = store_->stored_bytes().host_bytes;
  ASSERT_OK(store_->updates().Begin(IntentFor(1), {BundleId(1), BundleId(0)}, {VersionAt(2, 4)}));
  EXPECT_EQ(store_->CommittedStep(BundleId(2)), 1);
  EXPECT_OK(store_->updates().AwaitCommit(BundleId(2)));
  EXPECT_FALSE(store_->AwaitsCommit(Chunk(2, kParam)));
  EXPECT_TRUE(store_->AwaitsCommit(Chunk(1, kParam)));
  EXPECT_EQ(store_->stored_bytes().host_bytes, host_bytes - 3 * kTestChunkBytes);
  for (size_t k = 0; k < kUpdated.size(); ++k) {
    const ChunkId chunk = Chunk(2, kUpdated[k]);
    EXPECT_TRUE(store_->HasPayload(chunk));
    EXPECT_TRUE(store_->IsCommitted(chunk));
    EXPECT_EQ(store_->CommittedPlace(chunk),
              (ChunkSlot{Tier::kDevice, SlotId(12 + static_cast<int64_t>(k))}));
  }
  ExpectTag(2, kGrad, 402);
  EXPECT_EQ(store_->updates().Take(), BundleId(1));
  EXPECT_EQ(store_->updates().Take(), BundleId(0));
  EXPECT_EQ(store_->updates().Take(), std::nullopt);
  for (int64_t i = 0; i < 2; ++i) ASSERT_OK(UpdateInHost(i, 1, 70 + i));
  ASSERT_OK(store_->updates().AwaitCommits());
  ExpectTag(1, kParam, 71);
  const std::vector<SeenChunk> seen = Look("store");
  for (const SeenChunk& chunk : seen) EXPECT_FALSE(chunk.invalid);
  EXPECT_EQ(seen[Chunk(2, kParam).value()].commit_step, 1);
}

TEST_F(ChunkStoreDeviceTest, NobodyGetsOlderBytesOfAChunkThatIsOnDeviceAlone) {
  Open(2, 32, 8);
  if (HasFatalFailure()) return;
  ASSERT_OK(store_->updates().Begin(IntentFor(1), {}, {VersionAt(0, 0)}));
  for (const ChunkKind kind : kUpdated) {
    const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("DEVICE"));
    EXPECT_THAT(store_->Acquire(Chunk(0, kind)), refused);
    EXPECT_THAT(store_->AcquireForUpdate(Chunk(0, kind)), refused);
    const auto committed = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("committed"));
    EXPECT_THAT(store_->AcquireUncommitted(Chunk(0, kind)), committed);
    EXPECT_THAT(store_->AcquireToOverwrite(Chunk(0, kind)), committed);
  }
  ExpectTag(1, kParam, 101);
  // As pending it could not be updated either, and whoever waits for it is told.
  ASSERT_OK(store_->updates().Begin(IntentFor(2), {BundleId(0)}));
  EXPECT_THAT(UpdateInHost(0, 2, 9), StatusIs(absl::StatusCode::kFailedPrecondition));
  // Without a gradient it keeps its places.
  ASSERT_OK(store_->Commit(BundleId(0), 2, {}));
  EXPECT_EQ(store_->CommittedPlace(Chunk(0, kExpAvg)), (ChunkSlot{Tier::kDevice, SlotId(1)}));
}

TEST_F(ChunkStoreDeviceTest, ReplaceBringsItBackKindByKindAndItIsUpdatedThereAgain) {
  Open(2, 32, 0);
  if (HasFatalFailure()) return;
  const int64_t host_bytes = store_->stored_bytes().host_bytes;
  for (int64_t step = 1; step <= 5; ++step) {
    const int64_t place = step % 3;
    ASSERT_OK(store_->updates().Begin(IntentFor(step), {}, {VersionAt(0, place)}));
    for (size_t k = 0; k < kUpdated.size(); ++k) {
      // One that was not written back is the only copy of its version.
      EXPECT_THAT(store_->updates().Begin(IntentFor(step + 1), {}, {VersionAt(0, place)}),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("written back")));
      ASSERT_OK(WriteBack(0, kUpdated[k], 1'000 * step + k));
      ExpectTag(0, kUpdated[k], 1'000 * step + k);
      EXPECT_EQ(store_->CommittedPlace(Chunk(0, kUpdated[k]))->tier, Tier::kHost);
      EXPECT_EQ(store_->CommittedStep(BundleId(0)), step);
      if (k + 1 == kUpdated.size()) break;
      EXPECT_EQ(store_->CommittedPlace(Chunk(0, kExpAvgSq)),
                (ChunkSlot{Tier::kDevice, SlotId(3 * place + 2)}));
    }
    EXPECT_EQ(store_->stored_bytes().host_bytes, host_bytes);
  }
  // In HOST from now on.
  ASSERT_OK(store_->updates().Begin(IntentFor(6), {BundleId(0)}));
  ASSERT_OK(UpdateInHost(0, 6, 55));
  ExpectTag(0, kExpAvg, 55);
}

TEST_F(ChunkStoreDeviceTest, ACommitBringsItBackToo) {
  Open(1, 32, 0);
  if (HasFatalFailure()) return;
  ASSERT_OK(store_->updates().Begin(IntentFor(1), {}, {VersionAt(0, 0)}));
  ASSERT_OK(CommitTag(*store_, BundleId(0), kParam, 1, 77));
  ExpectTag(0, kParam, 77);
  EXPECT_EQ(store_->CommittedPlace(Chunk(0, kExpAvg))->tier, Tier::kDevice);
}

TEST_F(ChunkStoreDeviceTest, MomentsThatWereNeverWrittenMayBeMadeOnDevice) {
  OpenSession(kDeviceSlots, 16, 0);
  if (HasFatalFailure()) return;
  store_ = OpenSpace("store", 1, 16, 0);
  ASSERT_NE(store_, nullptr);
  ASSERT_OK(CommitTag(*store_, BundleId(0), kParam, 0, 1));
  ASSERT_OK(store_->updates().Begin(IntentFor(1), {}, {VersionAt(0, 0)}));
  EXPECT_TRUE(store_->IsCommitted(Chunk(0, kExpAvg)));
  EXPECT_EQ(store_->stored_bytes().host_bytes, 0);
  ASSERT_OK(WriteBack(0, kExpAvg, 5));
  ExpectTag(0, kExpAvg, 5);
}

TEST_F(ChunkStoreDeviceTest, WhatIsRefusedLeavesEverythingAsItWas) {
  Open(3, 32, 0);
  if (HasFatalFailure()) return;
  const auto begin = [&](std::vector<BundleId> bundles, std::vector<DeviceVersion> on_device) {
    return store_->updates().Begin(IntentFor(1), bundles, on_device);
  };
  const auto invalid = [](const char* why) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why));
  };
  EXPECT_THAT(begin({BundleId(0)}, {VersionAt(1, 0), VersionAt(3, 1)}), invalid("no chunk"));
  EXPECT_THAT(begin({BundleId(0)}, {VersionAt(1, 0), VersionAt(0, 1)}), invalid("bundle 0"));
  EXPECT_THAT(begin({BundleId(0)}, {VersionAt(1, 0), VersionAt(1, 1)}), invalid("bundle 1"));
  EXPECT_THAT(begin({}, {VersionAt(1, 0), VersionAt(2, kDeviceSlots / 3)}), invalid("24 of 24"));
  EXPECT_THAT(begin({}, {VersionAt(1, 0), VersionAt(2, -1)}), invalid("slot -3"));
  EXPECT_THAT(store_->updates().Begin(IntentFor(0), {}, {VersionAt(1, 0)}), invalid("step 0"));
  for (const ChunkKind kind : kUpdated) {
    ASSERT_OK_AND_ASSIGN(const HostChunk held, store_->Acquire(Chunk(2, kind)));
    EXPECT_THAT(begin({BundleId(0)}, {VersionAt(1, 0), VersionAt(2, 1)}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("held in HOST")));
  }
  {
    ASSERT_OK_AND_ASSIGN(const HostChunk grad, store_->AcquireUncommitted(Chunk(0, kGrad)));
    EXPECT_THAT(begin({BundleId(0)}, {VersionAt(1, 0)}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("gradient")));
  }
  ExpectUnchanged();
  if (HasFailure()) return;
  ASSERT_OK(begin({BundleId(0)}, {VersionAt(1, 0), VersionAt(2, 1)}));
  EXPECT_THAT(store_->updates().Begin(IntentFor(2), {}, {VersionAt(2, 1)}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("1 bundles")));
  ASSERT_OK(UpdateInHost(0, 1, 8));
  // At its step already.
  for (const ChunkKind kind : kUpdated) ASSERT_OK(WriteBack(1, kind, 9));
  EXPECT_THAT(begin({}, {VersionAt(1, 0)}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("at step 1")));
}

TEST_F(ChunkStoreDeviceTest, OnlyPendingBundlesNeedTheUpdatersSlots) {
  Open(1, UpdateSlots({}) + 1, 8);
  if (HasFatalFailure()) return;
  std::vector<HostChunk> held;
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(HostChunk spare, store_->AcquireSpare());
    held.push_back(std::move(spare));
  }
  EXPECT_THAT(store_->updates().Begin(IntentFor(1), {BundleId(0)}),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_OK(store_->updates().Begin(IntentFor(1), {}, {VersionAt(0, 0)}));
}

TEST_F(ChunkStoreDeviceTest, CopiesOnNvmeAreGivenUpAndRoomIsFoundAroundWhatIsOnDevice) {
  Open(4, 10, 8);
  if (HasFatalFailure()) return;
  ASSERT_GT(store_->stored_bytes().nvme_bytes, 0);
  for (int64_t step = 1; step <= 8; ++step) {
    std::vector<DeviceVersion> on_device;
    for (int64_t i = 0; i < 4; ++i) on_device.push_back(VersionAt(i, (i + step) % 8));
    ASSERT_OK(store_->updates().Begin(IntentFor(step), {}, on_device));
    // The four gradients are left.
    ASSERT_EQ(store_->stored_bytes().host_bytes + store_->stored_bytes().nvme_bytes,
              4 * kTestChunkBytes);
    for (int64_t i = 0; i < 4; ++i) ExpectTag(i, kGrad, 400 + i);
    for (size_t k = 0; k < kUpdated.size(); ++k) {
      for (int64_t i = 0; i < 4; ++i) ASSERT_OK(WriteBack(i, kUpdated[k], 100 * step + 10 * k + i));
    }
    for (size_t k = 0; k < kUpdated.size(); ++k) {
      for (int64_t i = 0; i < 4; ++i) ExpectTag(i, kUpdated[k], 100 * step + 10 * k + i);
    }
  }
}

// A client that dies is read at each of the moments of a step: the words are written here by the
// same writers, one call after the other.
TEST(CommitOnDeviceTest, WhateverTheMomentOfDeathOneWholeVersionIsValid) {
  constexpr int64_t kBundles = 3;
  const ClientSegmentLayout layout(kBundles);
  std::vector<uint64_t> memory(layout.size_bytes / 8);
  auto* const bytes = reinterpret_cast<std::byte*>(memory.data());
  CommitWriter commits(reinterpret_cast<std::atomic<uint64_t>*>(bytes + layout.commit_offset),
                       reinterpret_cast<CommitRecordShm*>(bytes + layout.record_offset), kBundles,
                       layout.num_records);
  IntentWriter intents(&reinterpret_cast<ClientSegmentHeaderShm*>(bytes)->intent,
                       reinterpret_cast<IntentShm*>(bytes + layout.intent_offset),
                       /*num_tensors=*/0, kBundles);
  const SegmentReader dead(bytes, kBundles);
  const auto in = [](Tier tier, int64_t slot) {
    CommitRecord record = {};
    for (const ChunkKind kind : kUpdated) {
      record[static_cast<int>(kind)] =
          PackChunkSlot({tier, SlotId(slot + static_cast<int64_t>(kind))});
    }
    return record;
  };
  const auto place = [&dead](int64_t bundle) { return dead.ValidPlace(bundle, kParam); };
  for (int64_t i = 0; i < kBundles; ++i) commits.Commit(BundleId(i), 0, in(Tier::kHost, 10 * i));

  // Bundles 0 and 2 are being updated on DEVICE, then are; their records are complete.
  const CommitRecord first = in(Tier::kDevice, 0);
  const CommitRecord third = in(Tier::kDevice, 8);
  Intent intent = IntentFor(1);
  intent.on_device = {{BundleId(0), commits.Prepare(first)}, {BundleId(2), commits.Prepare(third)}};
  for (int64_t i = 0; i < kBundles; ++i) {
    EXPECT_EQ(dead.Valid(i, dead.ReadIntent()).step, 0);
    EXPECT_EQ(place(i), (ChunkSlot{Tier::kHost, SlotId(10 * i)}));
  }

  // The intent word: all of step 1 at once, bundle 1 from its gradient.
  intents.Record(intent);
  const auto expect_step_1 = [&] {
    EXPECT_EQ(dead.Valid(0, dead.ReadIntent()).step, 1);
    EXPECT_EQ(place(0), (ChunkSlot{Tier::kDevice, SlotId(0)}));
    EXPECT_EQ(dead.Valid(1, dead.ReadIntent()).step, 0);
    EXPECT_EQ(place(1), (ChunkSlot{Tier::kHost, SlotId(10)}));
    EXPECT_EQ(dead.Valid(2, dead.ReadIntent()).step, 1);
    EXPECT_EQ(place(2), (ChunkSlot{Tier::kDevice, SlotId(8)}));
  };
  expect_step_1();

  // Commit word by commit word.
  commits.CommitPrepared(BundleId(0), 1, intent.on_device[0].record, first);
  expect_step_1();
  commits.CommitPrepared(BundleId(2), 1, intent.on_device[1].record, third);
  expect_step_1();

  // A write-back: the commit word's record counts, whatever has become of the intent's.
  commits.Commit(BundleId(0), 1, in(Tier::kHost, 40));
  for (int64_t i = 0; i < 2 * layout.num_records; ++i) {
    commits.Commit(BundleId(2), 1, in(Tier::kHost, 50));
  }
  EXPECT_EQ(dead.Valid(0, dead.ReadIntent()).step, 1);
  EXPECT_EQ(place(0), (ChunkSlot{Tier::kHost, SlotId(40)}));
  EXPECT_EQ(place(2), (ChunkSlot{Tier::kHost, SlotId(50)}));
}

// Property: whenever a reader looks, what is valid is a whole version of the intent's step, or of
// the one before where the update in HOST is still to be done.
TEST_F(ChunkStoreDeviceTest, AtAnyMomentTheSegmentNamesOneWholeVersion) {
  Open(3, 32, 0);
  if (HasFatalFailure()) return;
  const SegmentReader reader(Segment(), 3);
  ASSERT_OK(
      store_->updates().Begin(IntentFor(1), {BundleId(2)}, {VersionAt(0, 1), VersionAt(1, 5)}));
  std::atomic<bool> stop{false};
  std::atomic<int64_t> ahead_of_word{0};
  std::atomic<int64_t> looks{0};
  std::thread observer([&] {
    while (!stop) {
      const std::optional<Intent> intent = reader.ReadIntent();
      const uint64_t intent_word = reader.intent_word();
      if (!intent || intent_word >> 1 != static_cast<uint64_t>(intent->step)) continue;
      for (int64_t i = 0; i < 3; ++i) {
        const uint64_t word = reader.commit_word(i);
        const CommitWord committed = *UnpackCommitWord(word, NumCommitRecords(3));
        const CommitWord valid = ValidVersion(committed, intent, BundleId(i));
        const CommitRecord record = reader.ReadRecord(valid.record);
        if (reader.intent_word() != intent_word || reader.commit_word(i) != word) continue;
        ++looks;
        if (committed.step < valid.step) ++ahead_of_word;
        ASSERT_LE(valid.step, intent->step);
        ASSERT_GE(valid.step, intent->step - (i == 2 ? 1 : 0));
        for (size_t k = 0; k < kUpdated.size(); ++k) {
          const auto place =
              UnpackChunkSlot(record[static_cast<int>(kUpdated[k])], {{kDeviceSlots, 32, 0}});
          ASSERT_OK(place);
          if (place->tier != Tier::kDevice) continue;
          // Of this step and no other.
          ASSERT_EQ(place->slot.value(), 3 * (4 * i + valid.step % 4) + static_cast<int64_t>(k));
        }
      }
    }
  });
  for (int64_t step = 1; step < 20'000 && (step < 2'000 || ahead_of_word < 10); ++step) {
    ASSERT_OK(UpdateInHost(2, step, step));
    for (int64_t i = 0; i < 2; ++i) {
      for (const ChunkKind kind : kUpdated) ASSERT_OK(WriteBack(i, kind, step));
    }
    const int64_t place = (step + 1) % 4;
    ASSERT_OK(store_->updates().Begin(IntentFor(step + 1), {BundleId(2)},
                                      {VersionAt(0, place), VersionAt(1, 4 + place)}));
  }
  stop = true;
  observer.join();
  EXPECT_GT(looks, 0);
}

// Property: however I/O, readers and updates of both kinds meet, nobody gets a mix of two versions.
TEST_F(ChunkStoreDeviceTest, ReadersAndSpillsAmongUpdatesOfBothKinds) {
  constexpr int64_t kBundles = 4;
  constexpr int64_t kSteps = 200;
  Open(kBundles, UpdateSlots({}) + 5, 30);
  if (HasFatalFailure()) return;
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int64_t t = 0; t < 2; ++t) {
    readers.emplace_back([&, t] {
      for (int64_t i = t; !stop; i = (i + 1) % kBundles) {
        const auto host = store_->Acquire(Chunk(i, kParam));
        if (absl::IsFailedPrecondition(host.status())) continue;  // On DEVICE now.
        ASSERT_OK(host);
        const uint64_t tag = *reinterpret_cast<const uint64_t*>(host->data()) / 1'000'003;
        ASSERT_TRUE(ChunkHolds(host->data(), tag));
      }
    });
  }
  for (int64_t step = 1; step <= kSteps; ++step) {
    std::vector<BundleId> bundles;
    std::vector<DeviceVersion> on_device;
    for (int64_t i = 0; i < kBundles; ++i) {
      if ((i + step) % 2 == 0) {
        bundles.push_back(BundleId(i));
      } else {
        on_device.push_back(VersionAt(i, i));
      }
    }
    absl::Status begun = absl::FailedPreconditionError("not yet");
    while (absl::IsFailedPrecondition(begun)) {  // A reader holds one.
      begun = store_->updates().Begin(IntentFor(step), bundles, on_device);
    }
    ASSERT_OK(begun);
    while (const std::optional<BundleId> bundle = store_->updates().Take()) {
      ASSERT_OK(UpdateInHost(bundle->value(), step, 1'000 * step + bundle->value()));
    }
    for (const DeviceVersion& version : on_device) {
      for (const ChunkKind kind : kUpdated) {
        ASSERT_OK(WriteBack(version.bundle.value(), kind, 1'000 * step + version.bundle.value()));
      }
    }
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  for (int64_t i = 0; i < kBundles; ++i) ExpectTag(i, kParam, 1'000 * kSteps + i);
}

}  // namespace
}  // namespace gemini::client
