// SPDX-License-Identifier: Apache-2.0
// The loop that takes the streams of an update through a rule, for one set of lanes. Included by the
// sources of the instruction sets alone (client/update_loops_avx512.cc and its like).
// Steps are of 32 elements: a cache line of a 16-bit stream and two of an fp32 one, so that every store
// past the caches fills a line at once. What is not a whole step goes through a padded copy on the stack.
// Formats are constants and the body is one piece of some 90 instructions: with 200 of them the processor
// looked too few steps ahead, and 0.86 of the memory's speed was reached instead of 0.93. Asking for streams
// ahead changed nothing, from 128 to 2,048 elements.
#pragma once
#include <cstdint>
#include <cstring>

#include "client/update_loops.h"
#include "client/update_rules.h"

// The loop's body is one piece, whatever the compiler thinks of its size.
#define GEMINI_INLINE [[gnu::always_inline]]

namespace gemini::client {

template <typename L>
struct UpdateLoop {
  using Floats = typename L::Floats;
  static constexpr int64_t kStep = kUpdateStepElements;

  // The values of one step.
  struct Values {
    Floats p[2], g[2], m[2], v[2];
  };

  static const uint16_t* Words(const void* stream, int64_t i) {
    return static_cast<const uint16_t*>(stream) + i;
  }
  static uint16_t* Words(void* stream, int64_t i) { return static_cast<uint16_t*>(stream) + i; }

  // 32 elements of a stream, from element i on.
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
                                       bool past_caches) {
    if constexpr (kParam == ElementType::kBf16) {
      typename L::Words high, low;
      L::Split(p[0], p[1], high, low);
      StoreWords(Words(s.new_param, i), high, past_caches);
      StoreWords(Words(s.new_master, i), low, past_caches);
    } else if constexpr (kParam == ElementType::kFp16) {
      StoreWords(Words(s.new_param, i), L::Fp16Of(p[0], p[1]), past_caches);
      StoreFloats(static_cast<float*>(s.new_master) + i, p, past_caches);
    } else {
      StoreFloats(static_cast<float*>(s.new_param) + i, p, past_caches);
    }
  }

  // Out of line: no step without a NaN of the parameter comes here.
  template <typename Rule>
  [[gnu::cold]] [[gnu::noinline]] static void MakeOneNaN(Values& x) {
    for (int half = 0; half < 2; ++half) {
      x.p[half] = L::OneNaN(x.p[half]);
      x.m[half] = L::OneNaN(x.m[half]);
      if constexpr (Rule::kHasSecondMoment) x.v[half] = L::OneNaN(x.v[half]);
    }
  }

  template <typename Rule, ElementType kParam, ElementType kGrad>
  GEMINI_INLINE static void Step(const Rule& rule, const UpdateStreams& s, int64_t i,
                                 StoreKind stores) {
    Values x;
    LoadStep<Rule, kParam, kGrad>(s, i, x);
    for (int half = 0; half < 2; ++half) {
      x.p[half] = rule.Update(x.p[half], x.g[half], x.m[half], x.v[half]);
    }
    if (L::AnyNaN(x.p[0], x.p[1])) [[unlikely]] {
      Values fixed = x;
      MakeOneNaN<Rule>(fixed);
      x = fixed;
    }
    StoreParam<kParam>(s, i, x.p, stores.param_past_caches);
    StoreFloats(s.new_exp_avg + i, x.m, stores.moments_past_caches);
    if constexpr (Rule::kHasSecondMoment) {
      StoreFloats(s.new_exp_avg_sq + i, x.v, stores.moments_past_caches);
    }
  }

  // A step's elements, of which the first `count` are real, and streams that lie in them.
  struct Padded {
    alignas(64) float param[kStep] = {};
    alignas(64) float master[kStep] = {};
    alignas(64) float grad[kStep] = {};
    alignas(64) float exp_avg[kStep] = {};
    alignas(64) float exp_avg_sq[kStep] = {};

    Padded(const UpdateStreams& s, int64_t from, int64_t count) {
      Take(s.param, from, count, ElementBytes(s.param_type), param);
      Take(s.master, from, count, MasterBytes(s), master);
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
      Put(master, from, count, MasterBytes(s), s.new_master);
      Put(exp_avg, from, count, 4, s.new_exp_avg);
      Put(exp_avg_sq, from, count, 4, s.new_exp_avg_sq);
    }

   private:
    static int64_t MasterBytes(const UpdateStreams& s) {
      return s.param_type == ElementType::kBf16 ? 2 : 4;
    }
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

  // Whole steps only.
  template <typename Rule, ElementType kParam, ElementType kGrad>
  [[gnu::noinline]] static void Steps(const UpdateScalars& scalars, const UpdateStreams& streams,
                                      StoreKind stores, int64_t from, int64_t end) {
    const Rule rule(scalars);
    const UpdateStreams s =
        streams;  // Its own, that no store can change: addresses stay in registers.
    for (int64_t i = from; i < end; i += kStep) Step<Rule, kParam, kGrad>(rule, s, i, stores);
  }

  template <typename Rule, ElementType kParam, ElementType kGrad>
  static void Run(const UpdateScalars& scalars, const UpdateStreams& s, StoreKind stores,
                  int64_t count) {
    const auto part = [&](int64_t from, int64_t size) {
      if (size == 0) return;
      Padded padded(s, from, size);
      Steps<Rule, kParam, kGrad>(scalars, padded.Streams(s), StoreKind(), 0, kStep);
      padded.Give(s, from, size);
    };
    const int64_t head = stores.head_elements < count ? stores.head_elements : count;
    const int64_t tail = (count - head) % kStep;
    part(0, head);
    Steps<Rule, kParam, kGrad>(scalars, s, stores, head, count - tail);
    part(count - tail, tail);
  }

  // Calls `function` with the formats as constants.
  template <typename Function>
  static void WithFormats(const UpdateStreams& s, const Function& function) {
    WithFormat(s.param_type, [&](auto param) {
      WithFormat(s.grad_type, [&](auto grad) {
        function.template operator()<decltype(param)::kType, decltype(grad)::kType>();
      });
    });
  }
  template <typename Function>
  static void WithFormat(ElementType type, const Function& function) {
    switch (type) {
      case ElementType::kFp32:
        return function(Format<ElementType::kFp32>());
      case ElementType::kBf16:
        return function(Format<ElementType::kBf16>());
      case ElementType::kFp16:
        return function(Format<ElementType::kFp16>());
    }
  }
  template <ElementType kValue>
  struct Format {
    static constexpr ElementType kType = kValue;
  };

  template <typename Rule>
  static void RunAny(const UpdateScalars& scalars, const UpdateStreams& s, StoreKind stores,
                     int64_t count) {
    WithFormats(s, [&]<ElementType kParam, ElementType kGrad>() {
      Run<Rule, kParam, kGrad>(scalars, s, stores, count);
    });
  }
};

}  // namespace gemini::client

#undef GEMINI_INLINE
