// SPDX-License-Identifier: Apache-2.0
// Defines the functions that one thread of the update's kernel calls. They convert a few
// consecutive elements of all streams from their formats to fp32, apply a rule, and convert them
// back. They can also be called on the host, where tests compare their bits with the other paths'.
#pragma once
#include <cstdint>
#include <cstring>

#include "client/kernels/lane_cuda.h"
#include "client/kernels/update_streams.h"
#include "gemini/element_type.h"
#include "gemini/half_float.h"
#include "gemini/host_device.h"
#include "gemini/split_float.h"

namespace gemini::client {

// Elements that a GPU loads and stores with one instruction, where they are aligned.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) ElementRun {
  T value[kCount];

  GEMINI_HOST_DEVICE static ElementRun Load(const void* stream, int64_t i) {
#ifdef __CUDA_ARCH__
    return *reinterpret_cast<const ElementRun*>(static_cast<const T*>(stream) + i);
#else
    ElementRun run;
    std::memcpy(&run, static_cast<const T*>(stream) + i, sizeof(run));
    return run;
#endif
  }
  GEMINI_HOST_DEVICE void Store(void* stream, int64_t i) const {
#ifdef __CUDA_ARCH__
    *reinterpret_cast<ElementRun*>(static_cast<T*>(stream) + i) = *this;
#else
    std::memcpy(static_cast<T*>(stream) + i, this, sizeof(*this));
#endif
  }
};

// The functions below branch on the formats at run time: a branch that all threads take alike costs
// nothing beside the memory accesses, and kernels for all nine pairs of formats would take minutes
// to compile.
template <int kCount>
GEMINI_HOST_DEVICE void LoadFloats(const void* stream, int64_t i, float (&x)[kCount]) {
  const auto run = ElementRun<float, kCount>::Load(stream, i);
  for (int j = 0; j < kCount; ++j) x[j] = run.value[j];
}

template <int kCount>
GEMINI_HOST_DEVICE void StoreFloats(void* stream, int64_t i, const float (&x)[kCount]) {
  ElementRun<float, kCount> run;
  for (int j = 0; j < kCount; ++j) run.value[j] = x[j];
  run.Store(stream, i);
}

template <int kCount>
GEMINI_HOST_DEVICE void LoadElements(ElementType type, const void* stream, int64_t i,
                                     float (&x)[kCount]) {
  if (type == ElementType::kFp32) {
    LoadFloats(stream, i, x);
    return;
  }
  const auto run = ElementRun<uint16_t, kCount>::Load(stream, i);
  for (int j = 0; j < kCount; ++j) {
    x[j] = type == ElementType::kBf16 ? FloatOfBf16(run.value[j]) : FloatOfFp16(run.value[j]);
  }
}

template <int kCount>
GEMINI_HOST_DEVICE void LoadParam(const UpdateStreams& s, int64_t i, float (&p)[kCount]) {
  if (s.param_type != ElementType::kBf16) {
    LoadFloats(s.param_type == ElementType::kFp16 ? s.master : s.param, i, p);
    return;
  }
  const auto high = ElementRun<uint16_t, kCount>::Load(s.param, i);
  const auto low = ElementRun<int16_t, kCount>::Load(s.master, i);
  for (int j = 0; j < kCount; ++j) p[j] = JoinOf({.high = high.value[j], .low = low.value[j]});
}

template <int kCount>
GEMINI_HOST_DEVICE void StoreParam(const UpdateStreams& s, int64_t i, const float (&p)[kCount]) {
  if (s.param_type == ElementType::kFp32) {
    StoreFloats(s.new_param, i, p);
  } else if (s.param_type == ElementType::kFp16) {
    ElementRun<uint16_t, kCount> run;
    for (int j = 0; j < kCount; ++j) run.value[j] = Fp16Of(p[j]);
    run.Store(s.new_param, i);
    StoreFloats(s.new_master, i, p);
  } else {
    ElementRun<uint16_t, kCount> high;
    ElementRun<int16_t, kCount> low;
    for (int j = 0; j < kCount; ++j) {
      const SplitFloat split = SplitOf(p[j]);
      high.value[j] = split.high;
      low.value[j] = split.low;
    }
    high.Store(s.new_param, i);
    low.Store(s.new_master, i);
  }
}

// Updates elements [i, i + kCount). Reads all of them before it writes one, so outputs may be
// inputs.
template <int kCount, typename Rule>
GEMINI_HOST_DEVICE void UpdateRun(const Rule& rule, const UpdateStreams& s, int64_t i) {
  float p[kCount], g[kCount], m[kCount] = {}, v[kCount] = {};
  LoadParam(s, i, p);
  LoadElements(s.grad_type, s.grad, i, g);
  if (s.exp_avg != nullptr) LoadFloats(s.exp_avg, i, m);
  if constexpr (Rule::kHasSecondMoment) {
    if (s.exp_avg_sq != nullptr) LoadFloats(s.exp_avg_sq, i, v);
  }
  for (int j = 0; j < kCount; ++j) {
    p[j] = rule.Update(p[j], g[j], m[j], v[j]);
    if (LaneCuda::IsNaN(p[j])) {
      p[j] = LaneCuda::OneNaN(p[j]);
      m[j] = LaneCuda::OneNaN(m[j]);
      v[j] = LaneCuda::OneNaN(v[j]);
    }
  }
  StoreParam(s, i, p);
  StoreFloats(s.new_exp_avg, i, m);
  if constexpr (Rule::kHasSecondMoment) StoreFloats(s.new_exp_avg_sq, i, v);
}

}  // namespace gemini::client
