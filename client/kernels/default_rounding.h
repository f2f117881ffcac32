// SPDX-License-Identifier: Apache-2.0
// Sets IEEE arithmetic for the calling thread in a scope: rounding to nearest, ties to even,
// denormals kept, no traps. The end of the scope restores the former mode. Torch's
// set_flush_denormal and others change the mode of a thread, and the bits of an update must not
// depend on it.
#pragma once
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace gemini::client {

#if defined(__x86_64__)
class DefaultRounding {
 public:
  DefaultRounding() : saved_(_mm_getcsr()) {
    if (saved_ != kDefault) _mm_setcsr(kDefault);
  }
  DefaultRounding(const DefaultRounding&) = delete;
  DefaultRounding& operator=(const DefaultRounding&) = delete;
  // Flags that were raised in the scope are dropped.
  ~DefaultRounding() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kDefault = 0x1f80;  // All exceptions masked, no FTZ, no DAZ.
  const unsigned saved_;
};
#else
// On other processors the thread must have the default mode.
class DefaultRounding {
 public:
  DefaultRounding() {}
};
#endif

}  // namespace gemini::client
