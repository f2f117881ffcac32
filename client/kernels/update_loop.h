// SPDX-License-Identifier: Apache-2.0
// Applies an optimizer's rule to the streams of an update in a loop, for one set of lanes. Only the
// sources of the instruction sets may include it (client/kernels/update_loops_avx512.cc and
// others).
// Steps are of 32 elements: a cache line of a 16-bit stream and two of an fp32 one, so that every
// store past the caches fills a line at once. Elements that do not fill a whole step are copied to
// padded buffers on the stack and updated there.
// Measured: a step is some 90 instructions. With 200 the processor looked too few steps ahead, and
// 0.86 of the memory's speed was reached instead of 0.93. Prefetching streams, from 128 to 2,048
// elements ahead, changed nothing.
#pragma once
#include <cstdint>

#include "client/kernels/staged_stores.h"
#include "client/kernels/stream_step.h"
#include "client/kernels/update_loops.h"
#include "client/kernels/update_rules.h"
#include "client/kernels/with_formats.h"

namespace gemini::client {

template <typename L>
struct UpdateLoop {
  using Streams = StreamStep<L>;
  static constexpr int64_t kStep = Streams::kElements;

  template <typename Rule, ElementType kParam, ElementType kGrad>
  [[gnu::always_inline]] static void Step(const Rule& rule, const UpdateStreams& s, int64_t i,
                                          StoreKind stores) {
    typename Streams::Values x;
    Streams::template LoadStep<Rule, kParam, kGrad>(s, i, x);
    for (int half = 0; half < 2; ++half) {
      x.p[half] = rule.Update(x.p[half], x.g[half], x.m[half], x.v[half]);
    }
    if (L::AnyNaN(x.p[0], x.p[1])) [[unlikely]] {
      typename Streams::Values fixed = x;
      Streams::template MakeOneNaN<Rule>(fixed);
      x = fixed;
    }
    using Stage = StagedStores<L, kParam, kGrad>;
    Streams::template StoreParam<kParam>(s, i, x.p, stores.param_past_caches,
                                         stores.param_past_caches && !Stage::kMasterWaits);
    Streams::StoreFloats(s.new_exp_avg + i, x.m,
                         stores.moments_past_caches && !Stage::kExpAvgWaits);
    if constexpr (Rule::kHasSecondMoment) Streams::StoreFloats(s.new_exp_avg_sq + i, x.v, false);
  }

  // Updates elements [from, end), which are whole steps.
  template <typename Rule, ElementType kParam, ElementType kGrad>
  [[gnu::noinline]] static void Steps(const UpdateScalars& scalars, const UpdateStreams& streams,
                                      StoreKind stores, int64_t from, int64_t end) {
    const Rule rule(scalars);
    StagedStores<L, kParam, kGrad> stage(streams, stores);
    while (from < end) {
      const int64_t count = stage.kBlock < end - from ? stage.kBlock : end - from;
      const UpdateStreams block = stage.Begin(from);
      for (int64_t i = 0; i < count; i += kStep) Step<Rule, kParam, kGrad>(rule, block, i, stores);
      stage.End(from, count);
      from += count;
    }
  }

  template <typename Rule, ElementType kParam, ElementType kGrad>
  static void Run(const UpdateScalars& scalars, const UpdateStreams& s, StoreKind stores,
                  int64_t count) {
    const auto part = [&](int64_t from, int64_t size) {
      if (size == 0) return;
      typename Streams::Padded padded(s, from, size);
      Steps<Rule, kParam, kGrad>(scalars, padded.Streams(s), StoreKind(), 0, kStep);
      padded.Give(s, from, size);
    };
    const int64_t head = stores.head_elements < count ? stores.head_elements : count;
    const int64_t tail = (count - head) % kStep;
    part(0, head);
    Steps<Rule, kParam, kGrad>(scalars, s, stores, head, count - tail);
    part(count - tail, tail);
  }

  template <typename Rule>
  static void RunAny(const UpdateScalars& scalars, const UpdateStreams& s, StoreKind stores,
                     int64_t count) {
    WithFormats(s.param_type, s.grad_type, [&]<ElementType kParam, ElementType kGrad>() {
      Run<Rule, kParam, kGrad>(scalars, s, stores, count);
    });
  }
};

}  // namespace gemini::client
