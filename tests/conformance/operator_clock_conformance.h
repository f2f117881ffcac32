// SPDX-License-Identifier: Apache-2.0
// What the clock of every CopyEngine's operators must do; with copy_engine_conformance.h.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "client/copy/timeline_clock.h"
#include "tests/conformance/copy_engine_conformance.h"

namespace gemini::client {

TEST_P(CopyEngineConformance, ItsClockIsTheTimelinesAndGoesOn) {
  const int64_t before_ns = TimelineNowNs();
  std::vector<OperatorPoint> points;
  Bytes bytes = Filled(1 << 20, 1);
  Bytes other = Filled(1 << 20, 2);
  for (int i = 0; i < 20; ++i) {
    points.push_back(engine_->Now());
    engine_->CopyWithin(other.data(), bytes.data(), static_cast<int64_t>(bytes.size()));
  }
  points.push_back(engine_->Now());
  engine_->AwaitPoint(points.back());
  const int64_t after_ns = TimelineNowNs();
  constexpr int64_t kClocksErrorNs = 100'000;  // Between a GPU's and ours.
  int64_t last_ns = before_ns - kClocksErrorNs;
  for (const OperatorPoint& point : points) {
    const std::optional<int64_t> at_ns = engine_->TimeOf(point);
    ASSERT_TRUE(at_ns.has_value());
    EXPECT_GE(*at_ns, last_ns);
    last_ns = *at_ns;
  }
  EXPECT_LE(last_ns, after_ns + kClocksErrorNs);
}

}  // namespace gemini::client
