// SPDX-License-Identifier: Apache-2.0
#include "tools/forecast.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gemini/byte_size.h"
#include "tests/policies/block_trace.h"
#include "tests/status_matchers.h"
#include "tools/forecast_advice.h"
#include "tools/forecast_view.h"

namespace gemini::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Job SmallJob() {
  Job job;
  job.round = {.batch = 4, .sequence = 256, .element = ElementType::kBf16};
  return job;
}

absl::StatusOr<trainer::NamedTrace> TraceSmall(const trainer::TraceRequest& request) {
  constexpr policies::BlockModel kModel = {
      .blocks = 8, .width = 512, .inner = 2048, .vocabulary = 8192};
  return policies::BlockTrace(kModel, request.round, request.rate);
}

absl::StatusOr<Forecast> ForecastOf(const Job& job, const Machine& machine) {
  return MakeForecast(job, machine, TraceSmall);
}

Machine LargeMachine() {
  Machine machine;
  machine.bytes = {{8 * kGiB, 64 * kGiB, 0}};
  machine.compute = {.flops_per_second = 1e12, .memory_bytes_per_second = 1e11};
  machine.links = {.host_to_device = 1e10,
                   .device_to_host = 1e10,
                   .nvme_read = 1e9,
                   .nvme_write = 1e9,
                   .update_elements_per_second = 1e9,
                   .copy_latency_ns = 10'000};
  return machine;
}

bool HasBoth(const std::string& text, const char* a, const char* b) {
  return text.find(a) != std::string::npos && text.find(b) != std::string::npos;
}

TEST(ForecastTest, AParameterTakesFourteenBytesInBf16AndSixteenOtherwise) {
  for (const auto& [element, width] : std::vector<std::pair<ElementType, int64_t>>{
           {ElementType::kFp32, 16}, {ElementType::kBf16, 14}, {ElementType::kFp16, 16}}) {
    Job job = SmallJob();
    job.round.element = element;
    const int64_t element_bytes = ElementBytes(element);
    job.chunk_bytes = kMiB;
    ASSERT_OK_AND_ASSIGN(const Forecast forecast, ForecastOf(job, LargeMachine()));
    ASSERT_OK(forecast.fit);
    const int64_t bundles =
        forecast.host.parameters / kMiB;  // Whole chunks: padding takes its room too.
    EXPECT_EQ(forecast.host.sum(), bundles * kMiB / element_bytes * width);
    EXPECT_GE(bundles * kMiB / element_bytes, forecast.num_parameters);
    EXPECT_EQ(forecast.needed_bytes, forecast.host.sum() + forecast.spare_bytes);
    EXPECT_EQ(forecast.nvme.sum(), 0);
  }
}

TEST(ForecastTest, WhatHostDoesNotHoldLiesOnNvmeMomentsFirst) {
  Machine machine = LargeMachine();
  ASSERT_OK_AND_ASSIGN(const Forecast all, ForecastOf(SmallJob(), machine));
  Job job = SmallJob();
  job.chunk_bytes = all.chunk_bytes;
  const int64_t missing = RoundUp(all.host.moments + all.host.masters / 2, all.chunk_bytes);
  machine.bytes[Tier::kHost] = all.needed_bytes - missing;
  machine.bytes[Tier::kNvme] = 64 * kGiB;
  ASSERT_OK_AND_ASSIGN(const Forecast spilled, ForecastOf(job, machine));
  ASSERT_OK(spilled.fit);
  EXPECT_EQ(spilled.nvme.moments, all.host.moments);
  EXPECT_EQ(spilled.nvme.sum(), missing);
  EXPECT_EQ(spilled.nvme.parameters, 0);
  EXPECT_EQ(spilled.host.sum() + spilled.spare_bytes, machine.bytes[Tier::kHost]);
  // A step changes all states: so much is read and written at least, and 1 GB/s is slower than
  // everything else. The simulator of plans says how much more.
  EXPECT_GE(spilled.prediction.nvme_read_bytes, missing);
  EXPECT_GE(spilled.prediction.nvme_write_bytes, missing);
  EXPECT_LE(spilled.prediction.nvme_read_bytes, missing * 3 / 2);
  EXPECT_FALSE(spilled.plan.host_uses.empty());
  EXPECT_EQ(spilled.prediction, spilled.plan.prediction);
  EXPECT_GE(spilled.prediction.round_ns, missing);
  EXPECT_GT(spilled.prediction.round_ns, all.prediction.round_ns);
}

// Updates, fetches and gradients share the disk.
TEST(ForecastTest, AStepTakesAtLeastTheTimeOfAllItsReads) {
  Machine machine = LargeMachine();
  machine.compute = {.flops_per_second = 1e15, .memory_bytes_per_second = 1e15};
  machine.links.nvme_write = 1e12;
  Job job = SmallJob();
  job.chunk_bytes = kMiB;
  ASSERT_OK_AND_ASSIGN(const Forecast all, ForecastOf(job, machine));
  machine.bytes[Tier::kHost] = all.spare_bytes;
  machine.bytes[Tier::kNvme] = 64 * kGiB;
  ASSERT_OK_AND_ASSIGN(const Forecast forecast, ForecastOf(job, machine));
  ASSERT_OK(forecast.fit);
  EXPECT_EQ(forecast.host.sum(), 0);
  // HOST holds what is under way: nearly every state is read for the update.
  EXPECT_GE(forecast.prediction.nvme_read_bytes, forecast.nvme.sum() * 9 / 10);
  EXPECT_GE(forecast.prediction.round_ns, forecast.prediction.nvme_read_bytes);  // At 1 GB/s.
  EXPECT_LE(forecast.busy_fraction[static_cast<int>(ForecastLane::kNvmeRead)], 1 + 1e-6);
  EXPECT_GT(forecast.prediction.stall_ns[static_cast<int>(StallCause::kNvme)], 0);
}

// Of states whose home is NVME, and of what HOST lacks room for.
TEST(ForecastTest, AStepTakesAtLeastTheTimeOfAllItsWrites) {
  Machine machine = LargeMachine();
  machine.compute = {.flops_per_second = 1e15, .memory_bytes_per_second = 1e15};
  machine.links.nvme_read = 1e12;
  machine.bytes[Tier::kNvme] = 64 * kGiB;
  Job job = SmallJob();
  job.chunk_bytes = kMiB;
  job.round.states_on_nvme = true;
  ASSERT_OK_AND_ASSIGN(const Forecast all, ForecastOf(job, machine));
  machine.bytes[Tier::kHost] = all.spare_bytes + all.host.sum() / 4;
  ASSERT_OK_AND_ASSIGN(const Forecast forecast, ForecastOf(job, machine));
  ASSERT_OK(forecast.fit);
  EXPECT_GT(forecast.prediction.nvme_write_bytes, all.prediction.nvme_write_bytes);
  EXPECT_LE(forecast.busy_fraction[static_cast<int>(ForecastLane::kNvmeWrite)], 1 + 1e-6);
  EXPECT_GT(forecast.prediction.round_ns, all.prediction.round_ns);
}

TEST(ForecastTest, SaysInWhichTierItFailsAndByHowMuch) {
  Machine machine = LargeMachine();
  Job job = SmallJob();
  job.chunk_bytes = kMiB;
  ASSERT_OK_AND_ASSIGN(const Forecast all, ForecastOf(job, machine));

  // A plan needs a little more than the operators do one by one.
  machine.bytes[Tier::kDevice] = all.prediction.device_floor_bytes;
  ASSERT_OK_AND_ASSIGN(const Forecast planned, ForecastOf(job, machine));
  EXPECT_OK(planned.fit);
  EXPECT_OK(planned.no_plan);
  EXPECT_TRUE(planned.is_predicted());
  EXPECT_GT(machine.bytes[Tier::kDevice], all.device_floor.bytes());
  machine.bytes[Tier::kDevice] = all.device_floor.bytes();
  ASSERT_OK_AND_ASSIGN(const Forecast at_floor, ForecastOf(job, machine));
  EXPECT_OK(at_floor.fit);
  EXPECT_THAT(at_floor.no_plan,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("DEVICE is ")));
  EXPECT_FALSE(at_floor.is_predicted());
  EXPECT_THAT(ForecastText({"small", "g"}, job, machine, at_floor, {}),
              HasSubstr("fits           yes, but only without a plan, and slowly: DEVICE is "));
  machine.bytes[Tier::kDevice] -= kMiB;
  ASSERT_OK_AND_ASSIGN(const Forecast below, ForecastOf(job, machine));
  EXPECT_THAT(below.fit, StatusIs(absl::StatusCode::kResourceExhausted,
                                  AllOf(HasSubstr("DEVICE is 1 MiB too small"),
                                        HasSubstr(below.device_floor.who))));

  machine = LargeMachine();
  machine.bytes[Tier::kHost] = all.needed_bytes - 16 * kMiB;
  machine.bytes[Tier::kNvme] = 8 * kMiB;
  ASSERT_OK_AND_ASSIGN(const Forecast without_room, ForecastOf(job, machine));
  EXPECT_THAT(without_room.fit, StatusIs(absl::StatusCode::kResourceExhausted,
                                         HasSubstr("HOST and NVME are 8 MiB too small")));
  machine.bytes[Tier::kHost] = all.spare_bytes - kMiB;
  machine.bytes[Tier::kNvme] = 64 * kGiB;
  ASSERT_OK_AND_ASSIGN(const Forecast without_host, ForecastOf(job, machine));
  EXPECT_THAT(without_host.fit,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("HOST is 1 MiB too small")));
  machine.bytes = {{all.device_floor.bytes() - kMiB, all.needed_bytes - 16 * kMiB, 0}};
  ASSERT_OK_AND_ASSIGN(const Forecast without_either, ForecastOf(job, machine));
  EXPECT_THAT(without_either.fit,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("DEVICE is 1 MiB"), HasSubstr("NVME are 16 MiB"))));
  const std::vector<Advice> advice = Advise(job, machine, without_either, TraceSmall);
  EXPECT_TRUE(std::ranges::any_of(
      advice, [](const Advice& one) { return HasBoth(one.change, "--device", "--host"); }));
}

