// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/communicator_nccl.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

using std::chrono::steady_clock;

// What a rank waits for on the host is looked at again after an eighth of the time waited so far.
constexpr int kLooksInTheTimeWaited = 8;
constexpr std::chrono::microseconds kLeastPause(5);
constexpr std::chrono::microseconds kMostPause(500);

NcclType NcclTypeOf(SumType type) {
  switch (type) {
    case SumType::kFp64:
      return NcclType::kFp64;
    case SumType::kFp32:
      return NcclType::kFp32;
    case SumType::kBf16:
      return NcclType::kBf16;
    case SumType::kFp16:
      return NcclType::kFp16;
  }
  return NcclType::kByte;
}

template <typename Byte>
absl::Span<Byte> Bytes(Byte* first, int64_t size_bytes) {
  return {first, static_cast<size_t>(size_bytes)};
}

// Messages of an exchange with other ranks, of which NCCL takes several together.
class Transfers {
 public:
  Transfers(const NcclLibrary& nccl, const NcclPath& path) : nccl_(nccl), path_(path) {}
  absl::Status Send(absl::Span<const std::byte> bytes, int64_t peer) {
    if (bytes.empty()) return absl::OkStatus();
    return NcclStatus(nccl_,
                      nccl_.Send(bytes.data(), bytes.size(), NcclType::kByte,
                                 static_cast<int>(peer), path_.comm, path_.stream->handle()),
                      "ncclSend", path_.comm);
  }
  absl::Status Receive(absl::Span<std::byte> bytes, int64_t peer) {
    if (bytes.empty()) return absl::OkStatus();
    return NcclStatus(nccl_,
                      nccl_.Recv(bytes.data(), bytes.size(), NcclType::kByte,
                                 static_cast<int>(peer), path_.comm, path_.stream->handle()),
                      "ncclRecv", path_.comm);
  }

 private:
  const NcclLibrary& nccl_;
  const NcclPath& path_;
};

// How many bytes an operation of one rank reads, and writes.
struct OperationBytes {
  int64_t from = 0;
  int64_t to = 0;
};
OperationBytes BytesOf(CollectiveKind kind, int64_t count, SumType type, int64_t size) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return {count, count * size};
    case CollectiveKind::kReduceScatter:
      return {count * SumTypeBytes(type) * size, count * SumTypeBytes(type)};
    case CollectiveKind::kAllReduce:
      return {count * SumTypeBytes(type), count * SumTypeBytes(type)};
    case CollectiveKind::kAllToAll:
      return {count * size, count * size};
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kShift:
      return {count, count};
    case CollectiveKind::kSend:
      return {count, 0};
    case CollectiveKind::kReceive:
      return {0, count};
  }
  return {};
}

}  // namespace

// An operation's memory on the device.
struct CommunicatorNccl::Placed {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  OperationBytes bytes;
  // Where the callers' is in host memory. Both are one where the callers' are one.
  std::shared_ptr<StagedMemory> staged_from;
  std::shared_ptr<StagedMemory> staged_to;
  std::byte* host_to = nullptr;  // Where it is to come.
  // Whether operators may see some of the callers'.
  bool is_on_device() const {
    return (bytes.from > 0 && staged_from == nullptr) || (bytes.to > 0 && staged_to == nullptr);
  }
};

class CommunicatorNccl::NcclWork final : public PendingWork {
 public:
  NcclWork(std::shared_ptr<FirstFailure> failure, std::shared_ptr<StreamPoint> point,
           const Placed& at)
      : failure_(std::move(failure)),
        point_(std::move(point)),
        is_on_device_(at.is_on_device()),
        host_to_(at.host_to),
        size_bytes_(at.bytes.to),
        staged_(at.staged_to) {}

  absl::Status Wait() override {
    GEMINI_RETURN_IF_ERROR(failure_->status());
    if (host_to_ == nullptr) {
      if (!is_on_device_) return absl::OkStatus();  // What it sends was copied.
      {
        MutexLock lock(mutex_);
        if (!awaited_since_.has_value()) awaited_since_ = steady_clock::now();
      }
      const absl::Status status = point_->MakeOperatorsWait();
      if (!status.ok()) failure_->Set(status);
      return failure_->status();
    }
    const auto began = steady_clock::now();
    while (!Done()) {
      std::this_thread::sleep_for(std::clamp<steady_clock::duration>(
          (steady_clock::now() - began) / kLooksInTheTimeWaited, kLeastPause, kMostPause));
    }
    return failure_->status();
  }

