// SPDX-License-Identifier: Apache-2.0
// Exchanges bytes between the ranks of a job: by collectives among groups of ranks, and by messages
// from one rank to another.
// Order: there is one order of all collectives of the job, the program's. Each rank issues those of
//        the groups that it is in, in that order, and they are begun in it. No collective stands
//        below a condition that ranks may decide otherwise, in an error path or in a destructor.
// Sums:  a left fold by the rank's place in its group: ((x0 + x1) + x2) + ... Values of 16 bits are
//        added in fp32, and the sum is rounded once. So the same ranks get the same bits each time,
//        and one process that adds in this order gets them, too. NCCL does so only where it was
//        asked for exact sums (communicator_nccl.h).
// Memory: what a call names must be valid and untouched by others until its Work is done. Memory of
//        sums is aligned to its type.
// Thread: one thread issues everything. Any thread may wait for a Work.
// Errors: behind the first failure everything fails with the same error, and the job is over: the
//        process must end, for other ranks may wait for it. Where Work failed, its memory may be
//        read and written until the process ends.
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gemini/system/mutex.h"

namespace gemini::trainer {

enum class SumType : uint8_t { kFp64, kFp32, kBf16, kFp16 };
constexpr int64_t SumTypeBytes(SumType type) {
  return type == SumType::kFp64 ? 8 : type == SumType::kFp32 ? 4 : 2;
}

enum class CollectiveKind : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kBroadcast,
  kShift,
  kSend,
  kReceive,
};
// Returns "all-gather", "reduce-scatter" and so on.
absl::string_view CollectiveKindName(CollectiveKind kind);

// Ranks that exchange with each other.
struct RankGroup {
  std::string name;            // What they share: "world", "dp".
  std::vector<int64_t> ranks;  // Their numbers in the job, ascending.
  int64_t place = 0;           // This rank is ranks[place].
  // MakeGroup counts it up, so it is the same in all ranks. All ranks of the job have 0.
  int64_t id = 0;
  int64_t size() const { return static_cast<int64_t>(ranks.size()); }
};

// Between which ranks of a group messages go.
enum class MessagePaths : uint8_t {
  kWithFirst,   // Between the group's first rank and each other.
  kNeighbours,  // With even tags to the next rank, the last one's to the first; with odd ones back.
  kAll,
};

// An operation that was issued.
class PendingWork {
 public:
  virtual ~PendingWork() = default;
  // For host memory: blocks until it is done, and returns how it went. For memory of a GPU: lets
  // the operators of the calling thread wait for it, and returns OK if nothing has failed so far.
  virtual absl::Status Wait() = 0;
  virtual bool Done() const = 0;
};
using Work = std::shared_ptr<PendingWork>;

// Returns work that is done already, and went as `how` says.
Work DoneWork(absl::Status how);
// Keeps what others may still read and write until the process ends.
void KeepForEver(std::shared_ptr<void> memory);
// Waits for work whose memory `memory` owns, and keeps that for ever if the work failed.
absl::Status Await(const Work& work, std::shared_ptr<void> memory);

// What one rank was to send of one kind, in one group, from one place in the program.
struct SentBytes {
  CollectiveKind kind = CollectiveKind::kAllGather;
  std::string group;
  std::string site;
  int64_t operations = 0;
  int64_t bytes = 0;
};

// The same of all that it was to send of one kind. By the kind's name.
struct SentOfKind {
  int64_t operations = 0;
  int64_t bytes = 0;
  bool operator==(const SentOfKind&) const = default;
};
using SentByKind = std::map<std::string, SentOfKind>;
// Returns what of `now` was not in `before`, without kinds of which nothing was.
SentByKind SentSince(const SentByKind& before, SentByKind now);

// A collective that this rank has begun and that is not done.
struct CollectiveUnderWay {
  CollectiveKind kind = CollectiveKind::kAllGather;
  int64_t group = 0;   // Its id.
  int64_t number = 0;  // Among the collectives of the group, from 1 on.
  std::string site;
  std::vector<int64_t> ranks;                   // Of the group, by their numbers in the job.
  std::chrono::steady_clock::time_point since;  // It began, or moved on.
};