TEST(ForecastTest, TheFloorIsTheHeadsWhereTheLogitsAre) {
  ASSERT_OK_AND_ASSIGN(const Forecast forecast, ForecastOf(SmallJob(), LargeMachine()));
  EXPECT_THAT(forecast.device_floor.who, HasSubstr("head"));
}

TEST(ForecastTest, TheBusiestLaneIsTheBottleneck) {
  Machine machine = LargeMachine();
  machine.compute.flops_per_second = 1e10;
  ASSERT_OK_AND_ASSIGN(const Forecast computing, ForecastOf(SmallJob(), machine));
  EXPECT_EQ(computing.bottleneck(), ForecastLane::kCompute);
  EXPECT_GT(computing.busy_fraction[0], 0.9);
  EXPECT_LE(computing.busy_fraction[0], 1.0);

  machine = LargeMachine();
  machine.compute.flops_per_second = 1e15;
  machine.compute.memory_bytes_per_second = 1e15;
  machine.links.device_to_host = 1e8;
  ASSERT_OK_AND_ASSIGN(const Forecast leaving, ForecastOf(SmallJob(), machine));
  EXPECT_EQ(leaving.bottleneck(), ForecastLane::kPcieOut);

  machine = LargeMachine();
  machine.links.update_elements_per_second = 1e6;
  ASSERT_OK_AND_ASSIGN(const Forecast on_device, ForecastOf(SmallJob(), machine));
  EXPECT_FALSE(on_device.plan.device_updates.empty());  // Which DEVICE has room and time for.
  machine.links.device_update_elements_per_second = 0;
  ASSERT_OK_AND_ASSIGN(const Forecast updating, ForecastOf(SmallJob(), machine));
  EXPECT_EQ(updating.bottleneck(), ForecastLane::kUpdate);
  // As many seconds as there are millions of parameters; a step cannot be faster.
  EXPECT_GE(updating.prediction.round_ns, updating.num_parameters * 1000);
}

