// SPDX-License-Identifier: Apache-2.0
#include "tests/trainer/parallel/communicator_conformance.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "gemini/half_float.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using Bytes = std::vector<std::byte>;

constexpr SumType kSumTypes[] = {SumType::kFp64, SumType::kFp32, SumType::kBf16, SumType::kFp16};

// The source of all values: every rank knows what any other has.
uint64_t Mix(uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}
uint64_t Drawn(uint64_t exchange, int64_t rank, int64_t index) {
  return Mix(Mix(Mix(exchange) + static_cast<uint64_t>(rank)) + static_cast<uint64_t>(index));
}

std::byte ByteOf(uint64_t exchange, int64_t rank, int64_t index) {
  return static_cast<std::byte>(Drawn(exchange, rank, index));
}
double ValueOf(Addends addends, uint64_t exchange, int64_t rank, int64_t index) {
  const uint64_t drawn = Drawn(exchange, rank, index);
  // Eight of them have a sum that bf16 has.
  if (addends == Addends::kWhole) return static_cast<double>(drawn % 61) - 30;
  const double small = static_cast<double>(drawn % 4001) / 1000 - 2;
  return small * static_cast<double>(uint64_t{1} << (drawn >> 40) % 9);
}

Bytes BytesOf(uint64_t exchange, int64_t rank, int64_t count) {
  Bytes bytes;
  for (int64_t i = 0; i < count; ++i) bytes.push_back(ByteOf(exchange, rank, i));
  return bytes;
}

template <typename Stored>
void Append(Bytes& bytes, Stored value) {
  const auto* const begin = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof(value));
}
void AppendRounded(Bytes& bytes, SumType type, double value) {
  switch (type) {
    case SumType::kFp64:
      return Append(bytes, value);
    case SumType::kFp32:
      return Append(bytes, static_cast<float>(value));
    case SumType::kBf16:
      return Append(bytes, Bf16Of(static_cast<float>(value)));
    case SumType::kFp16:
      return Append(bytes, Fp16Of(static_cast<float>(value)));
  }
}
// What a rank adds: its value as the type has it.
double StoredValue(SumType type, double value) {
  switch (type) {
    case SumType::kFp64:
      return value;
    case SumType::kFp32:
      return static_cast<float>(value);
    case SumType::kBf16:
      return FloatOfBf16(Bf16Of(static_cast<float>(value)));
    case SumType::kFp16:
      return FloatOfFp16(Fp16Of(static_cast<float>(value)));
  }
  return 0;
}

Bytes AddendsOf(Addends addends, uint64_t exchange, SumType type, int64_t rank, int64_t count) {
  Bytes bytes;
  for (int64_t i = 0; i < count; ++i) {
    AppendRounded(bytes, type, ValueOf(addends, exchange, rank, i));
  }
  return bytes;
}

// Elements `first` to `first + count` of the sum over the group, in the order of its ranks.
Bytes ModelSum(Addends addends, uint64_t exchange, SumType type, const RankGroup& group,
               int64_t first, int64_t count) {
  Bytes bytes;
  for (int64_t i = first; i < first + count; ++i) {
    double sum = 0;
    for (size_t k = 0; k < group.ranks.size(); ++k) {
      const double addend = StoredValue(type, ValueOf(addends, exchange, group.ranks[k], i));
      sum = k == 0 ? addend : sum + addend;
      if (type != SumType::kFp64) sum = static_cast<float>(sum);
    }
    AppendRounded(bytes, type, sum);
  }
  return bytes;
}

// An exchange that was issued, its memory, and what is to be in it.
struct Issued {
  Work work;
  Bytes from, to, expected;
  std::string what;

  void Check() const {
    EXPECT_OK(work->Wait()) << what;
    EXPECT_TRUE(work->Done());
    EXPECT_TRUE(to == expected) << what;
  }
};

