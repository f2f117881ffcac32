// SPDX-License-Identifier: Apache-2.0
// Keeps what the hook knows about one StorageImpl whose bytes are in a chunk: where they are, and
// how many operators pin them. While no operator pins the storage, it has no address, and raw reads
// of it throw.
// Owner: its StorageImpl, which the model retains.
// Thread: any; each storage has its lock, held for a few stores only.
// Lookup: O(1) without hashing, because the storage's deleter is ours and its context is this
// object.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "c10/core/Device.h"
#include "c10/core/StorageImpl.h"
#include "c10/core/TensorImpl.h"
#include "client/device/residency.h"

namespace gemini::client::hooks {

class ManagedStorage;

// The interface that operators call when they touch a storage; any thread.
class StorageOwner {
 public:
  virtual ~StorageOwner() = default;
  // Makes a storage ready (see set_ready) if that is possible. FAILED_PRECONDITION: it is not; the
  // message says why.
  virtual absl::Status Prepare(ManagedStorage& storage) = 0;
  // PrepareWrite is called before an operator that will write to the storage pins it. NoteWrite is
  // called after one has written to it without having said so before. Neither is called for
  // gradients and buffers.
  virtual absl::Status PrepareWrite(ManagedStorage& /*storage*/) { return absl::OkStatus(); }
  virtual absl::Status NoteWrite(ManagedStorage& /*storage*/) { return absl::OkStatus(); }
};

class ManagedStorage {
 public:
  struct Place {
    RangeId range;
    int64_t offset_bytes = 0;  // Offset of the storage's first byte in the range.
    int64_t size_bytes = 0;
    // Its index in the session's traces (client/plan/phase_tracker.h), or -1.
    int32_t tensor = -1;
    bool is_gradient = false;
  };
  struct Traits {
    std::string name;  // "parameter h.0.weight", "gradient of h.0.weight", "buffer ...".
    // For buffers: batch_norm writes them without the schema or the version counter showing it.
    bool always_dirty = false;
    bool ready = true;
  };

  // Makes a new storage on `device`, released and not resizable.
  static c10::intrusive_ptr<c10::StorageImpl> Make(const Place& place, Traits traits,
                                                   StorageOwner& owner, c10::Device device);
  // Turns an existing CPU storage, whose size is place.size_bytes, into a managed one: its memory
  // is freed, and its views become views of the chunk.
  static void Adopt(c10::StorageImpl& storage, const Place& place, Traits traits,
                    StorageOwner& owner);

  // Returns null if the storage, or the tensor's storage, is not managed. A tensor without storage
  // has none.
  static ManagedStorage* Of(const c10::StorageImpl* storage) {
    if (storage == nullptr) return nullptr;
    // Bypasses the check that throws; reads only what never changes while the storage is managed.
    const c10::DataPtr& data_ptr =
        const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
    if (data_ptr.get_deleter() != &ManagedStorage::Delete) return nullptr;
    return static_cast<ManagedStorage*>(data_ptr.get_context());
  }
  static ManagedStorage* Of(const c10::TensorImpl* tensor) {
    return Of(tensor->unsafe_storage().unsafeGetStorageImpl());
  }

  const std::string& name() const { return traits_.name; }
  RangeId range() const { return place_.range; }
  int64_t offset_bytes() const { return place_.offset_bytes; }
  int64_t size_bytes() const { return place_.size_bytes; }
  int32_t tensor() const { return place_.tensor; }
  bool is_gradient() const { return place_.is_gradient; }
  bool always_dirty() const { return traits_.always_dirty; }
  bool is_parameter() const { return !is_gradient() && !always_dirty(); }
  // Returns false while the chunk does not hold the tensor's bytes; operators then call the owner
  // first.
  bool ready() const { return flags_.ready.load(std::memory_order_acquire); }
  void set_ready(bool ready) { flags_.ready.store(ready, std::memory_order_release); }
  StorageOwner& owner() { return *owner_; }

  // Set and read the version counter of the storage's first tensor, which operators raise when they
  // write.
  void set_version(const c10::VariableVersion& version) { version_ = version; }
  uint32_t version() const { return version_.enabled() ? version_.current_version() : 0; }

  // The storage that owns this.
  c10::intrusive_ptr<c10::StorageImpl> storage() const {
    return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage_);
  }

  // Adds a pin; the first one gives the storage its address. The caller has pinned the range. Once
  // the storage is retired, this and the next three functions do nothing.
  void Attach(std::byte* address);
  // Removes a pin; after the last one the storage has no address. Call it before the range is
  // unpinned.
  void Detach();
  // As Attach and Detach, but with memory that does not hold the tensor's bytes, for an operator
  // that must not fail here.
  void AttachScratch(std::byte* scratch);
  void DetachScratch();
  // Returns whether an operator or a scoped fetch holds it now.
  bool pinned() const { return flags_.pinned.load(std::memory_order_acquire); }
  // Returns whether one of the pins is on the tensor's own bytes, not on scratch.
  bool attached() const;

  // Ends the connection to the chunk for good. From now on this is a storage without bytes, whose
  // raw reads throw with `reason` and which no operator can pin. For the session's end, and for a
  // gradient whose chunk holds the next step's.
  void Retire(absl::string_view reason);
  bool retired() const { return flags_.retired.load(std::memory_order_acquire); }

  ManagedStorage(const ManagedStorage&) = delete;
  ManagedStorage& operator=(const ManagedStorage&) = delete;

 private:
  ManagedStorage(const Place& place, Traits traits, StorageOwner& owner)
      : place_(place), traits_(std::move(traits)), owner_(&owner) {
    flags_.ready = traits_.ready;
  }
  ~ManagedStorage() = default;
  static void Delete(void* context);  // The DataPtr's deleter.
  void Connect(c10::StorageImpl& storage);
  void Apply();  // Gives the storage the address that follows from the counts.

  const Place place_;
  const Traits traits_;
  StorageOwner* const owner_;  // Not used once retired.
  c10::VariableVersion version_;
  c10::StorageImpl* storage_ = nullptr;  // It owns this object.
  // Read without the lock.
  struct Flags {
    std::atomic<bool> ready{true};
    std::atomic<bool> pinned{false};
    std::atomic<bool> retired{false};
  };
  Flags flags_;

  // Held for a few stores, four times an operator: a mutex would cost a quarter of the hook.
  class SpinLock {
   public:
    void lock() {
      while (taken_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
    }
    void unlock() { taken_.clear(std::memory_order_release); }

   private:
    std::atomic_flag taken_;
  };
  // How many pins there are on the tensor's bytes and on scratch in their place, and the addresses
  // of both.
  struct Pins {
    mutable SpinLock lock;  // Guards the rest.
    int on_bytes = 0;
    int on_scratch = 0;
    std::byte* address = nullptr;
    std::byte* scratch = nullptr;
  };
  Pins pins_;
};

}  // namespace gemini::client::hooks
