// SPDX-License-Identifier: Apache-2.0
// What the server reads of memory that a client writes: residency, commits, intents, the I/O ring,
// the timeline.
// Input: words, in the order of WritableWords; missing ones are 0.
// Holds: every chunk is counted once; a listing says what the counts say; an intent that is read
//        comes back equal from its writer; a transfer that is taken lies inside the space; a fenced
//        ring has none in flight.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "client/host/commit_writer.h"
#include "client/host/intent_writer.h"
#include "client/host/residency_writer.h"
#include "gemini/shm/space_shm.h"
#include "gemini/shm/timeline_shm.h"
#include "gemini/system/check.h"
#include "server/spaces/space.h"
#include "server/spaces/space_reader.h"
#include "server/tiers/slot_dealing.h"
#include "tests/fuzz/fuzz_target.h"

namespace gemini::fuzz {
namespace {

constexpr int64_t kBundles = 2;
constexpr int64_t kTensors = 3;
constexpr int64_t kChunkBytes = 4096;
constexpr TierMap<int64_t> kSlots = {{4, 10, 12}};
constexpr ClientSegmentLayout kLayout(kBundles, kTensors);
// Of long tables the beginning: an input of all words would be too long to be changed with luck.
constexpr int64_t kRingWords = 6 * sizeof(IoEntryShm) / 8;
constexpr int64_t kRecordWords = 6 * kNumChunkKinds;
constexpr int64_t kTimelineWords = (64 + 4 * sizeof(TimelineEntryShm)) / 8;
constexpr int64_t kTimelineEvents = 4;

UniqueFd MakeMemfd(int64_t size_bytes) {
  UniqueFd fd(::memfd_create("fuzzed", MFD_CLOEXEC));
  GEMINI_CHECK(fd && ::ftruncate(fd.get(), size_bytes) == 0);
  return fd;
}
MappedMemory MapOf(const UniqueFd& fd, int64_t size_bytes, MappedMemory::Access access) {
  auto map = MappedMemory::Map(fd.get(), size_bytes, access);
  GEMINI_CHECK(map.ok());
  return *std::move(map);
}

// The memory that an honest or hostile client would map.
struct ClientMemory {
  UniqueFd segment_fd = MakeMemfd(kLayout.size_bytes);
  MappedMemory segment = MapOf(segment_fd, kLayout.size_bytes, MappedMemory::Access::kReadWrite);
  UniqueFd timeline_fd = MakeMemfd(sizeof(TimelineShm));
  MappedMemory timeline = MapOf(timeline_fd, sizeof(TimelineShm), MappedMemory::Access::kReadWrite);

