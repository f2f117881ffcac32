// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/communicator.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/crc32c.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

class WorkThatIsDone final : public PendingWork {
 public:
  explicit WorkThatIsDone(absl::Status how) : how_(std::move(how)) {}
  absl::Status Wait() override { return how_; }
  bool Done() const override { return true; }

 private:
  const absl::Status how_;
};

// What one rank of `size` sends.
int64_t SentOf(CollectiveKind kind, int64_t size, int64_t bytes, bool has_bytes) {
  switch (kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      return bytes * (size - 1);
    case CollectiveKind::kAllReduce:
      return 2 * bytes * (size - 1);
    case CollectiveKind::kBroadcast:
      return has_bytes ? bytes : 0;
    case CollectiveKind::kShift:
      return size > 1 ? bytes : 0;
    case CollectiveKind::kSend:
      return bytes;
    case CollectiveKind::kReceive:
      return 0;
  }
  return 0;
}

}  // namespace

Work DoneWork(absl::Status how) { return std::make_shared<WorkThatIsDone>(std::move(how)); }

void KeepForEver(std::shared_ptr<void> memory) {
  // It is found from here, so that nobody takes it for a leak.
  static Mutex mutex;
  static auto& all = *new std::vector<std::shared_ptr<void>>;
  MutexLock lock(mutex);
  all.push_back(std::move(memory));
}

absl::Status Await(const Work& work, std::shared_ptr<void> memory) {
  absl::Status status = work->Wait();
  if (!status.ok()) KeepForEver(std::move(memory));
  return status;
}

absl::string_view CollectiveKindName(CollectiveKind kind) {
  constexpr std::array<absl::string_view, 8> kNames = {"all-gather", "reduce-scatter", "all-reduce",
                                                       "all-to-all", "broadcast",      "shift",
                                                       "send",       "receive"};
  return kNames[static_cast<size_t>(kind)];
}

Communicator::Communicator(int64_t rank, int64_t num_ranks) {
  auto world = std::make_unique<RankGroup>();
  world->name = "world";
  for (int64_t i = 0; i < num_ranks; ++i) world->ranks.push_back(i);
  world->place = rank;
  ranks_of_groups_.push_back({world->ranks});
  groups_.push_back(std::move(world));
  issued_.emplace_back();
}

absl::StatusOr<const RankGroup*> Communicator::MakeGroup(
    absl::string_view name, const std::vector<std::vector<int64_t>>& groups) {
  auto made = std::make_unique<RankGroup>();
  made->name = std::string(name);
  made->id = static_cast<int64_t>(groups_.size());
  std::vector<int64_t> all;
  bool are_sorted = true;
  for (const std::vector<int64_t>& group : groups) {
    are_sorted &= std::ranges::is_sorted(group) && !group.empty();
    all.insert(all.end(), group.begin(), group.end());
    const auto here = std::ranges::find(group, rank());
    if (here == group.end()) continue;
    made->ranks = group;
    made->place = here - group.begin();
  }
  std::ranges::sort(all);
  if (!are_sorted || all != world().ranks) {
    return absl::InvalidArgumentError(absl::StrCat("groups \"", name, "\" of ", all.size(),
                                                   " ranks: each of the ", num_ranks(),
                                                   " must be in one of them, ascending"));
  }
  GEMINI_RETURN_IF_ERROR(Prepare(*made));
  groups_.push_back(std::move(made));
  ranks_of_groups_.push_back(groups);
  {
    MutexLock lock(mutex_);
    issued_.emplace_back();
  }
  return groups_.back().get();
}

absl::Status Communicator::PrepareMessages(const RankGroup& /*group*/, MessagePaths /*paths*/) {
  return absl::OkStatus();
}

Work Communicator::AllGather(const RankGroup& group, const void* part, void* all,
                             int64_t part_bytes, absl::string_view site) {
  return Start({.kind = CollectiveKind::kAllGather,
                .group = &group,
                .from = static_cast<const std::byte*>(part),
                .to = static_cast<std::byte*>(all),
                .count = part_bytes,
                .site = std::string(site)});
}

