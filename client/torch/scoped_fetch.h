// SPDX-License-Identifier: Apache-2.0
// Raw access to a managed tensor: its storage is on DEVICE and stays there while this lives.
// Owner: move-only; must end before the session closes. Thread: any.
#pragma once
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
    }
    return *this;
  }
  ~ScopedFetch() { Release(); }

  // Address of the tensor's first element (its storage offset counted in).
  void* data() const { return data_; }
  // Gives the pin up early. With kReadWrite the bytes then count as written.
  void Release();

  // For ManagedModel::Fetch: takes over one pin of the storage, made by operator_hook.h's
  // PinStorage.
  ScopedFetch(c10::intrusive_ptr<c10::StorageImpl> storage, void* data, FetchAccess access)
      : storage_(std::move(storage)), data_(data), access_(access) {}

 private:
  c10::intrusive_ptr<c10::StorageImpl> storage_;
  void* data_ = nullptr;
  FetchAccess access_ = FetchAccess::kRead;
};

}  // namespace gemini::client::hooks
