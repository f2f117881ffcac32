// SPDX-License-Identifier: Apache-2.0
// The loop that takes the streams of an update through a rule, for one set of lanes. Included by the
// sources of the instruction sets alone (client/update_loops_avx512.cc and its like).
// Steps are of 32 elements: a cache line of a 16-bit stream and two of an fp32 one, so that every store
// past the caches fills a line at once. What is not a whole step goes through a padded copy on the stack.
#pragma once
#include <cstdint>
#include <cstring>

#include "client/update_loops.h"
#include "client/update_rules.h"

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

  static Floats LoadElements(ElementType type, const void* stream, int64_t i) {
    switch (type) {
      case ElementType::kBf16:
        return L::OfBf16(L::LoadWords(Words(stream, i)));
      case ElementType::kFp16:
        return L::OfFp16(L::LoadWords(Words(stream, i)));
      case ElementType::kFp32:
        break;
    }
    return L::Load(static_cast<const float*>(stream) + i);
  }

  static Floats LoadParam(const UpdateStreams& s, int64_t i) {
    switch (s.param_type) {
      case ElementType::kBf16:
        return L::Join(L::LoadWords(Words(s.param, i)), L::LoadWords(Words(s.master, i)));
      case ElementType::kFp16:
        return L::Load(static_cast<const float*>(s.master) + i);
      case ElementType::kFp32:
        break;
    }
    return L::Load(static_cast<const float*>(s.param) + i);
  }

  template <bool kHasSecondMoment>
  static void LoadStep(const UpdateStreams& s, int64_t i, Values& x) {
    for (int half = 0; half < 2; ++half) {
      const int64_t at = i + half * 16;
      x.p[half] = LoadParam(s, at);
      x.g[half] = LoadElements(s.grad_type, s.grad, at);
      x.m[half] = s.exp_avg != nullptr ? L::Load(s.exp_avg + at) : L::Set(0);
      x.v[half] =
          kHasSecondMoment && s.exp_avg_sq != nullptr ? L::Load(s.exp_avg_sq + at) : L::Set(0);
    }
  }

  static void StoreFloats(float* to, const Floats (&x)[2], bool past_caches) {
    if (past_caches) {
      L::Stream(to, x[0]);
      L::Stream(to + 16, x[1]);
    } else {
      L::Store(to, x[0]);
      L::Store(to + 16, x[1]);
    }
  }
  static void StoreWords(uint16_t* to, const typename L::Words& first,
                         const typename L::Words& second, bool past_caches) {
    if (past_caches) {
      L::StreamWords(to, first, second);
    } else {
      L::StoreWords(to, first, second);
    }
  }

  static void StoreParam(const UpdateStreams& s, int64_t i, const Floats (&p)[2],
                         bool past_caches) {
    switch (s.param_type) {
      case ElementType::kBf16:
        StoreWords(Words(s.new_param, i), L::HighOf(p[0]), L::HighOf(p[1]), past_caches);
        StoreWords(Words(s.new_master, i), L::LowOf(p[0]), L::LowOf(p[1]), past_caches);
        return;
      case ElementType::kFp16:
        StoreWords(Words(s.new_param, i), L::Fp16Of(p[0]), L::Fp16Of(p[1]), past_caches);
        StoreFloats(static_cast<float*>(s.new_master) + i, p, past_caches);
        return;
      case ElementType::kFp32:
        StoreFloats(static_cast<float*>(s.new_param) + i, p, past_caches);
        return;
    }
  }

  template <typename Rule>
  static void Step(const Rule& rule, const UpdateStreams& s, int64_t i, StoreKind stores) {
    Values x;
    LoadStep<Rule::kHasSecondMoment>(s, i, x);
    for (int half = 0; half < 2; ++half) {
      x.p[half] = L::OneNaN(rule.Update(x.p[half], x.g[half], x.m[half], x.v[half]));
      x.m[half] = L::OneNaN(x.m[half]);
      if constexpr (Rule::kHasSecondMoment) x.v[half] = L::OneNaN(x.v[half]);
    }
    StoreParam(s, i, x.p, stores.param_past_caches);
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

  template <typename Rule>
  static void Part(const Rule& rule, const UpdateStreams& s, int64_t from, int64_t count) {
    Padded padded(s, from, count);
    Step(rule, padded.Streams(s), 0, StoreKind());
    padded.Give(s, from, count);
  }

  static void PrefetchStep(const UpdateStreams& s, int64_t i) {
    const auto one = [](const void* stream, int64_t from, int64_t bytes) {
      const char* const at = static_cast<const char*>(stream) + from * bytes;
      __builtin_prefetch(at);
      if (bytes == 4) __builtin_prefetch(at + 64);
    };
    const int64_t ahead = i + kPrefetchElements;
    if (s.param_type != ElementType::kFp16) one(s.param, ahead, ElementBytes(s.param_type));
    if (s.master != nullptr) one(s.master, ahead, s.param_type == ElementType::kBf16 ? 2 : 4);
    one(s.grad, ahead, ElementBytes(s.grad_type));
    if (s.exp_avg != nullptr) one(s.exp_avg, ahead, 4);
    if (s.exp_avg_sq != nullptr) one(s.exp_avg_sq, ahead, 4);
  }

  template <typename Rule>
  static void Run(const UpdateScalars& scalars, const UpdateStreams& s, StoreKind stores,
                  int64_t count) {
    const Rule rule(scalars);
    int64_t i = stores.head_elements < count ? stores.head_elements : count;
    if (i > 0) Part(rule, s, 0, i);
    for (; i + kStep <= count; i += kStep) {
      PrefetchStep(s, i);
      Step(rule, s, i, stores);
    }
    if (i < count) Part(rule, s, i, count - i);
  }
};

}  // namespace gemini::client
