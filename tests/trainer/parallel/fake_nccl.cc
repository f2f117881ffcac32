// SPDX-License-Identifier: Apache-2.0
#include "tests/trainer/parallel/fake_nccl.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "gemini/system/mutex.h"
#include "tests/trainer/parallel/exchange_device_host.h"
#include "tests/trainer/parallel/fake_nccl_clique.h"
#include "tests/trainer/parallel/nccl_values.h"

namespace gemini::trainer {

namespace {

using Operation = NcclClique::Operation;

// What one thread has called between ncclGroupStart and ncclGroupEnd.
struct ThreadGroup {
  int depth = 0;
  int rank_in_job = 0;  // Of the communicator that the thread made last.
  NcclResult failed = NcclResult::kSuccess;
  NcclComm* comm = nullptr;
  std::vector<Operation> operations;
};
thread_local ThreadGroup thread_group;

class Fake final : public FakeNccl {
 public:
  void Reset() override {
    MutexLock lock(mutex_);
    comms_.clear();
    cliques_.clear();
    by_id_.clear();
    failing_.clear();
    num_calls_.clear();
    async_errors_.clear();
    violations_.clear();
    may_exchange_ = nullptr;
    is_stream_ = nullptr;
    version_ = 22809;
  }
  void SetVersion(int version) override {
    MutexLock lock(mutex_);
    version_ = version;
  }
  void FailCall(int rank, int64_t number, NcclResult result) override {
    MutexLock lock(mutex_);
    failing_[{rank, number}] = result;
  }
  void SetAsyncError(int rank, NcclResult error) override {
    MutexLock lock(mutex_);
    async_errors_[rank] = error;
  }
  void SetMayExchange(std::function<bool(const void*)> may_exchange) override {
    MutexLock lock(mutex_);
    may_exchange_ = std::move(may_exchange);
  }
  void SetIsStream(std::function<bool(const void*)> is_stream) override {
    MutexLock lock(mutex_);
    is_stream_ = std::move(is_stream);
  }
  int64_t num_calls(int rank) override {
    MutexLock lock(mutex_);
    return num_calls_[rank];
  }
  int64_t num_made() override {
    MutexLock lock(mutex_);
    return static_cast<int64_t>(comms_.size());
  }
  int64_t num_aborted() override {
    MutexLock lock(mutex_);
    return std::ranges::count_if(comms_, [](const auto& comm) { return comm->is_aborted; });
  }
  int64_t num_live() override {
    MutexLock lock(mutex_);
    return std::ranges::count_if(
        comms_, [](const auto& comm) { return !comm->is_aborted && !comm->is_destroyed; });
  }
  std::vector<std::string> violations() override {
    MutexLock lock(mutex_);
    return violations_;
  }

  NcclResult GetVersion(int* version) {
    MutexLock lock(mutex_);
    *version = version_;
    return NcclResult::kSuccess;
  }
  NcclResult GetUniqueId(NcclId* id) {
    MutexLock lock(mutex_);
    *id = NcclId();
    const int64_t number = ++num_ids_;
    std::memcpy(id->bytes, &number, sizeof(number));
    return NcclResult::kSuccess;
  }

  NcclResult Init(NcclComm** comm, int num_ranks, const NcclId& id, int rank, NcclConfig* config) {
    MutexLock lock(mutex_);
    thread_group.rank_in_job = rank;
    const NcclResult result = Count(rank);
    if (result != NcclResult::kSuccess) return result;
    CheckConfig(config);
    NcclClique*& clique = by_id_[std::string(id.bytes, sizeof(id.bytes))];
    if (clique == nullptr) clique = MakeClique(num_ranks);
    *comm = MakeComm(clique, clique, rank, rank);
    return NcclResult::kInProgress;
  }

  NcclResult Split(NcclComm* comm, int color, int key, NcclComm** part, NcclConfig* config) {
    MutexLock lock(mutex_);
    const NcclResult result = Begin(comm, "ncclCommSplit");
    if (result != NcclResult::kSuccess) return result;
    CheckConfig(config);
    NcclClique::Split& split = comm->clique->splits[comm->num_splits++];
    split.by_rank[comm->rank] = {color, key, part};
    if (static_cast<int>(split.by_rank.size()) == comm->clique->size) Finish(*comm->clique, split);
    return NcclResult::kInProgress;
  }

  NcclResult GetAsyncError(NcclComm* comm, NcclResult* state) {
    MutexLock lock(mutex_);
    if (IsGone(comm, "ncclCommGetAsyncError")) return NcclResult::kInvalidArgument;
    comm->is_known = true;
    const auto injected = async_errors_.find(comm->rank_in_job);
    if (injected != async_errors_.end()) comm->error = injected->second;
    *state = StateOf(*comm);
    return NcclResult::kSuccess;
  }

