// SPDX-License-Identifier: Apache-2.0
#include "tools/ranks_view.h"

#include <algorithm>
#include <string>

#include "gemini/device_shortage.h"
#include "gmock/gmock.h"

namespace gemini::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const RankScale kScale = {.memory_bytes = 100 << 20, .peak_fraction = 0.5};

policies::FoundMesh FoundOf(double computing, double layers, double memory_bytes) {
  policies::FoundMesh found = {.run = {.mesh = *policies::Mesh::Make(4, {})}, .forecast = {}};
  found.forecast.memory.parameters = memory_bytes;
  found.forecast.memory.lacking = std::max(memory_bytes - kScale.memory_bytes, 0.0);
  found.forecast.seconds.computing = computing;
  found.forecast.seconds.layers = layers;
  found.forecast.tokens_per_second = found.run.step_tokens() / found.forecast.seconds.total();
  found.forecast.efficiency = 0.8;
  found.forecast.sent = {0, 3 << 20, 1 << 20};
  return found;
}

TEST(RanksViewTest, AMeshIsToldWithItsMemoryItsStepAndWhatItSends) {
  const std::string text = RanksText(kScale, FoundOf(0.9, 0.1, 50 << 20));
  EXPECT_THAT(text, HasSubstr("pp 1 x dp 4 x sp 1 x tp 1"));
  EXPECT_THAT(text, HasSubstr("50 MiB, DEVICE has 100 MiB: parameters 50 MiB\n"));
  EXPECT_THAT(text, HasSubstr("1 s: computing 90.0%, ranks that share layers 10.0%\n"));
  EXPECT_THAT(text, HasSubstr("40.0% of the ranks' peak"));  // 0.8 of what is half of it.
  EXPECT_THAT(text, HasSubstr("sends 3 MiB a step, 1 MiB of it to other nodes"));
  EXPECT_THAT(RanksText(kScale, FoundOf(1, 0, 101 << 20)), HasSubstr("it lacks 1 MiB"));
  policies::FoundMesh moves = FoundOf(1, 0, 101 << 20);
  moves.forecast.memory.lacking = 0;
  moves.forecast.memory.host = 2 << 20;
  EXPECT_THAT(RanksText(kScale, moves),
              HasSubstr("100 MiB: parameters 101 MiB, 2 MiB of the first three in HOST\n"));
}

TEST(RanksViewTest, TheSameForPrograms) {
  const nlohmann::json json = RanksJson(kScale, FoundOf(0.75, 0.25, 101 << 20));
  EXPECT_FALSE(json["fits"].get<bool>());
  EXPECT_EQ(json["by"], "formulas");
  EXPECT_EQ(json["memory"]["needed_bytes"], 101 << 20);
  EXPECT_EQ(json["step_seconds"]["total"], 1);
  EXPECT_EQ(json["step_seconds"]["layers"], 0.25);
  EXPECT_EQ(json["sent_to_other_nodes_bytes"], 1 << 20);
}

TEST(RanksViewTest, ADryRunIsToldWithItsPeakAndWhatWasWaitedFor) {
  const policies::FoundMesh mesh = FoundOf(0, 0, 0);
  const trainer::RanksForecast forecast = {.last = {.end_seconds = 2,
                                                    .computing_seconds = 1,
                                                    .sharing_seconds = 0.5,
                                                    .exchange_seconds = 0.499,
                                                    .idle_seconds = 0.001},
                                           .sent = {{"all-gather", {3, 4096}}, {"send", {1, 8}}},
                                           .most_sent_bytes = 1 << 20,
                                           .host_bytes = 3 << 20,
                                           .device_peak_bytes = 5 << 20};
  const DryRun found = {mesh.run, forecast};
  const std::string text = DryRunText(kScale, found);
  EXPECT_THAT(text, HasSubstr("peak of DEVICE 5 MiB, which has 100 MiB; HOST 3 MiB"));
  EXPECT_THAT(text, HasSubstr("2 s by a dry run of each rank: computing 50.0%, others on its "
                              "processor 25.0%, exchanges 24.9%\n"));
  EXPECT_THAT(text, HasSubstr("at most 1 MiB a step by a rank; by the first one all-gather 4 KiB, "
                              "send 8 B\n"));
  const nlohmann::json json = DryRunJson(kScale, found);
  EXPECT_EQ(json["by"], "dry run");
  EXPECT_EQ(json["sent_bytes"], 4104);
  EXPECT_EQ(json["sent"]["all-gather"]["operations"], 3);
  EXPECT_EQ(json["memory"]["device_peak_bytes"], 5 << 20);
  EXPECT_EQ(json["memory"]["host_bytes"], 3 << 20);
  EXPECT_EQ(json["step_seconds"]["idle"], 0.001);
  EXPECT_EQ(json["step_seconds"]["total"], 2);
  EXPECT_NEAR(json["tokens_per_second"], mesh.run.step_tokens() / 2, 1e-6);
}

TEST(RanksViewTest, ADeviceThatIsTooSmallIsToldWithWhatWouldDo) {
  const policies::FoundMesh mesh = FoundOf(0, 0, 0);
  const absl::Status why = DeviceTooSmall(
      {.who = "aten::mm", .chunk_bytes = 101 << 20, .non_model_bytes = 1}, 100 << 20);
  EXPECT_THAT(MisfitText(mesh.run, why),
              HasSubstr("tp 1, data alone, ZeRO 3, 1 x 1 sequences\n"
                        "  does not fit: DEVICE is 1 MiB too small: aten::mm needs 101 MiB"));
  const nlohmann::json json = MisfitJson(kScale, mesh.run, why);
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["fits"], false);
  EXPECT_EQ(json["by"], "dry run");
  EXPECT_EQ(json["misfit"], std::string(why.message()));
  EXPECT_EQ(json["memory"]["device_bytes"], 100 << 20);
  EXPECT_EQ(json["memory"]["device_floor_bytes"], (101 << 20) + 1);
  EXPECT_EQ(json["memory"]["lacking_bytes"], (1 << 20) + 1);
}

TEST(RanksViewTest, WhatLosesIsToldWhy) {
  policies::MeshSearch search;
  search.best = {FoundOf(1, 0.1, 1)};
  search.kinds = {{"1d", search.best[0]}, {"ring", FoundOf(1.2, 1, 1)}};
  search.num_divide = 7;
  search.num_too_large = 2;
  const std::string text = SearchText(kScale, search);
  EXPECT_THAT(text, HasSubstr("of 7 ways that divide, 2 do not fit"));
  EXPECT_THAT(text, HasSubstr("1. pp 1"));
  EXPECT_THAT(text, HasSubstr("100.0%  "));
  EXPECT_THAT(text, HasSubstr("loses most by ranks that share layers (45.5% of its step)"));
  const nlohmann::json json = SearchJson(kScale, search);
  EXPECT_EQ(json["by"], "formulas");
  EXPECT_EQ(json["best_of_each_way"][1]["way"], "ring");
  EXPECT_EQ(json["best_of_each_way"][1]["found"]["by"], "formulas");
}

TEST(RanksViewTest, WhereNoneFitsTheNearestIsTold) {
  policies::MeshSearch search;
  EXPECT_THAT(SearchText(kScale, search), HasSubstr("none divides"));
  search.nearest = {FoundOf(1, 0, 200 << 20)};
  EXPECT_THAT(SearchText(kScale, search), HasSubstr("lacks 100 MiB"));
  EXPECT_THAT(SearchText(kScale, search), Not(HasSubstr("The best of each way")));
}

}  // namespace
}  // namespace gemini::tools
