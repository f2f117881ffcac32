// SPDX-License-Identifier: Apache-2.0
#include "tools/forecast.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/byte_size.h"
#include "gemini/system/status_macros.h"
#include "policies/planner/planner.h"
#include "policies/simulator/host_playback.h"
#include "policies/simulator/simulator.h"
#include "policies/trace/range_trace.h"
#include "trainer/forecast/device_floor.h"

namespace gemini::tools {
namespace {

using policies::RangeTrace;
using trainer::NamedTrace;

// A plan takes time in proportion to fetches times slots: with this many bundles a forecast, some
// dozen plans, takes a third of a second. Sizes that would need more gain little: GPT-2 1.5B on 6
// GiB is 1% faster in chunks of 1 MiB than in those of 2 MiB that this leaves it.
constexpr int64_t kMaxSearchedBundles = 2'500;

// Lays `needed` into `host_bytes` of HOST, and the rest onto NVME, states whose home that is in any
// case.
void Place(const StateBytes& needed, int64_t host_bytes, bool states_on_nvme, Forecast& forecast) {
  int64_t excess =
      std::max(needed.sum() - host_bytes, states_on_nvme ? needed.moments + needed.masters : 0);
  forecast.host = needed;
  // What is used least often in a step first: parameters are read twice and more.
  for (auto state : {&StateBytes::moments, &StateBytes::masters, &StateBytes::gradients,
                     &StateBytes::parameters}) {
    const int64_t bytes = std::min(excess, needed.*state);
    forecast.host.*state -= bytes;
    forecast.nvme.*state = bytes;
    excess -= bytes;
  }
}

// What one more micro-batch after `last` costs is what `last` cost more than `before`.
Prediction Extrapolated(const Prediction& before, const Prediction& last, int64_t more) {
  Prediction sum = last;
  const auto extend = [&](auto Prediction::*field) {
    sum.*field += more * std::max<int64_t>(0, last.*field - before.*field);
  };
  for (auto field :
       {&Prediction::round_ns, &Prediction::compute_ns, &Prediction::fetch_bytes,
        &Prediction::evict_bytes, &Prediction::nvme_read_bytes, &Prediction::nvme_write_bytes}) {
    extend(field);
  }
  for (int cause = 0; cause < kNumStallCauses; ++cause) {
    sum.stall_ns[cause] +=
        more * std::max<int64_t>(0, last.stall_ns[cause] - before.stall_ns[cause]);
  }
  return sum;
}

class Forecaster {
 public:
  Forecaster(const Machine& machine, const PolicyOptions& policy)
      : machine_(machine), policy_(policy) {}

  absl::StatusOr<Forecast> Make(const Job& job, RoundTracer tracer) {
    const auto trace_of = [&](int64_t micro_batches) {
      trainer::TraceRequest request = {job.round, machine_.compute};
      request.round.micro_batches = micro_batches;
      return tracer(request);
    };
    const int64_t simulated = std::min(job.round.micro_batches, kSimulatedMicroBatches);
    GEMINI_ASSIGN_OR_RETURN(const NamedTrace step, trace_of(simulated));
    if (job.chunk_bytes > 0 || simulated == 1) {
      GEMINI_RETURN_IF_ERROR(ChooseChunkSize(job.chunk_bytes, step.trace));
    } else {
      // The others are repetitions.
      GEMINI_ASSIGN_OR_RETURN(const NamedTrace one, trace_of(1));
      GEMINI_RETURN_IF_ERROR(ChooseChunkSize(job.chunk_bytes, one.trace));
    }
    GEMINI_ASSIGN_OR_RETURN(const RangeTrace packed, PlanStep(step));
    forecast_.tokens = job.round.batch * job.round.sequence * job.round.micro_batches;
    const int64_t more = job.round.micro_batches - simulated;
    if (more > 0 && forecast_.is_predicted()) {
      GEMINI_ASSIGN_OR_RETURN(const NamedTrace shorter, trace_of(simulated - 1));
      GEMINI_ASSIGN_OR_RETURN(const RangeTrace packed_shorter,
                              policies::PackTrace(shorter.trace, forecast_.chunk_bytes));
      GEMINI_ASSIGN_OR_RETURN(const Plan before, PlanFor(packed_shorter));
      forecast_.prediction = Extrapolated(before.prediction, forecast_.prediction, more);
      forecast_.is_extrapolated = true;
    }
    CountLanes(packed);
    return std::move(forecast_);
  }

  absl::StatusOr<Forecast> Make(const NamedTrace& step, int64_t chunk_bytes) {
    GEMINI_RETURN_IF_ERROR(ChooseChunkSize(chunk_bytes, step.trace));
    GEMINI_ASSIGN_OR_RETURN(const RangeTrace packed, PlanStep(step));
    CountLanes(packed);
    return std::move(forecast_);
  }

