// SPDX-License-Identifier: Apache-2.0
#include "client/session/device_split.h"

#include <algorithm>

#include "gemini/system/check.h"

namespace gemini::client {

DeviceSplit::DeviceSplit(int64_t context_bytes, int64_t slab_bytes, int64_t device_bytes)
    : context_bytes_(context_bytes), slab_bytes_(slab_bytes) {
  GEMINI_CHECK(slab_bytes > 0);
  apart_bytes_ = WithWholeSlabs(
      context_bytes + std::max<int64_t>(0, device_bytes - context_bytes) / 2, device_bytes);
}

int64_t DeviceSplit::operator_bytes() const {
  return std::max<int64_t>(0, apart_bytes_ - context_bytes_);
}

int64_t DeviceSplit::WithWholeSlabs(int64_t apart_bytes, int64_t device_bytes) const {
  const int64_t num_slabs = std::max<int64_t>(0, device_bytes - apart_bytes) / slab_bytes_;
  return device_bytes - num_slabs * slab_bytes_;
}

bool DeviceSplit::EndStep(int64_t peak_bytes, int64_t device_bytes) {
  const int64_t before_bytes = apart_bytes_;
  // A lease that became small: chunks have given way already.
  apart_bytes_ = std::min(apart_bytes_, device_bytes);
  peak_bytes_ = std::max(peak_bytes_, peak_bytes);
  if (++num_steps_ == (has_decided_ ? kStepsOfAPeak : kFirstSteps)) {
    const int64_t unused_bytes =
        device_bytes - (chunk_bytes_ + slab_bytes_ - 1) / slab_bytes_ * slab_bytes_;
    const int64_t needed_bytes = std::max(
        {least_apart_bytes_, unused_bytes, context_bytes_ + peak_bytes_ + peak_bytes_ / 16});
    apart_bytes_ = std::min(apart_bytes_, WithWholeSlabs(needed_bytes, device_bytes));
    has_decided_ = true;
    num_steps_ = 0;
    peak_bytes_ = 0;
  }
  return apart_bytes_ != before_bytes;
}

bool DeviceSplit::Grow(int64_t chunk_floor_bytes, int64_t device_bytes) {
  const int64_t floor_slabs = (chunk_floor_bytes + slab_bytes_ - 1) / slab_bytes_ + 1;
  const int64_t wish_bytes = apart_bytes_ + std::max(operator_bytes() / 4, slab_bytes_);
  const int64_t grown_bytes =
      std::min(WithWholeSlabs(wish_bytes, device_bytes), device_bytes - floor_slabs * slab_bytes_);
  if (grown_bytes <= apart_bytes_) return false;
  apart_bytes_ = least_apart_bytes_ = grown_bytes;
  // What was given up says nothing of a step's peak.
  peak_bytes_ = 0;
  num_steps_ = 0;
  has_decided_ = true;
  return true;
}

}  // namespace gemini::client
