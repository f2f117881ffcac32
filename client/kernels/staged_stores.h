// SPDX-License-Identifier: Apache-2.0
// Stages the outputs of an update that are stored past the caches. One stream of each width is
// stored to memory directly. The others stay in the first-level cache until the end of a block, and
// are then stored one after another. Only the sources of the instruction sets may include it
// (client/kernels/update_loops_avx512.cc and others).
// Why: streams of a bundle begin at the same offset in a page, and their stores seem to wait for
// one another in the processor's write-combining buffers. On a Zen 3 core, 16 elements of bf16
// AdamW took 21 ns with all outputs side by side, 11 ns in place, 11 ns with outputs 1 KiB apart in
// their pages, and 14 ns so.
#pragma once
#include <cstdint>
#include <type_traits>

#include "client/kernels/update_loops.h"
#include "client/kernels/update_streams.h"
#include "gemini/element_type.h"

namespace gemini::client {

template <typename L, ElementType kParam, ElementType kGrad>
class StagedStores {
 public:
  static constexpr int64_t kBlock = 128;  // 512 bytes of a stream at most; 64 to 256 are as fast.
  // Stored directly, one stream of each width: the parameter, and with 16-bit parameters one fp32
  // stream, which is the master of fp16 or the exp_avg of bf16.
  static constexpr bool kMasterWaits = kParam == ElementType::kBf16;
  static constexpr bool kExpAvgWaits = kParam != ElementType::kBf16;

  StagedStores(const UpdateStreams& streams, StoreKind stores)
      : streams_(streams),
        master_waits_(kMasterWaits && stores.param_past_caches),
        exp_avg_waits_(kExpAvgWaits && stores.moments_past_caches),
        exp_avg_sq_waits_(stores.moments_past_caches && streams.new_exp_avg_sq != nullptr) {}

  // Returns the streams of the block at element `from`; those that are staged point to the stage.
  [[gnu::always_inline]] UpdateStreams Begin(int64_t from) {
    const UpdateStreams& s = streams_;
    return {.param_type = kParam,
            .grad_type = kGrad,
            .param = After(s.param, from * kParamBytes),
            .master = After(s.master, from * kMasterBytes),
            .grad = After(s.grad, from * ElementBytes(kGrad)),
            .exp_avg = After(s.exp_avg, from * 4),
            .exp_avg_sq = After(s.exp_avg_sq, from * 4),
            .new_param = After(s.new_param, from * kParamBytes),
            .new_master = master_waits_ ? master_ : After(s.new_master, from * kMasterBytes),
            .new_exp_avg = exp_avg_waits_ ? exp_avg_ : After(s.new_exp_avg, from * 4),
            .new_exp_avg_sq = exp_avg_sq_waits_ ? exp_avg_sq_ : After(s.new_exp_avg_sq, from * 4)};
  }

  // Stores the staged values of the block at `from`: `count` elements, whole steps.
  [[gnu::always_inline]] void End(int64_t from, int64_t count) const {
    const UpdateStreams& s = streams_;
    if (master_waits_) {
      Send(master_, After(s.new_master, from * kMasterBytes), count * kMasterBytes);
    }
    if (exp_avg_waits_) Send(exp_avg_, s.new_exp_avg + from, count * 4);
    if (exp_avg_sq_waits_) Send(exp_avg_sq_, s.new_exp_avg_sq + from, count * 4);
  }

 private:
  static constexpr int64_t kParamBytes = ElementBytes(kParam);
  static constexpr int64_t kMasterBytes = MasterBytes(kParam);

  // Returns a stream's address `bytes` further on; null stays null.
  template <typename T>
  [[gnu::always_inline]] static T* After(T* stream, int64_t bytes) {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    if (stream == nullptr) return nullptr;
    return reinterpret_cast<T*>(reinterpret_cast<Byte*>(stream) + bytes);
  }
  [[gnu::always_inline]] static void Send(const float* from, void* to, int64_t bytes) {
    for (int64_t i = 0; i < bytes / 4; i += 16) {
      L::Stream(static_cast<float*>(to) + i, L::Load(from + i));
    }
  }

  const UpdateStreams streams_;  // A copy that no store can change, so addresses stay in registers.
  const bool master_waits_, exp_avg_waits_, exp_avg_sq_waits_;
  alignas(64) float master_[kMasterWaits ? kBlock / 2 : 1];
  alignas(64) float exp_avg_[kExpAvgWaits ? kBlock : 1];
  alignas(64) float exp_avg_sq_[kBlock];
};

}  // namespace gemini::client
