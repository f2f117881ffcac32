// SPDX-License-Identifier: Apache-2.0
// Shows what `memstat plan --ranks` found, as text for people or as JSON for programs.
// Units:  JSON has bytes and seconds, and fractions of 0 to 1.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "policies/scaling/mesh_search.h"
#include "policies/scaling/parallel_run.h"
#include "trainer/forecast/ranks_forecast.h"

namespace gemini::tools {

// What forecasts are shown beside.
struct RankScale {
  double memory_bytes = 0;   // DEVICE of a rank.
  double peak_fraction = 1;  // What of the data sheet's arithmetic the forecast takes as achieved.
};

// One mesh, by formulas.
std::string RanksText(const RankScale& scale, const policies::FoundMesh& found);
nlohmann::json RanksJson(const RankScale& scale, const policies::FoundMesh& found);

// The same of a mesh whose ranks were run without memory.
struct DryRun {
  const policies::ParallelRun& run;
  const trainer::RanksForecast& forecast;
  double tokens_per_second() const { return run.step_tokens() / forecast.last.end_seconds; }
};
std::string DryRunText(const RankScale& scale, const DryRun& found);
nlohmann::json DryRunJson(const RankScale& scale, const DryRun& found);

// The same of a mesh in which no step of a rank runs. `why`: DeviceTooSmall's of its dry run.
std::string MisfitText(const policies::ParallelRun& run, const absl::Status& why);
nlohmann::json MisfitJson(const RankScale& scale, const policies::ParallelRun& run,
                          const absl::Status& why);

// The best of a search, the best of each way of sharing, and what each of those loses by. All of it
// is by formulas.
std::string SearchText(const RankScale& scale, const policies::MeshSearch& search);
nlohmann::json SearchJson(const RankScale& scale, const policies::MeshSearch& search);

}  // namespace gemini::tools
