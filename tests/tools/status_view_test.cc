// SPDX-License-Identifier: Apache-2.0
#include "tools/status_view.h"

#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/chunk_state.h"
#include "gemini/ids.h"
#include "gemini/tier.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class StatusViewTest : public ::testing::Test {
 protected:
  const wire::StatusReply& Status(const char* label, int64_t chunks_invalid) {
    const wire::TierBytes granted(16 * kMiB, kGiB, 0);
    const wire::TierBytes floor(kMiB, 0, 0);
    const wire::TierBytes used(8 * kMiB, kGiB / 2, 0);
    const wire::TierBytes want(20 * kMiB, kGiB, 0);
    const wire::TierSlots slots(4, 256, 0);
    const auto tenants = builder_.CreateVector(std::vector{wire::CreateTenantStatusDirect(
        builder_, /*session=*/7, label, /*pid=*/123, /*uid=*/0, /*lease=*/9, /*generation=*/2,
        /*fenced=*/true, &granted, &floor, &used, /*requests=*/6, &want,
        /*epoch=*/3, /*device_target=*/10 * kMiB, plan_refusal_)});
    const std::vector<int64_t> stalls = {1'000'000, 0, 2'000'000, 0, 0};
    const std::vector<int64_t> divergences = {0, 4, 0, 0, 0, 99};  // One more than there are.
    const auto spaces = builder_.CreateVector(std::vector{wire::CreateSpaceStatusDirect(
        builder_, /*space=*/1, "opt-wikitext", /*session=*/7, 4 * kMiB, /*num_bundles=*/20, &slots,
        /*chunks_free=*/54, &hold_, /*chunks_compute=*/1, chunks_invalid, /*step=*/12, kGiB, kMiB,
        /*stall_ns=*/1'500'000'000, 12, 12, 8 * kMiB, kMiB, &stalls, &divergences, /*rounds=*/13,
        /*planned_rounds=*/9, /*update_pending=*/2, damaged_chunks_, last_damaged_,
        failed_nvme_writes_, step_ns_, /*step_stall_ns=*/25'000'000,
        /*step_fetch_bytes=*/kGiB, /*step_evict_bytes=*/256 * kMiB)});
    const auto device = wire::CreateTierStatus(builder_, 64 * kMiB, 16 * kMiB, 0, 48 * kMiB);
    const auto host = wire::CreateTierStatus(builder_, 8 * kGiB, kGiB, 2 * kGiB, 5 * kGiB);
    const auto nvme = wire::CreateTierStatus(builder_, 0, 0, 0, 0);
    const auto wear = builder_.CreateVector(
        std::vector{wire::CreateNvmeWearDirect(builder_, "/fast", 12 * kGiB, 3 * kGiB),
                    wire::CreateNvmeWearDirect(builder_, "/unused", 0, 0)});
    const wire::CostModel costs(host_to_device_, 7e9, 3e9, 2e9, /*update_elements=*/250e6,
                                /*device_update_elements=*/900e6, /*copy_latency_ns=*/40'000);
    builder_.Finish(wire::CreateStatusReply(builder_, device, host, nvme, tenants, spaces,
                                            builder_.CreateString("gemini 0.1.0"), 61'000'000'000,
                                            &costs, wear, daily_write_budget_));
    return *flatbuffers::GetRoot<wire::StatusReply>(builder_.GetBufferPointer());
  }

  const wire::ChunksReply& Chunks() {
    const auto chunk = [&](ChunkId id, ChunkState state, bool invalid) {
      return wire::CreateChunkStatus(builder_, id.value(), static_cast<uint8_t>(state),
                                     static_cast<uint8_t>(Tier::kDevice), /*dirty=*/true,
                                     /*pins=*/3, /*slot=*/77, /*commit_step=*/5, invalid);
    };
    const std::vector rows = {
        chunk(ChunkOf(BundleId(4), ChunkKind::kParam), ChunkState::kCompute, false),
        chunk(ChunkOf(BundleId(5), ChunkKind::kGrad), ChunkState::kFree, false),
        chunk(ChunkOf(BundleId(6), ChunkKind::kExpAvg), ChunkState::kHold, true),
        chunk(ChunkId(-1), ChunkState::kHold, false)};
    builder_.Finish(wire::CreateChunksReplyDirect(builder_, 100, kMiB, 20, &rows));
    return *flatbuffers::GetRoot<wire::ChunksReply>(builder_.GetBufferPointer());
  }

  flatbuffers::FlatBufferBuilder builder_;
  int64_t daily_write_budget_ = 0;
  double host_to_device_ = 8e9;
  const char* plan_refusal_ = "";
  wire::TierSlots hold_{3, 40, 2};
  int64_t damaged_chunks_ = 0;
  int64_t last_damaged_ = -1;
  int64_t failed_nvme_writes_ = 0;
  int64_t step_ns_ = 0;
};

