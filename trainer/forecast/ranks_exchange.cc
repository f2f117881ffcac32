// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/ranks_exchange.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/json_text.h"
#include "gemini/system/status_macros.h"
#include "nlohmann/json.hpp"
#include "trainer/forecast/trace_exchange.h"

namespace gemini::trainer {
namespace {

using Json = nlohmann::json;

// Each of them is run.
constexpr int64_t kMostRanks = 64;
constexpr char kRanksKey[] = "ranks";

// All keys of the run, as a file has them.
std::string KeysOf(RunConfig run) { return RunKeys(run).ToToml(); }

// So that no step has a time which a trace cannot hold.
constexpr double kLeastRate = 1e-3, kMostRate = 1e18, kMostLatencySeconds = 1e3;

absl::Status CheckRates(const RankStepRates& rates) {
  const double attention = rates.compute.attention_flops_per_second;  // 0: as of other products.
  if (!(attention == 0 || (attention >= kLeastRate && attention <= kMostRate))) {
    return absl::InvalidArgumentError(absl::StrCat("a rate of attention of ", attention,
                                                   ": it is 0, or between ", kLeastRate, " and ",
                                                   kMostRate));
  }
  for (const double rate : {rates.compute.flops_per_second, rates.compute.memory_bytes_per_second,
                            rates.link.bytes_per_second, rates.sum_bytes_per_second,
                            rates.copy_bytes_per_second, rates.device_update_elements_per_second,
                            rates.update_elements_per_second, rates.processors}) {
    if (!(rate >= kLeastRate && rate <= kMostRate)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a rate of ", rate, ": it is between ", kLeastRate, " and ", kMostRate));
    }
  }
  if (!(rates.link.latency_seconds >= 0 && rates.link.latency_seconds <= kMostLatencySeconds)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a latency of ", rates.link.latency_seconds, " seconds"));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsRanksRequest(absl::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains(kRanksKey);
}

std::string EncodeRanksRequest(const RanksRequest& request) {
  const TraceRequest of_round = {.round = {.has_documents = request.run.has_documents},
                                 .rate = request.rates.compute,
                                 .task = request.task};
  const Json json = {
      {kRanksKey, request.num_ranks},
      {"run", KeysOf(request.run)},
      {"round", Json::parse(EncodeRequest(of_round))},
      {"latency_seconds", request.rates.link.latency_seconds},
      {"link_bytes_per_second", request.rates.link.bytes_per_second},
      {"sum_bytes_per_second", request.rates.sum_bytes_per_second},
      {"copy_bytes_per_second", request.rates.copy_bytes_per_second},
      {"device_update_elements_per_second", request.rates.device_update_elements_per_second},
      {"update_elements_per_second", request.rates.update_elements_per_second},
      {"processors", request.rates.processors}};
  return JsonText(json, /*indent=*/-1);
}

absl::StatusOr<RanksRequest> ParseRanksRequest(absl::string_view line) {
  return ReadJsonObject(line, [](const Json& json) -> absl::StatusOr<RanksRequest> {
    RanksRequest request;
    json.at(kRanksKey).get_to(request.num_ranks);
    if (request.num_ranks < 2 || request.num_ranks > kMostRanks) {
      return absl::InvalidArgumentError(
          absl::StrCat(request.num_ranks, " ranks: dry runs are of 2 to ", kMostRanks));
    }
    const std::string keys = json.at("run");
    GEMINI_RETURN_IF_ERROR(RunKeys(request.run).ApplyToml(keys, "the run"));
    GEMINI_ASSIGN_OR_RETURN(TraceRequest of_round, ParseRequest(json.at("round").dump()));
    request.run.has_documents = of_round.round.has_documents;
    request.task = std::move(of_round.task);
    request.rates.compute = of_round.rate;
    json.at("latency_seconds").get_to(request.rates.link.latency_seconds);
    json.at("link_bytes_per_second").get_to(request.rates.link.bytes_per_second);
    json.at("sum_bytes_per_second").get_to(request.rates.sum_bytes_per_second);
    json.at("copy_bytes_per_second").get_to(request.rates.copy_bytes_per_second);
    json.at("device_update_elements_per_second")
        .get_to(request.rates.device_update_elements_per_second);
    json.at("update_elements_per_second").get_to(request.rates.update_elements_per_second);
    json.at("processors").get_to(request.rates.processors);
    GEMINI_RETURN_IF_ERROR(CheckRates(request.rates));
    if (request.run.device_memory <= 0 || request.run.sequence <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("DEVICE of ", request.run.device_memory, " bytes and sequences of ",
                       request.run.sequence, " tokens: both are above 0"));
    }
    return request;
  });
}

std::string EncodeRanksReply(const RanksForecast& forecast) {
  Json sent = Json::object();
  for (const auto& [kind, of_kind] : forecast.sent) {
    sent[kind] = {{"operations", of_kind.operations}, {"bytes", of_kind.bytes}};
  }
  const policies::PlayedRank& last = forecast.last;
  const Json json = {{kTraceVersionKey, GEMINI_VERSION},
                     {"seconds", last.end_seconds},
                     {"computing", last.computing_seconds},
                     {"sharing", last.sharing_seconds},
                     {"exchange", last.exchange_seconds},
                     {"idle", last.idle_seconds},
                     {"sent", sent},
                     {"most_sent_bytes", forecast.most_sent_bytes},
                     {"host_bytes", forecast.host_bytes},
                     {"device_peak_bytes", forecast.device_peak_bytes}};
  return json.dump() + "\n";
}

absl::StatusOr<RanksForecast> ParseRanksReply(absl::string_view line) {
  return ReadJsonObject(line, [line](const Json& json) -> absl::StatusOr<RanksForecast> {
    if (json.contains("error")) {
      GEMINI_ASSIGN_OR_RETURN(const TraceReplyHeader header, ParseReplyHeader(line));
      return header.refused;
    }
    const std::string version = json.at(kTraceVersionKey);
    if (version != GEMINI_VERSION) {
      return absl::FailedPreconditionError(absl::StrCat("it is of Gemini ", version,
                                                        ", and this is ", GEMINI_VERSION,
                                                        ": install both of one build"));
    }
    RanksForecast forecast;
    policies::PlayedRank& last = forecast.last;
    json.at("seconds").get_to(last.end_seconds);
    json.at("computing").get_to(last.computing_seconds);
    json.at("sharing").get_to(last.sharing_seconds);
    json.at("exchange").get_to(last.exchange_seconds);
    json.at("idle").get_to(last.idle_seconds);
    for (const auto& [kind, sent] : json.at("sent").items()) {
      forecast.sent[kind] = {sent.at("operations").get<int64_t>(), sent.at("bytes").get<int64_t>()};
    }
    json.at("most_sent_bytes").get_to(forecast.most_sent_bytes);
    json.at("host_bytes").get_to(forecast.host_bytes);
    json.at("device_peak_bytes").get_to(forecast.device_peak_bytes);
    return forecast;
  });
}

}  // namespace gemini::trainer