// A message that this rank waits for: for its arrival (kReceive), or until the other rank has taken
// it (kSend).
struct AwaitedMessage {
  CollectiveKind kind = CollectiveKind::kReceive;
  int64_t rank = 0;  // The other's number in the job.
  std::string site;
  std::chrono::steady_clock::time_point since;
};

class Communicator {
 public:
  Communicator(int64_t rank, int64_t num_ranks);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  int64_t rank() const { return world().ranks[static_cast<size_t>(world().place)]; }
  int64_t num_ranks() const { return world().size(); }
  const RankGroup& world() const { return *groups_.front(); }

  // COLLECTIVE over the job, with the same name and groups in each rank: returns the group that
  // this rank is in. It lives as long as this. INVALID_ARGUMENT: `groups` do not part the ranks.
  absl::StatusOr<const RankGroup*> MakeGroup(absl::string_view name,
                                             const std::vector<std::vector<int64_t>>& groups);

  // COLLECTIVE over the job: prepares messages between ranks of a group, which is of one id in all
  // ranks. It comes before Send and Receive in every group but the world, in which the first rank
  // and the others may send to each other from the start. Where a transport knows no tags
  // (communicator_nccl.h), messages must be received in the order in which they are sent.
  virtual absl::Status PrepareMessages(const RankGroup& group, MessagePaths paths);

  // In each of these `site` names the place in the program, for counts and for messages. The order
  // of ranks is that of the group. Work that fails with INVALID_ARGUMENT was not issued: a size is
  // negative, a place is none of the group's, a tag is out of range, or a message is to or from
  // this rank itself.

  // Puts each rank's `part_bytes` at `part` behind those of the ranks before it, at `all`, in each.
  // `part` may be this rank's own place in `all`.
  Work AllGather(const RankGroup& group, const void* part, void* all, int64_t part_bytes,
                 absl::string_view site);
  // Adds what the ranks have at `all`, and leaves this rank's part of the sum at `part`, which has
  // `part_elements` and may be this rank's own place in `all`.
  Work ReduceScatter(const RankGroup& group, SumType type, const void* all, void* part,
                     int64_t part_elements, absl::string_view site);
  // Adds what the ranks have at `values`, in each.
  Work AllReduce(const RankGroup& group, SumType type, void* values, int64_t elements,
                 absl::string_view site);
  // Sends the i-th `bytes_each` at `to_each` to rank i, and puts what rank i sends here at the i-th
  // place of `from_each`, which is other memory.
  Work AllToAll(const RankGroup& group, const void* to_each, void* from_each, int64_t bytes_each,
                absl::string_view site);
  // Copies what the rank at `place` has to all others.
  Work Broadcast(const RankGroup& group, void* bytes, int64_t size_bytes, int64_t place,
                 absl::string_view site);
  // Sends the bytes at `from` to the next rank of the group, the last one's to the first, and puts
  // those of the rank before at `to`, which is other memory. All members call it, with one size.
  Work Shift(const RankGroup& group, const void* from, void* to, int64_t size_bytes,
             absl::string_view site);
  // Messages with one tag, from one rank to one other, arrive in the order in which they were sent.
  // A message of another size than is received is an error of the receiver's, but NCCL does not see
  // it: the receiver gets too few bytes, or waits in vain. 0 <= tag <= kMostTag.
  static constexpr int64_t kMostTag = (int64_t{1} << 15) - 2;  // MPI has one more, for shifts.
  Work Send(const RankGroup& group, const void* bytes, int64_t size_bytes, int64_t to_place,
            int64_t tag, absl::string_view site);
  Work Receive(const RankGroup& group, void* bytes, int64_t size_bytes, int64_t from_place,
               int64_t tag, absl::string_view site);

  // Sets whether this rank is silent. What it issues then goes to nobody, is in no count of bytes
  // and no checksum, and is done at once: memory stays as it was. So it can run a program that
  // others have not come to, as long as nothing depends on what would come. Not while something is
  // under way.
  void set_silent(bool is_silent) { is_silent_ = is_silent; }

