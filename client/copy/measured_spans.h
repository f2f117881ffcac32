// SPDX-License-Identifier: Apache-2.0
// Keeps spans of operators' work until they can be measured, oldest first. Each span runs from one
// point to another (CopyEngine::Now). Its times are known only when the second point is reached,
// which on a GPU is later than the points are made.
// Thread: none of its own; the caller locks.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "client/copy/copy_engine.h"

namespace gemini::client {

struct OperatorSpan {
  OperatorPoint begin;
  OperatorPoint end;
};

template <typename T>
class MeasuredSpans {
 public:
  struct Measured {
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
    T what;
  };

  void Add(OperatorSpan span, T what) { spans_.push_back({std::move(span), std::move(what)}); }
  bool empty() const { return first_ == spans_.size(); }
  size_t size() const { return spans_.size() - first_; }
  // Returns what the oldest span was added with. There must be one.
  const T& front() const { return spans_[first_].what; }

  // Takes the oldest span if it is over. Spans are taken in the order of Add.
  std::optional<Measured> Take(const CopyEngine& clock) {
    if (empty()) return std::nullopt;
    Span& oldest = spans_[first_];
    const std::optional<int64_t> end_ns = clock.TimeOf(oldest.at.end);
    if (!end_ns) return std::nullopt;
    // The clocks of a GPU and of the host agree within microseconds, so a short span may seem to
    // end before it begins.
    Measured measured = {
        .begin_ns = std::min(clock.TimeOf(oldest.at.begin).value_or(*end_ns), *end_ns),
        .end_ns = *end_ns,
        .what = std::move(oldest.what)};
    oldest.at = {};
    // Memory is kept: spans that are over at once allocate nothing.
    if (++first_ == spans_.size()) {
      spans_.clear();
      first_ = 0;
    } else if (first_ > spans_.size() / 2) {
      spans_.erase(spans_.begin(), spans_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }
    return measured;
  }
  // Blocks until the oldest `count` spans are over, or all if there are fewer.
  void Await(CopyEngine& clock, size_t count) const {
    for (size_t i = first_; i < std::min(first_ + count, spans_.size()); ++i) {
      clock.AwaitPoint(spans_[i].at.end);
    }
  }

 private:
  struct Span {
    OperatorSpan at;
    T what;
  };
  std::vector<Span> spans_;
  size_t first_ = 0;  // Spans before it were taken.
};

}  // namespace gemini::client
