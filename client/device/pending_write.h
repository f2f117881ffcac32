// SPDX-License-Identifier: Apache-2.0
// Holds a write to a range while it is in flight: its copies are enqueued on the evict stream, and
// the HOST slots that they write to are held. Residency::BeginWrite makes it.
// Owner: move-only; the destructor waits. It must not outlive the copy engine and the chunk store.
// The source bytes live until it is done.
// Thread: one at a time.
#pragma once
#include <utility>
#include <vector>

#include "client/copy/copy_engine.h"
#include "client/host/chunk_store.h"

namespace gemini::client {

class PendingWrite {
 public:
  PendingWrite() = default;
  // `last` is done when all copies are.
  PendingWrite(CopyEngine& copies, CopyEvent last, std::vector<HostChunk> hosts)
      : copies_(&copies), last_(last), hosts_(std::move(hosts)) {}
  PendingWrite(PendingWrite&& other) noexcept
      : copies_(std::exchange(other.copies_, nullptr)),
        last_(other.last_),
        hosts_(std::move(other.hosts_)) {}
  PendingWrite& operator=(PendingWrite&& other) noexcept {
    if (this == &other) return *this;
    Wait();
    copies_ = std::exchange(other.copies_, nullptr);
    last_ = other.last_;
    hosts_ = std::move(other.hosts_);
    return *this;
  }
  ~PendingWrite() { Wait(); }

  // Returns whether anything is enqueued that was not waited for.
  bool is_under_way() const { return copies_ != nullptr; }
  // Returns whether the bytes have arrived. The HOST slots are held until Wait nevertheless.
  bool Done() const { return copies_ == nullptr || copies_->Done(last_); }

  // Blocks until the bytes have arrived, and releases the HOST slots.
  void Wait() {
    if (copies_ == nullptr) return;
    copies_->Wait(last_);
    hosts_.clear();
    copies_ = nullptr;
  }

 private:
  CopyEngine* copies_ = nullptr;  // Null if nothing is in flight.
  CopyEvent last_;
  std::vector<HostChunk> hosts_;
};

}  // namespace gemini::client