Work Communicator::ReduceScatter(const RankGroup& group, SumType type, const void* all, void* part,
                                 int64_t part_elements, absl::string_view site) {
  return Start({.kind = CollectiveKind::kReduceScatter,
                .group = &group,
                .from = static_cast<const std::byte*>(all),
                .to = static_cast<std::byte*>(part),
                .count = part_elements,
                .type = type,
                .site = std::string(site)});
}

Work Communicator::AllReduce(const RankGroup& group, SumType type, void* values, int64_t elements,
                             absl::string_view site) {
  return Start({.kind = CollectiveKind::kAllReduce,
                .group = &group,
                .from = static_cast<const std::byte*>(values),
                .to = static_cast<std::byte*>(values),
                .count = elements,
                .type = type,
                .site = std::string(site)});
}

Work Communicator::AllToAll(const RankGroup& group, const void* to_each, void* from_each,
                            int64_t bytes_each, absl::string_view site) {
  return Start({.kind = CollectiveKind::kAllToAll,
                .group = &group,
                .from = static_cast<const std::byte*>(to_each),
                .to = static_cast<std::byte*>(from_each),
                .count = bytes_each,
                .site = std::string(site)});
}

Work Communicator::Broadcast(const RankGroup& group, void* bytes, int64_t size_bytes, int64_t place,
                             absl::string_view site) {
  return Start({.kind = CollectiveKind::kBroadcast,
                .group = &group,
                .from = static_cast<const std::byte*>(bytes),
                .to = static_cast<std::byte*>(bytes),
                .count = size_bytes,
                .place = place,
                .site = std::string(site)});
}

Work Communicator::Shift(const RankGroup& group, const void* from, void* to, int64_t size_bytes,
                         absl::string_view site) {
  return Start({.kind = CollectiveKind::kShift,
                .group = &group,
                .from = static_cast<const std::byte*>(from),
                .to = static_cast<std::byte*>(to),
                .count = size_bytes,
                .site = std::string(site)});
}

Work Communicator::Send(const RankGroup& group, const void* bytes, int64_t size_bytes,
                        int64_t to_place, int64_t tag, absl::string_view site) {
  return Start({.kind = CollectiveKind::kSend,
                .group = &group,
                .from = static_cast<const std::byte*>(bytes),
                .count = size_bytes,
                .place = to_place,
                .tag = tag,
                .site = std::string(site)});
}

Work Communicator::Receive(const RankGroup& group, void* bytes, int64_t size_bytes,
                           int64_t from_place, int64_t tag, absl::string_view site) {
  return Start({.kind = CollectiveKind::kReceive,
                .group = &group,
                .to = static_cast<std::byte*>(bytes),
                .count = size_bytes,
                .place = from_place,
                .tag = tag,
                .site = std::string(site)});
}

int64_t Communicator::Operation::part_bytes() const {
  if (kind == CollectiveKind::kReduceScatter) return count * SumTypeBytes(type);
  if (kind != CollectiveKind::kAllReduce) return count;
  return (count + group->size() - 1) / group->size() * SumTypeBytes(type);
}

Work Communicator::Start(Operation operation) {
  const RankGroup& group = *operation.group;
  const CollectiveKind kind = operation.kind;
  const bool is_message = operation.is_message();
  if (operation.count < 0 || operation.place < 0 || operation.place >= group.size() ||
      operation.tag < 0 || operation.tag > kMostTag ||
      (is_message && operation.place == group.place)) {
    return DoneWork(absl::InvalidArgumentError(
        absl::StrCat(CollectiveKindName(kind), " at ", operation.site, ": ", operation.count,
                     " bytes or elements, rank ", operation.place, " of the ", group.size(), " in ",
                     group.name, " from rank ", group.place, ", tag ", operation.tag)));
  }
  {
    MutexLock lock(mutex_);
    if (is_silent_) {
      ++num_messages_;
      return DoneWork(absl::OkStatus());
    }
    SentBytes& sent = sent_[{kind, group.name, operation.site}];
    ++sent.operations;
    sent.bytes +=
        SentOf(kind, group.size(), operation.part_bytes(), operation.place == group.place);
    if (is_message) {
      ++num_messages_;
    } else {
      IssuedInGroup& in_group = issued_[static_cast<size_t>(group.id)];
      operation.number = ++in_group.count;
      uint32_t& checksum = in_group.checksum;
      const std::string issued =
          absl::StrCat(checksum, " ", CollectiveKindName(kind), " ", operation.count, " ",
                       static_cast<int>(operation.type), " ", operation.place, " ", operation.site);
      checksum = Crc32c({reinterpret_cast<const std::byte*>(issued.data()), issued.size()});
    }
  }
  return Issue(std::move(operation));
}

