// SPDX-License-Identifier: Apache-2.0
// Compiled with -ffp-contract=off (client/CMakeLists.txt): every fma below is written, none is the
// compiler's. The body is inlined into one function an instruction set and vectorised there; fma,
// square root and division are correctly rounded in all of them, so lanes change no bit.
#include "client/adamw.h"

#include <cmath>

#include "gemini/check.h"

namespace gemini::client {
namespace {

struct Scalars {
  float gradient_scale;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float sqrt_correction2;
  float epsilon;
  float minus_step_size;
  float decay;
};

Scalars ScalarsOf(const AdamWSettings& settings) {
  const double step = static_cast<double>(settings.step);
  return {
      .gradient_scale = static_cast<float>(settings.gradient_scale),
      .beta1 = static_cast<float>(settings.beta1),
      .one_minus_beta1 = static_cast<float>(1 - settings.beta1),
      .beta2 = static_cast<float>(settings.beta2),
      .one_minus_beta2 = static_cast<float>(1 - settings.beta2),
      .sqrt_correction2 = static_cast<float>(std::sqrt(1 - std::pow(settings.beta2, step))),
      .epsilon = static_cast<float>(settings.epsilon),
      .minus_step_size =
          static_cast<float>(-settings.learning_rate / (1 - std::pow(settings.beta1, step))),
      .decay = static_cast<float>(1 - settings.learning_rate * settings.weight_decay),
  };
}

// An output that is its input is the same element of the same iteration, which is why ivdep is
// true.
template <bool kHasMoments>
[[gnu::always_inline]] inline void Loop(const Scalars s, const AdamWBuffers& b, int64_t count) {
  const float* const param = b.param;
  const float* const grad = b.grad;
  const float* const exp_avg = b.exp_avg;
  const float* const exp_avg_sq = b.exp_avg_sq;
  float* const new_param = b.new_param;
  float* const new_exp_avg = b.new_exp_avg;
  float* const new_exp_avg_sq = b.new_exp_avg_sq;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * s.gradient_scale;
    const float old_m = kHasMoments ? exp_avg[i] : 0.0f;
    const float old_v = kHasMoments ? exp_avg_sq[i] : 0.0f;
    const float m = std::fma(s.beta1, old_m, s.one_minus_beta1 * g);
    const float v = std::fma(s.beta2, old_v, s.one_minus_beta2 * (g * g));
    const float denominator = std::sqrt(v) / s.sqrt_correction2 + s.epsilon;
    new_param[i] = std::fma(s.minus_step_size, m / denominator, param[i] * s.decay);
    new_exp_avg[i] = m;
    new_exp_avg_sq[i] = v;
  }
}

[[gnu::always_inline]] inline void Body(const Scalars& s, const AdamWBuffers& b, int64_t count) {
  if (b.exp_avg != nullptr) {
    Loop<true>(s, b, count);
  } else {
    Loop<false>(s, b, count);
  }
}

void Portable(const Scalars& s, const AdamWBuffers& b, int64_t count) { Body(s, b, count); }

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] void Avx2(const Scalars& s, const AdamWBuffers& b, int64_t count) {
  Body(s, b, count);
}
[[gnu::target("avx512f,avx512vl,fma")]] void Avx512(const Scalars& s, const AdamWBuffers& b,
                                                    int64_t count) {
  Body(s, b, count);
}
#else
// Elsewhere the compiler vectorises the portable loop for what the target has.
constexpr auto Avx2 = Portable;
constexpr auto Avx512 = Portable;
#endif

AdamWPath WidestPath() {
  for (const AdamWPath path : {AdamWPath::kAvx512, AdamWPath::kAvx2}) {
    if (AdamWPathAvailable(path)) return path;
  }
  return AdamWPath::kPortable;
}

}  // namespace

bool AdamWPathAvailable(AdamWPath path) {
#if defined(__x86_64__)
  switch (path) {
    case AdamWPath::kPortable:
      return true;
    case AdamWPath::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case AdamWPath::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("fma");
  }
#endif
  return path == AdamWPath::kPortable;
}

void AdamWUpdate(const AdamWSettings& settings, const AdamWBuffers& buffers, int64_t count) {
  static const AdamWPath path = WidestPath();
  AdamWUpdateThrough(path, settings, buffers, count);
}

void AdamWUpdateThrough(AdamWPath path, const AdamWSettings& settings, const AdamWBuffers& buffers,
                        int64_t count) {
  GEMINI_CHECK(AdamWPathAvailable(path));
  // One moment without the other has no meaning.
  GEMINI_CHECK((buffers.exp_avg == nullptr) == (buffers.exp_avg_sq == nullptr));
  const Scalars scalars = ScalarsOf(settings);
  switch (path) {
    case AdamWPath::kPortable:
      return Portable(scalars, buffers, count);
    case AdamWPath::kAvx2:
      return Avx2(scalars, buffers, count);
    case AdamWPath::kAvx512:
      return Avx512(scalars, buffers, count);
  }
}

}  // namespace gemini::client
