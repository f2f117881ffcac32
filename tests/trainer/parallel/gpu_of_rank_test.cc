// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/gpu_of_rank.h"

#include "gmock/gmock.h"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

GpuWish Wish(const std::string& device, int64_t local_rank, bool shares = false) {
  return {.device = device, .shares = shares, .local_rank = local_rank, .num_local_ranks = 4};
}

TEST(GpuOfRankTest, EachRankOfAMachineHasTheNextGpu) {
  for (int local_rank = 0; local_rank < 4; ++local_rank) {
    EXPECT_THAT(GpuOfRank(Wish("cuda", local_rank), 4), IsOkAndHolds(local_rank));
    EXPECT_THAT(GpuOfRank(Wish("cuda", local_rank), 8), IsOkAndHolds(local_rank));
  }
}

TEST(GpuOfRankTest, ARankThatIsShownOneGpuHasThatOne) {
  EXPECT_THAT(GpuOfRank(Wish("cuda", 0), 1), IsOkAndHolds(0));
  EXPECT_THAT(GpuOfRank(Wish("cuda", 3), 1), IsOkAndHolds(0));
}

TEST(GpuOfRankTest, ANamedGpuIsTheOneThatIsNamed) {
  EXPECT_THAT(GpuOfRank(Wish("cuda:1", 3), 2), IsOkAndHolds(1));
  EXPECT_THAT(
      GpuOfRank(Wish("cuda:2", 0), 2),
      StatusIs(absl::StatusCode::kNotFound,
               HasSubstr("--device cuda:2: this process sees 2 GPUs, the last one is cuda:1")));
}

TEST(GpuOfRankTest, TooFewGpusAreSharedWhereThatIsAskedFor) {
  EXPECT_THAT(GpuOfRank(Wish("cuda", 2), 2),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("4 ranks of this machine see 2 GPUs: start 2"),
                             HasSubstr("--share-gpu"))));
  EXPECT_THAT(GpuOfRank(Wish("cuda", 2, /*shares=*/true), 2), IsOkAndHolds(0));
  EXPECT_THAT(GpuOfRank(Wish("cuda", 3, /*shares=*/true), 2), IsOkAndHolds(1));
}

TEST(GpuOfRankTest, WithoutAGpuItSaysWhereToLook) {
  EXPECT_THAT(GpuOfRank(Wish("cuda", 0), 0),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST(GpuOfRankTest, OneGpuOfTwoRanksIsRefusedByTheirNumbers) {
  EXPECT_OK(CheckGpusApart({"a", "b", "c"}));
  EXPECT_OK(CheckGpusApart({"", "", "a"}));  // CPUs.
  EXPECT_THAT(
      CheckGpusApart({"a", "b", "c", "b"}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("ranks 1 and 3 have one GPU, b"), HasSubstr("--share-gpu"))));
}

TEST(GpuOfRankTest, RanksOfAGpuAreCounted) {
  EXPECT_EQ(NumRanksOnGpu({"a", "b", "a", "a"}, 0), 3);
  EXPECT_EQ(NumRanksOnGpu({"a", "b", "a", "a"}, 1), 1);
}

}  // namespace
}  // namespace gemini::trainer
