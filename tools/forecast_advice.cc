// SPDX-License-Identifier: Apache-2.0
#include "tools/forecast_advice.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/system/status_macros.h"

namespace gemini::tools {
namespace {

constexpr int64_t kStep = kGiB;  // People buy memory in whole ones.

struct Change {
  std::string text;
  Job job;
  Machine machine;
};

// One thing at a time, and where it does not fit, what is missing beside it.
class Changes {
 public:
  Changes(const Job& job, const Machine& machine, const Forecast& forecast)
      : job_(job), machine_(machine), forecast_(forecast) {}

  std::vector<Change> Make() {
    ToggleRecompute();
    ChangeMicroBatches();
    ChangeMemory();
    return std::move(changes_);
  }

 private:
  bool fits() const { return forecast_.fit.ok(); }

  Change& Add(std::string text) {
    return changes_.emplace_back(Change{std::move(text), job_, machine_});
  }

  void ToggleRecompute() {
    if (!job_.round.train) return;
    const bool on = !job_.round.recompute;
    if (!on && !fits()) return;
    Add(on ? "recompute activations (--recompute)" : "keep activations (no --recompute)")
        .job.round.recompute = on;
  }

  void ChangeMicroBatches() {
    const int64_t batch = job_.round.batch;
    if (fits()) {
      Change& larger = Add(absl::StrCat("twice the sequences a micro-batch (--batch ", 2 * batch,
                                        "): a step sees twice as many"));
      larger.job.round.batch = 2 * batch;
      if (!job_.round.train) return;
      const int64_t count = 2 * job_.round.micro_batches;
      Change& more = Add(absl::StrCat("twice the micro-batches (--accumulate ", count,
                                      "): a step sees twice as many sequences"));
      more.job.round.micro_batches = count;
      return;
    }
    // The same sequences a step, fewer at once.
    for (int64_t parts = 2; parts <= batch; parts *= 2) {
      if (batch % parts != 0) break;
      const int64_t count = job_.round.micro_batches * parts;
      std::string text = absl::StrCat("smaller micro-batches (--batch ", batch / parts);
      if (job_.round.train) absl::StrAppend(&text, " --accumulate ", count);
      for (const bool recompute : {false, true}) {
        if (recompute && (job_.round.recompute || !job_.round.train)) continue;
        Change& change = Add(absl::StrCat(text, recompute ? " --recompute)" : ")"));
        change.job.round.batch = batch / parts;
        if (job_.round.train) change.job.round.micro_batches = count;
        if (recompute) change.job.round.recompute = true;
      }
    }
  }

  void ChangeMemory() {
    const auto size = [](int64_t bytes) { return RoundUp(bytes, kStep); };
    const auto flag = [](int64_t bytes) {
      return bytes % kGiB == 0 ? absl::StrCat(bytes / kGiB, "GiB")
                               : absl::StrCat(bytes / kMiB, "MiB");
    };
    const int64_t device = machine_.bytes[Tier::kDevice];
    const int64_t host = machine_.bytes[Tier::kHost];
    const int64_t nvme = machine_.bytes[Tier::kNvme];
    int64_t more_device = device;
    if (fits()) {
      more_device = RoundUp(2 * device, kMiB);
    } else if (forecast_.device_floor.bytes() > device) {
      more_device = size(forecast_.device_floor.bytes());
    }
    if (more_device > device) {
      Add(absl::StrCat(fits() ? "twice the DEVICE memory (--device " : "more DEVICE (--device ",
                       flag(more_device), ")"))
          .machine.bytes[Tier::kDevice] = more_device;
    }
    const int64_t all = size(forecast_.needed_bytes);
    if (forecast_.nvme.sum() > 0 || forecast_.spare_bytes > host) {
      Add(absl::StrCat("HOST for everything, nothing on NVME (--host ", flag(all), ")"))
          .machine.bytes[Tier::kHost] = all;
    }
    const int64_t missing = forecast_.nvme.sum();
    if (missing > nvme) {
      Add(absl::StrCat("more NVME (--nvme ", flag(size(missing)), ")")).machine.bytes[Tier::kNvme] =
          size(missing);
    }
    if (more_device > device && missing > nvme) {
      Change& both = Add(
          absl::StrCat("more of both (--device ", flag(more_device), " --host ", flag(all), ")"));
      both.machine.bytes[Tier::kDevice] = more_device;
      both.machine.bytes[Tier::kHost] = all;
    }
  }

  const Job& job_;
  const Machine& machine_;
  const Forecast& forecast_;
  std::vector<Change> changes_;
};

}  // namespace

std::vector<Advice> Advise(const Job& job, const Machine& machine, const Forecast& forecast,
                           RoundTracer tracer) {
  std::vector<Advice> advice;
  for (Change& change : Changes(job, machine, forecast).Make()) {
    if (forecast.fit.ok()) change.job.chunk_bytes = forecast.chunk_bytes;
    absl::StatusOr<Forecast> changed = MakeForecast(change.job, change.machine, tracer);
    if (!changed.ok() || !changed->fit.ok()) continue;  // Such as more than a trace can hold.
    if (changed->tokens_per_second() < forecast.tokens_per_second() * (1 + kLeastGain)) continue;
    change.job.chunk_bytes = job.chunk_bytes;
    advice.push_back({std::move(change.text), change.job, change.machine, *std::move(changed)});
  }
  std::ranges::stable_sort(advice, [](const Advice& a, const Advice& b) {
    return a.forecast.tokens_per_second() > b.forecast.tokens_per_second();
  });
  return advice;
}

}  // namespace gemini::tools