TEST_F(StatusViewTest, TheScreenShowsTiersTenantsAndChunksByState) {
  const std::string text = StatusText(Status("tune", 0));
  EXPECT_THAT(text, HasSubstr("gemini 0.1.0, up 1m1s"));
  EXPECT_THAT(text, HasSubstr("HOST           8 GiB       1 GiB       2 GiB       5 GiB"));
  EXPECT_THAT(text, HasSubstr("512 MiB / 1 GiB"));
  EXPECT_THAT(text, HasSubstr("updates of 250M parameters/s in HOST, 900M on DEVICE\n"));
  EXPECT_THAT(text, HasSubstr("9.2 fenced"));
  EXPECT_THAT(text, HasSubstr("FREE 54   HOLD 45 (DEVICE 3, HOST 40, NVME 2)   COMPUTE 1"));
  EXPECT_THAT(text, HasSubstr("fetched 1 GiB, written back 1 MiB, stalled 1.5s"));
  EXPECT_THAT(text, Not(HasSubstr("make no sense")));
}

TEST_F(StatusViewTest, TheScreenShowsWhyAPlanWasRefused) {
  EXPECT_THAT(StatusText(Status("tune", 0)), Not(HasSubstr("refused")));
  plan_refusal_ = "too \x1b many";
  EXPECT_THAT(StatusText(Status("tune", 0)),
              HasSubstr("placed on demand, for its plan was refused: too \\033 many\n"));
  EXPECT_EQ(StatusJson(Status("tune", 0))["tenants"][0]["plan_refusal"], "too \\033 many");
}

TEST_F(StatusViewTest, TheScreenShowsRequestsStallsByCauseAndRoundsThatLeftTheirPlan) {
  const std::string text = StatusText(Status("tune", 0));
  EXPECT_THAT(text, HasSubstr("9.2 fenced      6\n"));
  EXPECT_THAT(text, HasSubstr("asked to give way, down to 10 MiB of DEVICE, in epoch 3\n"));
  EXPECT_THAT(text, HasSubstr("stalled for: transfer 1ms, nvme 2ms\n"));
  EXPECT_THAT(text, HasSubstr("9 of 13 rounds followed their plan; left it: non-model 4\n"));
  EXPECT_THAT(text, HasSubstr("2 bundles await their update\n"));
}

TEST_F(StatusViewTest, ChunksThatNvmeLostAreCountedAndTheLastIsNamed) {
  EXPECT_THAT(StatusText(Status("tune", 0)), Not(HasSubstr("lost")));
  EXPECT_TRUE(StatusJson(Status("tune", 0))["spaces"][0]["last_damaged"].is_null());
  damaged_chunks_ = 3;
  EXPECT_THAT(StatusText(Status("tune", 0)), HasSubstr("  3 chunks were lost on NVMe: its job"));
  last_damaged_ = ChunkOf(BundleId(4), ChunkKind::kExpAvg).value();
  EXPECT_THAT(StatusText(Status("tune", 0)),
              HasSubstr(absl::StrCat("  3 chunks were lost on NVMe, the last is chunk ",
                                     last_damaged_, " (exp_avg of bundle 4)")));
  const nlohmann::json space = StatusJson(Status("tune", 0))["spaces"][0];
  EXPECT_EQ(space["damaged_chunks"], 3);
  EXPECT_EQ(space["last_damaged"]["chunk"], last_damaged_);
  EXPECT_EQ(space["last_damaged"]["bundle"], 4);
  EXPECT_EQ(space["last_damaged"]["kind"], "exp_avg");
}

TEST_F(StatusViewTest, WritesToNvmeThatFailedAreCounted) {
  EXPECT_THAT(StatusText(Status("tune", 0)), Not(HasSubstr("failed")));
  failed_nvme_writes_ = 5;
  EXPECT_THAT(StatusText(Status("tune", 0)), HasSubstr("  5 writes to NVMe failed, whose chunks"));
  EXPECT_EQ(StatusJson(Status("tune", 0))["spaces"][0]["failed_nvme_writes"], 5);
}

TEST_F(StatusViewTest, TheLastStepHasItsStallsAndRates) {
  EXPECT_THAT(StatusText(Status("tune", 0)), Not(HasSubstr("last step")));
  step_ns_ = 500'000'000;
  EXPECT_THAT(StatusText(Status("tune", 0)),
              HasSubstr("  last step: 500ms, 5.0% of it stalled; HOST to DEVICE 2 GiB/s, back 512 "
                        "MiB/s\n"));
  const nlohmann::json space = StatusJson(Status("tune", 0))["spaces"][0];
  EXPECT_EQ(space["step_ns"], step_ns_);
  EXPECT_EQ(space["step_stall_ns"], 25'000'000);
  EXPECT_EQ(space["step_fetch_bytes"], kGiB);
  EXPECT_EQ(space["step_evict_bytes"], 256 * kMiB);
}

