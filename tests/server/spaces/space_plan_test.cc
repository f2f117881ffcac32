// SPDX-License-Identifier: Apache-2.0
#include "server/spaces/space_plan.h"

#include <limits>

#include "gemini/byte_size.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::HasSubstr;

constexpr TierMap<int64_t> kLeft = {{0, 10 * kMiB, 20 * kMiB}};
constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

OpenSpaceRequest Good() {
  return {.name = "opt-1.3b_wiki.text",
          .chunk_bytes = kMiB,
          .num_bundles = 4,
          .host_slots = 10,
          .nvme_slots = 20};
}

TEST(SpacePlanTest, AllThatIsLeftMayBeTaken) {
  ASSERT_OK_AND_ASSIGN(const SpacePlan plan, PlanSpace(Good(), kLeft));
  EXPECT_EQ(plan.host_bytes(), 10 * kMiB);
  EXPECT_EQ(plan.nvme_bytes(), 20 * kMiB);
}

TEST(SpacePlanTest, TheTensorsHaveALimitAndRoomInTheSegment) {
  OpenSpaceRequest request = Good();
  ASSERT_OK_AND_ASSIGN(const SpacePlan none, PlanSpace(request, kLeft));
  request.num_tensors = kMaxTensors;
  ASSERT_OK_AND_ASSIGN(const SpacePlan most, PlanSpace(request, kLeft));
  EXPECT_EQ(most.segment_bytes() - none.segment_bytes(),
            RoundUp(ClientSegmentLayout(4, kMaxTensors).size_bytes, kPageBytes) -
                RoundUp(ClientSegmentLayout(4, 0).size_bytes, kPageBytes));
  EXPECT_GE(most.segment_bytes() - none.segment_bytes(), kMaxTensors * 8);
  for (const int64_t count : {int64_t{-1}, kMaxTensors + 1, kHuge}) {
    request.num_tensors = count;
    EXPECT_THAT(PlanSpace(request, kLeft),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tensors: 0 to 1048576")));
  }
}

TEST(SpacePlanTest, TheChunksHaveALimitHoweverLargeTheLeaseIs) {
  constexpr TierMap<int64_t> kAll = {{0, kHuge, kHuge}};
  OpenSpaceRequest request = Good();
  request.host_slots = request.nvme_slots = 1;
  request.chunk_bytes = kMaxChunkBytes;
  EXPECT_OK(PlanSpace(request, kAll));
  request.chunk_bytes += kPageBytes;
  EXPECT_THAT(PlanSpace(request, kAll),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("smaller chunks")));
}

// The word that says what a slot has, and where in which file it is.
TEST(SpacePlanTest, TheServersBookkeepingOfAnNvmeSlotIsCounted) {
  OpenSpaceRequest request = Good();
  request.nvme_slots = 0;
  request.chunk_bytes = kPageBytes;
  constexpr TierMap<int64_t> kAll = {{0, kHuge, kHuge}};
  ASSERT_OK_AND_ASSIGN(const SpacePlan none, PlanSpace(request, kAll));
  request.nvme_slots = 1 << 20;
  ASSERT_OK_AND_ASSIGN(const SpacePlan many, PlanSpace(request, kAll));
  EXPECT_EQ(many.segment_bytes() - none.segment_bytes(), int64_t{24} << 20);
}

TEST(SpacePlanTest, ANameOutsideTheRulesIsRefusedAndEscaped) {
  for (const std::string& name :
       {std::string(), std::string(129, 'a'), std::string("a/b"), std::string("a b"),
        std::string("a\0b", 3), std::string("\xff")}) {
    OpenSpaceRequest request = Good();
    request.name = name;
    EXPECT_THAT(PlanSpace(request, kLeft), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  OpenSpaceRequest request = Good();
  request.name = "a\nb";
  EXPECT_THAT(PlanSpace(request, kLeft),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a\\nb")));
  request.name = std::string(128, 'a');
  EXPECT_OK(PlanSpace(request, kLeft));
}

TEST(SpacePlanTest, NoCountOverflows) {
  OpenSpaceRequest request = Good();
  request.host_slots = kHuge;
  EXPECT_THAT(PlanSpace(request, kLeft), StatusIs(absl::StatusCode::kResourceExhausted));
  request = Good();
  request.nvme_slots = kHuge / kMiB + 1;
  EXPECT_THAT(PlanSpace(request, kLeft), StatusIs(absl::StatusCode::kResourceExhausted));
  request = Good();
  request.chunk_bytes = kHuge / 4096 * 4096;
  EXPECT_THAT(PlanSpace(request, kLeft), StatusIs(absl::StatusCode::kInvalidArgument));
  request = Good();
  request.num_bundles = kHuge;
  EXPECT_THAT(PlanSpace(request, kLeft), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(SpacePlanTest, NumbersThatAreNoneAreRefused) {
  for (const auto& [member, value] : std::vector<std::pair<int64_t OpenSpaceRequest::*, int64_t>>{
           {&OpenSpaceRequest::chunk_bytes, 0},
           {&OpenSpaceRequest::chunk_bytes, -4096},
           {&OpenSpaceRequest::chunk_bytes, 4097},
           {&OpenSpaceRequest::num_bundles, 0},
           {&OpenSpaceRequest::num_bundles, -1},
           {&OpenSpaceRequest::host_slots, -1},
           {&OpenSpaceRequest::nvme_slots, std::numeric_limits<int64_t>::min()}}) {
    OpenSpaceRequest request = Good();
    request.*member = value;
    EXPECT_THAT(PlanSpace(request, kLeft), StatusIs(absl::StatusCode::kInvalidArgument)) << value;
  }
}

TEST(SpacePlanTest, TheClientSegmentStaysSmallBesideTheSlots) {
  OpenSpaceRequest request = Good();
  request.num_bundles = kMaxSpaceBundles;
  EXPECT_THAT(PlanSpace(request, kLeft),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more slots")));
}

}  // namespace
}  // namespace gemini::server