  NcclResult Finalize(NcclComm* comm) {
    MutexLock lock(mutex_);
    const NcclResult result = Begin(comm, "ncclCommFinalize");
    if (result != NcclResult::kSuccess) return result;
    if (std::exchange(comm->is_finalized, true)) Violate("a second ncclCommFinalize");
    ++comm->clique->num_finalized;
    return NcclResult::kInProgress;
  }
  NcclResult Destroy(NcclComm* comm) {
    MutexLock lock(mutex_);
    if (IsGone(comm, "ncclCommDestroy")) return NcclResult::kInvalidArgument;
    if (!comm->is_finalized) Violate("ncclCommDestroy before ncclCommFinalize");
    CheckStream(*comm, "ncclCommDestroy");
    comm->is_destroyed = true;
    return Count(comm->rank_in_job);
  }
  NcclResult Abort(NcclComm* comm) {
    MutexLock lock(mutex_);
    if (IsGone(comm, "ncclCommAbort")) return NcclResult::kInvalidArgument;
    if (std::exchange(comm->is_aborting, true)) Violate("a second ncclCommAbort at a time");
    aborting_.notify_all();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (HasOthers(*comm)) {
      if (std::chrono::steady_clock::now() >= deadline) {
        Violate("communicators of a rank are aborted one after the other");
        break;
      }
      mutex_.WaitUntil(aborting_, deadline);
    }
    CheckStream(*comm, "ncclCommAbort");
    comm->is_aborted = true;
    comm->to_launch.clear();
    NcclClique& clique = *comm->clique;
    for (auto& [number, split] : clique.splits) {
      if (!split.is_done) split.by_rank.erase(comm->rank);
    }
    // Those who have said goodbye to each other are through.
    if (clique.num_finalized < clique.size) {
      for (NcclComm* const other : clique.members) {
        if (other != nullptr) other->error = NcclResult::kRemoteError;
      }
    }
    clique.changed.notify_all();
    return NcclResult::kSuccess;
  }

  NcclResult GroupStart() {
    MutexLock lock(mutex_);
    const NcclResult result = Count(thread_group.rank_in_job);
    if (result != NcclResult::kSuccess) return result;
    ++thread_group.depth;
    return NcclResult::kSuccess;
  }
  NcclResult GroupEnd() {
    MutexLock lock(mutex_);
    if (--thread_group.depth < 0) {
      Violate("ncclGroupEnd without ncclGroupStart");
      thread_group.depth = 0;
      return NcclResult::kInvalidUsage;
    }
    NcclResult result = std::exchange(thread_group.failed, NcclResult::kSuccess);
    const NcclResult own = Count(thread_group.rank_in_job);
    if (result == NcclResult::kSuccess) result = own;
    NcclComm* const comm = std::exchange(thread_group.comm, nullptr);
    std::vector<Operation> operations = std::exchange(thread_group.operations, {});
    if (result != NcclResult::kSuccess || comm == nullptr) return result;
    const int64_t number = operations.front().kind < Operation::kSend ? comm->num_collectives++ : 0;
    comm->to_launch.emplace_back([this, comm, number, operations = std::move(operations)] {
      static_cast<HostStreamQueue*>(comm->stream)->Enqueue([this, comm, number, operations] {
        Run(*comm, number, operations);
      });
    });
    // Every second one is enqueued when its caller asks how it went.
    if (comm->num_groups++ % 2 == 0) return NcclResult::kInProgress;
    Launch(*comm);
    return NcclResult::kSuccess;
  }

  NcclResult Add(NcclComm* comm, void* stream, const Operation& operation) {
    MutexLock lock(mutex_);
    NcclResult result = Begin(comm, "an exchange");
    if (result == NcclResult::kSuccess) result = CheckOperation(*comm, stream, operation);
    if (result != NcclResult::kSuccess) {
      thread_group.failed = result;
      return result;
    }
    thread_group.comm = comm;
    thread_group.operations.push_back(operation);
    return NcclResult::kSuccess;
  }

