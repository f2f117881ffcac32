// SPDX-License-Identifier: Apache-2.0
// A run of a tensor's elements with random values, as trust ratios are made of them, in memory of
// its own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "client/kernels/grad_norm.h"
#include "client/kernels/trust_run.h"
#include "gemini/half_float.h"
#include "gemini/state_format.h"

namespace gemini::client {

// From the second norm block of a bundle's first elements to 77 before its last. The fp32 states of
// 16-bit formats go on in their second chunk inside a norm block.
class RandomTrustRun {
 public:
  RandomTrustRun(const StateFormat& format, bool has_moments, uint64_t seed) : random_(seed) {
    run_.settings = {.kind = format.optimizer, .step = 3, .gradient_scale = 0.5};
    run_.first = kNormBlockElements;
    run_.count = kChunkBytes / ElementBytes(format.element) - kNormBlockElements - 77;
    Fill(format, ChunkKind::kParam, run_.param);
    Fill(format, ChunkKind::kGrad, run_.grad);
    for (ValueChunks* const moment : {&run_.exp_avg, &run_.exp_avg_sq}) {
      Fill(format, moment == &run_.exp_avg ? ChunkKind::kExpAvg : ChunkKind::kExpAvgSq, *moment);
      if (!has_moments) moment->chunks.clear();
    }
  }

  static constexpr int64_t kChunkBytes = 400'000;
  const TrustRun& run() const { return run_; }

 private:
  // Halves, of which two are an fp32 number, too; none of these is negative, as second moments are.
  void Fill(const StateFormat& format, ChunkKind value, ValueChunks& values) {
    values.format = format;
    values.value = value;
    values.chunk_bytes = kChunkBytes;
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < KindsOfValue(format, value).size(); ++i) {
      std::vector<uint16_t>& chunk = chunks_.emplace_back(kChunkBytes / 2);
      for (uint16_t& half : chunk) {
        half = Fp16Of(normal(random_));
        if (IsMoment(value)) half &= 0x7fff;
      }
      values.chunks.push_back(reinterpret_cast<std::byte*>(chunk.data()));
    }
  }

  std::mt19937_64 random_;
  std::vector<std::vector<uint16_t>>
      chunks_;  // Those of the run point to their elements, which stay.
  TrustRun run_;
};

}  // namespace gemini::client