TEST_F(StatusViewTest, ARateThatIsNoneIsShownAllTheSame) {
  for (const double rate : {std::numeric_limits<double>::quiet_NaN(), -1.0}) {
    host_to_device_ = rate;
    EXPECT_THAT(StatusText(Status("tune", 0)), HasSubstr("HOST to DEVICE 0 B/s, back"));
    builder_.Clear();
  }
  host_to_device_ = std::numeric_limits<double>::infinity();
  EXPECT_THAT(StatusText(Status("tune", 0)), HasSubstr("HOST to DEVICE 8185452.3 TiB/s, back"));
}

TEST_F(StatusViewTest, TheWearOfADirectoryIsShownBesideItsDailyBudget) {
  const std::string text = StatusText(Status("tune", 0));
  EXPECT_THAT(text, HasSubstr("\nNVME wear of /fast: 12 GiB written, 3 GiB today (UTC)\n"));
  EXPECT_THAT(text, Not(HasSubstr("/unused")));
  daily_write_budget_ = 3 * kGiB;
  EXPECT_THAT(StatusText(Status("tune", 0)), HasSubstr("3 GiB today (UTC) of 3 GiB a day\n"));
  daily_write_budget_ = 2 * kGiB;
  EXPECT_THAT(StatusText(Status("tune", 0)),
              HasSubstr("3 GiB today (UTC), ABOVE the budget of 2 GiB a day\n"));
  const nlohmann::json json = StatusJson(Status("tune", 0));
  EXPECT_EQ(json["nvme_daily_write_budget_bytes"], 2 * kGiB);
  EXPECT_EQ(json["nvme_wear"][0]["directory"], "/fast");
  EXPECT_EQ(json["nvme_wear"][0]["written_bytes"], 12 * kGiB);
  EXPECT_EQ(json["nvme_wear"][0]["written_today_bytes"], 3 * kGiB);
  EXPECT_EQ(json["nvme_wear"][1]["written_bytes"], 0);
}

TEST_F(StatusViewTest, ATenantsLabelCannotWriteToTheTerminal) {
  const std::string text = StatusText(Status("\x1b[2Jfree\n", 0));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("\\033[2Jfree\\n"));
}

TEST_F(StatusViewTest, CountsWhoseSumIsNoNumberAreShownAllTheSame) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  hold_ = wire::TierSlots(kMost, 1, 0);
  EXPECT_THAT(StatusText(Status("tune", 0)),
              HasSubstr("HOLD 9223372036854775807 (DEVICE 9223372036854775807, HOST 1, NVME 0)"));
  hold_ = wire::TierSlots(0, kLeast, -1);
  EXPECT_THAT(StatusText(Status("tune", 0)), HasSubstr("HOLD -9223372036854775808 (DEVICE 0"));
}

TEST_F(StatusViewTest, InvalidWordsAreReported) {
  EXPECT_THAT(StatusText(Status("tune", 3)), HasSubstr("3 words of its segment make no sense"));
}

TEST_F(StatusViewTest, JsonHoldsTheSameNumbersInBytes) {
  const nlohmann::json json = StatusJson(Status("tune", 0));
  EXPECT_EQ(json["tiers"]["HOST"]["reclaiming_bytes"], 2 * kGiB);
  EXPECT_EQ(json["tenants"][0]["used_bytes"]["DEVICE"], 8 * kMiB);
  EXPECT_EQ(json["tenants"][0]["fenced"], true);
  EXPECT_EQ(json["costs"]["update_elements_per_second"], 250e6);
  EXPECT_EQ(json["costs"]["device_update_elements_per_second"], 900e6);
  EXPECT_EQ(json["spaces"][0]["chunks_hold"]["HOST"], 40);
  EXPECT_EQ(json["spaces"][0]["stall_ns"], 1'500'000'000);
}

TEST_F(StatusViewTest, ChunksInUseAreListedAndFreeOnesAreNot) {
  const std::string text = ChunksText(Chunks());
  EXPECT_THAT(text,
              HasSubstr("       4  param      COMPUTE  DEVICE        77     3    yes       5"));
  EXPECT_THAT(text, Not(HasSubstr("grad")));
  EXPECT_THAT(text, HasSubstr("6  exp_avg    its word makes no sense"));
}

TEST_F(StatusViewTest, ChunksAsJsonNameFreeAndInvalidOnes) {
  const nlohmann::json json = ChunksJson(Chunks());
  ASSERT_EQ(json.size(), 4u);
  EXPECT_EQ(json[0]["state"], "COMPUTE");
  EXPECT_EQ(json[0]["pins"], 3);
  EXPECT_EQ(json[1]["state"], "FREE");
  EXPECT_FALSE(json[1].contains("slot"));
  EXPECT_EQ(json[2]["invalid"], true);
}

TEST_F(StatusViewTest, AChunkBelowZeroIsListedAsOneOfNoKind) {
  EXPECT_THAT(ChunksText(Chunks()), HasSubstr("       0  no kind    HOLD     DEVICE"));
  const nlohmann::json row = ChunksJson(Chunks())[3];
  EXPECT_EQ(row["chunk"], -1);
  EXPECT_EQ(row["kind"], "no kind");
}

}  // namespace
}  // namespace gemini::tools