// One of random kind and size in `group`, numbered `exchange`. The lengths are `draw`'s, equal in
// all ranks.
Issued IssueOne(Communicator& me, const RankGroup& group, Addends addends, uint64_t exchange,
                const std::function<int64_t(int64_t)>& draw) {
  const int64_t rank = me.rank();
  const int64_t size = group.size();
  const int64_t count = draw(8) == 0 ? 0 : draw(300);
  const SumType type = kSumTypes[draw(4)];
  const int64_t width = SumTypeBytes(type);
  const int64_t root = draw(size);
  const int64_t tag = draw(3);
  const int64_t shift = 1 + draw(std::max<int64_t>(1, size - 1));
  Issued issued;
  switch (draw(7)) {
    case 0:
      issued.what = "all-gather";
      issued.from = BytesOf(exchange, rank, count);
      issued.to.resize(static_cast<size_t>(count * size));
      for (const int64_t other : group.ranks) {
        const Bytes part = BytesOf(exchange, other, count);
        issued.expected.insert(issued.expected.end(), part.begin(), part.end());
      }
      if (draw(2) == 0) {
        issued.work = me.AllGather(group, issued.from.data(), issued.to.data(), count, "test");
      } else {
        std::byte* const here = issued.to.data() + group.place * count;
        std::ranges::copy(issued.from, here);
        issued.work = me.AllGather(group, here, issued.to.data(), count, "test");
      }
      break;
    case 1:
      issued.what = "reduce-scatter";
      issued.from = AddendsOf(addends, exchange, type, rank, count * size);
      issued.to.resize(static_cast<size_t>(count * width));
      issued.expected = ModelSum(addends, exchange, type, group, group.place * count, count);
      issued.work =
          me.ReduceScatter(group, type, issued.from.data(), issued.to.data(), count, "test");
      break;
    case 2:
      issued.what = "all-reduce";
      issued.to = AddendsOf(addends, exchange, type, rank, count);
      issued.expected = ModelSum(addends, exchange, type, group, 0, count);
      issued.work = me.AllReduce(group, type, issued.to.data(), count, "test");
      break;
    case 3:
      issued.what = "all-to-all";
      issued.from = BytesOf(exchange, rank, count * size);
      issued.to.resize(issued.from.size());
      for (const int64_t other : group.ranks) {
        for (int64_t i = 0; i < count; ++i) {
          issued.expected.push_back(ByteOf(exchange, other, group.place * count + i));
        }
      }
      issued.work = me.AllToAll(group, issued.from.data(), issued.to.data(), count, "test");
      break;
    case 4:
      issued.what = "broadcast";
      issued.to = BytesOf(exchange, rank, count);
      issued.expected = BytesOf(exchange, group.ranks[static_cast<size_t>(root)], count);
      issued.work = me.Broadcast(group, issued.to.data(), count, root, "test");
      break;
    case 5: {
      issued.what = "shift";
      const int64_t from = (group.place + size - 1) % size;
      issued.from = BytesOf(exchange, rank, count);
      issued.to.resize(static_cast<size_t>(count));
      issued.expected = BytesOf(exchange, group.ranks[static_cast<size_t>(from)], count);
      issued.work = me.Shift(group, issued.from.data(), issued.to.data(), count, "test");
      break;
    }
    default:
      issued.what = "message";
      if (size == 1) {
        issued.work = me.AllGather(group, nullptr, nullptr, 0, "test");
        break;
      }
      const int64_t to = (group.place + shift) % size;
      const int64_t from = (group.place + size - shift) % size;
      issued.from = BytesOf(exchange, rank, count);
      issued.to.resize(static_cast<size_t>(count));
      issued.expected = BytesOf(exchange, group.ranks[static_cast<size_t>(from)], count);
      const Work sent = me.Send(group, issued.from.data(), count, to, tag, "test");
      issued.work = me.Receive(group, issued.to.data(), count, from, tag, "test");
      EXPECT_OK(issued.work->Wait());
      EXPECT_OK(sent->Wait());
      break;
  }
  return issued;
}

}  // namespace

