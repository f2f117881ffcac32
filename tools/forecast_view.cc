// SPDX-License-Identifier: Apache-2.0
#include "tools/forecast_view.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gemini/byte_size.h"
#include "gemini/stall_cause.h"

namespace gemini::tools {
namespace {

using Json = nlohmann::json;

// "1557611200" as "1,557,611,200".
std::string WithCommas(int64_t value) {
  const std::string digits = absl::StrCat(value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string Seconds(int64_t ns) {
  const double seconds = static_cast<double>(ns) / 1e9;
  return seconds >= 100 ? absl::StrFormat("%.0f s", seconds) : absl::StrFormat("%.3g s", seconds);
}

struct StateRow {
  const char* name;
  const char* json_name;
  int64_t StateBytes::*bytes;
};
constexpr StateRow kStates[] = {
    {"parameters", "parameters_bytes", &StateBytes::parameters},
    {"masters", "masters_bytes", &StateBytes::masters},
    {"moments", "moments_bytes", &StateBytes::moments},
    {"gradients", "gradients_bytes", &StateBytes::gradients},
};

std::string Bytes(int64_t bytes) { return bytes == 0 ? "-" : FormatByteSize(bytes); }

void AppendRow(std::string& text, const char* name, const std::string& device,
               const std::string& host, const std::string& nvme) {
  absl::StrAppendFormat(&text, "  %-12s %12s %12s %12s\n", name, device, host, nvme);
}

void AppendPlaces(std::string& text, const Machine& machine, const Forecast& forecast) {
  AppendRow(text, "", "DEVICE", "HOST", "NVME");
  for (const StateRow& state : kStates) {
    const int64_t host = forecast.host.*state.bytes;
    const int64_t nvme = forecast.nvme.*state.bytes;
    if (host + nvme == 0) continue;
    AppendRow(text, state.name, state.bytes == &StateBytes::parameters ? "in use" : "-",
              Bytes(host), Bytes(nvme));
  }
  AppendRow(text, "activations", Bytes(forecast.non_model_peak_bytes), "-", "-");
  AppendRow(text, "spare", "-", Bytes(forecast.spare_bytes), "-");
  AppendRow(text, "in all",
            forecast.is_predicted() ? Bytes(forecast.prediction.device_peak_bytes)
                                    : Bytes(forecast.device_floor.bytes()),
            Bytes(forecast.host.sum() + forecast.spare_bytes), Bytes(forecast.nvme.sum()));
  AppendRow(text, "given", Bytes(machine.bytes[Tier::kDevice]), Bytes(machine.bytes[Tier::kHost]),
            Bytes(machine.bytes[Tier::kNvme]));
  absl::StrAppendFormat(&text, "DEVICE floor   %s: %s\n",
                        FormatByteSize(forecast.device_floor.bytes()), forecast.device_floor.who);
}

void AppendChunks(std::string& text, const Forecast& forecast) {
  absl::StrAppendFormat(&text, "chunks         %s", FormatByteSize(forecast.chunk_bytes));
  std::vector<std::string> others;
  for (const policies::TriedChunkSize& tried : forecast.tried) {
    if (!tried.status.ok() || tried.chunk_bytes == forecast.chunk_bytes) continue;
    others.push_back(
        absl::StrCat(FormatByteSize(tried.chunk_bytes), " ", Seconds(tried.prediction.round_ns)));
  }
  if (!others.empty()) {
    absl::StrAppend(&text, "; a micro-batch with others: ", absl::StrJoin(others, ", "));
  }
  absl::StrAppend(&text, "\n");
}

void AppendTimes(std::string& text, const Forecast& forecast) {
  const Prediction& prediction = forecast.prediction;
  absl::StrAppendFormat(
      &text, "step           %s%s, by policy %s%s\n", Seconds(prediction.round_ns),
      forecast.tokens == 0
          ? ""
          : absl::StrCat(", ", WithCommas(static_cast<int64_t>(forecast.tokens_per_second())),
                         " tokens/s"),
      forecast.plan.made_by,
      forecast.is_extrapolated
          ? absl::StrFormat("; simulated with %d micro-batches, the others alike",
                            kSimulatedMicroBatches)
          : "");
  std::vector<std::string> lanes;
  for (int lane = 0; lane < kNumForecastLanes; ++lane) {
    if (forecast.busy_fraction[lane] == 0) continue;
    lanes.push_back(absl::StrFormat("%s %.0f%%", ForecastLaneName(static_cast<ForecastLane>(lane)),
                                    100 * forecast.busy_fraction[lane]));
  }
  absl::StrAppendFormat(&text, "busy           %s\nbottleneck     %s\n", absl::StrJoin(lanes, ", "),
                        ForecastLaneName(forecast.bottleneck()));
  std::vector<std::string> stalls;
  for (int cause = 0; cause < kNumStallCauses; ++cause) {
    if (prediction.stall_ns[cause] == 0) continue;
    stalls.push_back(absl::StrCat(StallCauseName(static_cast<StallCause>(cause)), " ",
                                  Seconds(prediction.stall_ns[cause])));
  }
  absl::StrAppendFormat(&text, "stalls         %s\n",
                        stalls.empty() ? "none" : absl::StrJoin(stalls, ", "));
  absl::StrAppendFormat(&text, "moves a step   %s to DEVICE, %s from it",
                        FormatByteSize(prediction.fetch_bytes),
                        FormatByteSize(prediction.evict_bytes));
  if (prediction.nvme_read_bytes + prediction.nvme_write_bytes > 0) {
    absl::StrAppendFormat(&text, "; %s read from NVME, %s written",
                          FormatByteSize(prediction.nvme_read_bytes),
                          FormatByteSize(prediction.nvme_write_bytes));
  }
  absl::StrAppend(&text, "\n");
}

double Gain(const Forecast& forecast, const Advice& advice) {
  return forecast.is_predicted()
             ? advice.forecast.tokens_per_second() / forecast.tokens_per_second() - 1
             : 0;
}

void AppendAdvice(std::string& text, const Forecast& forecast, absl::Span<const Advice> advice) {
  if (advice.empty()) {
    absl::StrAppend(&text, forecast.fit.ok() ? "helps most     nothing tried gains more than 1%\n"
                                             : "helps          no single change makes it fit\n");
    return;
  }
  const char* label = forecast.fit.ok() ? "helps most" : "fits with";
  for (const Advice& one : advice.subspan(0, kShownAdvice)) {
    absl::StrAppendFormat(&text, "%-14s %s: %s tokens/s", label, one.change,
                          WithCommas(static_cast<int64_t>(one.forecast.tokens_per_second())));
    if (forecast.is_predicted()) {
      absl::StrAppendFormat(&text, ", +%.0f%%", 100 * Gain(forecast, one));
    }
    absl::StrAppend(&text, "\n");
    label = "";
  }
}

Json TierJson(const TierMap<int64_t>& bytes) {
  Json json;
  for (const Tier tier : kAllTiers) json[std::string(TierName(tier))] = bytes[tier];
  return json;
}

Json StatesJson(const StateBytes& states) {
  Json json;
  for (const StateRow& state : kStates) json[state.json_name] = states.*state.bytes;
  return json;
}

Json PredictionJson(const Forecast& forecast) {
  const Prediction& prediction = forecast.prediction;
  Json busy;
  for (int lane = 0; lane < kNumForecastLanes; ++lane) {
    busy[std::string(ForecastLaneName(static_cast<ForecastLane>(lane)))] =
        forecast.busy_fraction[lane];
  }
  Json stalls;
  for (int cause = 0; cause < kNumStallCauses; ++cause) {
    stalls[std::string(StallCauseName(static_cast<StallCause>(cause)))] =
        prediction.stall_ns[cause];
  }
  return {{"step_ns", prediction.round_ns},
          {"compute_ns", prediction.compute_ns},
          {"tokens_per_second", forecast.tokens_per_second()},
          {"busy_fraction", std::move(busy)},
          {"bottleneck", ForecastLaneName(forecast.bottleneck())},
          {"stall_ns", std::move(stalls)},
          {"fetch_bytes", prediction.fetch_bytes},
          {"evict_bytes", prediction.evict_bytes},
          {"nvme_read_bytes", prediction.nvme_read_bytes},
          {"nvme_write_bytes", prediction.nvme_write_bytes},
          {"device_peak_bytes", prediction.device_peak_bytes},
          {"policy", forecast.plan.made_by},
          {"extrapolated", forecast.is_extrapolated}};
}

}  // namespace

std::string ForecastText(const ForecastTitle& title, const std::optional<Job>& job,
                         const Machine& machine, const Forecast& forecast,
                         std::optional<absl::Span<const Advice>> advice) {
  std::string text =
      absl::StrFormat("%s: %s parameters", title.model, WithCommas(forecast.num_parameters));
  if (job) {
    const trainer::RoundShape& round = job->round;
    absl::StrAppendFormat(&text, " in %s on %s\na %s of %d x %d x %d tokens%s\n",
                          ElementTypeName(round.element), title.gpu, round.train ? "step" : "batch",
                          round.micro_batches, round.batch, round.sequence,
                          round.recompute ? ", activations recomputed" : "");
  } else {
    absl::StrAppend(&text, ", ", title.gpu, "\n");
  }
  if (forecast.fit.ok()) {
    absl::StrAppend(&text, "fits           yes",
                    forecast.no_plan.ok() ? "" : ", but only without a plan, and slowly: ",
                    forecast.no_plan.message(), "\n");
  } else {
    absl::StrAppend(&text, "fits           NO: ", forecast.fit.message(), "\n");
  }
  AppendPlaces(text, machine, forecast);
  if (forecast.fit.ok()) AppendChunks(text, forecast);
  if (forecast.is_predicted()) AppendTimes(text, forecast);
  if (advice.has_value()) AppendAdvice(text, forecast, *advice);
  return text;
}

nlohmann::json ForecastJson(const ForecastTitle& title, const std::optional<Job>& job,
                            const Machine& machine, const Forecast& forecast,
                            std::optional<absl::Span<const Advice>> advice) {
  Json json = {{"model", title.model},
               {"gpu", title.gpu},
               {"parameters", forecast.num_parameters},
               {"fits", forecast.fit.ok()},
               {"given_bytes", TierJson(machine.bytes)},
               {"host", StatesJson(forecast.host)},
               {"nvme", StatesJson(forecast.nvme)},
               {"needed_bytes", forecast.needed_bytes},
               {"spare_bytes", forecast.spare_bytes},
               {"non_model_peak_bytes", forecast.non_model_peak_bytes},
               {"device_floor_bytes", forecast.device_floor.bytes()},
               {"device_floor_operator", forecast.device_floor.who},
               {"chunk_bytes", forecast.chunk_bytes}};
  if (job) {
    json.update({{"precision", ElementTypeName(job->round.element)},
                 {"batch", job->round.batch},
                 {"sequence", job->round.sequence},
                 {"accumulate", job->round.micro_batches},
                 {"recompute", job->round.recompute}});
  }
  if (!forecast.fit.ok()) json["misfit"] = std::string(forecast.fit.message());
  if (!forecast.no_plan.ok()) json["no_plan"] = std::string(forecast.no_plan.message());
  if (forecast.is_predicted()) json["prediction"] = PredictionJson(forecast);
  json["advice"] = Json::array();
  for (const Advice& one : advice.value_or(absl::Span<const Advice>())) {
    json["advice"].push_back({{"change", one.change},
                              {"gain_fraction", Gain(forecast, one)},
                              {"step_ns", one.forecast.prediction.round_ns},
                              {"tokens_per_second", one.forecast.tokens_per_second()}});
  }
  json["chunk_sizes"] = Json::array();
  for (const policies::TriedChunkSize& tried : forecast.tried) {
    Json row = {{"chunk_bytes", tried.chunk_bytes},
                {"bundles", tried.num_bundles},
                {"padding_bytes", tried.padding_bytes}};
    if (tried.status.ok()) {
      row["micro_batch_ns"] = tried.prediction.round_ns;
    } else {
      row["refused"] = std::string(tried.status.message());
    }
    json["chunk_sizes"].push_back(std::move(row));
  }
  return json;
}

}  // namespace gemini::tools
