// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/rank_store.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"
#include "trainer/parallel/rank_verdict.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Milliseconds(300);

// Runs `rank_main` in threads of the ranks that come, each with a store that rank 0 serves.
void RunStores(int64_t num_ranks, const std::vector<int64_t>& ranks_that_come, absl::Duration limit,
               const std::function<void(int64_t rank, RankStore&)>& rank_main) {
  Rendezvous place;
  ASSERT_OK_AND_ASSIGN(UniqueFd listening, ListenForRanks(/*one_machine=*/true, place));
  std::vector<std::jthread> threads;
  for (const int64_t rank : ranks_that_come) {
    threads.emplace_back([&, rank] {
      RankStoreOptions options;
      options.rank = rank;
      options.num_ranks = num_ranks;
      options.place = place;
      options.limit = limit;
      options.patience = std::ssize(ranks_that_come) == num_ranks ? kLong : kShort;
      if (rank == 0) options.listening = std::move(listening);
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<RankStore> store,
                           RankStore::Open(std::move(options)));
      rank_main(rank, *store);
    });
  }
}

TEST(RankStoreTest, EachRankGetsWhatAllHave) {
  RunStores(4, {0, 1, 2, 3}, kLong, [](int64_t rank, RankStore& store) {
    EXPECT_THAT(store.Gather("a number", absl::StrCat(rank)),
                IsOkAndHolds(ElementsAre("0", "1", "2", "3")));
    const std::string binary("\0\n\xff", 3);
    EXPECT_THAT(store.Gather("bytes", rank == 0 ? binary : std::string()),
                IsOkAndHolds(ElementsAre(binary, "", "", "")));
  });
}

TEST(RankStoreTest, WhatOneRankCannotDoAllAreTold) {
  RunStores(3, {0, 1, 2}, kLong, [](int64_t rank, RankStore& store) {
    const absl::Status own = absl::NotFoundError("there is no NCCL");
    const absl::Status told =
        store.Gather("its GPU", rank == 2 ? absl::StatusOr<std::string>(own) : "GPU").status();
    EXPECT_THAT(told, StatusIs(absl::StatusCode::kNotFound, HasSubstr("there is no NCCL")));
    // The rank itself says it without its number.
    EXPECT_EQ(std::string(told.message()),
              absl::StrCat(rank == 2 ? "" : "rank 2: ", "there is no NCCL"));
    EXPECT_TRUE(IsAgreed(told));
  });
}

TEST(RankStoreTest, AnErrorDoesNotWaitForRanksThatHaveNotCome) {
  // Rank 1 never does; the limit is longer than a test may take.
  RunStores(3, {0, 2}, absl::Hours(1), [](int64_t rank, RankStore& store) {
    const absl::StatusOr<std::string> own =
        rank == 2 ? absl::StatusOr<std::string>(absl::InvalidArgumentError("--steps is missing"))
                  : "here";
    EXPECT_THAT(store.Gather("its keys", own),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--steps is missing")));
  });
}

TEST(RankStoreTest, RanksThatDoNotComeAreNamed) {
  RunStores(4, {0, 2}, kShort, [](int64_t /*rank*/, RankStore& store) {
    const absl::Status late = store.Gather("which GPU it has", "GPU").status();
    EXPECT_THAT(late,
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr("for 300ms ranks 1, 3 have not told which GPU it has"),
                               HasSubstr("--collective-timeout"))));
    EXPECT_FALSE(IsAgreed(late));
  });
}

TEST(RankStoreTest, AStoreThatNobodyServesIsNamed) {
  Rendezvous place;
  ASSERT_OK(ListenForRanks(/*one_machine=*/true, place));  // And closed at once.
  RankStoreOptions options;
  options.rank = 1;
  options.num_ranks = 2;
  options.place = place;
  options.limit = kShort;
  EXPECT_THAT(
      RankStore::Open(std::move(options)),
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr("rank 0 has had no store of the ranks' for 300ms at 127.0.0.1:"),
                     HasSubstr("MASTER_PORT"), Not(HasSubstr("frame #")))));
}