  template <typename T>
  T* At(int64_t offset_bytes) const {
    return reinterpret_cast<T*>(segment.data() + offset_bytes);
  }
  TimelineShm& ring() const { return *reinterpret_cast<TimelineShm*>(timeline.data()); }
};

ClientMemory& Memory() {
  static ClientMemory memory;
  return memory;
}

// The words that inputs set, one behind the other.
std::vector<uint64_t*> WritableWords() {
  ClientMemory& memory = Memory();
  std::vector<uint64_t*> words;
  const auto add = [&words](std::byte* base, int64_t offset_bytes, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      words.push_back(reinterpret_cast<uint64_t*>(base + offset_bytes + 8 * i));
    }
  };
  std::byte* segment = memory.segment.data();
  add(segment, 0, sizeof(ClientSegmentHeaderShm) / 8);
  add(segment, kLayout.ring_offset, kRingWords);
  add(segment, kLayout.residency_offset, kLayout.num_chunks + kBundles);  // And commit words.
  add(segment, kLayout.record_offset, kRecordWords);
  add(segment, kLayout.intent_offset, (kLayout.size_bytes - kLayout.intent_offset) / 8);
  add(memory.timeline.data(), 0, kTimelineWords);
  return words;
}

void CheckCounts() {
  const server::SpaceReader reader(Memory().segment.data(), kBundles, kTensors, kSlots);
  const server::SpaceCounts counts = reader.Count();
  int64_t held = 0;
  for (const Tier tier : kAllTiers) {
    GEMINI_CHECK(counts.chunks_hold[tier] >= 0);
    held += counts.chunks_hold[tier];
  }
  GEMINI_CHECK(counts.chunks_free + held + counts.chunks_compute + counts.chunks_invalid ==
               kLayout.num_chunks);
  GEMINI_CHECK(counts.commits.committed + counts.commits.invalid <= kBundles);
  GEMINI_CHECK((counts.commits.min_step < 0) == (counts.commits.committed == 0));
  GEMINI_CHECK(counts.commits.min_step <= counts.commits.max_step);
  for (const int64_t value :
       {counts.step, counts.fetch_bytes, counts.evict_bytes, counts.stall_ns,
        counts.device_used_bytes, counts.device_non_model_bytes, counts.rounds,
        counts.planned_rounds, counts.damaged_chunks, counts.failed_nvme_writes, counts.step_ns,
        counts.step_stall_ns, counts.step_fetch_bytes, counts.step_evict_bytes}) {
    GEMINI_CHECK(value >= 0);
  }
  int64_t invalid = 0, compute = 0;
  const auto chunks = reader.List(0, kLayout.num_chunks + 5);
  GEMINI_CHECK(static_cast<int64_t>(chunks.size()) == kLayout.num_chunks);
  bool bundle_invalid = false;
  for (const server::ListedChunk& chunk : chunks) {
    bundle_invalid |= chunk.invalid;
    compute += chunk.residency.state == ChunkState::kCompute;
    invalid += chunk.invalid && chunk.residency.state == ChunkState::kFree;
    if (chunk.residency.state != ChunkState::kFree) {
      GEMINI_CHECK(chunk.residency.slot.value() < kSlots[chunk.residency.tier]);
    }
  }
  GEMINI_CHECK(compute == counts.chunks_compute && invalid >= counts.chunks_invalid);
  GEMINI_CHECK(bundle_invalid || counts.commits.invalid == 0);
}

void CheckIntent() {
  const auto* header = Memory().At<const ClientSegmentHeaderShm>(0);
  const auto intent = TryReadIntent(
      header->intent, Memory().At<const IntentShm>(kLayout.intent_offset), kTensors, kBundles);
  if (!intent) return;
  GEMINI_CHECK(intent->step > 0 && intent->tensors.size() == kTensors);
  GEMINI_CHECK(intent->gradient_scale >= 0 && intent->gradient_scale <= 1);
  GEMINI_CHECK(intent->momentum >= 0 && intent->momentum < 1);
  for (const IntendedRecord& device : intent->on_device) {
    GEMINI_CHECK(device.record >= 0 && device.record < kLayout.num_records);
  }
  std::vector<uint64_t> room(kNumIntentSlots * IntentSlotBytes(kTensors, kBundles) / 8);
  std::atomic<uint64_t> word{0};
  auto* slots = reinterpret_cast<IntentShm*>(room.data());
  client::IntentWriter(&word, slots, kTensors, kBundles).Record(*intent);
  const auto again = TryReadIntent(word, slots, kTensors, kBundles);
  GEMINI_CHECK(again.has_value() && *again == *intent);
  for (int64_t bundle = 0; bundle < kBundles; ++bundle) {
    const CommitWord valid =
        ValidVersion({.step = intent->step, .record = 1}, intent, BundleId(bundle));
    GEMINI_CHECK(valid.step == intent->step && valid.record == 1);
  }
}

void CheckTimeline() {
  for (uint64_t number = 1; number <= kTimelineEvents; ++number) {
    const auto event = ReadTimelineEvent(Memory().ring(), number);
    if (!event) continue;
    GEMINI_CHECK(static_cast<int>(event->lane) < kNumTimelineLanes);
    GEMINI_CHECK(static_cast<int>(event->cause) < kNumStallCauses);
    GEMINI_CHECK(event->begin_ns >= 0 && event->end_ns >= event->begin_ns);
    GEMINI_CHECK(event->stall_ns >= 0 && event->size_bytes >= 0);
  }
}

server::TierGrant GrantOf(int64_t num_slots) {
  server::TierGrant grant = {.slot_bytes = kChunkBytes, .slots_per_extent = num_slots / 2};
  for (int64_t place = 0; place < 2; ++place) {
    grant.extents.push_back(
        {UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)), num_slots / 2, place});
  }
  return grant;
}

