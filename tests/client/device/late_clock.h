// SPDX-License-Identifier: Apache-2.0
// A CopyEngine whose operators reach their points when the test says so, at the times that it says.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "client/copy/copy_engine_host.h"

namespace gemini::client {

class LateClock : public CopyEngineHost {
 public:
  OperatorPoint Now() override {
    points_.push_back(std::make_shared<std::optional<int64_t>>());
    return {.asked_ns = 0, .event = points_.back()};
  }
  std::optional<int64_t> TimeOf(const OperatorPoint& point) const override {
    if (point.event == nullptr) return point.asked_ns;
    return *static_cast<const std::optional<int64_t>*>(point.event.get());
  }

  // The points that were asked for are reached at these times, from the first that was not.
  void Reach(const std::vector<int64_t>& times_ns) {
    for (const int64_t time_ns : times_ns) *points_.at(num_reached_++) = time_ns;
  }

 private:
  std::vector<std::shared_ptr<std::optional<int64_t>>> points_;
  size_t num_reached_ = 0;
};

}  // namespace gemini::client
