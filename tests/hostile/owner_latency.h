// SPDX-License-Identifier: Apache-2.0
// How long the daemon keeps an observer waiting while somebody else does their worst to it: 200
// requests for its status, each due 10 ms after the one before. A request that is late because an
// earlier one waited counts as late, so that one long wait is not one sample but all those it
// covers. Where the machine itself stood still at that moment, for a period or more, that does not
// count. A new case is a TEST_F that starts the daemon, connects its hostile clients and calls
// ExpectPrompt.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/server/daemon_process.h"

namespace gemini::server {

struct LatencyFigures {
  absl::Duration p50;
  absl::Duration p99;
  absl::Duration max;
};

class OwnerLatency : public ::testing::Test {
 protected:
  ~OwnerLatency() override;
  // `deny` runs on the thread that starts the daemon, which inherits the calls that it is denied.
  void Start(std::vector<std::string> flags, const std::function<void()>& deny = {});
  // Kills the daemon, if it is not dead. Another can be started then.
  void Stop();
  WireClient Connect(absl::string_view label, wire::Role role = wire::Role::kTrainer);
  // Of at least 200 requests, and of as many more as are due until `hostile` has returned.
  LatencyFigures Measure(const std::function<void()>& hostile = {});
  // What the observer sees while nobody else does anything: to be measured first.
  void MeasureAtRest() { at_rest_ = Measure(); }
  // Prints that, and what it sees beside `hostile`, whose p99 is held to the bound.
  // It measures at most `tries` times, and is content with the first measurement within the bound.
  // Each of them begins `hostile` again.
  void ExpectPrompt(absl::string_view what, const std::function<void()>& hostile, int tries = 1);
  // Descriptors that the daemon has open, of those whose /proc link contains `part`.
  int64_t CountDescriptors(absl::string_view part = "") const;
  // Asks until `condition` holds, for `patience` at most. Returns whether it came to hold.
  static bool Await(absl::Duration patience, const std::function<bool()>& condition);
  DaemonProcess& daemon() const { return *daemon_; }

 private:
  std::unique_ptr<DaemonProcess> daemon_;
  std::thread starter_;
  LatencyFigures at_rest_;
  std::atomic<bool> ended_ = false;
};

}  // namespace gemini::server
