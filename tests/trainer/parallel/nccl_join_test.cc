// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/nccl_join.h"

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/exchange_device_host.h"
#include "tests/trainer/parallel/nccl_ranks.h"
#include "trainer/parallel/rank_verdict.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;

// What a rank brings over the library in NCCL's place.
NcclParts Parts(std::optional<RankGpu> gpu = {}) {
  NcclParts parts;
  parts.gpu = std::move(gpu);
  parts.open = []() -> absl::StatusOr<OpenedNccl> {
    return OpenedNccl{.nccl = FakeNcclLibrary(),
                      .device = nullptr,
                      .exchange = MakeHostExchange(CallersMemory::kOnDevice)};
  };
  return parts;
}

RankGpu Gpu(const std::string& uuid, std::optional<int64_t> free_bytes = {}) {
  return {.number = 0, .uuid = uuid, .num_ranks = 1, .free_bytes = free_bytes};
}

using Joined = absl::StatusOr<JoinedByNccl>;

// Joins `num_ranks` threads, each of which then runs `rank_main`.
void JoinThreads(int64_t num_ranks, NcclJoinOptions options,
                 const std::function<absl::StatusOr<NcclParts>(int64_t rank)>& parts,
                 const std::function<void(int64_t rank, const Joined&)>& rank_main,
                 const std::function<void(FakeNccl&)>& prepare = nullptr) {
  TheFakeNccl().Reset();
  if (prepare != nullptr) prepare(TheFakeNccl());
  Rendezvous place;
  ASSERT_OK_AND_ASSIGN(UniqueFd listening, ListenForRanks(/*one_machine=*/true, place));
  options.num_ranks = num_ranks;
  std::vector<std::jthread> threads;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank, options]() mutable {
      options.rank = rank;
      RankStoreOptions of_store;
      of_store.rank = rank;
      of_store.num_ranks = num_ranks;
      of_store.place = place;
      of_store.limit = absl::Seconds(60);
      if (rank == 0) of_store.listening = std::move(listening);
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<RankStore> store,
                           RankStore::Open(std::move(of_store)));
      rank_main(rank, JoinByNccl(*store, options, parts(rank)));
    });
  }
}

TEST(NcclJoinTest, RanksThatHaveJoinedExchange) {
  JoinThreads(
      3, {}, [](int64_t) { return Parts(); },
      [](int64_t rank, const Joined& joined) {
        ASSERT_OK(joined);
        EXPECT_FALSE(joined->gpu.has_value());
        Communicator& me = *joined->communicator;
        EXPECT_EQ(me.rank(), rank);
        std::array<int64_t, 3> all = {};
        const int64_t own = 10 + rank;
        EXPECT_OK(me.AllGather(me.world(), &own, all.data(), sizeof(own), "test")->Wait());
        EXPECT_THAT(all, ElementsAre(10, 11, 12));
      });
}

TEST(NcclJoinTest, ExactSumsAreLeftFolds) {
  for (const bool exact : {false, true}) {
    JoinThreads(
        3, {.exact = exact}, [](int64_t) { return Parts(); },
        [&](int64_t rank, const Joined& joined) {
          ASSERT_OK(joined);
          Communicator& me = *joined->communicator;
          // (1 + 1e8) - 1e8, and in the library's order (-1e8 + 1e8) + 1.
          float value = std::array{1.0F, 1e8F, -1e8F}[static_cast<size_t>(rank)];
          EXPECT_OK(me.AllReduce(me.world(), SumType::kFp32, &value, 1, "test")->Wait());
          EXPECT_EQ(value, exact ? 0.0F : 1.0F);
        });
  }
}

TEST(NcclJoinTest, TwoRanksWithOneGpuAreRefusedBeforeItIsOpened) {
  std::atomic<int> num_opened = 0;
  JoinThreads(
      3, {},
      [&](int64_t rank) {
        NcclParts parts = Parts(Gpu(rank == 1 ? "b" : "a"));
        parts.open = [&]() -> absl::StatusOr<OpenedNccl> {
          ++num_opened;
          return absl::InternalError("opened");
        };
        return parts;
      },
      [](int64_t, const Joined& joined) {
        EXPECT_THAT(joined, StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("ranks 0 and 2 have one GPU, a")));
        EXPECT_TRUE(IsAgreed(joined.status()));
      });
  EXPECT_EQ(num_opened, 0);
}

