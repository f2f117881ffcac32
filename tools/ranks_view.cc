// SPDX-License-Identifier: Apache-2.0
#include "tools/ranks_view.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gemini/byte_size.h"
#include "gemini/device_shortage.h"

namespace gemini::tools {
namespace {

using Json = nlohmann::json;
using policies::FoundMesh;
using policies::RankMemory;
using policies::StepSeconds;

// By what a forecast was made, for programs.
constexpr char kByFormulas[] = "formulas";
constexpr char kByDryRun[] = "dry run";

struct SecondsRow {
  const char* name;
  const char* json_name;
  double StepSeconds::*seconds;
};
constexpr SecondsRow kSeconds[] = {
    {"computing", "computing", &StepSeconds::computing},
    {"ranks that share layers", "layers", &StepSeconds::layers},
    {"ranks that share sequences", "sequences", &StepSeconds::sequences},
    {"parameters to be gathered", "gathers", &StepSeconds::gathers},
    {"sums of gradients", "sums", &StepSeconds::sums},
    {"transfers between stages", "transfers", &StepSeconds::transfers},
    {"the schedule's idle time", "idle", &StepSeconds::idle},
    {"the update", "update", &StepSeconds::update},
    {"moves to HOST and updates there", "host", &StepSeconds::host},
};

struct MemoryRow {
  const char* name;
  double RankMemory::*bytes;
};
constexpr MemoryRow kMemory[] = {
    {"parameters", &RankMemory::parameters},   {"gradients", &RankMemory::gradients},
    {"states", &RankMemory::states},           {"gathered", &RankMemory::gathered},
    {"activations", &RankMemory::activations},
};

struct PlayedRow {
  const char* name;
  const char* json_name;
  double policies::PlayedRank::*seconds;
};
constexpr PlayedRow kPlayed[] = {
    {"computing", "computing", &policies::PlayedRank::computing_seconds},
    {"others on its processor", "sharing", &policies::PlayedRank::sharing_seconds},
    {"exchanges", "exchange", &policies::PlayedRank::exchange_seconds},
    {"waiting for other ranks", "idle", &policies::PlayedRank::idle_seconds},
};

std::string Bytes(double bytes) { return FormatByteSize(static_cast<int64_t>(bytes)); }

std::string Percent(double part, double whole) {
  return absl::StrFormat("%.1f%%", 100 * part / whole);
}

// The shares of a step, the largest first, without those below a thousandth.
std::string Shares(const StepSeconds& seconds) {
  std::vector<SecondsRow> rows(std::begin(kSeconds), std::end(kSeconds));
  std::ranges::stable_sort(rows, [&](const SecondsRow& a, const SecondsRow& b) {
    return seconds.*a.seconds > seconds.*b.seconds;
  });
  std::vector<std::string> parts;
  for (const SecondsRow& row : rows) {
    if (seconds.*row.seconds < seconds.total() / 1000) continue;
    parts.push_back(absl::StrCat(row.name, " ", Percent(seconds.*row.seconds, seconds.total())));
  }
  return absl::StrJoin(parts, ", ");
}

// What a slower step has more of than a faster one, a token: the row and the share of the slower.
std::string LosesBy(const FoundMesh& slower, const FoundMesh& faster) {
  const double slow_tokens = slower.run.step_tokens(), fast_tokens = faster.run.step_tokens();
  const StepSeconds& slow = slower.forecast.seconds;
  const StepSeconds& fast = faster.forecast.seconds;
  const auto more = [&](const SecondsRow& row) {
    return slow.*row.seconds / slow_tokens - fast.*row.seconds / fast_tokens;
  };
  const SecondsRow& most = *std::ranges::max_element(
      kSeconds, [&](const SecondsRow& a, const SecondsRow& b) { return more(a) < more(b); });
  return absl::StrCat("most by ", most.name, " (", Percent(slow.*most.seconds, slow.total()),
                      " of its step)");
}

double PeakEfficiency(const RankScale& scale, const FoundMesh& found) {
  return found.forecast.efficiency * scale.peak_fraction;
}

}  // namespace

std::string RanksText(const RankScale& scale, const FoundMesh& found) {
  const policies::StepForecast& forecast = found.forecast;
  std::vector<std::string> memory;
  for (const MemoryRow& row : kMemory) {
    if (forecast.memory.*row.bytes > 0) {
      memory.push_back(absl::StrCat(row.name, " ", Bytes(forecast.memory.*row.bytes)));
    }
  }
  if (forecast.memory.host > 0) {
    memory.push_back(absl::StrCat(Bytes(forecast.memory.host), " of the first three in HOST"));
  }
  std::string text = absl::StrCat(policies::DescribeMesh(found.run), "\n");
  const double lacking = forecast.memory.lacking;
  absl::StrAppendFormat(&text, "  memory       %s, DEVICE has %s%s: %s\n",
                        Bytes(forecast.memory.total()), Bytes(scale.memory_bytes),
                        lacking > 0 ? absl::StrCat(", it lacks ", Bytes(lacking)) : "",
                        absl::StrJoin(memory, ", "));
  absl::StrAppendFormat(&text, "  step         %.3g s: %s\n", forecast.seconds.total(),
                        Shares(forecast.seconds));
  absl::StrAppendFormat(&text, "  tokens       %.4g a second, %.1f%% of the ranks' peak\n",
                        forecast.tokens_per_second, 100 * PeakEfficiency(scale, found));
  absl::StrAppendFormat(&text, "  a rank sends %s a step, %s of it to other nodes\n",
                        Bytes(forecast.sent.bytes), Bytes(forecast.sent.bytes_between_nodes));
  return text;
}

Json RanksJson(const RankScale& scale, const FoundMesh& found) {
  const policies::StepForecast& forecast = found.forecast;
  Json memory = {{"device_bytes", static_cast<int64_t>(scale.memory_bytes)},
                 {"needed_bytes", static_cast<int64_t>(forecast.memory.total())},
                 {"host_bytes", static_cast<int64_t>(forecast.memory.host)},
                 {"lacking_bytes", static_cast<int64_t>(forecast.memory.lacking)}};
  for (const MemoryRow& row : kMemory) {
    memory[absl::StrCat(row.name, "_bytes")] = static_cast<int64_t>(forecast.memory.*row.bytes);
  }
  Json seconds = {{"total", forecast.seconds.total()}};
  for (const SecondsRow& row : kSeconds) seconds[row.json_name] = forecast.seconds.*row.seconds;
  return {{"mesh", policies::DescribeMesh(found.run)},
          {"ranks", found.run.mesh.num_ranks()},
          {"fits", forecast.memory.lacking == 0},
          {"by", kByFormulas},
          {"memory", memory},
          {"step_seconds", seconds},
          {"tokens_per_second", forecast.tokens_per_second},
          {"peak_fraction", PeakEfficiency(scale, found)},
          {"sent_bytes", static_cast<int64_t>(forecast.sent.bytes)},
          {"sent_to_other_nodes_bytes", static_cast<int64_t>(forecast.sent.bytes_between_nodes)}};
}

std::string DryRunText(const RankScale& scale, const DryRun& found) {
  const trainer::RanksForecast& forecast = found.forecast;
  std::vector<std::string> parts;
  for (const PlayedRow& row : kPlayed) {
    if (forecast.last.*row.seconds < forecast.last.end_seconds / 1000) continue;
    parts.push_back(absl::StrCat(row.name, " ",
                                 Percent(forecast.last.*row.seconds, forecast.last.end_seconds)));
  }
  std::string text = absl::StrCat(policies::DescribeMesh(found.run), "\n");
  absl::StrAppendFormat(&text, "  memory       peak of DEVICE %s, which has %s; HOST %s\n",
                        FormatByteSize(forecast.device_peak_bytes), Bytes(scale.memory_bytes),
                        FormatByteSize(forecast.host_bytes));
  absl::StrAppendFormat(&text, "  step         %.3g s by a dry run of each rank: %s\n",
                        forecast.last.end_seconds, absl::StrJoin(parts, ", "));
  absl::StrAppendFormat(&text, "  tokens       %.4g a second\n", found.tokens_per_second());
  std::vector<std::string> sent;
  for (const auto& [kind, of_kind] : forecast.sent) {
    sent.push_back(absl::StrCat(kind, " ", FormatByteSize(of_kind.bytes)));
  }
  absl::StrAppendFormat(&text, "  sent         at most %s a step by a rank; by the first one %s\n",
                        FormatByteSize(forecast.most_sent_bytes), absl::StrJoin(sent, ", "));
  return text;
}

Json DryRunJson(const RankScale& scale, const DryRun& found) {
  const trainer::RanksForecast& forecast = found.forecast;
  Json seconds = {{"total", forecast.last.end_seconds}};
  for (const PlayedRow& row : kPlayed) seconds[row.json_name] = forecast.last.*row.seconds;
  Json sent = Json::object();
  int64_t sent_bytes = 0;
  for (const auto& [kind, of_kind] : forecast.sent) {
    sent[kind] = {{"operations", of_kind.operations}, {"bytes", of_kind.bytes}};
    sent_bytes += of_kind.bytes;
  }
  return {{"mesh", policies::DescribeMesh(found.run)},
          {"ranks", found.run.mesh.num_ranks()},
          {"fits", true},
          {"by", kByDryRun},
          {"memory",
           {{"device_bytes", static_cast<int64_t>(scale.memory_bytes)},
            {"device_peak_bytes", forecast.device_peak_bytes},
            {"host_bytes", forecast.host_bytes}}},
          {"step_seconds", seconds},
          {"tokens_per_second", found.tokens_per_second()},
          {"sent", sent},
          {"sent_bytes", sent_bytes},
          {"most_sent_bytes", forecast.most_sent_bytes}};
}

std::string MisfitText(const policies::ParallelRun& run, const absl::Status& why) {
  return absl::StrCat(policies::DescribeMesh(run), "\n  does not fit: ", why.message(), "\n");
}

Json MisfitJson(const RankScale& scale, const policies::ParallelRun& run, const absl::Status& why) {
  const auto device_bytes = static_cast<int64_t>(scale.memory_bytes);
  const int64_t least_bytes = std::max(LeastDeviceBytes(why).value_or(device_bytes), device_bytes);
  return {{"mesh", policies::DescribeMesh(run)},
          {"ranks", run.mesh.num_ranks()},
          {"fits", false},
          {"by", kByDryRun},
          {"misfit", std::string(why.message())},
          {"memory",
           {{"device_bytes", device_bytes},
            {"device_floor_bytes", least_bytes},
            {"lacking_bytes", least_bytes - device_bytes}}}};
}

std::string SearchText(const RankScale& scale, const policies::MeshSearch& search) {
  std::string text = absl::StrCat("of ", search.num_divide, " ways that divide, ",
                                  search.num_too_large, " do not fit into memory\n");
  if (search.best.empty()) {
    if (search.nearest.empty()) return absl::StrCat(text, "none divides: try other numbers\n");
    return absl::StrCat(text, "none fits. This one lacks the least:\n",
                        RanksText(scale, search.nearest.front()));
  }
  for (size_t i = 0; i < search.best.size(); ++i) {
    absl::StrAppend(&text, i + 1, ". ", RanksText(scale, search.best[i]));
  }
  absl::StrAppend(&text, "The best of each way, beside the first:\n");
  const FoundMesh& first = search.best.front();
  for (const policies::MeshSearch::Kind& kind : search.kinds) {
    const double share = kind.found.forecast.tokens_per_second / first.forecast.tokens_per_second;
    absl::StrAppendFormat(&text, "  %5.1f%%  %s%s\n", 100 * share,
                          policies::DescribeMesh(kind.found.run),
                          share < 1 ? absl::StrCat(": loses ", LosesBy(kind.found, first)) : "");
  }
  return text;
}

Json SearchJson(const RankScale& scale, const policies::MeshSearch& search) {
  Json best = Json::array(), kinds = Json::array(), nearest = Json::array();
  for (const FoundMesh& found : search.best) best.push_back(RanksJson(scale, found));
  for (const policies::MeshSearch::Kind& kind : search.kinds) {
    kinds.push_back({{"way", kind.name}, {"found", RanksJson(scale, kind.found)}});
  }
  for (const FoundMesh& found : search.nearest) nearest.push_back(RanksJson(scale, found));
  return {{"by", kByFormulas}, {"divide", search.num_divide}, {"too_large", search.num_too_large},
          {"best", best},      {"best_of_each_way", kinds},   {"nearest", nearest}};
}

}  // namespace gemini::tools