  bool Done() const override {
    if (!failure_->status().ok()) return true;
    MutexLock lock(mutex_);
    if (is_done_) return true;
    const absl::StatusOr<bool> reached = point_->Reached();
    if (!reached.ok()) failure_->Set(reached.status());
    if (!reached.ok() || !*reached) return !reached.ok();
    if (host_to_ != nullptr) {
      std::memcpy(host_to_, staged_->host->bytes(), static_cast<size_t>(size_bytes_));
      staged_->is_taken.store(false, std::memory_order_release);
    }
    is_done_ = true;
    return true;
  }

  // Returns since when operators wait for it, if any do.
  std::optional<steady_clock::time_point> awaited_since() const {
    MutexLock lock(mutex_);
    return awaited_since_;
  }

 private:
  const std::shared_ptr<FirstFailure> failure_;
  const std::shared_ptr<StreamPoint> point_;
  const bool is_on_device_;
  std::byte* const host_to_;  // Null: it comes to memory of the device.
  const int64_t size_bytes_;
  const std::shared_ptr<StagedMemory> staged_;
  mutable Mutex mutex_;
  mutable bool is_done_ ABSL_GUARDED_BY(mutex_) = false;  // What came is where it is to be.
  std::optional<steady_clock::time_point> awaited_since_ ABSL_GUARDED_BY(mutex_);
};

// An operation, and its work once that is enqueued.
struct CommunicatorNccl::Issued {
  explicit Issued(Operation the_operation) : operation(std::move(the_operation)) {}
  const Operation operation;
  std::shared_ptr<NcclWork> work;  // Guarded by the communicator's mutex.
};

CommunicatorNccl::CommunicatorNccl(const NcclLibrary& nccl, std::shared_ptr<ExchangeDevice> device,
                                   int64_t rank, int64_t num_ranks, const NcclOptions& options)
    : Communicator(rank, num_ranks),
      device_(std::move(device)),
      options_(options),
      staged_(*device_),
      comms_(nccl, device_, options.limit, [this] { Look(); }) {}

absl::StatusOr<std::unique_ptr<CommunicatorNccl>> CommunicatorNccl::Make(
    const NcclLibrary& nccl, std::shared_ptr<ExchangeDevice> device, const NcclId& id, int64_t rank,
    int64_t num_ranks, const NcclOptions& options) {
  std::unique_ptr<CommunicatorNccl> made(
      new CommunicatorNccl(nccl, std::move(device), rank, num_ranks, options));
  const absl::Status begun = made->Begin(id);
  if (begun.ok()) return made;
  made->comms_.Fail(begun);
  return made->comms_.failure()->status();
}

absl::Status CommunicatorNccl::Begin(const NcclId& id) {
  GEMINI_RETURN_IF_ERROR(device_->Use());
  GEMINI_ASSIGN_OR_RETURN(stream_, device_->MakeStream());
  if (options_.exact) {
    // At least one element of each rank.
    const int64_t least = num_ranks() * SumTypeBytes(SumType::kFp64);
    GEMINI_ASSIGN_OR_RETURN(folded_,
                            device_->MakeDeviceMemory(std::max(options_.slice_bytes, least)));
  }
  GEMINI_ASSIGN_OR_RETURN(comm_of_[0], comms_.MakeWorld(id, rank(), num_ranks()));
  return PrepareMessages(world(), options_.world_messages);
}

CommunicatorNccl::~CommunicatorNccl() {
  for (const auto began = steady_clock::now(); comms_.failure()->status().ok();) {
    Look();
    {
      MutexLock lock(mutex_);
      if (collectives_.empty() && messages_.empty()) break;
    }
    std::this_thread::sleep_for(std::clamp<steady_clock::duration>(
        (steady_clock::now() - began) / kLooksInTheTimeWaited, kLeastPause, kMostPause));
  }
  comms_.Finish();
}

absl::Status CommunicatorNccl::Prepare(const RankGroup& group) {
  const int64_t color = group.size() > 1 ? group.ranks.front() : NcclLibrary::kNoColor;
  GEMINI_ASSIGN_OR_RETURN(comm_of_[group.id],
                          comms_.Split(comm_of_.at(0), color, group.place, /*most_ctas=*/0));
  return absl::OkStatus();
}

absl::Status CommunicatorNccl::PrepareMessages(const RankGroup& group, MessagePaths paths) {
  const auto [at, is_first] = paths_of_.try_emplace(group.id, group, paths);
  if (!is_first) {
    return absl::FailedPreconditionError(
        absl::StrCat("group ", group.name, " was prepared for messages before"));
  }
  // Also behind a failure the paths stay: NCCL may use their streams until all are aborted.
  const absl::Status connected =
      at->second.Connect(comms_, *device_, comm_of_.at(0), options_.limit);
  if (connected.ok()) return connected;
  comms_.Fail(connected);
  return comms_.failure()->status();
}

