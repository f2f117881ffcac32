// SPDX-License-Identifier: Apache-2.0
#include "client/update/device_update.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/copy/measured_spans.h"
#include "gemini/system/check.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {

DeviceUpdate::~DeviceUpdate() {
  for (const Pinned& pinned : pinned_) {
    residency_.Unpin(pinned.ids[ChunkKind::kGrad], /*dirty=*/false);
    if (!pinned.updates) continue;
    for (const ChunkKind kind : UpdatedKinds(pinned.store->format())) {
      residency_.Unpin(pinned.ids[kind], updated_ && !undone_);
      // Each is here once and not pinned by others: the step has them to itself.
      if (undone_) GEMINI_CHECK(residency_.Drop(pinned.ids[kind]).ok());
    }
  }
}

absl::Status DeviceUpdate::CheckNew(BundleId first) const {
  if (Find(first) == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("bundle ", first.value(), " comes twice in an update on DEVICE"));
}

absl::Status DeviceUpdate::Add(const UpdateRanges& ranges) {
  GEMINI_RETURN_IF_ERROR(CheckNew(ranges.first));
  Pinned pinned = {.store = ranges.store,
                   .first = ranges.first,
                   .num_bundles = ranges.num_bundles,
                   .ids = ranges.ranges,
                   .updates = true};
  const KindList kinds = TrainableKinds(ranges.store->format());
  std::vector<RangeId> ids;
  for (const ChunkKind kind : kinds) {
    if (kind != ChunkKind::kGrad) GEMINI_RETURN_IF_ERROR(residency_.Flush(pinned.ids[kind]));
    ids.push_back(pinned.ids[kind]);
  }
  std::vector<std::byte*> addresses(ids.size());
  GEMINI_RETURN_IF_ERROR(residency_.Pin(ids, absl::MakeSpan(addresses)));
  auto address = addresses.begin();
  for (const ChunkKind kind : kinds) pinned.addresses[kind] = *address++;
  Insert(pinned);
  return absl::OkStatus();
}

absl::Status DeviceUpdate::AddLateGradient(const GradientRange& range) {
  GEMINI_RETURN_IF_ERROR(CheckNew(range.first));
  Pinned pinned = {.store = range.store, .first = range.first, .num_bundles = range.num_bundles};
  pinned.ids[ChunkKind::kGrad] = range.grad;
  GEMINI_RETURN_IF_ERROR(residency_.Pin(absl::MakeConstSpan(&pinned.ids[ChunkKind::kGrad], 1),
                                        absl::MakeSpan(&pinned.addresses[ChunkKind::kGrad], 1)));
  Insert(pinned);
  return absl::OkStatus();
}

void DeviceUpdate::Insert(const Pinned& pinned) {
  pinned_.insert(std::ranges::upper_bound(pinned_, pinned.first, {}, &Pinned::first), pinned);
}

const DeviceUpdate::Pinned* DeviceUpdate::Find(BundleId bundle) const {
  const auto behind = std::ranges::upper_bound(pinned_, bundle, {}, &Pinned::first);
  if (behind == pinned_.begin()) return nullptr;
  const Pinned& last = *std::prev(behind);  // The last that begins at the bundle or before it.
  return bundle.value() - last.first.value() < last.num_bundles ? &last : nullptr;
}

bool DeviceUpdate::updates(BundleId bundle) const {
  const Pinned* const pinned = Find(bundle);
  return pinned != nullptr && pinned->updates;
}

bool DeviceUpdate::has_late_gradient(BundleId bundle) const {
  const Pinned* const pinned = Find(bundle);
  return pinned != nullptr && !pinned->updates;
}

const std::byte* DeviceUpdate::gradient(BundleId bundle) const {
  const Pinned* const pinned = Find(bundle);
  if (pinned == nullptr) return nullptr;
  return Address(*pinned, ChunkKind::kGrad, bundle.value() - pinned->first.value());
}

BundleInPlace DeviceUpdate::chunks(BundleId bundle) const {
  const Pinned* const pinned = Find(bundle);
  GEMINI_CHECK(pinned != nullptr && pinned->updates);
  return ChunksOf(*pinned, bundle.value() - pinned->first.value());
}

BundleInPlace DeviceUpdate::ChunksOf(const Pinned& pinned, int64_t index) const {
  BundleInPlace chunks = {.bundle = BundleId(pinned.first.value() + index), .chunks = {}};
  for (const ChunkKind kind : TrainableKinds(pinned.store->format())) {
    chunks.chunks[kind] = Address(pinned, kind, index);
  }
  return chunks;
}

void DeviceUpdate::Update(absl::FunctionRef<void(const BundleInPlace&)> update) {
  updated_ = true;
  CopyEngine& clock = residency_.copies();
  struct Updated {
    const ChunkStore* store = nullptr;
    BundleId bundle;
  };
  MeasuredSpans<Updated> updated;
  OperatorPoint begin = clock.Now();
  for (const Pinned& pinned : pinned_) {
    for (int64_t i = 0; pinned.updates && i < pinned.num_bundles; ++i) {
      const BundleInPlace chunks = ChunksOf(pinned, i);
      update(chunks);
      OperatorPoint end = clock.Now();
      updated.Add({std::exchange(begin, end), end},
                  {.store = pinned.store, .bundle = chunks.bundle});
    }
  }
  updated.Await(clock, updated.size());
  while (const auto done = updated.Take(clock)) {
    const ChunkStore& store = *done->what.store;
    const int64_t elements = residency_.chunk_bytes() / ElementBytes(store.format().element);
    store.timeline().AddFromTo(TimelineLane::kDeviceUpdate, done->what.bundle.value(),
                               done->begin_ns, done->end_ns, elements * kTimelineElementBytes);
  }
}

std::vector<DeviceVersion> DeviceUpdate::versions() const {
  std::vector<DeviceVersion> versions;
  for (const Pinned& pinned : pinned_) {
    if (!pinned.updates) continue;
    for (int64_t i = 0; i < pinned.num_bundles; ++i) {
      DeviceVersion& version = versions.emplace_back();
      version.bundle = BundleId(pinned.first.value() + i);
      for (const ChunkKind kind : UpdatedKinds(pinned.store->format())) {
        version.slots[kind] = SlotId(residency_.DeviceSlot(pinned.ids[kind]).value() + i);
      }
    }
  }
  return versions;
}

}  // namespace gemini::client
