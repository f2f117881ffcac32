// SPDX-License-Identifier: Apache-2.0
// The cost model of this machine over time: kept in the state directory, refreshed by what clients
// measure.
// Thread: one at a time (the plan worker), except costs(). Loading and keeping block on the disk.
// Units:  as in gemini/cost_model.h.
#pragma once
#include <array>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "gemini/cost_model.h"
#include "gemini/system/mutex.h"

namespace gemini::server {

struct KnownCosts {
  CostModel costs;
  // By the order of MeasuredRates: nobody has measured it here.
  std::array<bool, 6> guessed = {};

  bool operator==(const KnownCosts&) const = default;
};

class MachineCosts {
 public:
  // An empty directory: nothing is kept. With a GPU the machine has costs of their own.
  MachineCosts(std::string directory, bool device_is_gpu)
      : directory_(std::move(directory)), device_is_gpu_(device_is_gpu) {}

  // Takes the model that an earlier server kept for this machine. False: there is none, or it is
  // damaged (told in the log).
  bool Load();
  // What Calibrate found. Of a GPU its link and its updates are guessed.
  void Set(const CostModel& costs);
  // Moves each rate halfway to the measured one; one that was guessed all the way. A rate below a
  // millionth or above a million times what machines do (1e3 to 1e14), or no number, is left out.
  void Refresh(const MeasuredRates& measured);
  // Any thread.
  CostModel costs() const;

 private:
  void Keep() const;

  const std::string directory_;
  const bool device_is_gpu_;
  mutable Mutex mutex_;
  KnownCosts known_ ABSL_GUARDED_BY(mutex_);
};

// One line a field: "host_to_device 8e+09", or "host_to_device 8e+09 guess".
std::string CostsText(const KnownCosts& known);
// Nothing: a field is missing, unknown, twice, or out of range. Without the rate of updates on
// DEVICE it is that of HOST.
std::optional<KnownCosts> ParseCosts(absl::string_view text);

}  // namespace gemini::server