std::vector<uint32_t> Communicator::checksums() const {
  MutexLock lock(mutex_);
  std::vector<uint32_t> checksums;
  for (const IssuedInGroup& in_group : issued_) checksums.push_back(in_group.checksum);
  return checksums;
}

Communicator::Begun Communicator::begun() const {
  MutexLock lock(mutex_);
  Begun begun = {.num_messages = num_messages_};
  for (const IssuedInGroup& in_group : issued_) begun.num_collectives.push_back(in_group.count);
  return begun;
}

std::optional<CollectiveUnderWay> Communicator::under_way() const {
  MutexLock lock(mutex_);
  return under_way_;
}

std::optional<AwaitedMessage> Communicator::awaited_message() const {
  MutexLock lock(mutex_);
  return awaited_[0].has_value() ? awaited_[0] : awaited_[1];
}

MessageWait::MessageWait(Communicator& communicator, CollectiveKind kind, int64_t rank,
                         absl::string_view site)
    : communicator_(communicator) {
  MutexLock lock(communicator_.mutex_);
  communicator_.awaited_[0] = {.kind = kind,
                               .rank = rank,
                               .site = std::string(site),
                               .since = std::chrono::steady_clock::now()};
}

MessageWait::~MessageWait() {
  MutexLock lock(communicator_.mutex_);
  communicator_.awaited_[0].reset();
}

void Communicator::SetUnderWay(const Operation* operation) {
  std::optional<CollectiveUnderWay> now;
  if (operation != nullptr) {
    now = {.kind = operation->kind,
           .group = operation->group->id,
           .number = operation->number,
           .site = operation->site,
           .ranks = operation->group->ranks,
           .since = std::chrono::steady_clock::now()};
  }
  MutexLock lock(mutex_);
  under_way_ = std::move(now);
}

void Communicator::SetAwaitedByOperators(const Operation* message,
                                         std::chrono::steady_clock::time_point since) {
  std::optional<AwaitedMessage> now;
  if (message != nullptr) {
    now = {.kind = message->kind,
           .rank = message->group->ranks[static_cast<size_t>(message->place)],
           .site = message->site,
           .since = since};
  }
  MutexLock lock(mutex_);
  awaited_[1] = std::move(now);
}

absl::Status Communicator::CheckChecksums(const std::vector<std::vector<uint32_t>>& by_rank) const {
  for (size_t id = 0; id < groups_.size(); ++id) {
    const auto of = [&](int64_t rank) { return by_rank[static_cast<size_t>(rank)][id]; };
    for (const std::vector<int64_t>& ranks : ranks_of_groups_[id]) {
      const int64_t first = ranks.front();
      const auto other =
          std::ranges::find_if(ranks, [&](int64_t rank) { return of(rank) != of(first); });
      if (other == ranks.end()) continue;
      return absl::InternalError(absl::StrCat("ranks ", first, " and ", *other,
                                              " issued different collectives in group ",
                                              groups_[id]->name));
    }
  }
  return absl::OkStatus();
}

std::vector<SentBytes> Communicator::sent() const {
  MutexLock lock(mutex_);
  std::vector<SentBytes> all;
  for (const auto& [key, sent] : sent_) {
    const auto& [kind, group, site] = key;
    all.push_back({kind, group, site, sent.operations, sent.bytes});
  }
  return all;
}

SentByKind Communicator::sent_by_kind() const {
  SentByKind by_kind;
  for (const SentBytes& one : sent()) {
    SentOfKind& of_kind = by_kind[std::string(CollectiveKindName(one.kind))];
    of_kind.operations += one.operations;
    of_kind.bytes += one.bytes;
  }
  return by_kind;
}

SentByKind SentSince(const SentByKind& before, SentByKind now) {
  for (const auto& [kind, sent] : before) {
    now[kind].operations -= sent.operations;
    now[kind].bytes -= sent.bytes;
  }
  std::erase_if(now, [](const auto& kind) { return kind.second == SentOfKind(); });
  return now;
}

}  // namespace gemini::trainer
