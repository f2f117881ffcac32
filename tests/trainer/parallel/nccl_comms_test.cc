// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/nccl_comms.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/nccl_ranks.h"

namespace gemini::trainer {
namespace {

using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsNull;

constexpr std::chrono::seconds kLong(60);

TEST(FirstFailureTest, TheFirstOneStays) {
  FirstFailure failure;
  EXPECT_OK(failure.status());
  EXPECT_TRUE(failure.Set(absl::UnavailableError("first")));
  EXPECT_FALSE(failure.Set(absl::InternalError("second")));
  EXPECT_THAT(failure.status(), StatusIs(absl::StatusCode::kUnavailable, "first"));
}

// A rank's communicators, with a stream on which they exchange.
struct RankOfComms {
  explicit RankOfComms(
      steady_clock::duration limit = kLong, std::function<void()> look = [] {},
      const NcclLibrary& nccl = FakeNcclLibrary())
      : device(MakeHostExchange(CallersMemory::kOnDevice)),
        stream(*device->MakeStream()),
        comms(nccl, device, limit, std::move(look)) {}

  // Gathers the ranks' bytes of a communicator of `size`.
  absl::StatusOr<std::vector<int>> Gather(NcclComm* comm, int own, size_t size) {
    const std::byte part{static_cast<unsigned char>(own)};
    std::vector<std::byte> all(size);
    absl::Status status = comms.Group(comm, "a test", [&](const NcclLibrary& nccl) {
      return NcclStatus(
          nccl, nccl.AllGather(&part, all.data(), 1, NcclType::kByte, comm, stream->handle()),
          "ncclAllGather", comm);
    });
    if (!status.ok()) return status;
    // It is enqueued, so it has come before this.
    absl::StatusOr<std::shared_ptr<StreamPoint>> point = stream->Mark();
    if (!point.ok()) return point.status();
    status = (*point)->MakeOperatorsWait();
    if (!status.ok()) return status;
    std::vector<int> values;
    for (const std::byte value : all) values.push_back(static_cast<int>(value));
    return values;
  }
  void WaitForFailure() {
    while (comms.failure()->status().ok()) std::this_thread::yield();
  }