absl::StatusOr<NcclPath> CommunicatorNccl::PathOf(const Operation& operation) const {
  const int64_t group = operation.group->id;
  if (!operation.is_message()) {
    return NcclPath{.comm = comm_of_.at(group), .stream = stream_.get()};
  }
  const auto found = paths_of_.find(group);
  if (found != paths_of_.end()) {
    return found->second.Find(operation.kind, operation.place, operation.tag);
  }
  return absl::FailedPreconditionError(
      absl::StrCat(CollectiveKindName(operation.kind), " at ", operation.site, ": group ",
                   operation.group->name, " was not prepared for messages"));
}

Work CommunicatorNccl::Issue(Operation operation) {
  const absl::Status failed = comms_.failure()->status();
  if (!failed.ok()) return DoneWork(failed);
  if (operation.count == 0) return DoneWork(absl::OkStatus());  // No rank has anything to send.
  const auto issued = std::make_shared<Issued>(std::move(operation));
  {
    // Before NCCL is called, which may wait for other ranks: this says what for.
    MutexLock lock(mutex_);
    if (issued->operation.is_message()) {
      messages_.push_back(issued);
    } else {
      collectives_.push_back(issued);
      if (collectives_.size() == 1) ShowUnderWay();
    }
  }
  absl::StatusOr<Work> work = TryIssue(issued);
  if (work.ok()) return *std::move(work);
  comms_.Fail(work.status());
  return DoneWork(comms_.failure()->status());
}

absl::StatusOr<Work> CommunicatorNccl::TryIssue(const std::shared_ptr<Issued>& issued) {
  const Operation& operation = issued->operation;
  GEMINI_ASSIGN_OR_RETURN(const NcclPath path, PathOf(operation));
  GEMINI_ASSIGN_OR_RETURN(const Placed at, Place(operation));
  // Operators may have yet to write what it sends, or to read what is where it receives.
  if (at.is_on_device()) GEMINI_RETURN_IF_ERROR(path.stream->AwaitOperators());
  if (at.staged_from != nullptr) {
    GEMINI_RETURN_IF_ERROR(path.stream->Copy(at.staged_from->device->bytes(),
                                             at.staged_from->host->bytes(), at.bytes.from));
  }
  GEMINI_RETURN_IF_ERROR(Enqueue(operation, path, at));
  if (at.staged_to != nullptr) {
    GEMINI_RETURN_IF_ERROR(
        path.stream->Copy(at.staged_to->host->bytes(), at.staged_to->device->bytes(), at.bytes.to));
  }
  GEMINI_ASSIGN_OR_RETURN(std::shared_ptr<StreamPoint> point, path.stream->Mark());
  for (const std::shared_ptr<StagedMemory>& staged : {at.staged_from, at.staged_to}) {
    if (staged != nullptr) staged->point = point;
  }
  if (at.staged_from != nullptr && at.staged_from != at.staged_to) {
    at.staged_from->is_taken.store(false, std::memory_order_release);
  }
  auto work = std::make_shared<NcclWork>(comms_.failure(), std::move(point), at);
  MutexLock lock(mutex_);
  issued->work = work;
  return work;
}

absl::StatusOr<CommunicatorNccl::Placed> CommunicatorNccl::Place(const Operation& operation) {
  Placed at;
  at.from = operation.from;
  at.to = operation.to;
  at.bytes = BytesOf(operation.kind, operation.count, operation.type, operation.group->size());
  if (at.bytes.from > 0 && !device_->IsDeviceMemory(at.from)) {
    GEMINI_ASSIGN_OR_RETURN(at.staged_from, staged_.Take(at.bytes.from));
    std::memcpy(at.staged_from->host->bytes(), at.from, static_cast<size_t>(at.bytes.from));
    at.from = at.staged_from->device->bytes();
  }
  if (at.bytes.to > 0 && !device_->IsDeviceMemory(at.to)) {
    at.host_to = at.to;
    at.staged_to = at.staged_from;
    if (operation.from != operation.to || at.staged_from == nullptr ||
        at.bytes.to > at.staged_from->size_bytes) {
      GEMINI_ASSIGN_OR_RETURN(at.staged_to, staged_.Take(at.bytes.to));
    }
    at.to = at.staged_to->device->bytes();
  }
  return at;
}

