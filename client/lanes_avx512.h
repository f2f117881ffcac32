// SPDX-License-Identifier: Apache-2.0
// Sixteen fp32 lanes in AVX-512, as client/lanes_portable.h says. Only for sources that are compiled for
// that instruction set: elsewhere this header is empty. What those sources include must have nothing
// that the linker could take for other code, so no functions but always-inlined ones.
#pragma once
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include <immintrin.h>

#include <cstdint>

#define GEMINI_LANE [[gnu::always_inline]] static inline

namespace gemini::client {

struct LanesAvx512 {
  using Floats = __m512;
  using Words = __m256i;
  using Doubles = __m512d;

  GEMINI_LANE Floats Set(float value) { return _mm512_set1_ps(value); }
  GEMINI_LANE Floats Load(const float* from) { return _mm512_loadu_ps(from); }
  GEMINI_LANE Words LoadWords(const uint16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  GEMINI_LANE void Store(float* to, Floats value) { _mm512_storeu_ps(to, value); }
  GEMINI_LANE void Stream(float* to, Floats value) { _mm512_stream_ps(to, value); }
  GEMINI_LANE void StoreWords(uint16_t* to, Words first, Words second) {
    _mm512_storeu_si512(to, Both(first, second));
  }
  GEMINI_LANE void StreamWords(uint16_t* to, Words first, Words second) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), Both(first, second));
  }

  GEMINI_LANE Floats Add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  GEMINI_LANE Floats Sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
  GEMINI_LANE Floats Mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  GEMINI_LANE Floats Div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
  GEMINI_LANE Floats Fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  GEMINI_LANE Floats Sqrt(Floats a) { return _mm512_sqrt_ps(a); }
  GEMINI_LANE Floats OneNaN(Floats a) {
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(a, is_nan, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
  }

  GEMINI_LANE Floats OfBf16(Words bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  GEMINI_LANE Floats OfFp16(Words bits) { return _mm512_cvtph_ps(bits); }
  GEMINI_LANE Words Fp16Of(Floats value) {
    return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  GEMINI_LANE Floats Join(Words high, Words low) {
    const __m512i upper = _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16);
    return _mm512_castsi512_ps(_mm512_add_epi32(upper, _mm512_cvtepi16_epi32(low)));
  }
  GEMINI_LANE Words HighOf(Floats value) {
    const __m512i bits = _mm512_add_epi32(_mm512_castps_si512(value), _mm512_set1_epi32(0x8000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
  }
  GEMINI_LANE Words LowOf(Floats value) {
    return _mm512_cvtepi32_epi16(_mm512_castps_si512(value));
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
  GEMINI_LANE __m512i Both(Words first, Words second) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
  }
};

}  // namespace gemini::client

#undef GEMINI_LANE
#endif