TEST(RankStoreTest, APortThatIsTakenIsNamed) {
  Rendezvous place;
  ASSERT_OK_AND_ASSIGN(const UniqueFd taken, ListenForRanks(/*one_machine=*/true, place));
  RankStoreOptions options;
  options.num_ranks = 2;
  options.place = place;
  options.limit = kShort;
  EXPECT_THAT(RankStore::Open(std::move(options)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 0 cannot serve")));
}

TEST(RankStoreTest, TheLaunchersStoreServesSeveralRunsApart) {
  c10d::TCPStoreOptions of_launcher;
  of_launcher.port = 0;
  of_launcher.isServer = true;
  of_launcher.waitWorkers = false;
  const auto launchers = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", of_launcher);
  for (const char* const run : {"gemini/7/0/", "gemini/7/1/"}) {
    std::vector<std::jthread> threads;
    for (int64_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        RankStoreOptions options;
        options.rank = rank;
        options.num_ranks = 2;
        options.place = {.host = "127.0.0.1",
                         .port = launchers->getPort(),
                         .is_served = true,
                         .key_prefix = run};
        options.limit = kLong;
        ASSERT_OK_AND_ASSIGN(const std::unique_ptr<RankStore> store,
                             RankStore::Open(std::move(options)));
        // What the run before has left is not taken for this one's.
        EXPECT_THAT(store->Gather("the run", absl::StrCat(run, rank)),
                    IsOkAndHolds(ElementsAre(absl::StrCat(run, 0), absl::StrCat(run, 1))));
      });
    }
  }
}

// Else a launcher could end the first one, which has yet to tell an error.
TEST(RankStoreTest, TheOthersLeaveBehindTheFirst) {
  std::promise<void> second_leaves;
  std::atomic<bool> first_leaves = false;
  Rendezvous place;
  ASSERT_OK_AND_ASSIGN(UniqueFd listening, ListenForRanks(/*one_machine=*/true, place));
  const auto open = [&](int64_t rank) {
    RankStoreOptions options;
    options.rank = rank;
    options.num_ranks = 2;
    options.place = place;
    options.limit = options.patience = kLong;
    if (rank == 0) options.listening = std::move(listening);
    return RankStore::Open(std::move(options));
  };
  absl::StatusOr<std::unique_ptr<RankStore>> first = open(0);
  ASSERT_OK(first);
  const std::jthread second([&] {
    absl::StatusOr<std::unique_ptr<RankStore>> store = open(1);
    ASSERT_OK(store);
    second_leaves.set_value();
    store->reset();
    EXPECT_TRUE(first_leaves);
  });
  second_leaves.get_future().wait();
  first_leaves = true;
  first->reset();
}

TEST(RankStoreTest, AFirstRankThatStaysIsWaitedForWithPatience) {
  c10d::TCPStoreOptions of_launcher;
  of_launcher.port = 0;
  of_launcher.isServer = true;
  of_launcher.waitWorkers = false;
  const auto launchers = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", of_launcher);
  RankStoreOptions options;
  options.rank = 1;
  options.num_ranks = 2;
  options.place = {
      .host = "127.0.0.1", .port = launchers->getPort(), .is_served = true, .key_prefix = "run/"};
  options.limit = kLong;
  options.patience = kShort;
  absl::StatusOr<std::unique_ptr<RankStore>> store = RankStore::Open(std::move(options));
  ASSERT_OK(store);
  const auto began = std::chrono::steady_clock::now();
  store->reset();
  EXPECT_GE(std::chrono::steady_clock::now() - began, absl::ToChronoMilliseconds(kShort));
}

TEST(RankStoreTest, APlaceIsSharedByACommunicator) {
  RunThreadRanks(3, [](Communicator& me) {
    const RankAgreement ranks(me);
    Rendezvous place;
    UniqueFd listening;
    if (ranks.is_first()) {
      absl::StatusOr<UniqueFd> made = ListenForRanks(/*one_machine=*/true, place);
      ASSERT_OK(made);
      listening = *std::move(made);
    }
    ASSERT_OK(SharePlace(ranks, place));
    EXPECT_EQ(place.host, "127.0.0.1");
    EXPECT_GT(place.port, 0);
    EXPECT_GE(place.key_prefix.size(), 32U);
  });
}

}  // namespace
}  // namespace gemini::trainer