absl::Status CommunicatorNccl::Enqueue(const Operation& operation, const NcclPath& path,
                                       const Placed& at) {
  const int64_t size = operation.group->size();
  const int64_t place = operation.group->place;
  const int64_t count = operation.count;
  if (size == 1) return EnqueueAlone(operation, at);
  const auto calls = [&](const NcclLibrary& nccl) -> absl::Status {
    Transfers transfers(nccl, path);
    switch (operation.kind) {
      case CollectiveKind::kAllGather:
        return NcclStatus(nccl,
                          nccl.AllGather(at.from, at.to, static_cast<size_t>(count),
                                         NcclType::kByte, path.comm, path.stream->handle()),
                          "ncclAllGather", path.comm);
      case CollectiveKind::kBroadcast:
        return NcclStatus(
            nccl,
            nccl.Broadcast(at.from, at.to, static_cast<size_t>(count), NcclType::kByte,
                           static_cast<int>(operation.place), path.comm, path.stream->handle()),
            "ncclBroadcast", path.comm);
      case CollectiveKind::kShift:
        GEMINI_RETURN_IF_ERROR(transfers.Send(Bytes(at.from, count), (place + 1) % size));
        return transfers.Receive(Bytes(at.to, count), (place + size - 1) % size);
      case CollectiveKind::kSend:
        return transfers.Send(Bytes(at.from, count), path.peer);
      case CollectiveKind::kReceive:
        return transfers.Receive(Bytes(at.to, count), path.peer);
      case CollectiveKind::kAllToAll:
      case CollectiveKind::kReduceScatter:
      case CollectiveKind::kAllReduce:
        break;
    }
    return absl::InternalError("no single call does this");
  };
  if (operation.kind == CollectiveKind::kReduceScatter ||
      operation.kind == CollectiveKind::kAllReduce) {
    return EnqueueSum(operation, path, at);
  }
  if (operation.kind == CollectiveKind::kAllToAll) {
    GEMINI_RETURN_IF_ERROR(
        path.stream->Copy(at.to + place * count, at.from + place * count, count));
    return ExchangeParts(
        operation, path, [&](int64_t i) { return Bytes(at.from + i * count, count); },
        [&](int64_t i) { return Bytes(at.to + i * count, count); });
  }
  return comms_.Group(path.comm, operation.site, calls);
}

absl::Status CommunicatorNccl::EnqueueAlone(const Operation& operation, const Placed& at) {
  const bool is_sum = operation.kind == CollectiveKind::kReduceScatter ||
                      operation.kind == CollectiveKind::kAllReduce;
  // A fold of one, too, has the bits that it has elsewhere: of a NaN those may be others.
  if (is_sum && options_.exact) {
    return stream_->Fold(operation.type, at.from, /*num_parts=*/1, operation.count, at.to);
  }
  if (at.from == at.to) return absl::OkStatus();
  return stream_->Copy(at.to, at.from, std::min(at.bytes.from, at.bytes.to));
}

absl::Status CommunicatorNccl::EnqueueSum(const Operation& operation, const NcclPath& path,
                                          const Placed& at) {
  const bool is_all_reduce = operation.kind == CollectiveKind::kAllReduce;
  if (options_.exact) {
    return is_all_reduce ? FoldAll(operation, path, at) : FoldParts(operation, path, at);
  }
  const auto count = static_cast<size_t>(operation.count);
  const NcclType type = NcclTypeOf(operation.type);
  return comms_.Group(path.comm, operation.site, [&](const NcclLibrary& nccl) {
    return is_all_reduce
               ? NcclStatus(nccl,
                            nccl.AllReduce(at.from, at.to, count, type, NcclLibrary::kSum,
                                           path.comm, path.stream->handle()),
                            "ncclAllReduce", path.comm)
               : NcclStatus(nccl,
                            nccl.ReduceScatter(at.from, at.to, count, type, NcclLibrary::kSum,
                                               path.comm, path.stream->handle()),
                            "ncclReduceScatter", path.comm);
  });
}

absl::Status CommunicatorNccl::ExchangeParts(
    const Operation& operation, const NcclPath& path,
    absl::FunctionRef<absl::Span<const std::byte>(int64_t)> sent,
    absl::FunctionRef<absl::Span<std::byte>(int64_t)> received) {
  return comms_.Group(path.comm, operation.site, [&](const NcclLibrary& nccl) -> absl::Status {
    Transfers transfers(nccl, path);
    for (int64_t i = 0; i < operation.group->size(); ++i) {
      if (i == operation.group->place) continue;
      GEMINI_RETURN_IF_ERROR(transfers.Send(sent(i), i));
      GEMINI_RETURN_IF_ERROR(transfers.Receive(received(i), i));
    }
    return absl::OkStatus();
  });
}

