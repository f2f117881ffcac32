// SPDX-License-Identifier: Apache-2.0
// Divides a lease of a GPU's memory between chunks, in whole slabs, and what is apart from them:
// CUDA's context, and the memory that operators allocate.
// Rule: operators have half of what the context leaves until three steps have shown their peaks,
// because until then HOST is being registered and gradients leave in other ways. After that they
// have the peak and a sixteenth more, and all memory that chunks have no use for. When the peaks of
// eight steps leave a whole slab unused, chunks get it. When operators found no memory they get a
// quarter more, at least a slab, and keep it.
// Thread: one at a time.
// Units: bytes.
#pragma once
#include <cstdint>

namespace gemini::client {

class DeviceSplit {
 public:
  // Divides a lease of `device_bytes`; `slab_bytes` > 0.
  DeviceSplit(int64_t context_bytes, int64_t slab_bytes, int64_t device_bytes);

  // Returns the bytes that are not for chunks, the context included.
  int64_t apart_bytes() const { return apart_bytes_; }
  // Returns the part of them that operators may allocate.
  int64_t operator_bytes() const;

  // Adds chunks of `size_bytes` that may be wanted on DEVICE at one time.
  void AddChunks(int64_t size_bytes) { chunk_bytes_ += size_bytes; }
  // Records the end of a step whose operators had allocated at most `peak_bytes`; the lease is
  // `device_bytes` now. Returns whether the division changed. It changes only to less for
  // operators.
  bool EndStep(int64_t peak_bytes, int64_t device_bytes);
  // Records that operators found no memory, and returns whether they have more now. They do not if
  // chunks would have less than `chunk_floor_bytes` and one more slab, which is a reserve.
  bool Grow(int64_t chunk_floor_bytes, int64_t device_bytes);

 private:
  // Returns `apart_bytes` raised so that the rest of the lease is whole slabs and no byte is
  // unused.
  int64_t WithWholeSlabs(int64_t apart_bytes, int64_t device_bytes) const;

  static constexpr int kFirstSteps = 3;
  static constexpr int kStepsOfAPeak = 8;
  const int64_t context_bytes_;
  const int64_t slab_bytes_;
  int64_t apart_bytes_;
  int64_t chunk_bytes_ = 0;
  int64_t least_apart_bytes_ = 0;  // Since Grow.
  int64_t peak_bytes_ = 0;         // In the steps since the last decision.
  int num_steps_ = 0;              // The steps since the last decision.
  bool has_decided_ = false;
};

}  // namespace gemini::client
