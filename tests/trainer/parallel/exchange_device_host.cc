// SPDX-License-Identifier: Apache-2.0
#include "tests/trainer/parallel/exchange_device_host.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "gemini/system/mutex.h"
#include "trainer/parallel/exact_sum.h"

namespace gemini::trainer {
namespace {

// What was made and is there: its end by its beginning, and whether it is of the device.
class MadeMemory {
 public:
  struct Range {
    const std::byte* end = nullptr;
    bool is_device = false;
  };
  void Add(const std::byte* begin, int64_t size_bytes, bool is_device) {
    MutexLock lock(mutex_);
    ranges_[begin] = {begin + size_bytes, is_device};
  }
  void Remove(const std::byte* begin) {
    MutexLock lock(mutex_);
    ranges_.erase(begin);
  }
  // Returns null where it is nothing of this.
  std::unique_ptr<Range> Find(const void* bytes) {
    MutexLock lock(mutex_);
    const auto* const place = static_cast<const std::byte*>(bytes);
    auto found = ranges_.upper_bound(place);
    if (found == ranges_.begin() || place >= (--found)->second.end) return nullptr;
    return std::make_unique<Range>(found->second);
  }
  static MadeMemory& All() {
    static auto& all = *new MadeMemory;
    return all;
  }

 private:
  Mutex mutex_;
  std::map<const std::byte*, Range> ranges_ ABSL_GUARDED_BY(mutex_);
};

// The handles of the streams that are there.
class MadeStreams {
 public:
  void Add(const void* handle) {
    MutexLock lock(mutex_);
    handles_.insert(handle);
  }
  void Remove(const void* handle) {
    MutexLock lock(mutex_);
    handles_.erase(handle);
  }
  bool Has(const void* handle) {
    MutexLock lock(mutex_);
    return handles_.contains(handle);
  }
  static MadeStreams& All() {
    static auto& all = *new MadeStreams;
    return all;
  }

 private:
  Mutex mutex_;
  std::set<const void*> handles_ ABSL_GUARDED_BY(mutex_);
};

class HostMemory final : public ExchangeMemory {
 public:
  HostMemory(int64_t size_bytes, bool is_device)
      : bytes_(std::make_unique<std::byte[]>(static_cast<size_t>(size_bytes))) {
    MadeMemory::All().Add(bytes_.get(), size_bytes, is_device);
  }
  ~HostMemory() override { MadeMemory::All().Remove(bytes_.get()); }
  std::byte* bytes() const override { return bytes_.get(); }

 private:
  const std::unique_ptr<std::byte[]> bytes_;
};

class HostPoint final : public StreamPoint {
 public:
  absl::Status MakeOperatorsWait() override {
    MutexLock lock(mutex_);
    while (!is_reached_) mutex_.WaitFor(reached_);
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Reached() override {
    MutexLock lock(mutex_);
    return is_reached_;
  }
  void Reach() {
    MutexLock lock(mutex_);
    is_reached_ = true;
    reached_.notify_all();
  }

 private:
  Mutex mutex_;
  std::condition_variable reached_;
  bool is_reached_ ABSL_GUARDED_BY(mutex_) = false;
};

class HostStream final : public ExchangeStream, public HostStreamQueue {
 public:
  HostStream() : thread_([this] { Run(); }) { MadeStreams::All().Add(HostStream::handle()); }
  // Waits for what was enqueued.
  ~HostStream() override {
    MadeStreams::All().Remove(HostStream::handle());
    Enqueue(nullptr);
  }

  void Enqueue(std::function<void()> work) override {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(work));
    enqueued_.notify_one();
  }
  void* handle() const override {
    return const_cast<HostStreamQueue*>(static_cast<const HostStreamQueue*>(this));
  }
  absl::Status AwaitOperators() override { return absl::OkStatus(); }
  absl::StatusOr<std::shared_ptr<StreamPoint>> Mark() override {
    auto point = std::make_shared<HostPoint>();
    Enqueue([point] { point->Reach(); });
    return point;
  }
  absl::Status Copy(std::byte* to, const std::byte* from, int64_t size_bytes) override {
    Enqueue([=] { std::memmove(to, from, static_cast<size_t>(size_bytes)); });
    return absl::OkStatus();
  }
  absl::Status Fold(SumType type, const std::byte* parts, int64_t num_parts, int64_t elements,
                    std::byte* sum) override {
    Enqueue([=] { FoldSum(type, parts, num_parts, elements, sum); });
    return absl::OkStatus();
  }

 private:
  void Run() {
    for (;;) {
      std::function<void()> work;
      {
        MutexLock lock(mutex_);
        while (queue_.empty()) mutex_.WaitFor(enqueued_);
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      if (work == nullptr) return;
      work();
    }
  }

  Mutex mutex_;
  std::condition_variable enqueued_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  std::jthread thread_;
};

class HostExchange final : public ExchangeDevice {
 public:
  explicit HostExchange(CallersMemory callers) : callers_(callers) {}
  absl::Status Use() override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<ExchangeStream>> MakeStream() override {
    return std::make_unique<HostStream>();
  }
  absl::StatusOr<std::shared_ptr<ExchangeMemory>> MakeDeviceMemory(int64_t size_bytes) override {
    return std::make_shared<HostMemory>(size_bytes, /*is_device=*/true);
  }
  absl::StatusOr<std::shared_ptr<ExchangeMemory>> MakeHostMemory(int64_t size_bytes) override {
    return std::make_shared<HostMemory>(size_bytes, /*is_device=*/false);
  }
  bool IsDeviceMemory(const void* bytes) override {
    if (callers_ != CallersMemory::kMixed) return MayExchange(callers_, bytes);
    return reinterpret_cast<uintptr_t>(bytes) / 16 % 2 == 0;
  }

 private:
  const CallersMemory callers_;
};

}  // namespace

std::shared_ptr<ExchangeDevice> MakeHostExchange(CallersMemory callers) {
  return std::make_shared<HostExchange>(callers);
}

bool MayExchange(CallersMemory callers, const void* bytes) {
  if (const auto made = MadeMemory::All().Find(bytes); made != nullptr) return made->is_device;
  return callers != CallersMemory::kOnHost;
}

bool IsStream(const void* handle) { return MadeStreams::All().Has(handle); }

}  // namespace gemini::trainer