absl::Status CommunicatorNccl::FoldSlice(
    const Operation& operation, const NcclPath& path,
    absl::FunctionRef<absl::Span<const std::byte>(int64_t)> part_of, std::byte* sum) {
  const int64_t size = operation.group->size();
  const absl::Span<const std::byte> own = part_of(operation.group->place);
  const auto bytes = static_cast<int64_t>(own.size());
  std::byte* const from_each = folded_->bytes();
  if (bytes > 0) {
    GEMINI_RETURN_IF_ERROR(
        path.stream->Copy(from_each + operation.group->place * bytes, own.data(), bytes));
  }
  const absl::Status exchanged = ExchangeParts(
      operation, path, part_of, [&](int64_t i) { return Bytes(from_each + i * bytes, bytes); });
  if (!exchanged.ok() || bytes == 0) return exchanged;
  return path.stream->Fold(operation.type, from_each, size, bytes / SumTypeBytes(operation.type),
                           sum);
}

int64_t CommunicatorNccl::MostOfSlice(const Operation& operation) const {
  return std::max<int64_t>(
      1, options_.slice_bytes / SumTypeBytes(operation.type) / operation.group->size());
}

absl::Status CommunicatorNccl::FoldParts(const Operation& operation, const NcclPath& path,
                                         const Placed& at) {
  const int64_t width = SumTypeBytes(operation.type);
  const int64_t most = MostOfSlice(operation);
  for (int64_t next = 0; next < operation.count; next += most) {
    const int64_t bytes = std::min(most, operation.count - next) * width;
    const auto part_of = [&](int64_t i) {
      return Bytes(at.from + (i * operation.count + next) * width, bytes);
    };
    GEMINI_RETURN_IF_ERROR(FoldSlice(operation, path, part_of, at.to + next * width));
  }
  return absl::OkStatus();
}

absl::Status CommunicatorNccl::FoldAll(const Operation& operation, const NcclPath& path,
                                       const Placed& at) {
  const int64_t size = operation.group->size();
  const int64_t width = SumTypeBytes(operation.type);
  const int64_t most = MostOfSlice(operation);
  if (at.from != at.to) GEMINI_RETURN_IF_ERROR(path.stream->Copy(at.to, at.from, at.bytes.to));
  for (int64_t next = 0; next < operation.count; next += size * most) {
    const int64_t left = operation.count - next;
    const int64_t part = std::min(most, (left + size - 1) / size);
    // The last ranks may have less to add, or nothing.
    const auto part_of = [&](int64_t i) {
      return Bytes(at.to + (next + i * part) * width,
                   std::clamp<int64_t>(left - i * part, 0, part) * width);
    };
    const absl::Span<std::byte> own = part_of(operation.group->place);
    GEMINI_RETURN_IF_ERROR(FoldSlice(operation, path, part_of, own.data()));
    const absl::Status gathered = ExchangeParts(
        operation, path, [&](int64_t) { return own; }, part_of);
    GEMINI_RETURN_IF_ERROR(gathered);
  }
  return absl::OkStatus();
}

void CommunicatorNccl::Look() {
  MutexLock lock(mutex_);
  if (!comms_.failure()->status().ok()) {
    collectives_.clear();
    messages_.clear();
    SetUnderWay(nullptr);
    SetAwaitedByOperators(nullptr, {});
    return;
  }
  const auto is_done = [](const std::shared_ptr<Issued>& one) {
    return one->work != nullptr && one->work->Done();
  };
  std::erase_if(messages_, is_done);
  const auto awaited = std::ranges::find_if(messages_, [](const std::shared_ptr<Issued>& one) {
    return one->work != nullptr && one->work->awaited_since().has_value();
  });
  if (awaited != messages_.end()) {
    SetAwaitedByOperators(&(*awaited)->operation, *(*awaited)->work->awaited_since());
  } else {
    SetAwaitedByOperators(nullptr, {});
  }
  const size_t before = collectives_.size();
  while (!collectives_.empty() && is_done(collectives_.front())) collectives_.pop_front();
  if (collectives_.size() != before) ShowUnderWay();
}

void CommunicatorNccl::ShowUnderWay() {
  SetUnderWay(collectives_.empty() ? nullptr : &collectives_.front()->operation);
}

}  // namespace gemini::trainer