  absl::StatusOr<Forecast> Make(const Trace& trace, int64_t chunk_bytes) {
    forecast_.chunk_bytes = chunk_bytes;
    CountParameters(trace);
    GEMINI_ASSIGN_OR_RETURN(const RangeTrace packed, policies::PackTrace(trace, chunk_bytes));
    forecast_.device_floor = {.who = "the largest operator",
                              .non_model_bytes = policies::DeviceFloorBytes(packed)};
    GEMINI_RETURN_IF_ERROR(Predict(packed));
    CountLanes(packed);
    return std::move(forecast_);
  }

 private:
  // As if HOST held everything: the size changes what lies on NVME by its padding alone.
  absl::Status ChooseChunkSize(int64_t asked_bytes, const Trace& trace) {
    forecast_.chunk_bytes = asked_bytes;
    if (asked_bytes > 0) return absl::OkStatus();
    policies::ChunkSizeSearchInputs inputs = {
        .trace = trace,
        .budget_bytes = {{machine_.bytes[Tier::kDevice], policies::kUnlimitedBytes, 0}},
        .costs = machine_.links,
        .policy = policy_,
        .max_bundles = kMaxSearchedBundles};
    absl::StatusOr<policies::ChunkSizeChoice> choice = policies::SearchChunkSize(inputs);
    if (absl::IsResourceExhausted(choice.status())) {
      // Nothing fits: the smallest chunks have the lowest floor.
      forecast_.chunk_bytes = inputs.least_chunk_bytes;
      return absl::OkStatus();
    }
    GEMINI_RETURN_IF_ERROR(choice.status());
    forecast_.chunk_bytes = choice->plan.chunk_bytes;
    forecast_.tried = std::move(choice->tried);
    return absl::OkStatus();
  }

  // Returns the step in the chunks that were chosen.
  absl::StatusOr<RangeTrace> PlanStep(const NamedTrace& step) {
    CountParameters(step.trace);
    GEMINI_ASSIGN_OR_RETURN(RangeTrace packed,
                            policies::PackTrace(step.trace, forecast_.chunk_bytes));
    forecast_.device_floor = trainer::FindDeviceFloor(packed, step);
    GEMINI_RETURN_IF_ERROR(Predict(packed));
    return packed;
  }

  void CountParameters(const Trace& trace) {
    forecast_.num_parameters = 0;
    for (const TracedTensor& tensor : trace.tensors) {
      forecast_.num_parameters += tensor.size_bytes / ElementBytes(tensor.format.element);
    }
  }

  absl::Status Predict(const RangeTrace& packed) {
    for (const RangeTrace::Operator& at : packed.operators) {
      forecast_.non_model_peak_bytes =
          std::max(forecast_.non_model_peak_bytes, at.non_model_peak_bytes);
    }
    PlaceStates(packed);
    if (!CheckFit()) return absl::OkStatus();
    absl::StatusOr<Plan> plan = PlanFor(packed);
    if (absl::IsResourceExhausted(plan.status())) {
      forecast_.no_plan = plan.status();
      return absl::OkStatus();
    }
    GEMINI_RETURN_IF_ERROR(plan.status());
    forecast_.plan = *std::move(plan);
    forecast_.prediction = forecast_.plan.prediction;
    return absl::OkStatus();
  }

  void PlaceStates(const RangeTrace& packed) {
    StateBytes needed;
    bool states_on_nvme = false;
    for (const PlannedRange& range : packed.ranges) {
      const int64_t bytes = range.num_bundles * packed.chunk_bytes;
      if (range.kind == ChunkKind::kGrad) {
        needed.gradients += bytes;
        for (const ChunkKind kind : UpdatedKinds(packed.format_of(range))) {
          if (kind != ChunkKind::kParam)
            (IsMoment(kind) ? needed.moments : needed.masters) += bytes;
        }
        states_on_nvme |= packed.states_on_nvme[range.space];
      } else {
        needed.parameters += bytes;
      }
    }
    for (size_t space = 0; space < packed.formats.size(); ++space) {
      forecast_.spare_bytes += packed.SpareSlotsOf(space) * packed.chunk_bytes;
    }
    forecast_.needed_bytes = needed.sum() + forecast_.spare_bytes;
    const int64_t host_bytes =
        machine_.bytes[Tier::kHost] / packed.chunk_bytes * packed.chunk_bytes;
    Place(needed, std::max<int64_t>(0, host_bytes - forecast_.spare_bytes), states_on_nvme,
          forecast_);
  }

