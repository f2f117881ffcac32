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
#include "policies/trace/range_trace.h"
#include "trainer/forecast/device_floor.h"

namespace gemini::tools {
namespace {

using policies::RangeTrace;
using policies::TransformerTrace;

// Bundles' worth of HOST beside what lies there: an update writes out of place, gradients land and
// chunks from NVME arrive before their slots are needed.
constexpr int64_t kSpareBundles = 8;
// A plan takes time in proportion to fetches times slots: with this many bundles a forecast, some
// dozen plans, takes a third of a second. Sizes that would need more gain little: GPT-2 1.5B on 6
// GiB is 1% faster in chunks of 1 MiB than in those of 2 MiB that this leaves it.
constexpr int64_t kMaxSearchedBundles = 2'500;
// HOST and NVME are ours to count: the planner sees a HOST that holds everything.
constexpr int64_t kUnlimitedBytes = std::numeric_limits<int64_t>::max() / 8;

// Bytes a parameter.
struct StateWidths {
  int64_t parameter = 4;
  int64_t master = 0;
  int64_t moments = 8;
  int64_t gradient = 4;
  int64_t sum() const { return parameter + master + moments + gradient; }
};
constexpr StateWidths WidthsOf(const StateFormat& format) {
  const int64_t element_bytes = ElementBytes(format.element);
  StateWidths widths = {.parameter = element_bytes, .moments = 0, .gradient = element_bytes};
  for (const ChunkKind kind : UpdatedKinds(format)) {
    if (kind == ChunkKind::kParam) continue;
    (IsMoment(kind) ? widths.moments : widths.master) += element_bytes;
  }
  return widths;
}

// Lays `needed` into HOST, and what it does not hold, but at least `least_nvme_bytes`, onto NVME.
void Place(const StateBytes& needed, int64_t host_bytes, int64_t least_nvme_bytes,
           Forecast& forecast) {
  int64_t excess = std::max(least_nvme_bytes, needed.sum() - std::max<int64_t>(0, host_bytes));
  forecast.host = needed;
  const auto spill = [&](int64_t StateBytes::*state) {
    const int64_t bytes = std::min(excess, needed.*state);
    forecast.host.*state -= bytes;
    forecast.nvme.*state = bytes;
    excess -= bytes;
  };
  // Moments and masters are read and written once a step; gradients too, and they hurry; parameters
  // are read twice and more.
  for (auto state : {&StateBytes::moments, &StateBytes::masters, &StateBytes::gradients,
                     &StateBytes::parameters}) {
    spill(state);
  }
}

double Share(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}
// The rate of bytes of which `share` pass through a slower link too.
double Narrowed(double rate, double share, double other_rate) {
  return 1 / std::max(1 / rate, share / other_rate);
}

// Bytes that the updates of a step read from NVME and write to it.
int64_t UpdateReads(const Forecast& forecast) { return forecast.nvme.sum(); }
int64_t UpdateWrites(const Forecast& forecast) {
  return forecast.nvme.sum() - forecast.nvme.gradients;
}
double ParametersOnNvme(const Forecast& forecast) {
  return Share(forecast.nvme.parameters, forecast.nvme.parameters + forecast.host.parameters);
}
double GradientsOnNvme(const Forecast& forecast) {
  return Share(forecast.nvme.gradients, forecast.nvme.gradients + forecast.host.gradients);
}

// Counts whole chunks with their padding, because updates run over them.
int64_t ElementsOf(const Forecast& forecast, int64_t element_bytes) {
  return (forecast.host.parameters + forecast.nvme.parameters) / element_bytes;
}

CostModel NarrowedCosts(const Forecast& forecast, const CostModel& links, int64_t element_bytes) {
  CostModel costs = links;
  costs.host_to_device =
      Narrowed(links.host_to_device, ParametersOnNvme(forecast), links.nvme_read);
  costs.device_to_host =
      Narrowed(links.device_to_host, GradientsOnNvme(forecast), links.nvme_write);
  const auto elements = static_cast<double>(ElementsOf(forecast, element_bytes));
  const double seconds = std::max({elements / links.update_elements_per_second,
                                   static_cast<double>(UpdateReads(forecast)) / links.nvme_read,
                                   static_cast<double>(UpdateWrites(forecast)) / links.nvme_write});
  costs.update_elements_per_second = elements / seconds;
  return costs;
}

// What one more micro-batch after `last` costs is what `last` cost more than `before`.
Prediction Extrapolated(const Prediction& before, const Prediction& last, int64_t more) {
  Prediction sum = last;
  const auto extend = [&](auto Prediction::*field) {
    sum.*field += more * std::max<int64_t>(0, last.*field - before.*field);
  };
  for (auto field : {&Prediction::round_ns, &Prediction::compute_ns, &Prediction::fetch_bytes,
                     &Prediction::evict_bytes}) {
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
  Forecaster(const Job& job, const Machine& machine) : job_(job), machine_(machine) {}

  absl::StatusOr<Forecast> Make() {
    forecast_.num_parameters = policies::NumParameters(job_.shape);
    forecast_.tokens = job_.round.batch * job_.round.sequence * job_.round.micro_batches;
    GEMINI_ASSIGN_OR_RETURN(const TransformerTrace trace, TraceOf(SimulatedMicroBatches()));
    if (absl::Status status = ChooseChunkSize(trace); !status.ok()) {
      if (!absl::IsResourceExhausted(status)) return status;
    }
    GEMINI_ASSIGN_OR_RETURN(const RangeTrace packed,
                            policies::PackTrace(trace.trace, forecast_.chunk_bytes));
    forecast_.device_floor = trainer::FindDeviceFloor(packed, trace.operator_names);
    for (const RangeTrace::Operator& at : packed.operators) {
      forecast_.non_model_peak_bytes =
          std::max(forecast_.non_model_peak_bytes, at.non_model_peak_bytes);
    }
    PlaceStates(packed);
    if (!CheckFit()) return std::move(forecast_);
    GEMINI_ASSIGN_OR_RETURN(Plan plan, PlanFor(packed));
    forecast_.made_by = plan.made_by;
    forecast_.prediction = plan.prediction;
    const int64_t more = job_.round.micro_batches - SimulatedMicroBatches();
    if (more > 0) {
      GEMINI_ASSIGN_OR_RETURN(const TransformerTrace shorter, TraceOf(kSimulatedMicroBatches - 1));
      GEMINI_ASSIGN_OR_RETURN(const RangeTrace packed_shorter,
                              policies::PackTrace(shorter.trace, forecast_.chunk_bytes));
      GEMINI_ASSIGN_OR_RETURN(const Plan before, PlanFor(packed_shorter));
      forecast_.prediction = Extrapolated(before.prediction, plan.prediction, more);
      forecast_.is_extrapolated = true;
    }
    AddNvme();
    CountLanes();
    return std::move(forecast_);
  }

 private:
  int64_t SimulatedMicroBatches() const {
    return std::min(job_.round.micro_batches, kSimulatedMicroBatches);
  }
  TierMap<int64_t> PlannerBudget() const {
    return {{machine_.bytes[Tier::kDevice], kUnlimitedBytes, 0}};
  }

  absl::StatusOr<TransformerTrace> TraceOf(int64_t micro_batches) const {
    policies::RoundShape round = job_.round;
    round.micro_batches = micro_batches;
    return policies::MakeTransformerTrace(job_.shape, round, machine_.compute);
  }

  // Searched with one micro-batch, of which the others are repetitions, and as if HOST held
  // everything: the size changes what lies on NVME by its padding alone.
  absl::Status ChooseChunkSize(const TransformerTrace& trace) {
    forecast_.chunk_bytes = job_.chunk_bytes;
    if (forecast_.chunk_bytes > 0) return absl::OkStatus();
    TransformerTrace one;
    if (SimulatedMicroBatches() > 1) {
      GEMINI_ASSIGN_OR_RETURN(one, TraceOf(1));
    }
    policies::ChunkSizeSearchInputs inputs = {
        .trace = one.trace.operators.empty() ? trace.trace : one.trace,
        .budget_bytes = PlannerBudget(),
        .costs = UpdatingInHost(machine_.links),
        .policy = {},
        .max_bundles = kMaxSearchedBundles};
    // Nothing fits: the smallest chunks have the lowest floor.
    forecast_.chunk_bytes = inputs.least_chunk_bytes;
    GEMINI_ASSIGN_OR_RETURN(policies::ChunkSizeChoice choice, policies::SearchChunkSize(inputs));
    forecast_.chunk_bytes = choice.plan.chunk_bytes;
    forecast_.tried = std::move(choice.tried);
    return absl::OkStatus();
  }

  void PlaceStates(const RangeTrace& packed) {
    int64_t num_bundles = 0;
    for (const PlannedRange& range : packed.ranges) {
      if (range.kind == ChunkKind::kParam) num_bundles += range.num_bundles;
    }
    const StateFormat format = job_.round.format();
    const StateWidths widths = WidthsOf(format);
    const int64_t elements_of_bundle =
        PayloadBytes(format, forecast_.chunk_bytes) / ElementBytes(format.element);
    const int64_t elements = num_bundles * elements_of_bundle;
    const StateBytes needed = {.parameters = elements * widths.parameter,
                               .masters = elements * widths.master,
                               .moments = elements * widths.moments,
                               .gradients = elements * widths.gradient};
    forecast_.spare_bytes = kSpareBundles * elements_of_bundle * widths.sum();
    forecast_.needed_bytes = needed.sum() + forecast_.spare_bytes;
    const int64_t states = needed.moments + needed.masters;
    Place(needed, machine_.bytes[Tier::kHost] - forecast_.spare_bytes,
          job_.round.states_on_nvme ? states : 0, forecast_);
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

  // The simulator knows no moments on NVME.
  static CostModel UpdatingInHost(CostModel costs) {
    costs.device_update_elements_per_second = 0;
    return costs;
  }
  absl::StatusOr<Plan> PlanFor(const RangeTrace& packed) const {
    return policies::MakePlan(
        {packed, PlannerBudget(),
         UpdatingInHost(NarrowedCosts(forecast_, machine_.links, ElementBytes(job_.round.element))),
         /*policy=*/{}});
  }

  // The simulator knew NVME as slower links alone.
  void AddNvme() {
    Prediction& prediction = forecast_.prediction;
    prediction.nvme_read_bytes =
        UpdateReads(forecast_) + static_cast<int64_t>(ParametersOnNvme(forecast_) *
                                                      static_cast<double>(prediction.fetch_bytes));
    prediction.nvme_write_bytes =
        UpdateWrites(forecast_) + static_cast<int64_t>(GradientsOnNvme(forecast_) *
                                                       static_cast<double>(prediction.evict_bytes));
    const CostModel& links = machine_.links;
    const CostModel costs = NarrowedCosts(forecast_, links, ElementBytes(job_.round.element));
    // A wait for what NVME made slow is one for NVME.
    auto& stalls = prediction.stall_ns;
    const auto blame_nvme = [&](StallCause cause) {
      stalls[static_cast<int>(StallCause::kNvme)] += stalls[static_cast<int>(cause)];
      stalls[static_cast<int>(cause)] = 0;
    };
    if (costs.host_to_device < links.host_to_device) blame_nvme(StallCause::kTransfer);
    // A quotient of a quotient: the rate without NVME may come back a little smaller.
    if (costs.update_elements_per_second < 0.999 * links.update_elements_per_second) {
      blame_nvme(StallCause::kUpdate);
    }
    const double seconds =
        std::max(static_cast<double>(prediction.nvme_read_bytes) / links.nvme_read,
                 static_cast<double>(prediction.nvme_write_bytes) / links.nvme_write);
    const int64_t least_ns = static_cast<int64_t>(seconds * 1e9);
    if (least_ns > prediction.round_ns) {
      stalls[static_cast<int>(StallCause::kNvme)] += least_ns - prediction.round_ns;
      prediction.round_ns = least_ns;
    }
  }

  void CountLanes() {
    const Prediction& prediction = forecast_.prediction;
    const CostModel& links = machine_.links;
    const double step = static_cast<double>(prediction.round_ns) / 1e9;
    const auto busy = [&](ForecastLane lane, auto amount, double rate) {
      forecast_.busy_fraction[static_cast<int>(lane)] = static_cast<double>(amount) / rate / step;
    };
    busy(ForecastLane::kCompute, prediction.compute_ns, 1e9);
    busy(ForecastLane::kPcieIn, prediction.fetch_bytes, links.host_to_device);
    busy(ForecastLane::kPcieOut, prediction.evict_bytes, links.device_to_host);
    busy(ForecastLane::kUpdate,
         job_.round.train ? ElementsOf(forecast_, ElementBytes(job_.round.element)) : 0,
         links.update_elements_per_second);
    busy(ForecastLane::kNvmeRead, prediction.nvme_read_bytes, links.nvme_read);
    busy(ForecastLane::kNvmeWrite, prediction.nvme_write_bytes, links.nvme_write);
  }

  const Job& job_;
  const Machine& machine_;
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

absl::StatusOr<Forecast> MakeForecast(const Job& job, const Machine& machine) {
  GEMINI_RETURN_IF_ERROR(policies::CheckShape(job.shape));
  return Forecaster(job, machine).Make();
}

}  // namespace gemini::tools
