// SPDX-License-Identifier: Apache-2.0
// The cost model of this machine over time: kept in the state directory, refreshed by what clients
// measure. All jobs' plans reckon with it, so no client moves it far.
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
  // In the order of MeasuredRates: what was measured here first. 0: nothing yet, the rate is a
  // guess.
  std::array<double, 6> calibrated = {};

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
  // Moves each rate halfway to the measured one, which counts as at most 4 times the calibrated one
  // and at least a 4th of it. One that was guessed moves all the way, and that is its calibration.
  // A rate below a millionth or above a million times what machines do (1e3 to 1e14), or no number,
  // is left out.
  void Refresh(const MeasuredRates& measured);
  // What costs() would be behind that.
  CostModel Refreshed(const MeasuredRates& measured) const;
  // From now on nothing is written to the directory, which another server has.
  void DoNotKeep() { keeps_ = false; }
  // Any thread.
  CostModel costs() const;

 private:
  void Keep() const;

  const std::string directory_;
  const bool device_is_gpu_;
  bool keeps_ = true;
  mutable Mutex mutex_;
  KnownCosts known_ ABSL_GUARDED_BY(mutex_);
};

// One line a field: "host_to_device 8e+09 7e+09" with the calibrated rate behind it, or
// "host_to_device 8e+09 guess".
std::string CostsText(const KnownCosts& known);
// Nothing: a field is missing, unknown, twice, or out of range. Without the rate of updates on
// DEVICE it is that of HOST, and without a calibrated rate that is the rate itself.
std::optional<KnownCosts> ParseCosts(absl::string_view text);

}  // namespace gemini::server
