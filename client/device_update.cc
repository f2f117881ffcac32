// SPDX-License-Identifier: Apache-2.0
#include "client/device_update.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gemini/check.h"
#include "gemini/status_macros.h"

namespace gemini::client {

DeviceUpdate::~DeviceUpdate() {
  for (const Pinned& pinned : pinned_) {
    for (const Part part : {kParam, kExpAvg, kExpAvgSq}) {
      residency_.Unpin(pinned.ids[part], updated_ && !undone_);
      // Each is here once, and nobody else pins them: the step has them to itself.
      if (undone_) GEMINI_CHECK(residency_.Drop(pinned.ids[part]).ok());
    }
    residency_.Unpin(pinned.ids[kGrad], /*dirty=*/false);
  }
}

absl::Status DeviceUpdate::Add(const UpdateRanges& ranges) {
  if (contains(ranges.first)) {
    return absl::InvalidArgumentError(
        absl::StrCat("bundle ", ranges.first.value(), " comes twice in an update on DEVICE"));
  }
  Pinned pinned = {.ranges = ranges,
                   .ids = {ranges.param, ranges.exp_avg, ranges.exp_avg_sq, ranges.grad}};
  for (const Part part : {kParam, kExpAvg, kExpAvgSq}) {
    GEMINI_RETURN_IF_ERROR(residency_.Flush(pinned.ids[part]));
  }
  GEMINI_RETURN_IF_ERROR(residency_.Pin(pinned.ids, absl::MakeSpan(pinned.addresses)));
  pinned_.push_back(pinned);
  return absl::OkStatus();
}

const DeviceUpdate::Pinned* DeviceUpdate::Find(BundleId bundle) const {
  const auto found = std::ranges::find_if(pinned_, [&](const Pinned& pinned) {
    const int64_t index = bundle.value() - pinned.ranges.first.value();
    return index >= 0 && index < pinned.ranges.num_bundles;
  });
  return found == pinned_.end() ? nullptr : &*found;
}

const std::byte* DeviceUpdate::gradient(BundleId bundle) const {
  const Pinned* const pinned = Find(bundle);
  GEMINI_CHECK(pinned != nullptr);
  return Address(*pinned, kGrad, bundle.value() - pinned->ranges.first.value());
}

void DeviceUpdate::Update(absl::FunctionRef<void(const BundleInPlace&)> update) {
  updated_ = true;
  for (const Pinned& pinned : pinned_) {
    for (int64_t i = 0; i < pinned.ranges.num_bundles; ++i) {
      update({.bundle = BundleId(pinned.ranges.first.value() + i),
              .param = Address(pinned, kParam, i),
              .exp_avg = Address(pinned, kExpAvg, i),
              .exp_avg_sq = Address(pinned, kExpAvgSq, i),
              .grad = Address(pinned, kGrad, i)});
    }
  }
}

std::vector<DeviceVersion> DeviceUpdate::versions() const {
  std::vector<DeviceVersion> versions;
  for (const Pinned& pinned : pinned_) {
    const auto slot = [&](RangeId range, int64_t index) {
      return SlotId(residency_.DeviceSlot(range).value() + index);
    };
    for (int64_t i = 0; i < pinned.ranges.num_bundles; ++i) {
      versions.push_back({.bundle = BundleId(pinned.ranges.first.value() + i),
                          .param = slot(pinned.ranges.param, i),
                          .exp_avg = slot(pinned.ranges.exp_avg, i),
                          .exp_avg_sq = slot(pinned.ranges.exp_avg_sq, i)});
    }
  }
  return versions;
}

}  // namespace gemini::client
