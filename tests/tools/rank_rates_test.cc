// SPDX-License-Identifier: Apache-2.0
#include "tools/rank_rates.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>

#include "tests/status_matchers.h"

namespace gemini::tools {
namespace {

using ::testing::HasSubstr;

RankRates Rates(int64_t num_ranks) {
  return {.num_ranks = num_ranks,
          .num_processors = 4,
          .compute = {.flops_per_second = 1.5e10,
                      .attention_flops_per_second = 7.5e9,
                      .memory_bytes_per_second = 3.25e9,
                      .kernel_ns = 4321},
          .link = {.latency_seconds = 12.5e-6, .bytes_per_second = 1.0 / 3 * 1e10},
          .sum_bytes_per_second = 2e9,
          .copy_bytes_per_second = 5e9,
          .update_elements_per_second = 3e8,
          .device_update_elements_per_second = 2e8};
}

class RankRatesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "rank_rates_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    path_ = directory_ + "/rates";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void Write(const std::string& text) const { std::ofstream(path_) << text; }
  std::string directory_, path_;
};

TEST_F(RankRatesTest, ALineOfSoManyRanksIsReadAsItWasWritten) {
  Write(ToJson(Rates(2)) + "\n" + ToJson(Rates(8)) + "\n");
  for (const int64_t num_ranks : {8, 2}) {
    ASSERT_OK_AND_ASSIGN(const RankRates rates, ReadRankRates(path_, num_ranks));
    EXPECT_EQ(ToJson(rates), ToJson(Rates(num_ranks)));
    EXPECT_EQ(rates.compute.kernel_ns, 4321);
  }
}

TEST_F(RankRatesTest, ARankOfManyHasMoreOfAProcessorOfItsOwn) {
  const RankRates rates = Rates(8);  // Two share a processor.
  const trainer::RankStepRates own = RatesOfProcessor(rates);
  EXPECT_EQ(own.processors, 4);
  EXPECT_EQ(own.compute.flops_per_second, 2 * rates.compute.flops_per_second);
  EXPECT_EQ(own.compute.attention_flops_per_second, 2 * rates.compute.attention_flops_per_second);
  EXPECT_EQ(own.compute.memory_bytes_per_second, 2 * rates.compute.memory_bytes_per_second);
  EXPECT_EQ(own.compute.kernel_ns, 2161);
  EXPECT_EQ(own.link.bytes_per_second, 2 * rates.link.bytes_per_second);
  EXPECT_EQ(own.link.latency_seconds, rates.link.latency_seconds);
  EXPECT_EQ(own.sum_bytes_per_second, 2 * rates.sum_bytes_per_second);
  EXPECT_EQ(own.copy_bytes_per_second, 2 * rates.copy_bytes_per_second);
  EXPECT_EQ(own.update_elements_per_second, 2 * rates.update_elements_per_second);
  EXPECT_EQ(own.device_update_elements_per_second, 2 * rates.device_update_elements_per_second);
  // Two ranks leave two processors idle, which makes neither of them faster.
  EXPECT_EQ(RatesOfProcessor(Rates(2)).compute.flops_per_second, Rates(2).compute.flops_per_second);
}

TEST_F(RankRatesTest, WhatIsNotThereIsNamed) {
  EXPECT_THAT(ReadRankRates(path_, 2),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("cannot be read")));
  Write("");
  EXPECT_THAT(ReadRankRates(path_, 2),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("it is empty")));
  Write(ToJson(Rates(2)) + "\n" + ToJson(Rates(8)) + "\n");
  EXPECT_THAT(ReadRankRates(path_, 4),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no rates of 4 ranks, but of 2, 8")));
}

TEST_F(RankRatesTest, WhatIsNoRateIsRefusedWithItsLine) {
  for (const auto& [line, message] :
       {std::tuple("{", "line 2: it is no JSON object"), std::tuple("[]", "it is no JSON object"),
        std::tuple("{}", "ranks is no number above 0"),
        std::tuple(R"({"ranks": 2.5})", "ranks is 2.5: expected a whole number"),
        std::tuple(R"({"ranks": 1e300})", "expected a whole number"),
        std::tuple(R"({"ranks": 4})", "processors is no number above 0"),
        std::tuple(R"({"ranks": 4, "processors": 2, "flops_per_second": -1})",
                   "flops_per_second is no number"),
        std::tuple(R"({"ranks": 4, "processors": 2, "flops_per_second": "fast"})",
                   "flops_per_second is no number"),
        std::tuple(R"({"ranks": 4, "flops_per_second": 1e999})", "it is no JSON object")}) {
    Write(ToJson(Rates(2)) + "\n" + line + "\n");
    EXPECT_THAT(ReadRankRates(path_, 4),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)))
        << line;
  }
}

}  // namespace
}  // namespace gemini::tools
