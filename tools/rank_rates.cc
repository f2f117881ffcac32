// SPDX-License-Identifier: Apache-2.0
#include "tools/rank_rates.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gemini/system/status_macros.h"
#include "nlohmann/json.hpp"

namespace gemini::tools {
namespace {

using Json = nlohmann::json;

// Reads numbers of one line. Each is finite and above 0.
class NumbersOfLine {
 public:
  NumbersOfLine(const Json& line, std::string where) : line_(line), where_(std::move(where)) {}

  absl::StatusOr<double> Number(const char* key) const {
    const auto found = line_.find(key);
    const double number = found != line_.end() && found->is_number() ? found->get<double>() : 0;
    if (number > 0 && std::isfinite(number)) return number;
    return absl::InvalidArgumentError(absl::StrCat(
        where_, ": ", key, " is no number above 0: measure it again by gemini-bench ", "ranks"));
  }
  // Returns a number that is whole, up to 2^53.
  absl::StatusOr<int64_t> Whole(const char* key) const {
    constexpr double kMost = 9007199254740992.0;
    GEMINI_ASSIGN_OR_RETURN(const double number, Number(key));
    if (number <= kMost && std::floor(number) == number) return static_cast<int64_t>(number);
    return absl::InvalidArgumentError(
        absl::StrCat(where_, ": ", key, " is ", number, ": expected a whole number"));
  }

 private:
  const Json& line_;
  const std::string where_;
};

absl::StatusOr<RankRates> ParseLine(const std::string& text, const std::string& where) {
  const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": it is no JSON object: --measured takes a file of gemini-bench ranks"));
  }
  const NumbersOfLine numbers(line, where);
  RankRates rates;
  GEMINI_ASSIGN_OR_RETURN(rates.num_ranks, numbers.Whole("ranks"));
  GEMINI_ASSIGN_OR_RETURN(rates.num_processors, numbers.Whole("processors"));
  GEMINI_ASSIGN_OR_RETURN(rates.compute.flops_per_second, numbers.Number("flops_per_second"));
  GEMINI_ASSIGN_OR_RETURN(rates.compute.attention_flops_per_second,
                          numbers.Number("attention_flops_per_second"));
  GEMINI_ASSIGN_OR_RETURN(rates.compute.memory_bytes_per_second,
                          numbers.Number("memory_bytes_per_second"));
  GEMINI_ASSIGN_OR_RETURN(rates.compute.kernel_ns, numbers.Whole("kernel_ns"));
  GEMINI_ASSIGN_OR_RETURN(rates.link.latency_seconds, numbers.Number("latency_seconds"));
  GEMINI_ASSIGN_OR_RETURN(rates.link.bytes_per_second, numbers.Number("link_bytes_per_second"));
  GEMINI_ASSIGN_OR_RETURN(rates.sum_bytes_per_second, numbers.Number("sum_bytes_per_second"));
  GEMINI_ASSIGN_OR_RETURN(rates.copy_bytes_per_second, numbers.Number("copy_bytes_per_second"));
  GEMINI_ASSIGN_OR_RETURN(rates.update_elements_per_second,
                          numbers.Number("update_elements_per_second"));
  GEMINI_ASSIGN_OR_RETURN(rates.device_update_elements_per_second,
                          numbers.Number("device_update_elements_per_second"));
  return rates;
}

}  // namespace

trainer::RankStepRates RatesOfProcessor(const RankRates& rates) {
  const auto processors = static_cast<double>(rates.num_processors);
  const double share = std::max(1.0, static_cast<double>(rates.num_ranks) / processors);
  trainer::RankStepRates own = {
      .compute = rates.compute,
      .link = rates.link,
      .sum_bytes_per_second = share * rates.sum_bytes_per_second,
      .copy_bytes_per_second = share * rates.copy_bytes_per_second,
      .device_update_elements_per_second = share * rates.device_update_elements_per_second,
      .update_elements_per_second = share * rates.update_elements_per_second,
      .processors = processors};
  own.compute.flops_per_second *= share;
  own.compute.attention_flops_per_second *= share;
  own.compute.memory_bytes_per_second *= share;
  own.compute.kernel_ns = std::llround(static_cast<double>(rates.compute.kernel_ns) / share);
  own.link.bytes_per_second *= share;
  return own;
}

std::string ToJson(const RankRates& rates) {
  return Json{{"ranks", rates.num_ranks},
              {"processors", rates.num_processors},
              {"flops_per_second", rates.compute.flops_per_second},
              {"attention_flops_per_second", rates.compute.attention_flops_per_second},
              {"memory_bytes_per_second", rates.compute.memory_bytes_per_second},
              {"kernel_ns", rates.compute.kernel_ns},
              {"latency_seconds", rates.link.latency_seconds},
              {"link_bytes_per_second", rates.link.bytes_per_second},
              {"sum_bytes_per_second", rates.sum_bytes_per_second},
              {"copy_bytes_per_second", rates.copy_bytes_per_second},
              {"update_elements_per_second", rates.update_elements_per_second},
              {"device_update_elements_per_second", rates.device_update_elements_per_second}}
      .dump();
}

absl::StatusOr<RankRates> ReadRankRates(const std::string& path, int64_t num_ranks) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::vector<int64_t> others;
  int64_t number = 0;
  for (std::string text; std::getline(file, text);) {
    const std::string where = absl::StrCat(path, ", line ", ++number);
    GEMINI_ASSIGN_OR_RETURN(const RankRates rates, ParseLine(text, where));
    if (rates.num_ranks == num_ranks) return rates;
    others.push_back(rates.num_ranks);
  }
  if (others.empty()) return absl::NotFoundError(absl::StrCat(path, ": it is empty"));
  return absl::NotFoundError(absl::StrCat(
      path, ": it has no rates of ", num_ranks, " ranks, but of ", absl::StrJoin(others, ", "),
      ": measure them by gemini-bench ranks --measure FILE --ranks ", num_ranks));
}

}  // namespace gemini::tools
