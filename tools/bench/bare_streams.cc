// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bare_streams.h"

#include <cstring>

#include "client/kernels/update_loops.h"
#include "client/kernels/vector_path.h"
#include "gemini/system/check.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gemini::bench {
namespace {

constexpr int64_t kStep = client::kUpdateStepElements;

#if defined(__x86_64__)
// One line of 64 bytes: the sum of the stored value and `other` goes to the new place.
[[gnu::target("avx512f")]] void Line512(const void* from, const void* other, void* to,
                                        int64_t bytes) {
  const __m512i value = _mm512_loadu_si512(static_cast<const char*>(from) + bytes);
  const __m512i added = _mm512_loadu_si512(static_cast<const char*>(other) + bytes);
  _mm512_stream_si512(reinterpret_cast<__m512i*>(static_cast<char*>(to) + bytes),
                      _mm512_add_epi32(value, added));
}

[[gnu::target("avx512f")]] void Bare512(const client::UpdateStreams& s, int64_t count) {
  alignas(64) static constexpr int32_t kOnes[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const __m512i ones = _mm512_load_si512(kOnes);
  const auto moment = [&](const float* from, float* to) __attribute__((target("avx512f"))) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to),
                        _mm512_add_epi32(_mm512_loadu_si512(from), ones));
  };
  for (int64_t i = 0; i < count; i += kStep) {
    Line512(s.param, s.grad, s.new_param, i * 2);
    Line512(s.master, s.grad, s.new_master, i * 2);
    for (const int64_t half : {0, 16}) {
      moment(s.exp_avg + i + half, s.new_exp_avg + i + half);
      moment(s.exp_avg_sq + i + half, s.new_exp_avg_sq + i + half);
    }
  }
}

// One line of 64 bytes, whole before the next one is begun.
[[gnu::target("avx2")]] void Line256(const void* from, __m256i first, __m256i second, void* to,
                                     int64_t bytes) {
  const auto* const at = reinterpret_cast<const __m256i*>(static_cast<const char*>(from) + bytes);
  auto* const out = reinterpret_cast<__m256i*>(static_cast<char*>(to) + bytes);
  _mm256_stream_si256(out, _mm256_add_epi32(_mm256_loadu_si256(at), first));
  _mm256_stream_si256(out + 1, _mm256_add_epi32(_mm256_loadu_si256(at + 1), second));
}

[[gnu::target("avx2")]] void Bare256(const client::UpdateStreams& s, int64_t count) {
  const __m256i ones = _mm256_set1_epi32(1);
  for (int64_t i = 0; i < count; i += kStep) {
    const auto* const grad =
        reinterpret_cast<const __m256i*>(static_cast<const char*>(s.grad) + i * 2);
    const __m256i first = _mm256_loadu_si256(grad);
    const __m256i second = _mm256_loadu_si256(grad + 1);
    Line256(s.param, first, second, s.new_param, i * 2);
    Line256(s.master, first, second, s.new_master, i * 2);
    for (const int64_t line : {0, 64}) {
      Line256(s.exp_avg, ones, ones, s.new_exp_avg, i * 4 + line);
      Line256(s.exp_avg_sq, ones, ones, s.new_exp_avg_sq, i * 4 + line);
    }
  }
}
#endif

void BarePortable(const client::UpdateStreams& s, int64_t count) {
  const auto* const param = static_cast<const uint16_t*>(s.param);
  const auto* const master = static_cast<const uint16_t*>(s.master);
  const auto* const grad = static_cast<const uint16_t*>(s.grad);
  auto* const new_param = static_cast<uint16_t*>(s.new_param);
  auto* const new_master = static_cast<uint16_t*>(s.new_master);
  for (int64_t i = 0; i < count; ++i) {
    new_param[i] = static_cast<uint16_t>(param[i] + grad[i]);
    new_master[i] = static_cast<uint16_t>(master[i] + grad[i]);
    s.new_exp_avg[i] = s.exp_avg[i] + 1;
    s.new_exp_avg_sq[i] = s.exp_avg_sq[i] + 1;
  }
}

}  // namespace

void BareStreams(const client::UpdateStreams& streams, int64_t count) {
  GEMINI_CHECK(count % kStep == 0);
  const client::VectorPath path = client::WidestVectorPath();
#if defined(__x86_64__)
  if (path == client::VectorPath::kAvx512) Bare512(streams, count);
  if (path == client::VectorPath::kAvx2) Bare256(streams, count);
#endif
  if (path == client::VectorPath::kPortable) BarePortable(streams, count);
  client::LoopsOf(path).fence();
}

}  // namespace gemini::bench
