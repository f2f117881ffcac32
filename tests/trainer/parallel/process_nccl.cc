// SPDX-License-Identifier: Apache-2.0
// A library in NCCL's place, for ranks that are processes of this machine and compute on its CPUs
// (GEMINI_NCCL_LIBRARY, trainer/parallel/nccl_join.h). It has the part of NCCL's interface that
// nccl_library.h names, and makes the device that streams are of. Whole jobs run over it; what
// calls may and may not do is fake_nccl.h's.
// Bytes: go through a TCPStore of the process that makes the id. Each rank puts what it brings to
//        an exchange there, by the communicator's name and the exchange's number, and takes away
//        what it has brought to the one before the last: all have begun the last one, so all have
//        read it.
// Sums:  in descending order of ranks, so that they differ from a left fold where three add up.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "tests/trainer/parallel/exchange_device_host.h"
#include "tests/trainer/parallel/nccl_values.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"
#include "trainer/parallel/exchange_device.h"
#include "trainer/parallel/nccl_library.h"

namespace gemini::trainer {

struct NcclComm {
  c10::intrusive_ptr<c10d::Store> store;   // Of its stream.
  c10::intrusive_ptr<c10d::Store> splits;  // Of ncclCommSplit, which another thread calls.
  int64_t port = 0;
  std::string name;
  int rank = 0;
  int size = 0;
  int64_t num_splits = 0;
  int64_t num_groups = 0;                                // Of collectives.
  std::map<std::pair<int, int>, int64_t> num_messages;   // By sender and receiver.
  std::atomic<NcclResult> error = NcclResult::kSuccess;  // Of the stream.
  std::atomic<bool> is_aborted = false;
};

namespace {

using Bytes = std::vector<uint8_t>;
constexpr auto kPoll = std::chrono::milliseconds(50);

struct Operation {
  enum Kind : uint8_t { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kSend, kReceive };
  Kind kind = kAllGather;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t count = 0;
  NcclType type = NcclType::kByte;
  int peer = 0;  // Or the root.
  std::string key = {};
};

// What one thread has called between ncclGroupStart and ncclGroupEnd.
struct ThreadGroup {
  NcclComm* comm = nullptr;
  void* stream = nullptr;
  std::vector<Operation> operations;
};
thread_local ThreadGroup thread_group;

// Returns what another rank puts there. Throws where that fails, or the communicator is aborted.
Bytes Take(const NcclComm& comm, c10d::Store& store, const std::string& key) {
  while (true) {
    TORCH_CHECK(!comm.is_aborted, "aborted");
    try {
      store.wait({key}, kPoll);
      return store.get(key);
    } catch (const c10::DistStoreError&) {
      // Not yet.
    }
  }
}

std::string KeyOf(const std::string& group, int rank) { return absl::StrCat(group, "/", rank); }

void RunCollective(NcclComm& comm, int64_t number, const Operation& operation) {
  const std::string group = absl::StrCat("all", number);
  const size_t bytes = operation.count * WidthOf(operation.type);
  const auto size = static_cast<size_t>(comm.size);
  const auto rank = static_cast<size_t>(comm.rank);
  const bool brings = operation.kind != Operation::kBroadcast || operation.peer == comm.rank;
  const size_t brought = operation.kind == Operation::kReduceScatter ? bytes * size : bytes;
  const auto* const own = reinterpret_cast<const uint8_t*>(operation.from);
  comm.store->set(KeyOf(group, comm.rank), brings ? Bytes(own, own + brought) : Bytes());
  std::vector<Bytes> by_rank;
  for (int other = 0; other < comm.size; ++other) {
    by_rank.push_back(Take(comm, *comm.store, KeyOf(group, other)));
  }
  if (number > 0) comm.store->deleteKey(KeyOf(absl::StrCat("all", number - 1), comm.rank));
  switch (operation.kind) {
    case Operation::kAllGather:
      for (size_t other = 0; other < size; ++other) {
        std::ranges::copy(by_rank[other], reinterpret_cast<uint8_t*>(operation.to) + other * bytes);
      }
      return;
    case Operation::kBroadcast:
      std::ranges::copy(by_rank[static_cast<size_t>(operation.peer)],
                        reinterpret_cast<uint8_t*>(operation.to));
      return;
    default: {
      const size_t first = operation.kind == Operation::kReduceScatter ? rank * bytes : 0;
      std::memcpy(operation.to, by_rank.back().data() + first, bytes);
      for (size_t other = size - 1; other-- > 0;) {
        AddValues(operation.type, operation.to,
                  reinterpret_cast<const std::byte*>(by_rank[other].data() + first),
                  operation.count);
      }
    }
  }
}

// Runs on the stream.
void Run(NcclComm& comm, int64_t number, const std::vector<Operation>& operations) {
  if (comm.error != NcclResult::kSuccess) return;
  try {
    for (const Operation& one : operations) {
      if (one.kind != Operation::kSend) continue;
      const auto* const bytes = reinterpret_cast<const uint8_t*>(one.from);
      comm.store->set(one.key, Bytes(bytes, bytes + one.count * WidthOf(one.type)));
    }
    for (const Operation& one : operations) {
      if (one.kind == Operation::kSend) continue;
      if (one.kind != Operation::kReceive) {
        RunCollective(comm, number, one);
        continue;
      }
      const Bytes bytes = Take(comm, *comm.store, one.key);
      comm.store->deleteKey(one.key);
      std::memcpy(one.to, bytes.data(), std::min(bytes.size(), one.count * WidthOf(one.type)));
    }
  } catch (const std::exception&) {
    comm.error = NcclResult::kRemoteError;
  }
}

NcclResult Call(NcclComm* comm, void* stream, const Operation& operation) {
  thread_group.comm = comm;
  thread_group.stream = stream;
  thread_group.operations.push_back(operation);
  return NcclResult::kSuccess;
}

c10::intrusive_ptr<c10d::Store> Connect(int64_t port, const std::string& name) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = std::chrono::seconds(30);
  return c10::make_intrusive<c10d::PrefixStore>(
      name, c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
}

NcclResult MakeComm(NcclComm** comm, int64_t port, const std::string& name, int rank, int size) {
  try {
    auto made = std::make_unique<NcclComm>();
    made->store = Connect(port, name);
    made->splits = Connect(port, name);
    made->port = port;
    made->name = name;
    made->rank = rank;
    made->size = size;
    *comm = made.release();
    return NcclResult::kSuccess;
  } catch (const std::exception&) {
    return NcclResult::kSystemError;
  }
}

const std::byte* At(const void* bytes) { return static_cast<const std::byte*>(bytes); }
std::byte* At(void* bytes) { return static_cast<std::byte*>(bytes); }

}  // namespace

extern "C" {

NcclResult ncclGetVersion(int* version) {
  *version = 22809;
  return NcclResult::kSuccess;
}

NcclResult ncclGetUniqueId(NcclId* id) {
  try {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    // It serves until the process ends.
    static auto& server = *new auto(c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
    const int64_t port = server->getPort();
    *id = NcclId();
    std::memcpy(id->bytes, &port, sizeof(port));
    return NcclResult::kSuccess;
  } catch (const std::exception&) {
    return NcclResult::kSystemError;
  }
}

const char* ncclGetErrorString(NcclResult result) {
  return result == NcclResult::kRemoteError ? "remote process exited" : "an error";
}
const char* ncclGetLastError(NcclComm* /*comm*/) { return ""; }

NcclResult ncclCommInitRankConfig(NcclComm** comm, int num_ranks, NcclId id, int rank,
                                  NcclConfig* /*config*/) {
  int64_t port = 0;
  std::memcpy(&port, id.bytes, sizeof(port));
  return MakeComm(comm, port, "world", rank, num_ranks);
}

NcclResult ncclCommSplit(NcclComm* comm, int color, int key, NcclComm** part,
                         NcclConfig* /*config*/) {
  struct Member {
    int color = 0;
    int key = 0;
    int rank = 0;
  };
  const std::string group = absl::StrCat("split", comm->num_splits++);
  std::vector<Member> members;
  try {
    const Member own = {color, key, comm->rank};
    const auto* const bytes = reinterpret_cast<const uint8_t*>(&own);
    comm->splits->set(KeyOf(group, comm->rank), Bytes(bytes, bytes + sizeof(own)));
    for (int rank = 0; rank < comm->size; ++rank) {
      Member other;
      const Bytes told = Take(*comm, *comm->splits, KeyOf(group, rank));
      std::memcpy(&other, told.data(), sizeof(other));
      if (other.color == color) members.push_back(other);
    }
  } catch (const std::exception&) {
    return NcclResult::kRemoteError;
  }
  *part = nullptr;
  if (color == NcclLibrary::kNoColor) return NcclResult::kSuccess;
  std::ranges::stable_sort(members, {}, &Member::key);
  const auto own = std::ranges::find(members, comm->rank, &Member::rank);
  return MakeComm(part, comm->port, absl::StrCat(comm->name, ".", group, ".", color),
                  static_cast<int>(own - members.begin()), static_cast<int>(members.size()));
}

NcclResult ncclCommGetAsyncError(NcclComm* comm, NcclResult* error) {
  *error = comm->error;
  return NcclResult::kSuccess;
}
NcclResult ncclCommFinalize(NcclComm* /*comm*/) { return NcclResult::kSuccess; }
NcclResult ncclCommDestroy(NcclComm* comm) {
  delete comm;
  return NcclResult::kSuccess;
}
// What runs on its stream may use it until the process ends.
NcclResult ncclCommAbort(NcclComm* comm) {
  comm->is_aborted = true;
  return NcclResult::kSuccess;
}

NcclResult ncclGroupStart() { return NcclResult::kSuccess; }
NcclResult ncclGroupEnd() {
  ThreadGroup group = std::exchange(thread_group, {});
  if (group.comm == nullptr) return NcclResult::kSuccess;
  NcclComm& comm = *group.comm;
  for (Operation& one : group.operations) {
    const bool sends = one.kind == Operation::kSend;
    if (!sends && one.kind != Operation::kReceive) continue;
    const std::pair<int, int> way =
        sends ? std::pair(comm.rank, one.peer) : std::pair(one.peer, comm.rank);
    one.key = absl::StrCat("from", way.first, "to", way.second, "/", comm.num_messages[way]++);
  }
  const bool is_collective = group.operations.front().kind < Operation::kSend;
  const int64_t number = is_collective ? comm.num_groups++ : 0;
  static_cast<HostStreamQueue*>(group.stream)
      ->Enqueue([&comm, number, operations = std::move(group.operations)] {
        Run(comm, number, operations);
      });
  return NcclResult::kSuccess;
}

NcclResult ncclAllGather(const void* part, void* all, size_t count, NcclType type, NcclComm* comm,
                         void* stream) {
  return Call(comm, stream, {Operation::kAllGather, At(part), At(all), count, type});
}
NcclResult ncclReduceScatter(const void* all, void* part, size_t count, NcclType type, int /*sum*/,
                             NcclComm* comm, void* stream) {
  return Call(comm, stream, {Operation::kReduceScatter, At(all), At(part), count, type});
}
NcclResult ncclAllReduce(const void* from, void* to, size_t count, NcclType type, int /*sum*/,
                         NcclComm* comm, void* stream) {
  return Call(comm, stream, {Operation::kAllReduce, At(from), At(to), count, type});
}
NcclResult ncclBroadcast(const void* from, void* to, size_t count, NcclType type, int root,
                         NcclComm* comm, void* stream) {
  return Call(comm, stream, {Operation::kBroadcast, At(from), At(to), count, type, root});
}
NcclResult ncclSend(const void* from, size_t count, NcclType type, int peer, NcclComm* comm,
                    void* stream) {
  return Call(comm, stream, {Operation::kSend, At(from), nullptr, count, type, peer});
}
NcclResult ncclRecv(void* to, size_t count, NcclType type, int peer, NcclComm* comm, void* stream) {
  return Call(comm, stream, {Operation::kReceive, nullptr, At(to), count, type, peer});
}

// By it gemini-train exchanges between CPUs (trainer/parallel/nccl_join.cc).
void gemini_make_exchange_device(absl::StatusOr<std::shared_ptr<ExchangeDevice>>& made) {
  made = MakeHostExchange(CallersMemory::kOnDevice);
}

}  // extern "C"

}  // namespace gemini::trainer
