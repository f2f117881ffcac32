// SPDX-License-Identifier: Apache-2.0
#include "client/device_update.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "gemini/check.h"
#include "gemini/status_macros.h"

namespace gemini::client {

DeviceUpdate::~DeviceUpdate() {
  for (const Pinned& pinned : pinned_) {
    residency_.Unpin(pinned.ids[kGrad], /*dirty=*/false);
    if (!pinned.updates) continue;
    for (const Part part : {kParam, kExpAvg, kExpAvgSq}) {
      residency_.Unpin(pinned.ids[part], updated_ && !undone_);
      // Each is here once, and nobody else pins them: the step has them to itself.
      if (undone_) GEMINI_CHECK(residency_.Drop(pinned.ids[part]).ok());
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
                   .ids = {ranges.param, ranges.exp_avg, ranges.exp_avg_sq, ranges.grad},
                   .updates = true};
  for (const Part part : {kParam, kExpAvg, kExpAvgSq}) {
    GEMINI_RETURN_IF_ERROR(residency_.Flush(pinned.ids[part]));
  }
  GEMINI_RETURN_IF_ERROR(residency_.Pin(pinned.ids, absl::MakeSpan(pinned.addresses)));
  Insert(pinned);
  return absl::OkStatus();
}

absl::Status DeviceUpdate::AddLateGradient(const GradientRange& range) {
  GEMINI_RETURN_IF_ERROR(CheckNew(range.first));
  Pinned pinned = {.store = range.store, .first = range.first, .num_bundles = range.num_bundles};
  pinned.ids[kGrad] = range.grad;
  GEMINI_RETURN_IF_ERROR(residency_.Pin(absl::MakeConstSpan(&pinned.ids[kGrad], 1),
                                        absl::MakeSpan(&pinned.addresses[kGrad], 1)));
  Insert(pinned);
  return absl::OkStatus();
}

void DeviceUpdate::Insert(const Pinned& pinned) {
  pinned_.insert(std::ranges::upper_bound(pinned_, pinned.first, {}, &Pinned::first), pinned);
}

const DeviceUpdate::Pinned* DeviceUpdate::Find(BundleId bundle) const {
  const auto behind = std::ranges::upper_bound(pinned_, bundle, {}, &Pinned::first);
  if (behind == pinned_.begin()) return nullptr;
  const Pinned& last = *std::prev(behind);  // Of those that begin at the bundle or before it.
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
  return Address(*pinned, kGrad, bundle.value() - pinned->first.value());
}

void DeviceUpdate::Update(absl::FunctionRef<void(const BundleInPlace&)> update) {
  updated_ = true;
  for (const Pinned& pinned : pinned_) {
    for (int64_t i = 0; pinned.updates && i < pinned.num_bundles; ++i) {
      const BundleId bundle(pinned.first.value() + i);
      const int64_t begin_ns = TimelineNowNs();
      update({.bundle = bundle,
              .param = Address(pinned, kParam, i),
              .exp_avg = Address(pinned, kExpAvg, i),
              .exp_avg_sq = Address(pinned, kExpAvgSq, i),
              .grad = Address(pinned, kGrad, i)});
      pinned.store->timeline().Add(TimelineLane::kDeviceUpdate, bundle.value(), begin_ns,
                                   residency_.chunk_bytes());
    }
  }
}

std::vector<DeviceVersion> DeviceUpdate::versions() const {
  std::vector<DeviceVersion> versions;
  for (const Pinned& pinned : pinned_) {
    if (!pinned.updates) continue;
    const auto slot = [&](Part part, int64_t index) {
      return SlotId(residency_.DeviceSlot(pinned.ids[part]).value() + index);
    };
    for (int64_t i = 0; i < pinned.num_bundles; ++i) {
      versions.push_back({.bundle = BundleId(pinned.first.value() + i),
                          .param = slot(kParam, i),
                          .exp_avg = slot(kExpAvg, i),
                          .exp_avg_sq = slot(kExpAvgSq, i)});
    }
  }
  return versions;
}

}  // namespace gemini::client
