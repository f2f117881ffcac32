// SPDX-License-Identifier: Apache-2.0
#include "tests/trainer/parallel/thread_ranks.h"

#include <cstring>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

void Copy(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

class MeetingTransfer final : public Transfer {
 public:
  MeetingTransfer(ThreadMeetings& meetings, ThreadMeetings::MeetingKey key, const RankGroup& group,
                  ThreadMeetings::Meeting::Member mine, std::byte* to)
      : meetings_(meetings), key_(key), group_(group), mine_(mine), to_(to) {
    bool is_last = false;
    {
      MutexLock lock(meetings_.mutex);
      auto& members = meetings_.meetings[key_].members;
      members[group_.place] = mine_;
      is_last = static_cast<int64_t>(members.size()) == group_.size();
    }
    if (is_last) meetings_.Ring(group_);
  }

  absl::StatusOr<bool> Test() override {
    std::map<int64_t, ThreadMeetings::Meeting::Member> members;
    {
      MutexLock lock(meetings_.mutex);
      ThreadMeetings::Meeting& meeting = meetings_.meetings.at(key_);
      absl::StatusOr<bool> all_have_come = AreAll([&](int64_t place) {
        return has_taken_ ? meeting.done.contains(place) : meeting.members.contains(place);
      });
      if (!all_have_come.ok() || !*all_have_come) return all_have_come;
      if (has_taken_) {
        if (++meeting.num_left == group_.size()) meetings_.meetings.erase(key_);
        return true;
      }
      members = meeting.members;
    }
    for (const auto& [place, member] : members) {
      if (member.kind != mine_.kind || member.bytes != mine_.bytes || member.place != mine_.place) {
        return absl::InternalError(
            absl::StrCat("in ", group_.name, " rank ", group_.place, " has ",
                         CollectiveKindName(mine_.kind), " of ", mine_.bytes, " bytes, and rank ",
                         place, " ", CollectiveKindName(member.kind), " of ", member.bytes));
      }
    }
    Take(members);
    has_taken_ = true;
    bool is_last = false;
    {
      MutexLock lock(meetings_.mutex);
      std::set<int64_t>& done = meetings_.meetings.at(key_).done;
      done.insert(group_.place);
      is_last = static_cast<int64_t>(done.size()) == group_.size();
    }
    if (is_last) meetings_.Ring(group_);
    return false;
  }

 private:
  // Whether it is true of all places. UNAVAILABLE: it never will be.
  absl::StatusOr<bool> AreAll(absl::FunctionRef<bool(int64_t place)> is_true)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(meetings_.mutex) {
    bool are_all = true;
    for (int64_t place = 0; place < group_.size(); ++place) {
      if (is_true(place)) continue;
      are_all = false;
      GEMINI_RETURN_IF_ERROR(meetings_.CheckIsHere(group_.ranks[static_cast<size_t>(place)]));
    }
    return are_all;
  }
  void Take(const std::map<int64_t, ThreadMeetings::Meeting::Member>& members) {
    for (const auto& [place, member] : members) {
      switch (mine_.kind) {
        case CollectiveKind::kAllGather:
          Copy(to_ + place * mine_.bytes, member.from, mine_.bytes);
          break;
        case CollectiveKind::kAllToAll:
          Copy(to_ + place * mine_.bytes, member.from + group_.place * mine_.bytes, mine_.bytes);
          break;
        default:  // A broadcast.
          if (place == mine_.place) Copy(to_, member.from, mine_.bytes);
      }
    }
  }

  ThreadMeetings& meetings_;
  const ThreadMeetings::MeetingKey key_;
  const RankGroup& group_;
  const ThreadMeetings::Meeting::Member mine_;
  std::byte* const to_;
  bool has_taken_ = false;
};

class SendTransfer final : public Transfer {
 public:
  SendTransfer(ThreadMeetings& meetings, ThreadMeetings::MessageKey key, const RankGroup& group,
               const std::byte* bytes, int64_t size_bytes)
      : meetings_(meetings), key_(key) {
    {
      MutexLock lock(meetings_.mutex);
      meetings_.messages[key_] = {.bytes = bytes, .size_bytes = size_bytes};
    }
    meetings_.Ring(group);
  }
  absl::StatusOr<bool> Test() override {
    MutexLock lock(meetings_.mutex);
    if (!meetings_.messages.at(key_).is_taken) {
      GEMINI_RETURN_IF_ERROR(meetings_.CheckIsHere(std::get<2>(key_)));
      return false;
    }
    meetings_.messages.erase(key_);
    return true;
  }

 private:
  ThreadMeetings& meetings_;
  const ThreadMeetings::MessageKey key_;
};

class ReceiveTransfer final : public Transfer {
 public:
  ReceiveTransfer(ThreadMeetings& meetings, ThreadMeetings::MessageKey key, const RankGroup& group,
                  std::byte* bytes, int64_t size_bytes)
      : meetings_(meetings), key_(key), group_(group), bytes_(bytes), size_bytes_(size_bytes) {}
  absl::StatusOr<bool> Test() override {
    int64_t sent_bytes = 0;
    {
      MutexLock lock(meetings_.mutex);
      const auto found = meetings_.messages.find(key_);
      if (found == meetings_.messages.end()) {
        GEMINI_RETURN_IF_ERROR(meetings_.CheckIsHere(std::get<1>(key_)));
        return false;
      }
      found->second.is_taken = true;  // The sender's part is done, whatever it sent.
      sent_bytes = found->second.size_bytes;
      if (sent_bytes == size_bytes_) Copy(bytes_, found->second.bytes, size_bytes_);
    }
    meetings_.Ring(group_);
    if (sent_bytes == size_bytes_) return true;
    return absl::InternalError(
        absl::StrCat("a message of ", sent_bytes, " bytes where ", size_bytes_, " are received"));
  }

 private:
  ThreadMeetings& meetings_;
  const ThreadMeetings::MessageKey key_;
  const RankGroup& group_;
  std::byte* const bytes_;
  const int64_t size_bytes_;
};

class ThreadTransport final : public RankTransport {
 public:
  ThreadTransport(ThreadMeetings& meetings, int64_t rank)
      : meetings_(meetings), bell_(meetings.BellOf(rank)) {}

  RankBell& bell() override { return bell_; }
  absl::Status Prepare(const RankGroup&) override { return absl::OkStatus(); }

  BegunTransfer AllGather(const RankGroup& group, const std::byte* part, std::byte* all,
                          int64_t part_bytes) override {
    return Meet(group, {CollectiveKind::kAllGather, part, part_bytes, 0}, all);
  }
  BegunTransfer AllToAll(const RankGroup& group, const std::byte* to_each, std::byte* from_each,
                         int64_t bytes_each) override {
    return Meet(group, {CollectiveKind::kAllToAll, to_each, bytes_each, 0}, from_each);
  }
  BegunTransfer Broadcast(const RankGroup& group, std::byte* bytes, int64_t size_bytes,
                          int64_t place) override {
    return Meet(group, {CollectiveKind::kBroadcast, bytes, size_bytes, place}, bytes);
  }
  BegunTransfer Send(const RankGroup& group, const std::byte* bytes, int64_t size_bytes,
                     int64_t to_place, int64_t tag) override {
    return std::make_unique<SendTransfer>(meetings_, NextMessage(group, group.place, to_place, tag),
                                          group, bytes, size_bytes);
  }
  BegunTransfer Receive(const RankGroup& group, std::byte* bytes, int64_t size_bytes,
                        int64_t from_place, int64_t tag) override {
    return std::make_unique<ReceiveTransfer>(
        meetings_, NextMessage(group, from_place, group.place, tag), group, bytes, size_bytes);
  }

 private:
  BegunTransfer Meet(const RankGroup& group, ThreadMeetings::Meeting::Member mine, std::byte* to) {
    const ThreadMeetings::MeetingKey key = {group.id, group.ranks.front(), next_[group.id]++};
    return std::make_unique<MeetingTransfer>(meetings_, key, group, mine, to);
  }
  ThreadMeetings::MessageKey NextMessage(const RankGroup& group, int64_t from, int64_t to,
                                         int64_t tag) {
    const int64_t sender = group.ranks[static_cast<size_t>(from)];
    const int64_t receiver = group.ranks[static_cast<size_t>(to)];
    const int64_t number = next_message_[{group.id, sender, receiver, tag}]++;
    return {group.id, sender, receiver, tag, number};
  }

  ThreadMeetings& meetings_;
  RankBell& bell_;
  std::map<int64_t, int64_t> next_;  // By group.
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, int64_t> next_message_;
};

}  // namespace

RankBell& ThreadMeetings::BellOf(int64_t rank) {
  MutexLock lock(bells_mutex_);
  return bells_[rank];
}

void ThreadMeetings::Ring(const RankGroup& group) {
  for (const int64_t rank : group.ranks) BellOf(rank).RingOfOther();
}

void ThreadMeetings::Leave(int64_t rank) {
  MutexLock lock(mutex);
  gone.insert(rank);
}

absl::Status ThreadMeetings::CheckIsHere(int64_t rank) const {
  if (!gone.contains(rank)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("rank ", rank, " is gone"));
}

std::unique_ptr<RankTransport> MakeThreadTransport(ThreadMeetings& meetings, int64_t rank) {
  return std::make_unique<ThreadTransport>(meetings, rank);
}

}  // namespace gemini::trainer