void ExpectRandomExchanges(Communicator& me, uint64_t seed, int num_sequences, Addends addends) {
  std::mt19937_64 random(seed);
  const auto draw = [&random](int64_t below) {
    return std::uniform_int_distribution<int64_t>(0, below - 1)(random);
  };
  // All ranks, each alone, and three random ways to part them.
  std::vector<const RankGroup*> groups = {&me.world()};
  for (int way = 0; way < 4; ++way) {
    std::vector<std::vector<int64_t>> parts(
        static_cast<size_t>(std::max<int64_t>(2, me.num_ranks())));
    for (int64_t rank = 0; rank < me.num_ranks(); ++rank) {
      parts[static_cast<size_t>(way == 0 ? rank : draw(2))].push_back(rank);
    }
    std::erase_if(parts, [](const auto& part) { return part.empty(); });
    ASSERT_OK_AND_ASSIGN(const RankGroup* const group, me.MakeGroup("random", parts));
    ASSERT_OK(me.PrepareMessages(*group, MessagePaths::kAll));
    groups.push_back(group);
  }
  uint64_t exchange = seed << 32;
  for (int sequence = 0; sequence < num_sequences; ++sequence) {
    std::vector<Issued> issued;
    for (int64_t left = 1 + draw(6); left > 0; --left) {
      const RankGroup& group = *groups[static_cast<size_t>(draw(5))];
      // In groups of another size the same calls of draw would draw other numbers.
      std::mt19937_64 of_exchange(++exchange);
      issued.push_back(IssueOne(me, group, addends, exchange, [&of_exchange](int64_t below) {
        return static_cast<int64_t>(of_exchange() % static_cast<uint64_t>(below));
      }));
      if (draw(3) == 0) {
        issued.front().Check();
        issued.erase(issued.begin());
      }
    }
    for (const Issued& each : issued) each.Check();
  }
}

void ExpectLargeSums(Communicator& me) {
  // Rank r has i modulo 241, and r: whole numbers up to 256, which bf16 has. Every order adds them
  // to the same.
  const int64_t n = me.num_ranks();
  const int64_t count = (5 << 20) / 2 + 13;
  std::vector<uint16_t> values, all, sums(static_cast<size_t>(count / n));
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(Bf16Of(static_cast<float>(i % 241 + me.rank())));
  }
  const auto expected = [n](int64_t i) {
    return Bf16Of(static_cast<float>(n * (i % 241) + n * (n - 1) / 2));
  };
  all = values;
  EXPECT_OK(me.AllReduce(me.world(), SumType::kBf16, values.data(), count, "large")->Wait());
  const int64_t part = count / n;
  EXPECT_OK(
      me.ReduceScatter(me.world(), SumType::kBf16, all.data(), sums.data(), part, "large")->Wait());
  int64_t num_wrong = 0;
  for (int64_t i = 0; i < count; ++i) num_wrong += values[static_cast<size_t>(i)] != expected(i);
  for (int64_t i = 0; i < part; ++i) {
    num_wrong += sums[static_cast<size_t>(i)] != expected(me.world().place * part + i);
  }
  EXPECT_EQ(num_wrong, 0);
}

void ExpectCrossedMessages(Communicator& me, bool by_tags) {
  constexpr int64_t kSize = 4 << 20;
  if (me.rank() > 1) return;
  const int64_t other = 1 - me.rank();
  constexpr int64_t kTags[] = {0, 1, 0};
  const auto bytes_of = [](int64_t rank, int64_t message) {
    return Bytes(kSize, static_cast<std::byte>(10 * rank + message));
  };
  std::vector<Bytes> mine, theirs(3, Bytes(kSize));
  std::vector<Work> sent;
  for (const int64_t i : {0, 1, 2}) mine.push_back(bytes_of(me.rank(), i));
  for (const int64_t i : {0, 1, 2}) {
    sent.push_back(me.Send(me.world(), mine[static_cast<size_t>(i)].data(), kSize, other, kTags[i],
                           "crossed"));
  }
  // By tags in another order than they were sent, and in that order where tags are equal.
  const std::vector<size_t> order =
      by_tags ? std::vector<size_t>{1, 0, 2} : std::vector<size_t>{0, 1, 2};
  for (const size_t i : order) {
    EXPECT_OK(me.Receive(me.world(), theirs[i].data(), kSize, other, kTags[i], "crossed")->Wait());
  }
  for (const size_t i : {0u, 1u, 2u}) {
    EXPECT_OK(sent[i]->Wait());
    EXPECT_TRUE(theirs[i] == bytes_of(other, static_cast<int64_t>(i))) << i;
  }
}

