// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/communicator_host.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "gemini/byte_size.h"
#include "gemini/system/status_macros.h"
#include "trainer/parallel/exact_sum.h"

namespace gemini::trainer {
namespace {

// A rank sends so much of a sum at a time.
constexpr int64_t kSliceBytes = 4 * kMiB;
// What is under way is looked at again after an eighth of the time for which nothing has moved.
constexpr int kLooksInTheTimeWaited = 8;
constexpr std::chrono::microseconds kLeastPause(20);
constexpr std::chrono::microseconds kMostPause(500);
// Linux may end a sleep so much later, and does by 50 us unless it is told.
constexpr std::chrono::nanoseconds kTimerSlack = std::chrono::microseconds(1);

}  // namespace

class CommunicatorHost::HostWork final : public PendingWork {
 public:
  absl::Status Wait() override {
    MutexLock lock(mutex_);
    while (!status_.has_value()) mutex_.WaitFor(ended_);
    return *status_;
  }
  bool Done() const override {
    MutexLock lock(mutex_);
    return status_.has_value();
  }
  void End(absl::Status status) {
    MutexLock lock(mutex_);
    status_ = std::move(status);
    ended_.notify_all();
  }

 private:
  mutable Mutex mutex_;
  std::condition_variable ended_;
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
};

// An operation and how far it is.
class CommunicatorHost::Exchange {
 public:
  virtual ~Exchange() = default;
  virtual bool is_collective() const { return true; }
  // Returns what was asked for; null: the preparation of a group.
  virtual const Operation* operation() const { return nullptr; }
  // Begins it at the first call, and goes on with it. Returns whether it is done.
  virtual absl::StatusOr<bool> Advance(RankTransport& transport) = 0;
  // Returns how many transfers of its have ended, but for the last.
  int64_t num_moves() const { return num_moves_; }

 protected:
  int64_t num_moves_ = 0;
};

class CommunicatorHost::GroupSetup final : public Exchange {
 public:
  explicit GroupSetup(const RankGroup& group) : group_(group) {}
  absl::StatusOr<bool> Advance(RankTransport& transport) override {
    GEMINI_RETURN_IF_ERROR(transport.Prepare(group_));
    return true;
  }

 private:
  const RankGroup& group_;
};

class CommunicatorHost::ByteExchange final : public Exchange {
 public:
  explicit ByteExchange(Operation operation) : in_(std::move(operation)) {}
  bool is_collective() const override { return !in_.is_message(); }
  const Operation* operation() const override { return &in_; }
  absl::StatusOr<bool> Advance(RankTransport& transport) override {
    if (transfer_ == nullptr) {
      GEMINI_ASSIGN_OR_RETURN(transfer_, Begin(transport));
    }
    return transfer_->Test();
  }

 private:
  BegunTransfer Begin(RankTransport& transport) const {
    switch (in_.kind) {
      case CollectiveKind::kAllGather:
        return transport.AllGather(*in_.group, in_.from, in_.to, in_.count);
      case CollectiveKind::kAllToAll:
        return transport.AllToAll(*in_.group, in_.from, in_.to, in_.count);
      case CollectiveKind::kBroadcast:
        return transport.Broadcast(*in_.group, in_.to, in_.count, in_.place);
      case CollectiveKind::kSend:
        return transport.Send(*in_.group, in_.from, in_.count, in_.place, in_.tag);
      case CollectiveKind::kReceive:
        return transport.Receive(*in_.group, in_.to, in_.count, in_.place, in_.tag);
      case CollectiveKind::kReduceScatter:
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kShift:
        break;
    }
    return absl::InternalError("no single transfer does this");
  }