  const std::shared_ptr<ExchangeDevice> device;
  const std::unique_ptr<ExchangeStream> stream;
  NcclComms comms;
};

TEST(NcclCommsTest, ASplitPartsTheRanksByColorAndOrdersThemByKey) {
  RunNcclThreads(5, CallersMemory::kOnDevice, [](int64_t rank, const NcclId& id) {
    RankOfComms here;
    ASSERT_OK_AND_ASSIGN(NcclComm* const world, here.comms.MakeWorld(id, rank, 5));
    // The last one is in no part, and takes part all the same.
    const int64_t color = rank == 4 ? NcclLibrary::kNoColor : rank % 2;
    ASSERT_OK_AND_ASSIGN(NcclComm* const part,
                         here.comms.Split(world, color, /*key=*/10 - rank, /*most_ctas=*/4));
    const int own = static_cast<int>(10 + rank);
    // Twice, for NCCL is through with some calls at once, and with others later.
    for (int i = 0; i < 2; ++i) {
      if (rank == 4) {
        EXPECT_THAT(part, IsNull());
      } else {
        EXPECT_THAT(here.Gather(part, own, 2),
                    IsOkAndHolds(rank % 2 == 0 ? ElementsAre(12, 10) : ElementsAre(13, 11)));
      }
      EXPECT_THAT(here.Gather(world, own, 5), IsOkAndHolds(ElementsAre(10, 11, 12, 13, 14)));
    }
    here.comms.Finish();
    EXPECT_OK(here.comms.failure()->status());
  });
  EXPECT_EQ(TheFakeNccl().num_made(), 9);
  EXPECT_EQ(TheFakeNccl().num_aborted(), 0);
}

std::vector<int>& CtasOfSplits() {
  static std::vector<int> ctas;
  return ctas;
}

TEST(NcclCommsTest, WhatASplitMayHoldOfTheGpuIsSaid) {
  RunNcclThreads(1, CallersMemory::kOnDevice, [](int64_t rank, const NcclId& id) {
    NcclLibrary nccl = FakeNcclLibrary();
    nccl.CommSplit = [](NcclComm* comm, int color, int key, NcclComm** part, NcclConfig* config) {
      CtasOfSplits().push_back(config->max_ctas);
      return FakeNcclLibrary().CommSplit(comm, color, key, part, config);
    };
    RankOfComms here(
        kLong, [] {}, nccl);
    ASSERT_OK_AND_ASSIGN(NcclComm* const world, here.comms.MakeWorld(id, rank, 1));
    EXPECT_OK(here.comms.Split(world, 0, 0, /*most_ctas=*/4));
    EXPECT_OK(here.comms.Split(world, 0, 0, /*most_ctas=*/0));
    here.comms.Finish();
  });
  EXPECT_THAT(CtasOfSplits(), ElementsAre(4, NcclConfig::kUndefined));
}

TEST(NcclCommsTest, TheFirstFailureIsEverybodysAndEndsEachCommunicatorOnce) {
  RunNcclThreads(1, CallersMemory::kOnDevice, [](int64_t rank, const NcclId& id) {
    RankOfComms here;
    ASSERT_OK_AND_ASSIGN(NcclComm* const world, here.comms.MakeWorld(id, rank, 1));
    ASSERT_OK_AND_ASSIGN(NcclComm* const part, here.comms.Split(world, 0, 0, 0));
    here.comms.Fail(absl::DataLossError("first"));
    here.comms.Fail(absl::InternalError("second"));
    const int64_t calls = TheFakeNccl().num_calls(0);
    const auto is_first = StatusIs(absl::StatusCode::kDataLoss, "first");
    EXPECT_THAT(here.comms.Split(world, 0, 0, 0), is_first);
    EXPECT_THAT(here.comms.MakeWorld(id, rank, 1), is_first);
    EXPECT_THAT(here.Gather(part, 1, 1), is_first);
    here.comms.Finish();
    EXPECT_THAT(here.comms.failure()->status(), is_first);
    EXPECT_EQ(TheFakeNccl().num_calls(0), calls);  // No call is made any more.
  });
  EXPECT_EQ(TheFakeNccl().num_made(), 2);
  EXPECT_EQ(TheFakeNccl().num_aborted(), 2);
}

// Else the next calls of the thread were of the same group.
TEST(NcclCommsTest, AGroupWhoseCallsFailIsEndedAllTheSame) {
  RunNcclThreads(1, CallersMemory::kOnDevice, [](int64_t rank, const NcclId& id) {
    RankOfComms here;
    ASSERT_OK_AND_ASSIGN(NcclComm* const world, here.comms.MakeWorld(id, rank, 1));
    const int64_t calls = TheFakeNccl().num_calls(0);
    EXPECT_THAT(here.comms.Group(world, "a test",
                                 [](const NcclLibrary&) { return absl::AbortedError("a call"); }),
                StatusIs(absl::StatusCode::kAborted, "a call"));
    EXPECT_EQ(TheFakeNccl().num_calls(0), calls + 2);  // Its beginning and its end.
    EXPECT_THAT(here.comms.failure()->status(), StatusIs(absl::StatusCode::kAborted, "a call"));
  });
}

// NCCL's own error says what the group was for.
TEST(NcclCommsTest, AGroupThatCannotBeginOrEndSaysWhatItWasFor) {
  for (const bool begins : {false, true}) {
    RunNcclThreads(1, CallersMemory::kOnDevice, [begins](int64_t rank, const NcclId& id) {
      RankOfComms here;
      ASSERT_OK_AND_ASSIGN(NcclComm* const world, here.comms.MakeWorld(id, rank, 1));
      TheFakeNccl().FailCall(0, TheFakeNccl().num_calls(0) + (begins ? 2 : 1),
                             NcclResult::kSystemError);
      EXPECT_THAT(
          here.comms.Group(world, "a sum", [](const NcclLibrary&) { return absl::OkStatus(); }),
          StatusIs(absl::StatusCode::kUnavailable,
                   HasSubstr(begins ? "ncclGroupEnd for a sum" : "ncclGroupStart for a sum")));
    });
  }
}

TEST(NcclCommsTest, WhatNcclTellsLaterIsFoundWithoutACall) {
  std::atomic<int> num_looks = 0;
  RunNcclThreads(1, CallersMemory::kOnDevice, [&](int64_t rank, const NcclId& id) {
    RankOfComms here(kLong, [&num_looks] { ++num_looks; });
    EXPECT_OK(here.comms.MakeWorld(id, rank, 1));
    TheFakeNccl().SetAsyncError(0, NcclResult::kRemoteError);
    here.WaitForFailure();
    EXPECT_THAT(here.comms.failure()->status(),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr("of what was under way"), HasSubstr("remote process"))));
    // Who looks must see that all is over.
    for (const int before = num_looks; num_looks < before + 2;) std::this_thread::yield();
  });
}

