// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/nccl_paths.h"

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/nccl_ranks.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr CollectiveKind kSend = CollectiveKind::kSend;
constexpr CollectiveKind kReceive = CollectiveKind::kReceive;

// A rank's way to messages, without a communicator of ours. The paths come before the communicators
// of NCCL, which then are gone first.
struct RankOfGroup {
  RankOfGroup(const NcclId& the_id, const std::vector<int64_t>& ranks, int64_t place,
              MessagePaths kind, std::chrono::steady_clock::duration limit)
      : id(the_id),
        group({.name = "ring", .ranks = ranks, .place = place}),
        paths(group, kind),
        comms(FakeNcclLibrary(), device, limit, [] {}) {}
  absl::Status Connect(std::chrono::steady_clock::duration limit) {
    absl::StatusOr<NcclComm*> world = comms.MakeWorld(id, group.place, group.size());
    if (!world.ok()) return world.status();
    return paths.Connect(comms, *device, *world, limit);
  }

  const std::shared_ptr<ExchangeDevice> device = MakeHostExchange(CallersMemory::kOnDevice);
  const NcclId id;
  const RankGroup group;
  NcclPaths paths;
  NcclComms comms;
};

constexpr std::chrono::seconds kLong(60);

std::vector<int64_t> FirstRanks(int64_t size) {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

// Connects a group of that many ranks in each of them, and lets them all look at their paths.
void RunConnected(int64_t size, MessagePaths kind,
                  const std::function<void(const NcclPaths& paths, int64_t place)>& look) {
  RunNcclThreads(size, CallersMemory::kOnDevice, [&](int64_t rank, const NcclId& id) {
    RankOfGroup here(id, FirstRanks(size), rank, kind, kLong);
    ASSERT_OK(here.Connect(kLong));
    look(here.paths, rank);
    here.comms.Finish();
    EXPECT_OK(here.comms.failure()->status());
  });
}

using Way = std::pair<NcclComm*, ExchangeStream*>;
Way WayOf(const NcclPath& path) { return {path.comm, path.stream}; }

auto IsNotPrepared(const std::string& how) {
  return StatusIs(absl::StatusCode::kFailedPrecondition,
                  AllOf(HasSubstr("group ring was not prepared for a message " + how),
                        HasSubstr("see MessagePaths")));
}

TEST(NcclPathsTest, EachDirectionOfEachPairOfNeighboursIsAWayOfItsOwn) {
  for (const int64_t size : {2, 3, 4, 5}) {
    RunConnected(size, MessagePaths::kNeighbours, [size](const NcclPaths& paths, int64_t place) {
      const int64_t next = (place + 1) % size;
      const int64_t before = (place + size - 1) % size;
      std::set<NcclComm*> comms;
      std::set<ExchangeStream*> streams;
      // What is even goes up, and what is odd goes down.
      for (const auto& [kind, other, tag] :
           {std::tuple(kSend, next, 0), std::tuple(kReceive, before, 0),
            std::tuple(kSend, before, 1), std::tuple(kReceive, next, 1)}) {
        ASSERT_OK_AND_ASSIGN(const NcclPath path, paths.Find(kind, other, tag));
        ASSERT_OK_AND_ASSIGN(const NcclPath later, paths.Find(kind, other, tag + 10));
        EXPECT_EQ(WayOf(path), WayOf(later));
        EXPECT_EQ(path.peer, kind == kSend ? 1 : 0);  // Each way has two ranks, its sender first.
        comms.insert(path.comm);
        streams.insert(path.stream);
      }
      EXPECT_THAT(comms, SizeIs(4));
      EXPECT_THAT(streams, SizeIs(4));
      EXPECT_FALSE(comms.contains(nullptr));
      EXPECT_FALSE(streams.contains(nullptr));
    });
  }
}

TEST(NcclPathsTest, OnlyNeighboursHaveWaysAndEachTagItsDirection) {
  RunConnected(5, MessagePaths::kNeighbours, [](const NcclPaths& paths, int64_t place) {
    if (place != 0) return;
    EXPECT_THAT(paths.Find(kSend, 2, 0), IsNotPrepared("from place 0 to place 2 with tag 0"));
    EXPECT_THAT(paths.Find(kSend, 1, 3), IsNotPrepared("from place 0 to place 1 with tag 3"));
    EXPECT_THAT(paths.Find(kSend, 4, 0), IsNotPrepared("from place 0 to place 4 with tag 0"));
    EXPECT_THAT(paths.Find(kReceive, 1, 0), IsNotPrepared("from place 1 to place 0 with tag 0"));
  });
  // A rank that is alone has none to itself.
  RunConnected(1, MessagePaths::kNeighbours, [](const NcclPaths& paths, int64_t) {
    EXPECT_THAT(paths.Find(kSend, 0, 0), IsNotPrepared("from place 0 to place 0 with tag 0"));
  });
}

TEST(NcclPathsTest, ElsewhereAGroupHasTwoWaysUpAndDown) {
  RunConnected(3, MessagePaths::kAll, [](const NcclPaths& paths, int64_t place) {
    std::set<Way> ups, downs;
    for (int64_t other = 0; other < 3; ++other) {
      if (other == place) continue;
      for (const CollectiveKind kind : {kSend, kReceive}) {
        for (const int64_t tag : {0, 1}) {
          ASSERT_OK_AND_ASSIGN(const NcclPath path, paths.Find(kind, other, tag));
          EXPECT_EQ(path.peer, other);
          const bool is_up = (kind == kSend) == (other > place);
          (is_up ? ups : downs).insert(WayOf(path));
        }
      }
    }
    ASSERT_THAT(ups, SizeIs(1));
    ASSERT_THAT(downs, SizeIs(1));
    EXPECT_NE(ups.begin()->first, downs.begin()->first);
    EXPECT_NE(ups.begin()->second, downs.begin()->second);
    EXPECT_THAT(paths.Find(kSend, place, 0),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("was not prepared")));
  });
}