void CheckRing() {
  static const UniqueFd server_fd = MakeMemfd(sizeof(ServerSegmentShm));
  server::SpaceMemory memory;
  absl::StatusOr<server::PeerMemory> client_map =
      server::PeerMemory::Map(Memory().segment_fd.get(), kLayout.size_bytes);
  GEMINI_CHECK(client_map.ok());
  memory.client_map = *std::move(client_map);
  memory.server_map = MapOf(server_fd, sizeof(ServerSegmentShm), MappedMemory::Access::kReadWrite);
  memory.host = GrantOf(kSlots[Tier::kHost]);
  memory.nvme = GrantOf(kSlots[Tier::kNvme]);
  memory.nvme_places = server::DealSlots(memory.nvme);
  memory.nvme_contents.resize(kSlots[Tier::kNvme]);
  server::Space space(1,
                      {.name = "fuzz",
                       .chunk_bytes = kChunkBytes,
                       .num_bundles = kBundles,
                       .host_slots = kSlots[Tier::kHost],
                       .nvme_slots = kSlots[Tier::kNvme],
                       .num_tensors = kTensors},
                      std::move(memory), kSlots[Tier::kDevice], /*generation=*/1);
  int64_t taken = 0;
  std::vector<server::Space::Transfer> in_flight;
  const auto check = [&](const server::Space::Transfer& request) {
    const server::NvmeTransfer& transfer = request.transfer;
    GEMINI_CHECK(transfer.size_bytes == kChunkBytes);
    GEMINI_CHECK(transfer.host_fd >= 0 && transfer.nvme_fd >= 0);
    GEMINI_CHECK(transfer.host_offset_bytes >= 0 && transfer.host_offset_bytes % kChunkBytes == 0 &&
                 transfer.host_offset_bytes < kSlots[Tier::kHost] / 2 * kChunkBytes);
    GEMINI_CHECK(transfer.nvme_offset_bytes >= 0 && transfer.nvme_offset_bytes % kChunkBytes == 0 &&
                 transfer.nvme_offset_bytes < kSlots[Tier::kNvme] / 2 * kChunkBytes);
    GEMINI_CHECK(request.nvme_slot >= 0 && request.nvme_slot < kSlots[Tier::kNvme]);
    const bool reads = transfer.operation == IoOperation::kRead;
    GEMINI_CHECK(reads == (request.found != 0));
    GEMINI_CHECK(request.sequence < static_cast<uint64_t>(kIoRingEntries));
    in_flight.push_back(request);
  };
  // One at a time first, so that reads find what writes have left, and then what remains.
  for (const int64_t most : {int64_t{1}, int64_t{1}, int64_t{1}, int64_t{1}, kIoRingEntries}) {
    const absl::StatusOr<bool> has_more = space.TakeRequests(most, check);
    GEMINI_CHECK(static_cast<int64_t>(in_flight.size()) <= most);
    GEMINI_CHECK(space.in_flight() == static_cast<int64_t>(in_flight.size()));
    if (has_more.ok()) {
      GEMINI_CHECK(*has_more == space.HasRequests());
      GEMINI_CHECK(!*has_more || most < kIoRingEntries);
    } else {
      GEMINI_CHECK(absl::IsFailedPrecondition(has_more.status()) && in_flight.empty());
    }
    for (const server::Space::Transfer& request : in_flight) {
      space.Complete(request,
                     ++taken % 3 == 0 ? absl::StatusCode::kDataLoss : absl::StatusCode::kOk);
    }
    in_flight.clear();
  }
  space.Fence(2);
  GEMINI_CHECK(space.in_flight() == 0);
  const absl::StatusOr<bool> fenced = space.TakeRequests(kIoRingEntries, check);
  GEMINI_CHECK(fenced.ok() && !*fenced && in_flight.empty());
}

void Clear() {
  for (uint64_t* word : WritableWords()) *word = 0;
}

