// SPDX-License-Identifier: Apache-2.0
#include "client/torch/hook/managed_storage.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/torch/hook/storage_access_2_11.h"
#include "gemini/system/check.h"

namespace gemini::client::hooks {
namespace {

std::string ReleasedMessage(absl::string_view name) {
  return absl::StrCat(
      "gemini: ", name,
      " has no bytes here between operators, so it cannot be read as raw memory (data_ptr, "
      "torch::save, DLPack, numpy). Hold a gemini::PlainMemory meanwhile, or save it with "
      "gemini::Save. Below gemini/gemini.h: ManagedModel::Read saves, and a scoped fetch has a raw "
      "pointer: auto fetched = model->Fetch(tensor, FetchAccess::kRead)");
}

}  // namespace

void ManagedStorage::Delete(void* context) { delete static_cast<ManagedStorage*>(context); }

void ManagedStorage::Connect(c10::StorageImpl& storage) {
  storage_ = &storage;
  storage.get_extra_meta().custom_data_ptr_error_msg_ = ReleasedMessage(traits_.name);
  SetRawReadsRaise(storage, true);
}

c10::intrusive_ptr<c10::StorageImpl> ManagedStorage::Make(const Place& place, Traits traits,
                                                          StorageOwner& owner, c10::Device device) {
  auto* managed = new ManagedStorage(place, std::move(traits), owner);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), place.size_bytes,
      c10::DataPtr(nullptr, managed, &ManagedStorage::Delete, device),
      /*allocator=*/nullptr, /*resizable=*/false);
  managed->Connect(*storage);
  return storage;
}

void ManagedStorage::Adopt(c10::StorageImpl& storage, const Place& place, Traits traits,
                           StorageOwner& owner) {
  GEMINI_CHECK(static_cast<int64_t>(storage.nbytes()) == place.size_bytes);
  auto* managed = new ManagedStorage(place, std::move(traits), owner);
  storage.set_resizable(false);
  storage.set_allocator(nullptr);
  storage.set_data_ptr_noswap(
      c10::DataPtr(nullptr, managed, &ManagedStorage::Delete, c10::DeviceType::CPU));
  managed->Connect(storage);
}

void ManagedStorage::Apply() {
  std::byte* const address = pins_.on_bytes > 0     ? pins_.address
                             : pins_.on_scratch > 0 ? pins_.scratch
                                                    : nullptr;
  flags_.pinned.store(pins_.on_bytes + pins_.on_scratch > 0, std::memory_order_release);
  SetStorageAddress(*storage_, address);
  SetRawReadsRaise(*storage_, address == nullptr);
}

void ManagedStorage::Attach(std::byte* address) {
  const std::lock_guard lock(pins_.lock);
  if (retired()) return;  // Since the caller looked: no Detach would count this off.
  pins_.address = address;
  if (++pins_.on_bytes == 1) Apply();
}

void ManagedStorage::Detach() {
  const std::lock_guard lock(pins_.lock);
  if (retired()) return;
  GEMINI_CHECK(pins_.on_bytes > 0);
  if (--pins_.on_bytes == 0) Apply();
}

void ManagedStorage::AttachScratch(std::byte* scratch) {
  const std::lock_guard lock(pins_.lock);
  if (retired()) return;
  pins_.scratch = scratch;
  if (++pins_.on_scratch == 1 && pins_.on_bytes == 0) Apply();
}

void ManagedStorage::DetachScratch() {
  const std::lock_guard lock(pins_.lock);
  if (retired()) return;
  GEMINI_CHECK(pins_.on_scratch > 0);
  if (--pins_.on_scratch == 0 && pins_.on_bytes == 0) Apply();
}

bool ManagedStorage::attached() const {
  const std::lock_guard lock(pins_.lock);
  return pins_.on_bytes > 0;
}

void ManagedStorage::Retire(absl::string_view reason) {
  const std::lock_guard lock(pins_.lock);
  flags_.retired.store(true, std::memory_order_release);
  pins_.on_bytes = pins_.on_scratch = 0;
  Apply();
  storage_->get_extra_meta().custom_data_ptr_error_msg_ =
      absl::StrCat("gemini: ", traits_.name, " has no bytes any more: ", reason);
}

}  // namespace gemini::client::hooks