TEST(NcclPathsTest, WithTheFirstAloneOthersHaveNoWayToEachOther) {
  RunConnected(3, MessagePaths::kWithFirst, [](const NcclPaths& paths, int64_t place) {
    for (int64_t other = 0; other < 3; ++other) {
      if (other == place) continue;
      if (place == 0 || other == 0) {
        ASSERT_OK_AND_ASSIGN(const NcclPath path, paths.Find(kSend, other, 0));
        EXPECT_EQ(path.peer, other);
        EXPECT_OK(paths.Find(kReceive, other, 0));
      } else {
        EXPECT_THAT(paths.Find(kSend, other, 0), IsNotPrepared("from place"));
        EXPECT_THAT(paths.Find(kReceive, other, 0), IsNotPrepared("from place"));
      }
    }
  });
}

// The other rank has what NCCL needs of it, and sends no byte.
TEST(NcclPathsTest, RanksThatDoNotConnectInTimeAreToldOfWhichGroup) {
  for (const MessagePaths kind : {MessagePaths::kAll, MessagePaths::kNeighbours}) {
    RunNcclThreads(2, CallersMemory::kOnDevice, [kind](int64_t rank, const NcclId& id) {
      RankOfGroup here(id, {0, 1}, rank, kind, kLong);
      if (rank == 0) {
        const absl::Status status = here.Connect(std::chrono::milliseconds(60));
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                     AllOf(HasSubstr("the ranks of ring for messages"),
                                           HasSubstr("within 60 ms"))));
        here.comms.Fail(status);
        return;
      }
      ASSERT_OK_AND_ASSIGN(NcclComm* const world, here.comms.MakeWorld(id, 1, 2));
      // Colors and keys. Pairs of neighbours come in three rounds a direction, of which two ranks
      // need two, and a pair's sender is its first.
      constexpr int64_t kNone = NcclLibrary::kNoColor;
      using Splits = std::vector<std::pair<int64_t, int64_t>>;
      const Splits splits = kind == MessagePaths::kAll
                                ? Splits{{0, 1}, {0, 1}}
                                : Splits{{0, 1}, {1, 0}, {kNone, 0}, {0, 0}, {1, 1}, {kNone, 0}};
      for (const auto& [color, key] : splits) EXPECT_OK(here.comms.Split(world, color, key, 0));
      // It hears from NCCL that the other one is gone.
      while (here.comms.failure()->status().ok()) std::this_thread::yield();
    });
  }
}

// Runs `rank_main` in ranks that must come into being.
void RunRanks(int64_t num_ranks, CallersMemory callers,
              const std::function<void(CommunicatorNccl&)>& rank_main) {
  RunNcclRanks(num_ranks, callers, {}, [&](int64_t, MadeCommunicator made) {
    ASSERT_OK(made);
    rank_main(**made);
  });
}

TEST(NcclPathsTest, AGroupIsPreparedOnce) {
  RunRanks(2, CallersMemory::kOnDevice, [](CommunicatorNccl& me) {
    EXPECT_THAT(me.PrepareMessages(me.world(), MessagePaths::kAll),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("group world was prepared for messages before")));
  });
}

