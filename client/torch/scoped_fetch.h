// SPDX-License-Identifier: Apache-2.0
// Raw access to a managed tensor: its storage is on DEVICE and stays there while this lives.
// Owner: move-only; must end before the session closes. Thread: any.
#pragma once
#include <cstddef>
#include <utility>

namespace gemini::client::hooks {

class ManagedStorage;

enum class FetchAccess { kRead, kReadWrite };

class ScopedFetch {
 public:
  ScopedFetch() = default;
  ScopedFetch(ScopedFetch&& other) noexcept
      : storage_(std::exchange(other.storage_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        dirty_(other.dirty_) {}
  ScopedFetch& operator=(ScopedFetch&& other) noexcept {
    if (this != &other) {
      Release();
      storage_ = std::exchange(other.storage_, nullptr);
      data_ = std::exchange(other.data_, nullptr);
      dirty_ = other.dirty_;
    }
    return *this;
  }
  ~ScopedFetch() { Release(); }

  // Address of the tensor's first element (its storage offset counted in).
  void* data() const { return data_; }
  // Gives the pin up early. With kReadWrite the bytes then count as written.
  void Release();

 private:
  friend class ModelTensors;
  ScopedFetch(ManagedStorage* storage, void* data, bool dirty)
      : storage_(storage), data_(data), dirty_(dirty) {}
  ManagedStorage* storage_ = nullptr;
  void* data_ = nullptr;
  bool dirty_ = false;
};

}  // namespace gemini::client::hooks