  const Operation in_;
  std::unique_ptr<Transfer> transfer_;
};

// A message to the next rank, and one from the rank before.
class CommunicatorHost::ShiftExchange final : public Exchange {
 public:
  explicit ShiftExchange(Operation operation) : in_(std::move(operation)) {}
  const Operation* operation() const override { return &in_; }
  absl::StatusOr<bool> Advance(RankTransport& transport) override {
    const int64_t size = in_.group->size();
    if (size == 1) {
      std::copy_n(in_.from, in_.count, in_.to);  // There may be no bytes, and no memory.
      return true;
    }
    if (!began_) {
      began_ = true;
      const int64_t place = in_.group->place;
      GEMINI_ASSIGN_OR_RETURN(
          received_, transport.Receive(*in_.group, in_.to, in_.count, (place + size - 1) % size,
                                       kMostTag + 1));
      GEMINI_ASSIGN_OR_RETURN(
          sent_, transport.Send(*in_.group, in_.from, in_.count, (place + 1) % size, kMostTag + 1));
    }
    for (std::unique_ptr<Transfer>* const transfer : {&received_, &sent_}) {
      if (*transfer == nullptr) continue;
      GEMINI_ASSIGN_OR_RETURN(const bool done, (*transfer)->Test());
      if (done) *transfer = nullptr;
    }
    return received_ == nullptr && sent_ == nullptr;
  }

 private:
  const Operation in_;
  bool began_ = false;
  std::unique_ptr<Transfer> received_, sent_;  // Until they are done.
};

// What sums go through. One collective at a time uses it, and what it took serves the next ones,
// too: fresh memory costs more than the bytes that are sent.
struct CommunicatorHost::SumMemory {
  class Buffer {
   public:
    // Returns memory for so many bytes, in place of what it returned before.
    std::byte* OfSize(int64_t size_bytes) {
      if (size_bytes > size_bytes_) {
        bytes_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(size_bytes));
        size_bytes_ = size_bytes;
      }
      return bytes_.get();
    }

   private:
    std::unique_ptr<std::byte[]> bytes_;
    int64_t size_bytes_ = 0;
  };
  Buffer to_each, from_each, sum;
};

// Slice by slice: of a reduce-scatter, of each rank's part; of an all-reduce, of all values.
class CommunicatorHost::SumExchange final : public Exchange {
 public:
  SumExchange(Operation operation, std::shared_ptr<SumMemory> memory)
      : in_(std::move(operation)),
        memory_(std::move(memory)),
        width_(SumTypeBytes(in_.type)),
        size_(in_.group->size()),
        most_(std::max<int64_t>(1, kSliceBytes / width_ / size_)) {}

  const Operation* operation() const override { return &in_; }
  absl::StatusOr<bool> Advance(RankTransport& transport) override {
    for (;;) {
      if (transfer_ != nullptr) {
        GEMINI_ASSIGN_OR_RETURN(const bool done, transfer_->Test());
        if (!done) return false;
        ++num_moves_;
        transfer_ = nullptr;
        if (is_scattered_) {
          TakeSlice();
        } else if (!Fold()) {
          GEMINI_ASSIGN_OR_RETURN(transfer_,
                                  transport.AllGather(*in_.group, sum_, gathered_, PartBytes()));
          continue;
        }
      }
      if (next_ == in_.count) return true;
      const std::byte* const to_each = SliceToEach();
      from_each_ = memory_->from_each.OfSize(size_ * PartBytes());
      GEMINI_ASSIGN_OR_RETURN(transfer_,
                              transport.AllToAll(*in_.group, to_each, from_each_, PartBytes()));
    }
  }

 private:
  bool is_all_reduce() const { return in_.kind == CollectiveKind::kAllReduce; }
  int64_t PartBytes() const { return part_ * width_; }
  int64_t Left() const { return in_.count - next_; }