 private:
  void Violate(const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    violations_.push_back(what);
  }
  NcclResult Count(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = failing_.find({rank, ++num_calls_[rank]});
    return found == failing_.end() ? NcclResult::kSuccess : found->second;
  }
  bool IsGone(NcclComm* comm, const std::string& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (comm != nullptr && !comm->is_aborted && !comm->is_destroyed) return false;
    Violate(call + " of a communicator that is gone");
    return true;
  }
  void CheckStream(const NcclComm& comm, const std::string& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (comm.stream == nullptr || is_stream_ == nullptr || is_stream_(comm.stream)) return;
    Violate(call + " of a communicator whose stream is gone");
  }
  NcclResult Begin(NcclComm* comm, const std::string& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (IsGone(comm, call)) return NcclResult::kInvalidArgument;
    const NcclResult counted = Count(comm->rank_in_job);
    if (counted != NcclResult::kSuccess) return counted;
    if (comm->is_finalized) Violate(call + " behind ncclCommFinalize");
    if (!comm->to_launch.empty() || comm->polls_in_progress > 0 || IsWaiting(*comm)) {
      Violate(call + " before the call before it is through");
      return NcclResult::kInvalidUsage;
    }
    return NcclResult::kSuccess;
  }
  void CheckConfig(const NcclConfig* config) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (config == nullptr || config->size != sizeof(NcclConfig) || config->magic != 0xcafebeef ||
        config->blocking != 0) {
      Violate("a configuration that NCCL does not know, or that lets calls block");
    }
  }
  NcclResult CheckOperation(NcclComm& comm, void* stream, const Operation& operation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (thread_group.depth == 0) Violate("an exchange outside of a group");
    if (thread_group.comm != nullptr && thread_group.comm != &comm) {
      Violate("a group of calls of two communicators");
    }
    if (comm.stream != nullptr && comm.stream != stream) Violate("two streams of a communicator");
    comm.stream = stream;
    for (const void* const bytes :
         {static_cast<const void*>(operation.from), static_cast<const void*>(operation.to)}) {
      if (bytes != nullptr && may_exchange_ != nullptr && !may_exchange_(bytes)) {
        Violate("memory that is not of the device");
      }
    }
    const bool is_message = operation.kind >= Operation::kSend;
    if (operation.peer < 0 || operation.peer >= comm.clique->size ||
        (is_message && operation.peer == comm.rank)) {
      Violate("a peer that is none");
      return NcclResult::kInvalidArgument;
    }
    return NcclResult::kSuccess;
  }