// An update of half the bytes a parameter takes as long: its rate is in parameters.
TEST(ForecastTest, TheUpdatesTimeDoesNotDependOnThePrecision) {
  Machine machine = LargeMachine();
  machine.links.update_elements_per_second = 1e6;
  machine.links.device_update_elements_per_second = 0;
  Job job = SmallJob();
  ASSERT_OK_AND_ASSIGN(const Forecast bf16, ForecastOf(job, machine));
  job.round.element = ElementType::kFp32;
  ASSERT_OK_AND_ASSIGN(const Forecast fp32, ForecastOf(job, machine));
  EXPECT_NEAR(static_cast<double>(fp32.prediction.round_ns),
              static_cast<double>(bf16.prediction.round_ns),
              0.05 * static_cast<double>(bf16.prediction.round_ns));
}

TEST(ForecastTest, ManyMicroBatchesGrowAsTheSimulatedOnesDo) {
  const auto round_ns = [](int64_t micro_batches) {
    Job job = SmallJob();
    job.round.micro_batches = micro_batches;
    job.chunk_bytes = kMiB;
    const Forecast forecast = *ForecastOf(job, LargeMachine());
    EXPECT_EQ(forecast.is_extrapolated, micro_batches > kSimulatedMicroBatches);
    return forecast.prediction.round_ns;
  };
  const int64_t three = round_ns(3);
  const int64_t four = round_ns(4);
  EXPECT_EQ(round_ns(10), four + 6 * (four - three));
}