  // Returns what each rank is to add of the next slice, one rank's behind the other's.
  const std::byte* SliceToEach() {
    is_scattered_ = false;
    part_ = std::min(most_, is_all_reduce() ? (Left() + size_ - 1) / size_ : Left());
    const bool is_in_place = is_all_reduce() ? size_ * part_ <= Left() : part_ == in_.count;
    if (is_in_place) return in_.from + next_ * width_;
    std::byte* const to_each = memory_->to_each.OfSize(size_ * PartBytes());
    if (is_all_reduce()) {
      // What is behind the last element, in the last part, is added, and nobody takes it.
      std::memcpy(to_each, in_.from + next_ * width_, static_cast<size_t>(Left() * width_));
      std::memset(to_each + Left() * width_, 0,
                  static_cast<size_t>((size_ * part_ - Left()) * width_));
      return to_each;
    }
    for (int64_t i = 0; i < size_; ++i) {
      std::memcpy(to_each + i * PartBytes(), in_.from + (i * in_.count + next_) * width_,
                  static_cast<size_t>(PartBytes()));
    }
    return to_each;
  }

  // Adds what came. Returns whether the slice is done with that.
  bool Fold() {
    if (!is_all_reduce()) {
      FoldSum(in_.type, from_each_, size_, part_, in_.to + next_ * width_);
      next_ += part_;
      return true;
    }
    sum_ = memory_->sum.OfSize(PartBytes());
    FoldSum(in_.type, from_each_, size_, part_, sum_);
    is_scattered_ = true;
    gathered_ = size_ * part_ <= Left() ? in_.to + next_ * width_
                                        : memory_->to_each.OfSize(size_ * PartBytes());
    return false;
  }

  // Takes the sums of the slice that were gathered.
  void TakeSlice() {
    const int64_t elements = std::min(size_ * part_, Left());
    std::byte* const slice = in_.to + next_ * width_;
    if (gathered_ != slice) std::memcpy(slice, gathered_, static_cast<size_t>(elements * width_));
    next_ += elements;
  }

  const Operation in_;
  const std::shared_ptr<SumMemory> memory_;
  const int64_t width_;
  const int64_t size_;
  const int64_t most_;         // Elements of one rank's part of a slice.
  int64_t next_ = 0;           // The slice's first element.
  int64_t part_ = 0;           // Elements of one rank's part of it.
  bool is_scattered_ = false;  // Whether its parts are summed, and are being gathered.
  std::byte* from_each_ = nullptr;
  std::byte* sum_ = nullptr;
  std::byte* gathered_ = nullptr;  // Where the sums of a slice come.
  std::unique_ptr<Transfer> transfer_;
};

CommunicatorHost::CommunicatorHost(int64_t rank, int64_t num_ranks)
    : Communicator(rank, num_ranks), sum_memory_(std::make_shared<SumMemory>()) {}

absl::StatusOr<std::unique_ptr<CommunicatorHost>> CommunicatorHost::Make(
    int64_t rank, int64_t num_ranks, MakeTransport make_transport) {
  std::unique_ptr<CommunicatorHost> made(new CommunicatorHost(rank, num_ranks));
  std::promise<absl::Status> began;
  std::future<absl::Status> status = began.get_future();
  made->thread_ = std::jthread([here = made.get(), began = std::move(began),
                                make_transport = std::move(make_transport)]() mutable {
    ::pthread_setname_np(::pthread_self(), "gemini-ranks");
    ::prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(kTimerSlack.count()), 0, 0, 0);
    absl::StatusOr<std::unique_ptr<RankTransport>> transport = make_transport();
    if (transport.ok()) {
      here->transport_ = *std::move(transport);
      here->bell_ = &here->transport_->bell();
    }
    began.set_value(transport.status());
    if (here->transport_ == nullptr) return;
    here->Run();
    if (here->failed_.ok()) {
      here->transport_ = nullptr;  // The thread that made it ends it.
    } else {
      KeepForEver(std::move(here->transport_));
    }
  });
  GEMINI_RETURN_IF_ERROR(status.get());
  return made;
}

CommunicatorHost::~CommunicatorHost() {
  MutexLock lock(mutex_);
  stopping_ = true;
  RingOwn();
}