// Of a split that not all make nccl_failures_test says the same.
TEST(NcclCommsTest, ARankThatDoesNotComeIsWaitedForWithinTheLimit) {
  RunNcclThreads(1, CallersMemory::kOnDevice, [&](int64_t rank, const NcclId& id) {
    RankOfComms here(std::chrono::milliseconds(60));
    const auto began = steady_clock::now();
    EXPECT_THAT(
        here.comms.MakeWorld(id, rank, 2),
        StatusIs(absl::StatusCode::kDeadlineExceeded,
                 HasSubstr("ncclCommInitRankConfig: not all ranks have come within 60 ms")));
    EXPECT_GE(steady_clock::now() - began, std::chrono::milliseconds(60));
  });
}

// A failure of another thread, as of the one that watches, ends it at once.
TEST(NcclCommsTest, AFailureEndsWhatWaitsForOtherRanks) {
  RunNcclThreads(1, CallersMemory::kOnDevice, [](int64_t rank, const NcclId& id) {
    RankOfComms here;
    const std::jthread other([&here] { here.comms.Fail(absl::CancelledError("enough")); });
    EXPECT_THAT(here.comms.MakeWorld(id, rank, 2),
                StatusIs(absl::StatusCode::kCancelled, "enough"));
  });
}

std::vector<NcclComm*>& Finalized() {
  static std::vector<NcclComm*> comms;
  return comms;
}

TEST(NcclCommsTest, WhatWasSplitSaysGoodbyeBeforeWhatItWasSplitFrom) {
  RunNcclThreads(1, CallersMemory::kOnDevice, [](int64_t rank, const NcclId& id) {
    NcclLibrary nccl = FakeNcclLibrary();
    nccl.CommFinalize = [](NcclComm* comm) {
      Finalized().push_back(comm);
      return FakeNcclLibrary().CommFinalize(comm);
    };
    RankOfComms here(
        kLong, [] {}, nccl);
    ASSERT_OK_AND_ASSIGN(NcclComm* const world, here.comms.MakeWorld(id, rank, 1));
    ASSERT_OK_AND_ASSIGN(NcclComm* const part, here.comms.Split(world, 0, 0, 0));
    ASSERT_OK_AND_ASSIGN(NcclComm* const part_of_part, here.comms.Split(part, 0, 0, 0));
    here.comms.Finish();
    EXPECT_THAT(Finalized(), ElementsAre(part_of_part, part, world));
  });
  EXPECT_EQ(TheFakeNccl().num_aborted(), 0);
}

TEST(NcclCommsTest, AGoodbyeThatFailsEndsTheRestAtOnce) {
  RunNcclThreads(1, CallersMemory::kOnDevice, [](int64_t rank, const NcclId& id) {
    RankOfComms here;
    ASSERT_OK_AND_ASSIGN(NcclComm* const world, here.comms.MakeWorld(id, rank, 1));
    EXPECT_OK(here.comms.Split(world, 0, 0, 0));
    TheFakeNccl().FailCall(0, TheFakeNccl().num_calls(0) + 2, NcclResult::kInternalError);
    here.comms.Finish();
    EXPECT_THAT(here.comms.failure()->status(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ncclCommFinalize")));
  });
  EXPECT_EQ(TheFakeNccl().num_aborted(), 2);
}

}  // namespace
}  // namespace gemini::trainer