  // Returns, by the groups' ids, a checksum of the collectives that this rank has issued in each:
  // kinds, sizes, types and sites, in their order. Ranks of a group that ran the same program have
  // the same one. Messages do not count.
  std::vector<uint32_t> checksums() const;
  // Returns what this rank has begun, by which others that wait for it see that it goes on. Any
  // thread may ask.
  struct Begun {
    int64_t num_messages = 0;  // Sent or received, and operations of any kind in silence.
    std::vector<int64_t> num_collectives = {};  // By the groups' ids.
  };
  Begun begun() const;
  // Returns the collective that is under way. One at a time is. Any thread may ask.
  std::optional<CollectiveUnderWay> under_way() const;
  // Returns what a MessageWait of the rank is about, or else the message for which operators of its
  // GPU wait, as SetAwaitedByOperators said. Any thread may ask.
  std::optional<AwaitedMessage> awaited_message() const;
  // Compares the checksums of all ranks, in all groups. INTERNAL: two of a group differ (names the
  // group and the ranks). It says the same in each rank.
  absl::Status CheckChecksums(const std::vector<std::vector<uint32_t>>& by_rank) const;

  // Returns what this rank was to send since it was made, by kind, group and site. A part of n
  // bytes that goes to each of g - 1 others counts as n (g - 1), as a ring sends it, so that a sum
  // counts its scatter and its gather. A broadcast counts once, at the rank that has the bytes.
  std::vector<SentBytes> sent() const;
  SentByKind sent_by_kind() const;

 protected:
  struct Operation {
    CollectiveKind kind = CollectiveKind::kAllGather;
    const RankGroup* group = nullptr;
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    int64_t count = 0;  // Elements of sums, else bytes: of a part, of a message.
    SumType type = SumType::kFp32;
    int64_t place = 0;  // The other rank's, or that of the one that has the bytes.
    int64_t tag = 0;
    std::string site;
    int64_t number = 0;  // Of a collective, among those of its group.
    bool is_message() const {
      return kind == CollectiveKind::kSend || kind == CollectiveKind::kReceive;
    }
    // Returns the bytes of a part, or of a message. Parts of an all-reduce are equal, so what does
    // not divide is filled up.
    int64_t part_bytes() const;
  };
  // Notes which collective is under way. It is null where none is.
  void SetUnderWay(const Operation* operation);
  // Notes for which message operators wait, where the thread that issues them does not: since when,
  // and null where they wait for none.
  void SetAwaitedByOperators(const Operation* message, std::chrono::steady_clock::time_point since);
  virtual Work Issue(Operation operation) = 0;
  // Prepares the exchange in a group that this rank is in, together with the other groups of that
  // id in their ranks. Blocks.
  virtual absl::Status Prepare(const RankGroup& group) = 0;

 private:
  friend class MessageWait;
  // Issues and counts it, unless it cannot be.
  Work Start(Operation operation);

  bool is_silent_ = false;
  std::vector<std::unique_ptr<RankGroup>> groups_;
  // By id: the ranks of each group of that name, in all of the job.
  std::vector<std::vector<std::vector<int64_t>>> ranks_of_groups_;
  mutable Mutex mutex_;
  // What this rank has issued in a group.
  struct IssuedInGroup {
    uint32_t checksum = 0;
    int64_t count = 0;
  };
  std::vector<IssuedInGroup> issued_ ABSL_GUARDED_BY(mutex_);  // By the groups' ids.
  int64_t num_messages_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<CollectiveUnderWay> under_way_ ABSL_GUARDED_BY(mutex_);
  // What a MessageWait waits for, and what operators wait for.
  std::array<std::optional<AwaitedMessage>, 2> awaited_ ABSL_GUARDED_BY(mutex_);
  std::map<std::tuple<CollectiveKind, std::string, std::string>, SentBytes> sent_
      ABSL_GUARDED_BY(mutex_);
};

// Says, while it lives, that the rank waits for a message of a step, so that the wait has the limit
// of a collective (rank_watchdog.h). A rank that serves others, who may write files meanwhile, says
// nothing. One lives at a time.
class MessageWait {
 public:
  // `rank` is the other's number in the job.
  MessageWait(Communicator& communicator, CollectiveKind kind, int64_t rank,
              absl::string_view site);
  MessageWait(const MessageWait&) = delete;
  MessageWait& operator=(const MessageWait&) = delete;
  ~MessageWait();

 private:
  Communicator& communicator_;
};

}  // namespace gemini::trainer
