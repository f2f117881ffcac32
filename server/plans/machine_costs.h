// SPDX-License-Identifier: Apache-2.0
// Maintains the cost model of this machine: keeps it in the state directory and refreshes it by
// what clients measure. All jobs' plans reckon with it, so no client moves it far.
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
  // In the order of MeasuredRates: the first rate that was measured on this machine. 0: none was,
  // and the rate in `costs` is a guess.
  std::array<double, 6> calibrated = {};

  bool operator==(const KnownCosts&) const = default;
};

class MachineCosts {
 public:
  // Nothing is stored if the directory is empty. Costs with a GPU as DEVICE are stored apart from
  // those without.
  MachineCosts(std::string directory, bool device_is_gpu)
      : directory_(std::move(directory)), device_is_gpu_(device_is_gpu) {}

  // Loads the cost model that an earlier server stored for this machine. Returns false if there is
  // none, or if it is damaged, which is logged.
  bool Load();
  // Sets what Calibrate measured. With a GPU, the rates of its link and of its updates are guesses.
  void Set(const CostModel& costs);
  // Moves each rate halfway to the measured one, which is first clamped to a fourth of the
  // calibrated rate and four times that. A rate that was a guess is replaced, and becomes the
  // calibrated one. Ignores measured rates outside kLeastRate to kMostRate, and NaN.
  void Refresh(const MeasuredRates& measured);
  // Returns what costs() would be after Refresh.
  CostModel Refreshed(const MeasuredRates& measured) const;
  // Stores nothing from now on, because another server uses the directory.
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
