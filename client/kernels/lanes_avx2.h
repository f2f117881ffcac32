// SPDX-License-Identifier: Apache-2.0
// Implements sixteen fp32 lanes in AVX2, FMA and F16C, with the operations of
// client/kernels/lanes_portable.h. Only for sources that are compiled for these instruction sets:
// elsewhere this header is empty (client/kernels/lanes_avx512.h says why).
#pragma once
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

#include <cstdint>

#define GEMINI_LANE [[gnu::always_inline]] static inline

namespace gemini::client {

struct LanesAvx2 {
  struct Floats {
    __m256 first, second;
  };
  struct Words {
    __m256i first, second;
  };
  struct Doubles {
    __m256d first, second;
  };

  GEMINI_LANE Floats Set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  GEMINI_LANE Floats Load(const float* from) {
    return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
  }
  GEMINI_LANE Words LoadWords(const uint16_t* from) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 16))};
  }
  GEMINI_LANE void Store(float* to, Floats value) {
    _mm256_storeu_ps(to, value.first);
    _mm256_storeu_ps(to + 8, value.second);
  }
  GEMINI_LANE void Stream(float* to, Floats value) {
    _mm256_stream_ps(to, value.first);
    _mm256_stream_ps(to + 8, value.second);
  }
  GEMINI_LANE void StoreWords(uint16_t* to, Words value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value.first);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 16), value.second);
  }
  GEMINI_LANE void StreamWords(uint16_t* to, Words value) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), value.first);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 16), value.second);
  }

  GEMINI_LANE Floats Add(Floats a, Floats b) {
    return {_mm256_add_ps(a.first, b.first), _mm256_add_ps(a.second, b.second)};
  }
  GEMINI_LANE Floats Sub(Floats a, Floats b) {
    return {_mm256_sub_ps(a.first, b.first), _mm256_sub_ps(a.second, b.second)};
  }
  GEMINI_LANE Floats Mul(Floats a, Floats b) {
    return {_mm256_mul_ps(a.first, b.first), _mm256_mul_ps(a.second, b.second)};
  }
  GEMINI_LANE Floats Div(Floats a, Floats b) {
    return {_mm256_div_ps(a.first, b.first), _mm256_div_ps(a.second, b.second)};
  }
  GEMINI_LANE Floats Fma(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.first, b.first, c.first),
            _mm256_fmadd_ps(a.second, b.second, c.second)};
  }
  GEMINI_LANE Floats Sqrt(Floats a) { return {_mm256_sqrt_ps(a.first), _mm256_sqrt_ps(a.second)}; }
  GEMINI_LANE bool AnyNaN(Floats a, Floats b) {
    const __m256 first = _mm256_cmp_ps(a.first, a.second, _CMP_UNORD_Q);
    const __m256 second = _mm256_cmp_ps(b.first, b.second, _CMP_UNORD_Q);
    return _mm256_movemask_ps(_mm256_or_ps(first, second)) != 0;
  }
  GEMINI_LANE Floats OneNaN(Floats a) { return {OneNaN(a.first), OneNaN(a.second)}; }

  GEMINI_LANE void OfBf16(Words bits, Floats& first, Floats& second) {
    first = OfBf16(bits.first);
    second = OfBf16(bits.second);
  }
  GEMINI_LANE void OfFp16(Words bits, Floats& first, Floats& second) {
    first = OfFp16(bits.first);
    second = OfFp16(bits.second);
  }
  GEMINI_LANE Words Fp16Of(Floats first, Floats second) { return {Fp16Of(first), Fp16Of(second)}; }
  GEMINI_LANE void JoinSplit(Words high, Words low, Floats& first, Floats& second) {
    first = JoinSplit(high.first, low.first);
    second = JoinSplit(high.second, low.second);
  }
  GEMINI_LANE void Split(Floats first, Floats second, Words& high, Words& low) {
    high = {HighOf(first), HighOf(second)};
    low = {LowOf(first), LowOf(second)};
  }

  GEMINI_LANE Doubles Zeros() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
  GEMINI_LANE void AddSquares(Floats value, Doubles& sums) {
    AddSquares(value.first, sums);
    AddSquares(value.second, sums);
  }
  GEMINI_LANE void StoreDoubles(double* to, Doubles value) {
    _mm256_storeu_pd(to, value.first);
    _mm256_storeu_pd(to + 4, value.second);
  }

  GEMINI_LANE void Fence() { _mm_sfence(); }

 private:
  GEMINI_LANE __m128i Lower(__m256i value) { return _mm256_castsi256_si128(value); }
  GEMINI_LANE __m128i Upper(__m256i value) { return _mm256_extracti128_si256(value, 1); }
  // Returns the low halves of sixteen 32-bit lanes, none of which is above 0xffff.
  GEMINI_LANE __m256i Narrow(__m256i first, __m256i second) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0xd8);
  }
  GEMINI_LANE __m256 OneNaN(__m256 a) {
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    return _mm256_blendv_ps(a, nan, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  }
  GEMINI_LANE __m256 OfBf16(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  GEMINI_LANE Floats OfBf16(__m256i bits) { return {OfBf16(Lower(bits)), OfBf16(Upper(bits))}; }
  GEMINI_LANE Floats OfFp16(__m256i bits) {
    return {_mm256_cvtph_ps(Lower(bits)), _mm256_cvtph_ps(Upper(bits))};
  }
  GEMINI_LANE __m256i Fp16Of(Floats value) {
    constexpr int kRounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return _mm256_set_m128i(_mm256_cvtps_ph(value.second, kRounding),
                            _mm256_cvtps_ph(value.first, kRounding));
  }
  GEMINI_LANE __m256 JoinSplit(__m128i high, __m128i low) {
    const __m256i upper = _mm256_slli_epi32(_mm256_cvtepu16_epi32(high), 16);
    return _mm256_castsi256_ps(_mm256_add_epi32(upper, _mm256_cvtepi16_epi32(low)));
  }
  GEMINI_LANE Floats JoinSplit(__m256i high, __m256i low) {
    return {JoinSplit(Lower(high), Lower(low)), JoinSplit(Upper(high), Upper(low))};
  }
  GEMINI_LANE __m256i RoundedHigh(__m256 value) {
    const __m256i bits = _mm256_add_epi32(_mm256_castps_si256(value), _mm256_set1_epi32(0x8000));
    return _mm256_srli_epi32(bits, 16);
  }
  GEMINI_LANE __m256i HighOf(Floats value) {
    return Narrow(RoundedHigh(value.first), RoundedHigh(value.second));
  }
  GEMINI_LANE __m256i LowOf(Floats value) {
    const __m256i mask = _mm256_set1_epi32(0xffff);
    return Narrow(_mm256_and_si256(_mm256_castps_si256(value.first), mask),
                  _mm256_and_si256(_mm256_castps_si256(value.second), mask));
  }
  GEMINI_LANE void AddSquares(__m256 value, Doubles& sums) {
    const __m256d first = _mm256_cvtps_pd(_mm256_castps256_ps128(value));
    const __m256d second = _mm256_cvtps_pd(_mm256_extractf128_ps(value, 1));
    sums.first = _mm256_fmadd_pd(first, first, sums.first);
    sums.second = _mm256_fmadd_pd(second, second, sums.second);
  }
};

}  // namespace gemini::client

#undef GEMINI_LANE
#endif
