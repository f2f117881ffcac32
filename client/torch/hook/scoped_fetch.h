// SPDX-License-Identifier: Apache-2.0
// Gives raw access to a managed tensor: its storage is on DEVICE and stays there while this object
// lives.
// Owner: move-only. TrainingSession::Close is refused while one lives. If it outlives the session,
// its pointer is invalid, and its destructor does nothing, even if another session is open by then.
// Thread: any.
#pragma once
#include <cstdint>
#include <utility>

#include "c10/core/StorageImpl.h"
#include "c10/util/intrusive_ptr.h"

namespace gemini::client::hooks {

enum class FetchAccess { kRead, kReadWrite };

class ScopedFetch {
 public:
  ScopedFetch() = default;
  ScopedFetch(ScopedFetch&& other) noexcept { *this = std::move(other); }
  ScopedFetch& operator=(ScopedFetch&& other) noexcept {
    if (this != &other) {
      Release();
      storage_ = std::move(other.storage_);
      data_ = std::exchange(other.data_, nullptr);
      access_ = other.access_;
      hook_generation_ = other.hook_generation_;
    }
    return *this;
  }
  ~ScopedFetch() { Release(); }

  // Returns the address of the tensor's first element, with its storage offset.
  void* data() const { return data_; }
  // Drops the pin early. With kReadWrite the bytes then count as written.
  void Release();

  // Takes over one pin of the storage, which the hook of generation `hook_generation` has made by
  // OperatorHook::Pin. For ManagedModel::Fetch.
  ScopedFetch(c10::intrusive_ptr<c10::StorageImpl> storage, void* data, FetchAccess access,
              uint64_t hook_generation)
      : storage_(std::move(storage)),
        data_(data),
        access_(access),
        hook_generation_(hook_generation) {}

 private:
  c10::intrusive_ptr<c10::StorageImpl> storage_;
  void* data_ = nullptr;
  FetchAccess access_ = FetchAccess::kRead;
  uint64_t hook_generation_ = 0;
};

}  // namespace gemini::client::hooks