TEST(NcclJoinTest, RanksThatShareAGpuKnowWhatTheyDivide) {
  JoinThreads(
      3, {.gpu = {.device = "cuda", .shares = true}},
      [](int64_t rank) {
        // The second one looked when the first had taken some.
        return Parts(Gpu(rank == 1 ? "b" : "a", 100 - 10 * rank));
      },
      [](int64_t rank, const Joined& joined) {
        ASSERT_OK(joined);
        ASSERT_TRUE(joined->gpu.has_value());
        EXPECT_EQ(joined->gpu->num_ranks, rank == 1 ? 1 : 2);
        EXPECT_THAT(joined->gpu->free_bytes, Optional(rank == 1 ? 90 : 80));
      });
}

TEST(NcclJoinTest, WhatIsNotKnownInOneRankIsNotKnownOfTheGpu) {
  JoinThreads(
      2, {.gpu = {.device = "cuda", .shares = true}},
      [](int64_t rank) {
        return Parts(Gpu("a", rank == 0 ? std::optional<int64_t>(100) : std::nullopt));
      },
      [](int64_t, const Joined& joined) {
        ASSERT_OK(joined);
        EXPECT_FALSE(joined->gpu->free_bytes.has_value());
      });
}

TEST(NcclJoinTest, WhatOneRankLacksAllAreTold) {
  for (const bool has_gpu : {false, true}) {
    JoinThreads(
        3, {},
        [&](int64_t rank) -> absl::StatusOr<NcclParts> {
          if (rank != 2) return Parts();
          if (!has_gpu) return absl::NotFoundError("it sees no GPU");
          NcclParts parts = Parts();
          parts.open = [] { return absl::NotFoundError("NCCL cannot be loaded: install it"); };
          return parts;
        },
        [&](int64_t rank, const Joined& joined) {
          const char* const why = has_gpu ? "NCCL cannot be loaded" : "it sees no GPU";
          EXPECT_THAT(joined, StatusIs(absl::StatusCode::kNotFound, HasSubstr(why)));
          EXPECT_EQ(absl::StartsWith(joined.status().message(), "rank 2: "), rank != 2);
          EXPECT_TRUE(IsAgreed(joined.status()));
        });
  }
}

TEST(NcclJoinTest, RanksWithTwoVersionsOfNcclAreNamed) {
  JoinThreads(
      3, {},
      [](int64_t rank) {
        NcclParts parts = Parts();
        if (rank < 2) return parts;
        parts.open = []() -> absl::StatusOr<OpenedNccl> {
          OpenedNccl opened = {.nccl = FakeNcclLibrary(),
                               .device = nullptr,
                               .exchange = MakeHostExchange(CallersMemory::kOnDevice)};
          opened.nccl.GetVersion = [](int* version) {
            *version = 22003;
            return NcclResult::kSuccess;
          };
          return opened;
        };
        return parts;
      },
      [](int64_t, const Joined& joined) {
        EXPECT_THAT(joined, StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("rank 0 has NCCL 2.28.9, and rank 2 has 2.20.3")));
        EXPECT_TRUE(IsAgreed(joined.status()));
      });
}

TEST(NcclJoinTest, ARankThatNcclRefusesIsNamed) {
  JoinThreads(
      2, {.limit = absl::Milliseconds(300)}, [](int64_t) { return Parts(); },
      [](int64_t rank, const Joined& joined) {
        EXPECT_THAT(joined,
                    StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ncclCommInitRankConfig")));
        EXPECT_EQ(absl::StartsWith(joined.status().message(), "rank 1: "), rank == 0);
      },
      [](FakeNccl& fake) { fake.FailCall(1, 1, NcclResult::kSystemError); });
}

}  // namespace
}  // namespace gemini::trainer
