// SPDX-License-Identifier: Apache-2.0
#include "client/host/space_updates.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/state_format.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

absl::Status CheckBelow(absl::string_view space, BundleId bundle, int64_t at, int64_t step) {
  if (at >= 0 && at < step) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("bundle ", bundle.value(), " of space ", space,
                                                    " is at step ", at,
                                                    ": it cannot be updated to step ", step));
}

// Each bundle of an update comes once, and late ones are of those that are updated in HOST.
absl::Status CheckNames(absl::string_view space, int64_t num_bundles,
                        absl::Span<const BundleId> bundles,
                        absl::Span<const DeviceVersion> on_device,
                        absl::Span<const BundleId> late_gradients) {
  enum class Named : uint8_t { kNot, kOnce, kLate };
  std::vector<Named> named(num_bundles, Named::kNot);
  const auto name = [&](BundleId bundle, Named before, Named now, absl::string_view what) {
    if (bundle.value() < 0 || bundle.value() >= num_bundles) {
      return absl::InvalidArgumentError(absl::StrCat("space ", space, " has no chunk of bundle ",
                                                     bundle.value(), "; it has ", num_bundles));
    }
    if (std::exchange(named[bundle.value()], now) == before) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("an update names bundle ", bundle.value(), " of space ", space, what));
  };
  for (const BundleId bundle : bundles) {
    GEMINI_RETURN_IF_ERROR(name(bundle, Named::kNot, Named::kOnce, " twice"));
  }
  for (const BundleId bundle : late_gradients) {
    GEMINI_RETURN_IF_ERROR(name(bundle, Named::kOnce, Named::kLate,
                                " for a late gradient twice, or without updating it in HOST"));
  }
  for (const DeviceVersion& version : on_device) {
    GEMINI_RETURN_IF_ERROR(name(version.bundle, Named::kNot, Named::kOnce, " twice"));
  }
  return absl::OkStatus();
}

}  // namespace

bool SpaceUpdates::IsSettled(absl::Span<const BundleId> bundles,
                             absl::Span<const DeviceVersion> on_device, bool any_late) const {
  ChunkPlaces& places = tiers_.places;
  for (const DeviceVersion& version : on_device) {
    for (const ChunkKind kind : UpdatedKinds(tiers_.memory.shape().format)) {
      const ChunkId id = ChunkOf(version.bundle, kind);
      if (places.at(id).busy || places.IsFetchedFrom(id)) return false;
    }
  }
  for (const BundleId bundle : bundles) {
    if (places.IsFetchedFrom(ChunkOf(bundle, ChunkKind::kGrad))) return false;
  }
  return bundles.empty() || places.host().ending_holds() == 0 ||
         places.host().of_others() <= tiers_.ledger.SlotsForOthers(any_late);
}

absl::Status SpaceUpdates::CheckInHost(absl::Span<const BundleId> bundles, int64_t step,
                                       bool any_late) const {
  ChunkPlaces& places = tiers_.places;
  UpdateLedger& ledger = tiers_.ledger;
  for (const BundleId bundle : bundles) {
    GEMINI_RETURN_IF_ERROR(CheckBelow(tiers_.name, bundle, places.commits().step(bundle), step));
    const ChunkId grad = ChunkOf(bundle, ChunkKind::kGrad);
    const SlotId slot = places.at(grad).host;
    if (grad == ledger.in_late_slot() ||
        (slot != kNoSlot && places.host().at(slot).holds > places.host().at(slot).update_holds)) {
      return absl::FailedPreconditionError(absl::StrCat("the gradient of bundle ", bundle.value(),
                                                        " of space ", tiers_.name,
                                                        " is held: it may not be complete"));
    }
  }
  if (!bundles.empty() && places.host().of_others() > ledger.SlotsForOthers(any_late)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an update needs ", ledger.SlotsForUpdate(any_late), " HOST slots of space ",
                     tiers_.name, "; ", places.host().of_others(), " of its ",
                     places.host().free().num_slots(), " are held: raise --host-memory"));
  }
  return absl::OkStatus();
}

absl::Status SpaceUpdates::CheckOnDevice(const DeviceVersion& version, int64_t step) const {
  ChunkPlaces& places = tiers_.places;
  const SpaceShape& shape = tiers_.memory.shape();
  GEMINI_RETURN_IF_ERROR(
      CheckBelow(tiers_.name, version.bundle, places.commits().step(version.bundle), step));
  for (const ChunkKind kind : UpdatedKinds(shape.format)) {
    const SlotId slot = version.slots[kind];
    const StoredChunk& chunk = places.at(ChunkOf(version.bundle, kind));
    const auto refusal = [&](absl::string_view why) {
      return absl::StrCat("the ", ChunkKindName(kind), " of bundle ", version.bundle.value(),
                          " of space ", tiers_.name, " ", why);
    };
    if (slot.value() < 0 || slot.value() >= shape.device_slots) {
      return absl::InvalidArgumentError(refusal(
          absl::StrCat("cannot be in DEVICE slot ", slot.value(), " of ", shape.device_slots)));
    }
    // The version before would be nowhere.
    if (chunk.device != kNoSlot) {
      return absl::FailedPreconditionError(refusal("was not written back since its last update"));
    }
    if (chunk.host != kNoSlot && places.host().at(chunk.host).holds > 0) {
      return absl::FailedPreconditionError(refusal("is held in HOST and cannot be given up"));
    }
  }
  return absl::OkStatus();
}