  // Whether its rank has others that nobody has begun to abort.
  bool HasOthers(const NcclComm& comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const std::unique_ptr<NcclComm>& other : comms_) {
      if (other->job == comm.job && other->rank_in_job == comm.rank_in_job && other->is_known &&
          !other->is_aborting && !other->is_destroyed) {
        return true;
      }
    }
    return false;
  }
  NcclClique* MakeClique(int size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    cliques_.push_back(std::make_unique<NcclClique>());
    cliques_.back()->size = size;
    cliques_.back()->members.resize(static_cast<size_t>(size));
    return cliques_.back().get();
  }
  NcclComm* MakeComm(NcclClique* clique, const NcclClique* job, int rank, int rank_in_job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    comms_.push_back(std::make_unique<NcclComm>());
    NcclComm* const comm = comms_.back().get();
    comm->clique = clique;
    comm->job = job;
    comm->rank = rank;
    comm->rank_in_job = rank_in_job;
    clique->members[static_cast<size_t>(rank)] = comm;
    ++clique->num_joined;
    return comm;
  }
  void Finish(NcclClique& clique, NcclClique::Split& split) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // By color, then by key and rank.
    std::map<int, std::set<std::pair<int, int>>> parts;
    for (const auto& [rank, member] : split.by_rank) {
      if (member.color != NcclLibrary::kNoColor) parts[member.color].insert({member.key, rank});
    }
    for (const auto& [color, ranks] : parts) {
      NcclClique* const part = MakeClique(static_cast<int>(ranks.size()));
      int place = 0;
      for (const auto& [key, rank] : ranks) {
        const NcclComm& whole = *clique.members[static_cast<size_t>(rank)];
        *split.by_rank[rank].part = MakeComm(part, whole.job, place++, whole.rank_in_job);
      }
    }
    split.is_done = true;
  }

  // Whether it waits for other ranks.
  bool IsWaiting(const NcclComm& comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    NcclClique& clique = *comm.clique;
    return clique.num_joined < clique.size ||
           (comm.num_splits > 0 && !clique.splits[comm.num_splits - 1].is_done) ||
           (comm.is_finalized && clique.num_finalized < clique.size);
  }
  NcclResult StateOf(NcclComm& comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (comm.error != NcclResult::kSuccess) return comm.error;
    if (!comm.to_launch.empty()) {
      Launch(comm);
      return NcclResult::kInProgress;
    }
    if (IsWaiting(comm)) return NcclResult::kInProgress;
    return comm.polls_in_progress-- > 0 ? NcclResult::kInProgress : NcclResult::kSuccess;
  }
  void Launch(NcclComm& comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const std::function<void()>& launch : comm.to_launch) launch();
    comm.to_launch.clear();
  }

  // A stream's thread.
  void Run(NcclComm& comm, int64_t number, const std::vector<Operation>& operations) {
    MutexLock lock(mutex_);
    if (comm.is_aborted) return;
    if (operations.front().kind >= Operation::kSend) return RunMessages(comm, operations);
    if (operations.size() > 1) Violate("several collectives in a group");
    NcclClique& clique = *comm.clique;
    NcclClique::Meeting& meeting = clique.meetings[number];
    meeting.by_rank[comm.rank] = operations.front();
    if (static_cast<int>(meeting.by_rank.size()) == clique.size) {
      Exchange(meeting);
      meeting.is_done = true;
      clique.changed.notify_all();
    }
    while (!meeting.is_done && !comm.is_aborted) mutex_.WaitFor(clique.changed);
    if (!meeting.is_done) {
      meeting.by_rank.erase(comm.rank);
    } else if (++meeting.num_left == clique.size) {
      clique.meetings.erase(number);
    }
  }

  void Exchange(NcclClique::Meeting& meeting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Operation& first = meeting.by_rank.begin()->second;
    const size_t bytes = first.count * WidthOf(first.type);
    for (const auto& [rank, one] : meeting.by_rank) {
      if (std::tie(one.kind, one.count, one.type, one.peer) !=
          std::tie(first.kind, first.count, first.type, first.peer)) {
        Violate("ranks make different collectives");
        return;
      }
    }
    // What each rank gets is made before any gets it: some is where it came from.
    std::map<int, std::vector<std::byte>> results;
    for (const auto& [rank, one] : meeting.by_rank) {
      std::vector<std::byte>& result = results[rank];
      switch (one.kind) {
        case Operation::kAllGather:
          for (const auto& [other, its] : meeting.by_rank) {
            result.insert(result.end(), its.from, its.from + bytes);
          }
          break;
        case Operation::kBroadcast: {
          const Operation& root = meeting.by_rank.at(one.peer);
          result.assign(root.from, root.from + bytes);
          break;
        }
        default: {
          const size_t offset =
              one.kind == Operation::kReduceScatter ? static_cast<size_t>(rank) * bytes : 0;
          for (auto its = meeting.by_rank.rbegin(); its != meeting.by_rank.rend(); ++its) {
            const std::byte* const from = its->second.from + offset;
            if (result.empty()) {
              result.assign(from, from + bytes);
            } else {
              AddValues(one.type, result.data(), from, one.count);
            }
          }
        }
      }
    }
    for (const auto& [rank, one] : meeting.by_rank) std::ranges::copy(results[rank], one.to);
  }

  void RunMessages(NcclComm& comm, const std::vector<Operation>& operations)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    NcclClique& clique = *comm.clique;
    std::vector<std::pair<int, std::shared_ptr<NcclClique::Message>>> own;
    std::deque<Operation> receives;
    for (const Operation& one : operations) {
      if (one.kind == Operation::kReceive) {
        receives.push_back(one);
        continue;
      }
      own.emplace_back(one.peer, std::make_shared<NcclClique::Message>(NcclClique::Message{
                                     .from = one.from, .size_bytes = one.count}));
      clique.sent[{comm.rank, one.peer}].push_back(own.back().second);
    }
    clique.changed.notify_all();
    while (!comm.is_aborted) {
      std::set<int> behind;  // From whom an earlier message has not come.
      std::deque<Operation> left;
      for (const Operation& one : receives) {
        auto& queue = clique.sent[{one.peer, comm.rank}];
        if (behind.contains(one.peer) || queue.empty()) {
          behind.insert(one.peer);
          left.push_back(one);
          continue;
        }
        if (queue.front()->size_bytes != one.count) Violate("a message of another size");
        std::copy_n(queue.front()->from, std::min(queue.front()->size_bytes, one.count), one.to);
        queue.front()->is_taken = true;
        queue.pop_front();
        clique.changed.notify_all();
      }
      receives = std::move(left);
      const bool are_taken =
          std::ranges::all_of(own, [](const auto& message) { return message.second->is_taken; });
      if (receives.empty() && are_taken) return;
      mutex_.WaitFor(clique.changed);
    }
    for (const auto& [peer, message] : own) std::erase(clique.sent[{comm.rank, peer}], message);
  }

  Mutex mutex_;
  std::condition_variable aborting_;
  std::vector<std::unique_ptr<NcclComm>> comms_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<NcclClique>> cliques_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, NcclClique*> by_id_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<int, int64_t>, NcclResult> failing_ ABSL_GUARDED_BY(mutex_);
  std::map<int, int64_t> num_calls_ ABSL_GUARDED_BY(mutex_);
  std::map<int, NcclResult> async_errors_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> violations_ ABSL_GUARDED_BY(mutex_);
  std::function<bool(const void*)> may_exchange_ ABSL_GUARDED_BY(mutex_);
  std::function<bool(const void*)> is_stream_ ABSL_GUARDED_BY(mutex_);
  int version_ ABSL_GUARDED_BY(mutex_) = 22809;
  int64_t num_ids_ ABSL_GUARDED_BY(mutex_) = 0;
};

