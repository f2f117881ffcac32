// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/communicator_dry.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

TEST(CommunicatorDryTest, ExchangesAreDoneAtOnceAndTouchNoMemory) {
  CommunicatorDry me(/*rank=*/2, /*num_ranks=*/4);
  ASSERT_OK_AND_ASSIGN(const RankGroup* const group, me.MakeGroup("pairs", {{0, 1}, {2, 3}}));
  EXPECT_THAT(group->ranks, ::testing::ElementsAre(2, 3));
  for (const Work& work : {me.AllGather(*group, nullptr, nullptr, 1000, "gather"),
                           me.AllReduce(me.world(), SumType::kFp32, nullptr, 1000, "sum"),
                           me.Shift(*group, nullptr, nullptr, 1000, "shift")}) {
    EXPECT_TRUE(work->Done());
    EXPECT_OK(work->Wait());
  }
  EXPECT_EQ(me.sent().size(), 3);
}

TEST(CommunicatorDryTest, WhatWasSentIsAddedUpByKind) {
  CommunicatorDry me(/*rank=*/0, /*num_ranks=*/4);
  const auto gather = [&me](int64_t bytes, const char* site) {
    EXPECT_OK(me.AllGather(me.world(), nullptr, nullptr, bytes, site)->Wait());
  };
  gather(1000, "one");
  gather(10, "other");
  const SentByKind before = me.sent_by_kind();
  EXPECT_EQ(before, (SentByKind{{"all-gather", {2, 3030}}}));
  gather(1, "one");
  EXPECT_OK(me.Shift(me.world(), nullptr, nullptr, 1000, "shift")->Wait());
  EXPECT_EQ(SentSince(before, me.sent_by_kind()),
            (SentByKind{{"all-gather", {1, 3}}, {"shift", {1, 1000}}}));
  EXPECT_TRUE(SentSince(me.sent_by_kind(), me.sent_by_kind()).empty());
}

class Heard final : public DryListener {
 public:
  void Issued(const DryExchange& exchange) override { issued.push_back(exchange); }
  void Awaited(int64_t number) override { awaited.push_back(number); }
  std::vector<DryExchange> issued;
  std::vector<int64_t> awaited;
};

TEST(CommunicatorDryTest, AListenerHearsWhatIsIssuedAndWhatIsAwaited) {
  Heard heard;
  CommunicatorDry me(/*rank=*/2, /*num_ranks=*/4, &heard);
  ASSERT_OK_AND_ASSIGN(const RankGroup* const group, me.MakeGroup("pairs", {{0, 1}, {2, 3}}));
  const Work sum = me.AllReduce(me.world(), SumType::kBf16, nullptr, 1001, "sum");
  const Work part = me.ReduceScatter(*group, SumType::kFp32, nullptr, nullptr, 10, "part");
  const Work message = me.Send(*group, nullptr, 77, /*to_place=*/1, /*tag=*/5, "message");
  EXPECT_TRUE(heard.awaited.empty());
  EXPECT_TRUE(message->Done());
  EXPECT_OK(part->Wait());
  EXPECT_OK(sum->Wait());
  EXPECT_THAT(heard.awaited, ::testing::ElementsAre(1, 0));
  ASSERT_EQ(heard.issued.size(), 3);
  EXPECT_EQ(heard.issued[0].kind, CollectiveKind::kAllReduce);
  EXPECT_EQ(heard.issued[0].part_bytes, 251 * 2);  // What does not divide is filled up.
  EXPECT_EQ(heard.issued[0].group, &me.world());
  EXPECT_EQ(heard.issued[1].part_bytes, 40);
  EXPECT_EQ(heard.issued[1].group, group);
  EXPECT_EQ(heard.issued[2].part_bytes, 77);
  EXPECT_EQ(heard.issued[2].place, 1);
  EXPECT_EQ(heard.issued[2].tag, 5);
  EXPECT_EQ(heard.issued[2].site, "message");
}

TEST(CommunicatorDryTest, WhatRanksMayNotDoIsRefused) {
  CommunicatorDry me(/*rank=*/0, /*num_ranks=*/2);
  EXPECT_THAT(me.AllGather(me.world(), nullptr, nullptr, -1, "gather")->Wait(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(me.MakeGroup("half", {{0}}), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace gemini::trainer
