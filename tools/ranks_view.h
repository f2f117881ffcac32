// SPDX-License-Identifier: Apache-2.0
// What `memstat plan --ranks` found, as people read it and as programs do.
// Units:  JSON has bytes and seconds, and fractions of 0 to 1.
#pragma once
#include <string>

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

// One mesh.
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

// The best of a search, the best of each way of sharing, and what each of those loses by.
std::string SearchText(const RankScale& scale, const policies::MeshSearch& search);
nlohmann::json SearchJson(const RankScale& scale, const policies::MeshSearch& search);

}  // namespace gemini::tools
