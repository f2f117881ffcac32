// SPDX-License-Identifier: Apache-2.0
// How a lease of a GPU's memory is divided between chunks, in whole slabs, and what the process
// takes beside them: CUDA's context, and what operators allocate.
// Rule:   operators have half of what is left beside the context until three steps have shown their
//         peaks: HOST is registered meanwhile, and gradients leave in other ways then. From then on
//         that and a sixteenth, and all that chunks have no use for. When the peaks of eight steps
//         leave a whole slab, chunks get it. When operators found no memory they get a quarter
//         more, and keep it.
// Thread: one at a time. Units: bytes.
#pragma once
#include <cstdint>

namespace gemini::client {

class DeviceSplit {
 public:
  // Of a lease of `device_bytes`; `slab_bytes` > 0.
  DeviceSplit(int64_t context_bytes, int64_t slab_bytes, int64_t device_bytes);

  // What is not for chunks, the context included.
  int64_t apart_bytes() const { return apart_bytes_; }
  // Of it, what operators may allocate.
  int64_t operator_bytes() const;

  // Chunks of `size_bytes` more may want to be on DEVICE at one time.
  void AddChunks(int64_t size_bytes) { chunk_bytes_ += size_bytes; }
  // A step has ended whose operators had allocated at most `peak_bytes`; the lease is
  // `device_bytes` now. Returns whether the division changed, which it does to less for operators
  // alone.
  bool EndStep(int64_t peak_bytes, int64_t device_bytes);
  // Operators found no memory. Returns whether they have more now: not where chunks would have less
  // than `chunk_floor_bytes`, and a slab more for what has not been seen yet.
  bool Grow(int64_t chunk_floor_bytes, int64_t device_bytes);

 private:
  // So that the rest of the lease is whole slabs: no byte is nobody's.
  int64_t WithWholeSlabs(int64_t apart_bytes, int64_t device_bytes) const;

  static constexpr int kFirstSteps = 3;
  static constexpr int kStepsOfAPeak = 8;
  const int64_t context_bytes_;
  const int64_t slab_bytes_;
  int64_t apart_bytes_;
  int64_t chunk_bytes_ = 0;
  int64_t least_apart_bytes_ = 0;  // Since Grow.
  int64_t peak_bytes_ = 0;         // In the steps since the last decision.
  int num_steps_ = 0;              // Those steps.
  bool has_decided_ = false;
};

}  // namespace gemini::client
