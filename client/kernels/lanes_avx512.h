// SPDX-License-Identifier: Apache-2.0
// Implements sixteen fp32 lanes in AVX-512, with the operations of client/kernels/lanes_portable.h.
// Only for sources that are compiled for that instruction set: elsewhere this header is empty. Such
// sources may include only functions that are always inlined and templates over these lanes. Of any
// other inline function the linker keeps one copy for the whole program, perhaps the one that needs
// AVX-512.
#pragma once
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include <immintrin.h>

#include <cstdint>

#define GEMINI_LANE [[gnu::always_inline]] static inline

namespace gemini::client {

struct LanesAvx512 {
  using Floats = __m512;
  using Words = __m512i;
  using Doubles = __m512d;

  GEMINI_LANE Floats Set(float value) { return _mm512_set1_ps(value); }
  GEMINI_LANE Floats Load(const float* from) { return _mm512_loadu_ps(from); }
  GEMINI_LANE Words LoadWords(const uint16_t* from) { return _mm512_loadu_si512(from); }
  GEMINI_LANE void Store(float* to, Floats value) { _mm512_storeu_ps(to, value); }
  GEMINI_LANE void Stream(float* to, Floats value) { _mm512_stream_ps(to, value); }
  GEMINI_LANE void StoreWords(uint16_t* to, Words value) { _mm512_storeu_si512(to, value); }
  GEMINI_LANE void StreamWords(uint16_t* to, Words value) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), value);
  }

  GEMINI_LANE Floats Add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  GEMINI_LANE Floats Sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  GEMINI_LANE Floats Mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  GEMINI_LANE Floats Div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
  GEMINI_LANE Floats Fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  GEMINI_LANE Floats Sqrt(Floats a) { return _mm512_sqrt_ps(a); }
  GEMINI_LANE bool AnyNaN(Floats a, Floats b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
  }
  GEMINI_LANE Floats OneNaN(Floats a) {
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(a, is_nan, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
  }

  GEMINI_LANE void OfBf16(Words bits, Floats& first, Floats& second) {
    Join(bits, _mm512_setzero_si512(), first, second);
  }
  GEMINI_LANE void OfFp16(Words bits, Floats& first, Floats& second) {
    first = _mm512_cvtph_ps(_mm512_castsi512_si256(bits));
    second = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1));
  }
  GEMINI_LANE Words Fp16Of(Floats first, Floats second) {
    constexpr int kRounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(first, kRounding)),
                              _mm512_cvtps_ph(second, kRounding), 1);
  }
  // A low half below zero borrows one from the high half; then the two halves are joined.
  GEMINI_LANE void JoinSplit(Words high, Words low, Floats& first, Floats& second) {
    Join(_mm512_add_epi16(high, _mm512_srai_epi16(low, 15)), low, first, second);
  }
  GEMINI_LANE void Split(Floats first, Floats second, Words& high, Words& low) {
    const __m512i first_bits = _mm512_castps_si512(first);
    const __m512i second_bits = _mm512_castps_si512(second);
    const __m512i half = _mm512_set1_epi32(0x8000);
    low = _mm512_permutex2var_epi16(first_bits, Indices(kEvenWords), second_bits);
    high = _mm512_permutex2var_epi16(_mm512_add_epi32(first_bits, half), Indices(kOddWords),
                                     _mm512_add_epi32(second_bits, half));
  }

  GEMINI_LANE Doubles Zeros() { return _mm512_setzero_pd(); }
  GEMINI_LANE void AddSquares(Floats value, Doubles& sums) {
    const __m512d first = _mm512_cvtps_pd(_mm512_castps512_ps256(value));
    const __m512d second = _mm512_cvtps_pd(_mm512_extractf32x8_ps(value, 1));
    sums = _mm512_fmadd_pd(first, first, sums);
    sums = _mm512_fmadd_pd(second, second, sums);
  }
  GEMINI_LANE void StoreDoubles(double* to, Doubles value) { _mm512_storeu_pd(to, value); }

  GEMINI_LANE void Fence() { _mm_sfence(); }

 private:
  // Joins the 32 pairs of a high and a low word to 32-bit lanes, sixteen in each result.
  GEMINI_LANE void Join(Words high, Words low, Floats& first, Floats& second) {
    first = _mm512_castsi512_ps(_mm512_permutex2var_epi16(low, Indices(kFirstPairs), high));
    second = _mm512_castsi512_ps(_mm512_permutex2var_epi16(low, Indices(kSecondPairs), high));
  }
  GEMINI_LANE __m512i Indices(const uint16_t* words) { return _mm512_load_si512(words); }

  // Indices into two registers of 32 words; those of the second are 32 to 63.
  alignas(64) static constexpr uint16_t kEvenWords[32] = {
      0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
      32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
  alignas(64) static constexpr uint16_t kOddWords[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                         23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                         45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  alignas(64) static constexpr uint16_t kFirstPairs[32] = {
      0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
      8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  alignas(64) static constexpr uint16_t kSecondPairs[32] = {
      16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
      24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
};

}  // namespace gemini::client

#undef GEMINI_LANE
#endif
