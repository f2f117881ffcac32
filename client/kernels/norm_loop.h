// SPDX-License-Identifier: Apache-2.0
// Sums squares by block in the order of client/kernels/grad_norm.h, for one set of lanes. Only the
// sources of the instruction sets may include it (client/kernels/update_loops_avx512.cc and
// others). Whole blocks are summed four at a time: the additions of one block are a chain, whose
// latency would limit the speed. Processors do not prefetch four such streams well: without the
// explicit prefetches 5.7 GB/s were reached instead of 9.0.
#pragma once
#include <cstdint>
#include <cstring>

#include "client/kernels/stream_step.h"
#include "client/kernels/update_loop.h"
#include "client/kernels/update_loops.h"
#include "client/kernels/with_formats.h"

namespace gemini::client {

template <typename L>
struct NormLoop {
  using Floats = typename L::Floats;
  using Doubles = typename L::Doubles;
  static constexpr int64_t kBlock = kNormLoopBlockElements;
  static constexpr int64_t kStep = kUpdateStepElements;

  // Returns the sum of the lanes in order; a NaN is always the same one.
  static double SumOf(const Doubles& lanes) {
    double values[8];
    L::StoreDoubles(values, lanes);
    double sum = 0;
    for (const double value : values) sum += value;
    return sum != sum ? __builtin_nan("") : sum;
  }

  template <ElementType kType>
  static void AddStep(const void* values, int64_t i, Doubles& sums) {
    Floats x[2];
    StreamStep<L>::template LoadElements<kType>(values, i, x);
    L::AddSquares(x[0], sums);
    L::AddSquares(x[1], sums);
  }

  template <ElementType kType>
  static void SquaresOf(const void* values, int64_t count, double* sums) {
    constexpr int kAtOnce = 4;
    constexpr int64_t kElementBytes = ElementBytes(kType);
    int64_t at = 0;
    for (; at + kAtOnce * kBlock <= count; at += kAtOnce * kBlock, sums += kAtOnce) {
      Doubles lanes[kAtOnce] = {L::Zeros(), L::Zeros(), L::Zeros(), L::Zeros()};
      for (int64_t i = 0; i < kBlock; i += kStep) {
        for (int block = 0; block < kAtOnce; ++block) {
          // The next four blocks, in the order of memory; behind the end it is a hint without
          // effect.
          const int64_t ahead = at + kAtOnce * kBlock + i * kAtOnce + block * kStep;
          for (int64_t byte = 0; byte < kStep * kElementBytes; byte += 64) {
            const auto address = reinterpret_cast<uintptr_t>(values) +
                                 static_cast<uintptr_t>(ahead * kElementBytes + byte);
            __builtin_prefetch(reinterpret_cast<const void*>(address));
          }
          AddStep<kType>(values, at + block * kBlock + i, lanes[block]);
        }
      }
      for (int block = 0; block < kAtOnce; ++block) sums[block] = SumOf(lanes[block]);
    }
    for (; at < count; at += kBlock, ++sums) {
      const int64_t end = at + kBlock < count ? at + kBlock : count;
      Doubles lanes = L::Zeros();
      int64_t i = at;
      for (; i + kStep <= end; i += kStep) AddStep<kType>(values, i, lanes);
      if (i < end) {
        // Zeros behind the last element add nothing to their lanes.
        float padded[kStep] = {};
        std::memcpy(padded, static_cast<const char*>(values) + i * kElementBytes,
                    static_cast<size_t>((end - i) * kElementBytes));
        AddStep<kType>(padded, 0, lanes);
      }
      *sums = SumOf(lanes);
    }
  }

  static void Squares(ElementType type, const void* values, int64_t count, double* sums) {
    WithFormat(type, [&](auto format) { SquaresOf<decltype(format)::kType>(values, count, sums); });
  }

  template <typename Rule, ElementType kParam, ElementType kGrad>
  static void TrustSquaresOf(const UpdateScalars& scalars, const UpdateStreams& s, int64_t count,
                             double* param_sums, double* direction_sums) {
    using Streams = StreamStep<L>;
    const Rule rule(scalars);
    typename Streams::Values x;
    for (int64_t at = 0; at < count; at += kBlock) {
      const int64_t end = at + kBlock < count ? at + kBlock : count;
      Doubles param = L::Zeros(), direction = L::Zeros();
      int64_t i = at;
      for (; i + kStep <= end; i += kStep) {
        Streams::template LoadStep<Rule, kParam, kGrad>(s, i, x);
        for (int half = 0; half < 2; ++half) {
          L::AddSquares(x.p[half], param);
          L::AddSquares(rule.Direction(x.p[half], x.g[half], x.m[half], x.v[half]), direction);
        }
      }
      if (i < end) {
        typename Streams::Padded padded(s, i, end - i);
        Streams::template LoadStep<Rule, kParam, kGrad>(padded.Streams(s), 0, x);
        for (int half = 0; half < 2; ++half) {
          L::AddSquares(x.p[half], param);
          // The padding's lanes belong to no element, so they add zero.
          float lanes[16];
          L::Store(lanes, rule.Direction(x.p[half], x.g[half], x.m[half], x.v[half]));
          for (int64_t lane = 0; lane < 16; ++lane) {
            if (half * 16 + lane >= end - i) lanes[lane] = 0;
          }
          L::AddSquares(L::Load(lanes), direction);
        }
      }
      *param_sums++ = SumOf(param);
      *direction_sums++ = SumOf(direction);
    }
  }

  template <typename Rule>
  static void TrustSquares(const UpdateScalars& scalars, const UpdateStreams& s, int64_t count,
                           double* param_sums, double* direction_sums) {
    WithFormats(s.param_type, s.grad_type, [&]<ElementType kParam, ElementType kGrad>() {
      TrustSquaresOf<Rule, kParam, kGrad>(scalars, s, count, param_sums, direction_sums);
    });
  }
};

// Returns the table of one instruction set.
template <typename L>
constexpr UpdateLoops MakeUpdateLoops() {
  return {
      .update =
          [](OptimizerKind kind, const UpdateScalars& scalars, const UpdateStreams& streams,
             StoreKind stores, int64_t count) {
            WithRule<L>(kind, [&]<typename Rule>() {
              UpdateLoop<L>::template RunAny<Rule>(scalars, streams, stores, count);
            });
          },
      .fence = &L::Fence,
      .squares = &NormLoop<L>::Squares,
      .trust_squares =
          [](OptimizerKind kind, const UpdateScalars& scalars, const UpdateStreams& streams,
             int64_t count, double* param_sums, double* direction_sums) {
            if (kind == OptimizerKind::kLamb) {
              NormLoop<L>::template TrustSquares<LambRule<L>>(scalars, streams, count, param_sums,
                                                              direction_sums);
            } else {
              NormLoop<L>::template TrustSquares<LarsRule<L>>(scalars, streams, count, param_sums,
                                                              direction_sums);
            }
          },
  };
}

}  // namespace gemini::client