void ExpectCounts(Communicator& me) {
  const int64_t others = me.num_ranks() - 1;
  std::vector<std::vector<int64_t>> singles;
  for (int64_t rank = 0; rank < me.num_ranks(); ++rank) singles.push_back({rank});
  ASSERT_OK_AND_ASSIGN(const RankGroup* const alone, me.MakeGroup("alone", singles));
  Bytes from(static_cast<size_t>(100 * me.num_ranks())), to(from.size());
  for (int i = 0; i < 2; ++i) {
    EXPECT_OK(me.AllGather(me.world(), from.data(), to.data(), 100, "counted")->Wait());
  }
  EXPECT_OK(me.AllGather(*alone, from.data(), to.data(), 100, "counted")->Wait());
  EXPECT_OK(
      me.ReduceScatter(me.world(), SumType::kBf16, from.data(), to.data(), 50, "counted")->Wait());
  EXPECT_OK(me.AllReduce(me.world(), SumType::kFp32, to.data(), 5 * me.num_ranks() + 1, "counted")
                ->Wait());
  EXPECT_OK(me.AllToAll(me.world(), from.data(), to.data(), 100, "counted")->Wait());
  EXPECT_OK(me.Broadcast(me.world(), to.data(), 7, 0, "counted")->Wait());
  EXPECT_OK(me.Shift(me.world(), from.data(), to.data(), 11, "counted")->Wait());
  EXPECT_OK(me.Shift(*alone, from.data(), to.data(), 11, "counted")->Wait());
  if (me.rank() == 0 && others > 0) {
    EXPECT_OK(me.Send(me.world(), from.data(), 9, 1, 0, "counted")->Wait());
  }
  if (me.rank() == 1) {
    EXPECT_OK(me.Receive(me.world(), to.data(), 9, 0, 0, "counted")->Wait());
  }
  const auto sent = [&me](CollectiveKind kind, const std::string& group) {
    for (const SentBytes& each : me.sent()) {
      if (each.kind == kind && each.group == group && each.site == "counted") {
        return std::pair(each.operations, each.bytes);
      }
    }
    return std::pair<int64_t, int64_t>(-1, -1);
  };
  using Counted = std::pair<int64_t, int64_t>;
  EXPECT_EQ(sent(CollectiveKind::kAllGather, "world"), Counted(2, 200 * others));
  EXPECT_EQ(sent(CollectiveKind::kAllGather, "alone"), Counted(1, 0));
  EXPECT_EQ(sent(CollectiveKind::kReduceScatter, "world"), Counted(1, 100 * others));
  EXPECT_EQ(sent(CollectiveKind::kAllReduce, "world"), Counted(1, 2 * 6 * 4 * others));
  EXPECT_EQ(sent(CollectiveKind::kAllToAll, "world"), Counted(1, 100 * others));
  EXPECT_EQ(sent(CollectiveKind::kBroadcast, "world"), Counted(1, me.rank() == 0 ? 7 : 0));
  EXPECT_EQ(sent(CollectiveKind::kShift, "world"), Counted(1, others > 0 ? 11 : 0));
  EXPECT_EQ(sent(CollectiveKind::kShift, "alone"), Counted(1, 0));
  if (me.rank() == 0 && others > 0) {
    EXPECT_EQ(sent(CollectiveKind::kSend, "world"), Counted(1, 9));
  }
  if (me.rank() == 1) {
    EXPECT_EQ(sent(CollectiveKind::kReceive, "world"), Counted(1, 0));
  }
}