  // Fills `fit` with everything that is missing.
  bool CheckFit() {
    const int64_t device = machine_.bytes[Tier::kDevice];
    const int64_t host = machine_.bytes[Tier::kHost];
    const int64_t nvme = machine_.bytes[Tier::kNvme];
    std::vector<std::string> missing;
    if (forecast_.device_floor.bytes() > device) {
      missing.push_back(DeviceShortage(forecast_.device_floor, device));
    }
    if (forecast_.spare_bytes > host) {
      missing.push_back(absl::StrCat("HOST is ", FormatByteSize(forecast_.spare_bytes - host),
                                     " too small: updates and copies under way need ",
                                     FormatByteSize(forecast_.spare_bytes), ", of ",
                                     FormatByteSize(host)));
    }
    if (forecast_.nvme.sum() > nvme) {
      missing.push_back(absl::StrCat("HOST and NVME are ",
                                     FormatByteSize(forecast_.nvme.sum() - nvme),
                                     " too small: parameters, gradients and optimizer states need ",
                                     FormatByteSize(forecast_.needed_bytes), ", of ",
                                     FormatByteSize(host), " and ", FormatByteSize(nvme)));
    }
    if (missing.empty()) return true;
    forecast_.fit = absl::ResourceExhaustedError(absl::StrJoin(missing, "; "));
    return false;
  }

  absl::StatusOr<Plan> PlanFor(const RangeTrace& packed) const {
    GEMINI_ASSIGN_OR_RETURN(Plan plan,
                            policies::MakePlan({packed, machine_.bytes, machine_.links, policy_}));
    if (plan.host_uses.empty() && !policies::HostHoldsAll(packed, machine_.bytes[Tier::kHost])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "chunks of ", FormatByteSize(packed.chunk_bytes),
          " are too many to foretell what HOST and NVME do with them: take larger ones"));
    }
    return plan;
  }

  void CountLanes(const RangeTrace& packed) {
    if (!forecast_.is_predicted()) return;
    const Prediction& prediction = forecast_.prediction;
    const CostModel& links = machine_.links;
    const double step = static_cast<double>(prediction.round_ns) / 1e9;
    const auto busy = [&](ForecastLane lane, auto amount, double rate) {
      forecast_.busy_fraction[static_cast<int>(lane)] = static_cast<double>(amount) / rate / step;
    };
    int64_t elements = 0;
    for (const int32_t range : forecast_.plan.updated) {
      const PlannedRange& updated = forecast_.plan.ranges[range];
      if (updated.kind == ChunkKind::kParam) elements += packed.ElementsOf(updated);
    }
    busy(ForecastLane::kCompute, prediction.compute_ns, 1e9);
    busy(ForecastLane::kPcieIn, prediction.fetch_bytes, links.host_to_device);
    busy(ForecastLane::kPcieOut, prediction.evict_bytes, links.device_to_host);
    busy(ForecastLane::kUpdate, elements, links.update_elements_per_second);
    busy(ForecastLane::kNvmeRead, prediction.nvme_read_bytes, links.nvme_read);
    busy(ForecastLane::kNvmeWrite, prediction.nvme_write_bytes, links.nvme_write);
  }

  const Machine& machine_;
  const PolicyOptions policy_;
  Forecast forecast_;
};

}  // namespace

absl::string_view ForecastLaneName(ForecastLane lane) {
  constexpr std::array<absl::string_view, kNumForecastLanes> kNames = {
      "compute", "PCIe in", "PCIe out", "CPU update", "NVMe read", "NVMe write"};
  return kNames[static_cast<int>(lane)];
}

ForecastLane Forecast::bottleneck() const {
  return static_cast<ForecastLane>(std::ranges::max_element(busy_fraction) - busy_fraction.begin());
}

double Forecast::tokens_per_second() const {
  return prediction.round_ns == 0
             ? 0
             : static_cast<double>(tokens) * 1e9 / static_cast<double>(prediction.round_ns);
}

absl::StatusOr<Forecast> MakeForecast(const Job& job, const Machine& machine, RoundTracer tracer) {
  return Forecaster(machine, /*policy=*/{}).Make(job, tracer);
}

absl::StatusOr<Forecast> MakeForecast(const NamedTrace& step, int64_t chunk_bytes,
                                      const Machine& machine) {
  return Forecaster(machine, /*policy=*/{}).Make(step, chunk_bytes);
}

absl::StatusOr<Forecast> MakeForecast(const Trace& trace, int64_t chunk_bytes,
                                      const PolicyOptions& policy, const Machine& machine) {
  return Forecaster(machine, policy).Make(trace, chunk_bytes);
}

}  // namespace gemini::tools