// As a pipeline of two ranks with receives that are posted ahead: on one stream each rank's send
// would wait behind a receive that waits for the other's.
TEST(NcclPathsTest, ReceivesPostedAheadHoldUpNoSend) {
  constexpr int64_t kForward = 0, kBackward = 1, kSize = 1 << 16;
  RunRanks(2, CallersMemory::kOnDevice, [&](CommunicatorNccl& me) {
    ASSERT_OK_AND_ASSIGN(const RankGroup* const stages, me.MakeGroup("stages", {{0, 1}}));
    ASSERT_OK(me.PrepareMessages(*stages, MessagePaths::kNeighbours));
    std::vector<std::vector<std::byte>> memory;
    std::vector<Work> sent;
    const auto send = [&](int64_t tag, int value) {
      memory.emplace_back(static_cast<size_t>(kSize), static_cast<std::byte>(value));
      sent.push_back(me.Send(*stages, memory.back().data(), kSize, 1 - me.rank(), tag, "sent"));
    };
    const auto receive = [&](int64_t tag) {
      memory.emplace_back(static_cast<size_t>(kSize));
      return std::pair(me.Receive(*stages, memory.back().data(), kSize, 1 - me.rank(), tag, "here"),
                       memory.back().data());
    };
    const auto expect = [](const auto& received, int value) {
      EXPECT_OK(received.first->Wait());
      EXPECT_EQ(received.second[0], static_cast<std::byte>(value));
    };
    memory.reserve(16);
    if (me.rank() == 0) {
      send(kForward, 10);
      const auto first = receive(kBackward);
      send(kForward, 11);
      const auto second = receive(kBackward);
      expect(first, 20);
      expect(second, 21);
    } else {
      const auto first = receive(kForward);
      const auto second = receive(kForward);
      expect(first, 10);
      send(kBackward, 20);
      expect(second, 11);
      send(kBackward, 21);
    }
    for (const Work& work : sent) EXPECT_OK(work->Wait());
  });
}

// Rings of all sizes, in both directions, of several groups at once.
TEST(NcclPathsTest, NeighboursSendToBothSides) {
  const std::vector<std::pair<int, std::vector<std::vector<int64_t>>>> cases = {
      {2, {{0, 1}}},       {3, {{0, 1, 2}}},       {4, {{0, 2}, {1, 3}}},
      {4, {{0, 1, 2, 3}}}, {5, {{0, 1, 2, 3, 4}}}, {6, {{0, 2, 4}, {1, 5}, {3}}}};
  for (const auto& [num_ranks, groups] : cases) {
    RunRanks(num_ranks, CallersMemory::kMixed, [&groups = groups](CommunicatorNccl& me) {
      ASSERT_OK_AND_ASSIGN(const RankGroup* const ring, me.MakeGroup("ring", groups));
      ASSERT_OK(me.PrepareMessages(*ring, MessagePaths::kNeighbours));
      const int64_t size = ring->size();
      if (size == 1) return;
      const int64_t next = (ring->place + 1) % size;
      const int64_t before = (ring->place + size - 1) % size;
      for (int64_t round = 0; round < 4; ++round) {
        std::array<int64_t, 4> bytes = {me.rank() * 100 + round, me.rank() * 200 + round, -1, -1};
        const Work up = me.Send(*ring, &bytes[0], 8, next, 2 * round, "up");
        const Work down = me.Send(*ring, &bytes[1], 8, before, 2 * round + 1, "down");
        EXPECT_OK(me.Receive(*ring, &bytes[2], 8, before, 2 * round, "up")->Wait());
        EXPECT_OK(me.Receive(*ring, &bytes[3], 8, next, 2 * round + 1, "down")->Wait());
        EXPECT_OK(up->Wait());
        EXPECT_OK(down->Wait());
        EXPECT_EQ(bytes[2], ring->ranks[static_cast<size_t>(before)] * 100 + round);
        EXPECT_EQ(bytes[3], ring->ranks[static_cast<size_t>(next)] * 200 + round);
      }
    });
  }
}

// Such a message cannot come, so the rank says it and ends, as behind any error.
TEST(NcclPathsTest, AMessageWithoutAPathFails) {
  RunRanks(3, CallersMemory::kOnHost, [](CommunicatorNccl& me) {
    std::byte byte{0};
    std::array<std::byte, 3> of_all = {};
    const Work all_are_here = me.AllGather(me.world(), &byte, of_all.data(), 1, "all are here");
    if (me.rank() == 1) {
      EXPECT_OK(all_are_here->Wait());  // Until then others may still be connecting.
      EXPECT_THAT(
          me.Send(me.world(), &byte, 1, 2, 0, "odd")->Wait(),
          StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("from place 1 to place 2")));
    } else {
      // It hears of it from NCCL.
      const Work waits = me.Receive(me.world(), &byte, 1, me.rank() == 0 ? 1 : 0, 0, "waits");
      EXPECT_THAT(waits->Wait(), StatusIs(absl::StatusCode::kUnavailable));
    }
  });
}

}  // namespace
}  // namespace gemini::trainer