absl::Status SpaceUpdates::Begin(const Intent& intent, absl::Span<const BundleId> bundles,
                                 absl::Span<const DeviceVersion> on_device,
                                 absl::Span<const BundleId> late_gradients) {
  const SpaceShape& shape = tiers_.memory.shape();
  const bool any_late = !late_gradients.empty();
  GEMINI_RETURN_IF_ERROR(
      CheckNames(tiers_.name, shape.num_bundles, bundles, on_device, late_gradients));
  MutexLock lock(tiers_.mutex);
  // Waiting for one chunk releases the lock, and another may become busy meanwhile.
  while (!IsSettled(bundles, on_device, any_late)) tiers_.mutex.WaitFor(tiers_.idle);
  GEMINI_RETURN_IF_ERROR(tiers_.ledger.CheckIntent(tiers_.name, intent));
  GEMINI_RETURN_IF_ERROR(CheckInHost(bundles, intent.step, any_late));
  for (const DeviceVersion& version : on_device) {
    GEMINI_RETURN_IF_ERROR(CheckOnDevice(version, intent.step));
  }
  // Nothing can fail from here on. The intent names the records before a word does.
  Intent recorded = intent;
  recorded.on_device.clear();
  for (const DeviceVersion& version : on_device) {
    const CommitRecord record = tiers_.places.RecordOf(version, shape.format);
    recorded.on_device.push_back({version.bundle, tiers_.places.commits().Prepare(record)});
  }
  tiers_.ledger.Begin(recorded, bundles, late_gradients);
  for (size_t i = 0; i < on_device.size(); ++i) {
    tiers_.places.CommitOnDevice(on_device[i], intent.step, recorded.on_device[i].record,
                                 shape.format);
  }
  tiers_.readable.notify_all();
  tiers_.going_home.notify_all();
  tiers_.counters.SetUpdatePending(tiers_.ledger.pending().count());
  return absl::OkStatus();
}

bool SpaceUpdates::AwaitsGradient(BundleId bundle) const {
  MutexLock lock(tiers_.mutex);
  return tiers_.ledger.pending().awaits_gradient(bundle);
}

void SpaceUpdates::GradientArrived(BundleId bundle) {
  MutexLock lock(tiers_.mutex);
  tiers_.ledger.pending().GradientArrived(bundle);
  tiers_.idle.notify_all();  // After the last, others may hold one slot more.
}

void SpaceUpdates::AwaitLateGradients() {
  MutexLock lock(tiers_.mutex);
  UpdateLedger& ledger = tiers_.ledger;
  while (ledger.pending().late_count() > 0 && ledger.failure().ok()) {
    tiers_.mutex.WaitFor(tiers_.idle);
  }
}

std::optional<BundleId> SpaceUpdates::Take() {
  MutexLock lock(tiers_.mutex);
  tiers_.readable.notify_all();
  return tiers_.ledger.Take();
}

void SpaceUpdates::Fail(absl::Status error) {
  MutexLock lock(tiers_.mutex);
  tiers_.ledger.Fail(std::move(error));
  tiers_.idle.notify_all();
}

void SpaceUpdates::Retry() {
  MutexLock lock(tiers_.mutex);
  tiers_.ledger.Retry();
  tiers_.readable.notify_all();
  tiers_.going_home.notify_all();
}

absl::Status SpaceUpdates::AwaitCommits() {
  MutexLock lock(tiers_.mutex);
  while (tiers_.ledger.IsUnderWay()) tiers_.mutex.WaitFor(tiers_.idle);
  return tiers_.ledger.pending().count() > 0 ? tiers_.ledger.failure() : absl::OkStatus();
}

absl::Status SpaceUpdates::AwaitCommit(BundleId bundle) {
  MutexLock lock(tiers_.mutex);
  UpdateLedger& ledger = tiers_.ledger;
  while (ledger.pending().awaits(bundle)) {
    if (!ledger.failure().ok()) return ledger.failure();
    ledger.pending().Hurry(bundle);
    tiers_.readable.notify_all();
    tiers_.mutex.WaitFor(tiers_.idle);
  }
  return absl::OkStatus();
}

}  // namespace gemini::client