void ExpectSilence(Communicator& me) {
  const RankGroup& world = me.world();
  Bytes from(static_cast<size_t>(8 * me.num_ranks()), std::byte{1}), to(from.size(), std::byte{2});
  const std::vector<uint32_t> checksums = me.checksums();
  const int64_t num_messages = me.begun().num_messages;
  me.set_silent(true);
  // None of them has an other side.
  for (int64_t i = 0; i <= me.rank(); ++i) {
    for (const Work& work :
         {me.AllGather(world, from.data(), to.data(), 8, "silent"),
          me.ReduceScatter(world, SumType::kFp32, from.data(), to.data(), 2, "silent"),
          me.AllReduce(world, SumType::kFp32, to.data(), 2, "silent"),
          me.AllToAll(world, from.data(), to.data(), 8, "silent"),
          me.Broadcast(world, to.data(), 8, 0, "silent"),
          me.Shift(world, from.data(), to.data(), 8, "silent")}) {
      EXPECT_TRUE(work->Done());
      EXPECT_OK(work->Wait());
    }
    if (me.num_ranks() == 1) continue;
    const int64_t other = (me.rank() + 1) % me.num_ranks();
    EXPECT_OK(me.Send(world, from.data(), 8, other, 0, "silent")->Wait());
    EXPECT_OK(me.Receive(world, to.data(), 8, other, 0, "silent")->Wait());
  }
  // What no rank can do is refused as ever.
  EXPECT_THAT(me.Broadcast(world, to.data(), -1, 0, "silent")->Wait(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  me.set_silent(false);
  EXPECT_EQ(to, Bytes(to.size(), std::byte{2}));
  EXPECT_EQ(me.checksums(), checksums);
  EXPECT_GT(me.begun().num_messages, num_messages);  // So that the watchdog sees that it goes on.
  EXPECT_FALSE(me.under_way().has_value());
  for (const SentBytes& each : me.sent()) EXPECT_NE(each.site, "silent");
  // Now it takes part.
  float value = 1;
  EXPECT_OK(me.AllReduce(world, SumType::kFp32, &value, 1, "heard")->Wait());
  EXPECT_EQ(value, static_cast<float>(me.num_ranks()));
}

void ExpectRefusals(Communicator& me) {
  using ::testing::HasSubstr;
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at odd"));
  const RankGroup& world = me.world();
  std::byte byte{0};
  EXPECT_THAT(me.AllGather(world, &byte, &byte, -1, "odd")->Wait(), refused);
  EXPECT_THAT(me.Broadcast(world, &byte, 1, world.size(), "odd")->Wait(), refused);
  EXPECT_THAT(me.Broadcast(world, &byte, 1, -1, "odd")->Wait(), refused);
  EXPECT_THAT(me.Shift(world, &byte, &byte, -1, "odd")->Wait(), refused);
  EXPECT_THAT(me.Send(world, &byte, 1, world.place, 0, "odd")->Wait(), refused);
  EXPECT_THAT(me.Receive(world, &byte, 1, world.place, 0, "odd")->Wait(), refused);
  EXPECT_THAT(me.Send(world, &byte, 1, 1 - world.place, Communicator::kMostTag + 1, "odd")->Wait(),
              refused);
  EXPECT_TRUE(me.sent().empty());
  const auto no_groups = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"odd\""));
  EXPECT_THAT(me.MakeGroup("odd", {}), no_groups);
  EXPECT_THAT(me.MakeGroup("odd", {{0}}), no_groups);
  EXPECT_THAT(me.MakeGroup("odd", {{1, 0}}), no_groups);
  EXPECT_THAT(me.MakeGroup("odd", {{0, 1}, {1}}), no_groups);
  EXPECT_THAT(me.MakeGroup("odd", {{0, 1}, {}}), no_groups);
}

}  // namespace gemini::trainer