Work CommunicatorHost::Issue(Operation operation) {
  const bool is_sum = operation.kind == CollectiveKind::kReduceScatter ||
                      operation.kind == CollectiveKind::kAllReduce;
  if (is_sum) return Enqueue(std::make_unique<SumExchange>(std::move(operation), sum_memory_));
  if (operation.kind == CollectiveKind::kShift) {
    return Enqueue(std::make_unique<ShiftExchange>(std::move(operation)));
  }
  return Enqueue(std::make_unique<ByteExchange>(std::move(operation)));
}

absl::Status CommunicatorHost::Prepare(const RankGroup& group) {
  return Enqueue(std::make_unique<GroupSetup>(group))->Wait();
}

Work CommunicatorHost::Enqueue(std::unique_ptr<Exchange> exchange) {
  auto work = std::make_shared<HostWork>();
  MutexLock lock(mutex_);
  queue_.push_back({std::move(exchange), work});
  RingOwn();
  return work;
}

void CommunicatorHost::RingOwn() {
  if (bell_ != nullptr) bell_->Ring();
}

void CommunicatorHost::Run() {
  auto moved_at = std::chrono::steady_clock::now();
  uint32_t last_rings = bell_->rings();
  for (;;) {
    const uint32_t rings = bell_->rings();  // Before it looks at what there is to do.
    bool moved = std::exchange(last_rings, rings) != rings;
    if (!Take()) return;
    BeginNext();
    while (Advance()) {
      moved = true;
      BeginNext();  // What waited for what has ended.
    }
    if (!failed_.ok() && !(begun_.empty() && waiting_.empty())) {
      EndAll();
      moved = true;
    }
    const auto now = std::chrono::steady_clock::now();
    if (moved) {
      moved_at = now;
      continue;  // It may be the end.
    }
    std::optional<std::chrono::steady_clock::duration> pause;
    if (!begun_.empty()) {
      pause = std::clamp<std::chrono::steady_clock::duration>(
          (now - moved_at) / kLooksInTheTimeWaited, kLeastPause, kMostPause);
    }
    bell_->Sleep(rings, pause);
  }
}

bool CommunicatorHost::Take() {
  MutexLock lock(mutex_);
  std::ranges::move(queue_, std::back_inserter(waiting_));
  queue_.clear();
  return !stopping_ || !waiting_.empty() || !begun_.empty();
}

void CommunicatorHost::BeginNext() {
  while (!waiting_.empty()) {
    const bool is_collective = waiting_.front().exchange->is_collective();
    if (is_collective && in_collective_) return;
    if (is_collective) {
      in_collective_ = true;
      SetUnderWay(waiting_.front().exchange->operation());
    }
    begun_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

bool CommunicatorHost::Advance() {
  bool moved = false;
  for (auto item = begun_.begin(); item != begun_.end() && failed_.ok();) {
    const int64_t moves_before = item->exchange->num_moves();
    const absl::StatusOr<bool> done = item->exchange->Advance(*transport_);
    if (!done.ok()) {
      failed_ = done.status();
      return false;
    }
    moved |= *done || item->exchange->num_moves() != moves_before;
    if (!*done) {
      // One that moves on, slice by slice, is not stuck.
      if (item->exchange->num_moves() != moves_before) SetUnderWay(item->exchange->operation());
      ++item;
      continue;
    }
    if (item->exchange->is_collective()) {
      in_collective_ = false;
      SetUnderWay(nullptr);
    }
    item->work->End(absl::OkStatus());
    item = begun_.erase(item);
  }
  return moved;
}

void CommunicatorHost::EndAll() {
  for (std::deque<Item>* items : {&begun_, &waiting_}) {
    for (Item& item : *items) {
      KeepForEver(std::move(item.exchange));
      item.work->End(failed_);
    }
    items->clear();
  }
  in_collective_ = false;
  SetUnderWay(nullptr);
}

}  // namespace gemini::trainer
