// SPDX-License-Identifier: Apache-2.0
// Loads and stores one step of an update's streams, 32 elements: it converts them from their
// formats to fp32 lanes and back. Only the sources of the instruction sets may include it
// (client/kernels/update_loops_avx512.cc and others). Formats are constants, because branches on
// them inside the loop cost a tenth of the speed.
#pragma once
#include <cstdint>
#include <cstring>

#include "client/kernels/update_loops.h"
#include "client/kernels/update_streams.h"
#include "gemini/element_type.h"

// The loop's body must be inlined, although the compiler may find it too large.
#define GEMINI_INLINE [[gnu::always_inline]]

namespace gemini::client {

template <typename L>
struct StreamStep {
  using Floats = typename L::Floats;
  static constexpr int64_t kElements = kUpdateStepElements;

  // The values of one step.
  struct Values {
    Floats p[2], g[2], m[2], v[2];
  };

  static const uint16_t* Words(const void* stream, int64_t i) {
    return static_cast<const uint16_t*>(stream) + i;
  }
  static uint16_t* Words(void* stream, int64_t i) { return static_cast<uint16_t*>(stream) + i; }

  // Loads 32 elements of a stream, from element i on.
  template <ElementType kType>
  GEMINI_INLINE static void LoadElements(const void* stream, int64_t i, Floats (&x)[2]) {
    if constexpr (kType == ElementType::kBf16) {
      L::OfBf16(L::LoadWords(Words(stream, i)), x[0], x[1]);
    } else if constexpr (kType == ElementType::kFp16) {
      L::OfFp16(L::LoadWords(Words(stream, i)), x[0], x[1]);
    } else {
      x[0] = L::Load(static_cast<const float*>(stream) + i);
      x[1] = L::Load(static_cast<const float*>(stream) + i + 16);
    }
  }
  GEMINI_INLINE static void LoadMoment(const float* stream, int64_t i, Floats (&x)[2]) {
    x[0] = stream != nullptr ? L::Load(stream + i) : L::Set(0);
    x[1] = stream != nullptr ? L::Load(stream + i + 16) : L::Set(0);
  }

  template <typename Rule, ElementType kParam, ElementType kGrad>
  GEMINI_INLINE static void LoadStep(const UpdateStreams& s, int64_t i, Values& x) {
    if constexpr (kParam == ElementType::kBf16) {
      L::JoinSplit(L::LoadWords(Words(s.param, i)), L::LoadWords(Words(s.master, i)), x.p[0],
                   x.p[1]);
    } else {
      const bool is_fp16 = kParam == ElementType::kFp16;
      LoadElements<ElementType::kFp32>(is_fp16 ? s.master : s.param, i, x.p);
    }
    LoadElements<kGrad>(s.grad, i, x.g);
    LoadMoment(s.exp_avg, i, x.m);
    if constexpr (Rule::kHasSecondMoment) LoadMoment(s.exp_avg_sq, i, x.v);
  }

  GEMINI_INLINE static void StoreFloats(float* to, const Floats (&x)[2], bool past_caches) {
    if (past_caches) {
      L::Stream(to, x[0]);
      L::Stream(to + 16, x[1]);
    } else {
      L::Store(to, x[0]);
      L::Store(to + 16, x[1]);
    }
  }
  GEMINI_INLINE static void StoreWords(uint16_t* to, const typename L::Words& x, bool past_caches) {
    if (past_caches) {
      L::StreamWords(to, x);
    } else {
      L::StoreWords(to, x);
    }
  }

  template <ElementType kParam>
  GEMINI_INLINE static void StoreParam(const UpdateStreams& s, int64_t i, const Floats (&p)[2],
                                       bool past_caches, bool master_past_caches) {
    if constexpr (kParam == ElementType::kBf16) {
      typename L::Words high, low;
      L::Split(p[0], p[1], high, low);
      StoreWords(Words(s.new_param, i), high, past_caches);
      StoreWords(Words(s.new_master, i), low, master_past_caches);
    } else if constexpr (kParam == ElementType::kFp16) {
      StoreWords(Words(s.new_param, i), L::Fp16Of(p[0], p[1]), past_caches);
      StoreFloats(static_cast<float*>(s.new_master) + i, p, master_past_caches);
    } else {
      StoreFloats(static_cast<float*>(s.new_param) + i, p, past_caches);
    }
  }

  // Out of line, because only steps with a NaN in the new parameter call it.
  template <typename Rule>
  [[gnu::cold]] [[gnu::noinline]] static void MakeOneNaN(Values& x) {
    for (int half = 0; half < 2; ++half) {
      x.p[half] = L::OneNaN(x.p[half]);
      x.m[half] = L::OneNaN(x.m[half]);
      if constexpr (Rule::kHasSecondMoment) x.v[half] = L::OneNaN(x.v[half]);
    }
  }

  // Buffers for the elements of one step, of which only the first `count` exist, and streams over
  // these buffers. Give writes the new values of those back.
  struct Padded {
    alignas(64) float param[kElements] = {};
    alignas(64) float master[kElements] = {};
    alignas(64) float grad[kElements] = {};
    alignas(64) float exp_avg[kElements] = {};
    alignas(64) float exp_avg_sq[kElements] = {};

    Padded(const UpdateStreams& s, int64_t from, int64_t count) {
      Take(s.param, from, count, ElementBytes(s.param_type), param);
      Take(s.master, from, count, MasterBytes(s.param_type), master);
      Take(s.grad, from, count, ElementBytes(s.grad_type), grad);
      Take(s.exp_avg, from, count, 4, exp_avg);
      Take(s.exp_avg_sq, from, count, 4, exp_avg_sq);
    }
    UpdateStreams Streams(const UpdateStreams& s) {
      return {.param_type = s.param_type,
              .grad_type = s.grad_type,
              .param = param,
              .master = master,
              .grad = grad,
              .exp_avg = exp_avg,
              .exp_avg_sq = exp_avg_sq,
              .new_param = param,
              .new_master = master,
              .new_exp_avg = exp_avg,
              .new_exp_avg_sq = exp_avg_sq};
    }
    void Give(const UpdateStreams& s, int64_t from, int64_t count) const {
      Put(param, from, count, ElementBytes(s.param_type), s.new_param);
      Put(master, from, count, MasterBytes(s.param_type), s.new_master);
      Put(exp_avg, from, count, 4, s.new_exp_avg);
      Put(exp_avg_sq, from, count, 4, s.new_exp_avg_sq);
    }

   private:
    static void Take(const void* stream, int64_t from, int64_t count, int64_t bytes, float* to) {
      if (stream == nullptr) return;
      std::memcpy(to, static_cast<const char*>(stream) + from * bytes,
                  static_cast<size_t>(count * bytes));
    }
    static void Put(const float* values, int64_t from, int64_t count, int64_t bytes, void* stream) {
      if (stream == nullptr) return;
      std::memcpy(static_cast<char*>(stream) + from * bytes, values,
                  static_cast<size_t>(count * bytes));
    }
  };
};

}  // namespace gemini::client

#undef GEMINI_INLINE