Fake& TheFake() {
  static auto& fake = *new Fake;
  return fake;
}

NcclResult AddOperation(Operation::Kind kind, const void* from, void* to, size_t count,
                        NcclType type, int peer, NcclComm* comm, void* stream) {
  return TheFake().Add(comm, stream,
                       {.kind = kind,
                        .from = static_cast<const std::byte*>(from),
                        .to = static_cast<std::byte*>(to),
                        .count = count,
                        .type = type,
                        .peer = peer});
}

}  // namespace
}  // namespace gemini::trainer

extern "C" {

using gemini::trainer::AddOperation;
using gemini::trainer::NcclComm;
using gemini::trainer::NcclConfig;
using gemini::trainer::NcclId;
using gemini::trainer::NcclResult;
using gemini::trainer::NcclType;
using gemini::trainer::Operation;
using gemini::trainer::TheFake;

gemini::trainer::FakeNccl* gemini_fake_nccl() { return &TheFake(); }

NcclResult ncclGetVersion(int* version) { return TheFake().GetVersion(version); }
NcclResult ncclGetUniqueId(NcclId* id) { return TheFake().GetUniqueId(id); }
const char* ncclGetErrorString(NcclResult result) {
  return result == NcclResult::kRemoteError ? "remote process exited or there was a network error"
                                            : "unhandled system error";
}
const char* ncclGetLastError(NcclComm*) { return "the library in NCCL's place"; }
NcclResult ncclCommInitRankConfig(NcclComm** comm, int num_ranks, NcclId id, int rank,
                                  NcclConfig* config) {
  return TheFake().Init(comm, num_ranks, id, rank, config);
}
NcclResult ncclCommSplit(NcclComm* comm, int color, int key, NcclComm** part, NcclConfig* config) {
  return TheFake().Split(comm, color, key, part, config);
}
NcclResult ncclCommGetAsyncError(NcclComm* comm, NcclResult* state) {
  return TheFake().GetAsyncError(comm, state);
}
NcclResult ncclCommFinalize(NcclComm* comm) { return TheFake().Finalize(comm); }
NcclResult ncclCommDestroy(NcclComm* comm) { return TheFake().Destroy(comm); }
NcclResult ncclCommAbort(NcclComm* comm) { return TheFake().Abort(comm); }
NcclResult ncclGroupStart() { return TheFake().GroupStart(); }
NcclResult ncclGroupEnd() { return TheFake().GroupEnd(); }
NcclResult ncclAllGather(const void* part, void* all, size_t count, NcclType type, NcclComm* comm,
                         void* stream) {
  return AddOperation(Operation::kAllGather, part, all, count, type, 0, comm, stream);
}
NcclResult ncclReduceScatter(const void* all, void* part, size_t count, NcclType type, int /*sum*/,
                             NcclComm* comm, void* stream) {
  return AddOperation(Operation::kReduceScatter, all, part, count, type, 0, comm, stream);
}
NcclResult ncclAllReduce(const void* from, void* to, size_t count, NcclType type, int /*sum*/,
                         NcclComm* comm, void* stream) {
  return AddOperation(Operation::kAllReduce, from, to, count, type, 0, comm, stream);
}
NcclResult ncclBroadcast(const void* from, void* to, size_t count, NcclType type, int root,
                         NcclComm* comm, void* stream) {
  return AddOperation(Operation::kBroadcast, from, to, count, type, root, comm, stream);
}
NcclResult ncclSend(const void* from, size_t count, NcclType type, int peer, NcclComm* comm,
                    void* stream) {
  return AddOperation(Operation::kSend, from, nullptr, count, type, peer, comm, stream);
}
NcclResult ncclRecv(void* to, size_t count, NcclType type, int peer, NcclComm* comm, void* stream) {
  return AddOperation(Operation::kReceive, nullptr, to, count, type, peer, comm, stream);
}

}  // extern "C"