// What lies in the memory now.
std::string Snapshot() {
  std::string input;
  for (const uint64_t* word : WritableWords()) {
    input.append(reinterpret_cast<const char*>(word), sizeof(*word));
  }
  return input;
}

void Submit(uint64_t number, IoOperation operation, uint64_t host_slot, uint64_t nvme_slot,
            uint64_t contents) {
  auto& entry = Memory().At<IoEntryShm>(kLayout.ring_offset)[number];
  entry.operation.store(static_cast<uint64_t>(operation));
  entry.host_slot.store(host_slot);
  entry.nvme_slot.store(nvme_slot);
  entry.contents.store(contents);
  Memory().At<ClientSegmentHeaderShm>(0)->submit_tail.store(number + 1);
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  Clear();
  seeds.push_back(Snapshot());
  client::ResidencyWriter residency(Memory().At<std::atomic<uint64_t>>(kLayout.residency_offset),
                                    kLayout.num_chunks);
  residency.SetBelow(ChunkId(0), ChunkSlot{Tier::kHost, SlotId(3)});
  residency.SetBelow(ChunkId(1), ChunkSlot{Tier::kNvme, SlotId(11)});
  residency.SetBelow(ChunkId(2), ChunkSlot{Tier::kHost, SlotId(0)});
  residency.EnterDevice(ChunkId(2), SlotId(1));
  residency.SetOnDevice(ChunkId(2), SlotId(1), /*pins=*/2, /*dirty=*/true);
  client::CommitWriter commits(Memory().At<std::atomic<uint64_t>>(kLayout.commit_offset),
                               Memory().At<CommitRecordShm>(kLayout.record_offset), kBundles,
                               kLayout.num_records);
  CommitRecord record = {};
  record[0] = PackChunkSlot({Tier::kHost, SlotId(3)});
  record[2] = PackChunkSlot({Tier::kNvme, SlotId(11)});
  commits.Commit(BundleId(0), 1, record);
  commits.Commit(BundleId(1), 1, record);
  seeds.push_back(Snapshot());
  client::IntentWriter intents(&Memory().At<ClientSegmentHeaderShm>(0)->intent,
                               Memory().At<IntentShm>(kLayout.intent_offset), kTensors, kBundles);
  Intent intent = {.step = 2,
                   .learning_rate = 1e-3,
                   .beta1 = 0.9,
                   .beta2 = 0.999,
                   .epsilon = 1e-8,
                   .weight_decay = 0.01,
                   .gradient_scale = 0.5};
  intent.tensors = {{true, true, 2, 1.0}, {true, false, 1, 0.5}, {}};
  intents.Record(intent);
  seeds.push_back(Snapshot());
  intent.step = 3;
  intent.on_device = {{BundleId(1), commits.Prepare(record)}};
  intents.Record(intent);
  commits.Commit(BundleId(0), 3, record);
  seeds.push_back(Snapshot());
  Submit(0, IoOperation::kWrite, 1, 2, PackContents(0x12345678));
  Submit(1, IoOperation::kRead, 9, 2, 0);
  Submit(2, IoOperation::kWrite, 0, 11, kUncheckedContents);
  Submit(3, IoOperation::kRead, 4, 5, 0);
  Submit(4, IoOperation::kWrite, 4, 5, 0);
  WriteTimelineEvent(Memory().ring(), {.lane = TimelineLane::kFetch,
                                       .subject = 5,
                                       .begin_ns = 100,
                                       .end_ns = 250,
                                       .size_bytes = 4096});
  WriteTimelineEvent(
      Memory().ring(),
      {.cause = StallCause::kTransfer, .begin_ns = 300, .end_ns = 400, .stall_ns = 50});
  seeds.push_back(Snapshot());
  return seeds;
}

}  // namespace gemini::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gemini::fuzz;
  static const std::vector<uint64_t*> words = WritableWords();
  for (size_t i = 0; i < words.size(); ++i) {
    uint64_t value = 0;
    if (8 * (i + 1) <= size) std::memcpy(&value, data + 8 * i, sizeof(value));
    *words[i] = value;
  }
  CheckCounts();
  CheckIntent();
  CheckTimeline();
  CheckRing();
  return 0;
}