TEST(ForecastTest, RefusesAChunkSizeThatIsNoneAndRoundsThatCannotBeTraced) {
  Job job = SmallJob();
  const absl::Status dead = absl::FailedPreconditionError("it is dead");
  EXPECT_EQ(MakeForecast(job, LargeMachine(), [&](const auto&) { return dead; }).status(), dead);
  job.chunk_bytes = 1000;
  EXPECT_THAT(ForecastOf(job, LargeMachine()), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ForecastAdviceTest, ComesFastestFirstAndKeepsItsWord) {
  Machine machine = LargeMachine();
  machine.bytes = {{512 * kMiB, 128 * kMiB, 64 * kGiB}};
  const Job job = SmallJob();
  ASSERT_OK_AND_ASSIGN(const Forecast forecast, ForecastOf(job, machine));
  ASSERT_OK(forecast.fit);
  const std::vector<Advice> advice = Advise(job, machine, forecast, TraceSmall);
  ASSERT_FALSE(advice.empty());
  EXPECT_TRUE(std::ranges::is_sorted(advice, [](const Advice& a, const Advice& b) {
    return a.forecast.tokens_per_second() > b.forecast.tokens_per_second();
  }));
  for (const Advice& one : advice) {
    EXPECT_GT(one.forecast.tokens_per_second(), (1 + kLeastGain) * forecast.tokens_per_second());
  }
  // NVME is the bottleneck: more of HOST in its place is among what helps.
  EXPECT_TRUE(std::ranges::any_of(advice, [](const Advice& one) {
    return one.change.find("--host") != std::string::npos && one.forecast.nvme.sum() == 0;
  }));
}

TEST(ForecastAdviceTest, FindsWhatMakesAJobFit) {
  Machine machine = LargeMachine();
  const Job job = SmallJob();
  ASSERT_OK_AND_ASSIGN(const Forecast large, ForecastOf(job, machine));
  machine.bytes[Tier::kDevice] = large.device_floor.bytes() / 2;
  ASSERT_OK_AND_ASSIGN(const Forecast forecast, ForecastOf(job, machine));
  ASSERT_FALSE(forecast.fit.ok());
  const std::vector<Advice> advice = Advise(job, machine, forecast, TraceSmall);
  ASSERT_FALSE(advice.empty());
  for (const Advice& one : advice) EXPECT_OK(one.forecast.fit) << one.change;
  EXPECT_TRUE(std::ranges::any_of(advice, [](const Advice& one) {
    return one.job.round.batch < 4 && one.forecast.tokens == 4 * 256;
  }));
}

TEST(ForecastViewTest, ShowsWhatPeopleAskFor) {
  Machine machine = LargeMachine();
  machine.bytes = {{512 * kMiB, 128 * kMiB, 64 * kGiB}};
  const Job job = SmallJob();
  ASSERT_OK_AND_ASSIGN(const Forecast forecast, ForecastOf(job, machine));
  const std::vector<Advice> advice = Advise(job, machine, forecast, TraceSmall);
  const std::string text =
      ForecastText({"small (gpt2)", "some GPU"}, job, machine, forecast, advice);
  EXPECT_THAT(text, AllOf(HasSubstr("small (gpt2): 29,36"), HasSubstr("fits           yes"),
                          HasSubstr("DEVICE floor"), HasSubstr("tokens/s"),
                          HasSubstr("bottleneck     NVMe"), HasSubstr("helps most"),
                          Not(HasSubstr("nan"))));
  const nlohmann::json json = ForecastJson({"small", "g"}, job, machine, forecast, advice);
  EXPECT_EQ(json["prediction"]["step_ns"], forecast.prediction.round_ns);
  EXPECT_EQ(json["nvme"]["moments_bytes"], forecast.nvme.moments);
  EXPECT_EQ(json["advice"].size(), advice.size());
  EXPECT_EQ(json["chunk_sizes"].size(), forecast.tried.size());
  EXPECT_FALSE(json.contains("misfit"));
}

}  // namespace
}  // namespace gemini::tools
