// SPDX-License-Identifier: Apache-2.0
// Counts the memory that tensors on the meta device would take elsewhere. Such a tensor has sizes
// and a storage, but no bytes. With the first object Torch's allocator for the device is replaced
// in this process, by one that does the same while no object lives.
// Thread: each object counts what its own thread allocates while it is the thread's latest. Its
//         tensors may be freed on any thread, also when it is gone.
// Units:  bytes. Each allocation is rounded up to a multiple of the grain.
#pragma once
#include <cstdint>
#include <memory>

namespace gemini::trainer {

class MetaMemory {
 public:
  explicit MetaMemory(int64_t grain_bytes);
  ~MetaMemory();
  MetaMemory(const MetaMemory&) = delete;
  MetaMemory& operator=(const MetaMemory&) = delete;

  int64_t live_bytes() const;
  // The largest sum since the last ResetPeaks: in all, and less what is set aside.
  int64_t peak_bytes() const;
  int64_t needed_peak_bytes() const;
  void ResetPeaks();
  // Counts memory that is no tensor's. `size_bytes` is below 0 when it is freed.
  void Add(int64_t size_bytes);
  // Sets live memory aside: it goes as soon as somebody needs the room. `size_bytes` is below 0
  // when it is freed.
  void SetAside(int64_t size_bytes);

  // While it lives, what this thread allocates is not counted.
  class Pause {
   public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    std::shared_ptr<struct MetaCount> paused_;
  };

 private:
  const std::shared_ptr<MetaCount> count_;
  const std::shared_ptr<MetaCount> outer_;
};

}  // namespace gemini::trainer
