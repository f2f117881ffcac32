// SPDX-License-Identifier: Apache-2.0
// Shows a forecast as text for people, or as JSON for programs.
// Units:  JSON has bytes and nanoseconds, and fractions of 0 to 1.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "nlohmann/json.hpp"
#include "tools/forecast.h"
#include "tools/forecast_advice.h"

namespace gemini::tools {

struct ForecastTitle {
  std::string model;  // "models/gpt2-xl (gpt2, causal)".
  std::string gpu;    // "rtx3090", or "a GPU of the rates given".
};

// How many pieces of advice are shown.
inline constexpr int kShownAdvice = 2;

// `job`: nothing for a recorded round. `advice`: nothing where nothing else was tried, as for a
// round whose trace is given.
std::string ForecastText(const ForecastTitle& title, const std::optional<Job>& job,
                         const Machine& machine, const Forecast& forecast,
                         std::optional<absl::Span<const Advice>> advice);
nlohmann::json ForecastJson(const ForecastTitle& title, const std::optional<Job>& job,
                            const Machine& machine, const Forecast& forecast,
                            std::optional<absl::Span<const Advice>> advice);

}  // namespace gemini::tools
