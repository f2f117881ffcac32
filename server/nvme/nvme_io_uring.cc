// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/nvme_io_uring.h"

#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "gemini/layout.h"
#include "gemini/system/check.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/mutex.h"
#include "gemini/system/status_macros.h"
#include "server/loop/server_log.h"
#include "server/loop/worker_thread.h"
#include "server/nvme/nvme_io_progress.h"
#include "server/nvme/nvme_queue.h"
#include "server/nvme/piece_move.h"
#include "server/nvme/slab_pins.h"
#include "server/tiers/sealed_memfd.h"

namespace gemini::server {
namespace {

// Requests in the kernel at a time, and bytes under way: pieces are begun while there are fewer.
// What a tenant begins waits for no more than that of the others. More bytes were not seen to speed
// a disk up, and may exhaust the requests that it has: the kernel then lets the thread that submits
// wait for one.
constexpr int kDepth = 256;
constexpr int64_t kMaxBytesUnderWay = int64_t{32} << 20;
// For pieces of slabs that are not registered; as many as keep a disk busy (nvme_io_choice.cc).
constexpr int kThreads = 4;
static_assert(SlabPins::kWindowBytes % kNvmePieceBytes == 0);  // A piece lies in one window.
// Windows given back in a turn of the loop: 2 to 3 ms, as the one that it may register takes.
constexpr int kMaxReleases = 16;
// Long beside a turn, short beside a transfer: until the kernel takes again what it refused to
// queue.
constexpr absl::Duration kRetryPause = absl::Milliseconds(1);

using Piece = NvmeQueue::Piece;

class UringNvmeIo : public NvmeIo {
 public:
  explicit UringNvmeIo(EventLoop& loop) : loop_(loop) {}
  ~UringNvmeIo() override;

  // Once, before all else.
  absl::Status Open();
  absl::Status Probe();

  void Submit(const NvmeTransfer& transfer, Done done) override;
  void Cancel(uint64_t tenant, uint64_t space) override;
  void Forget(absl::Span<const int> host_fds, absl::AnyInvocable<void()> forgotten) override;

 private:
  void Wake();
  void Signal();
  void HandleEvent();
  // Reaps, fills the queue and has the kernel take it.
  absl::Status Turn();
  absl::Status TurnUntil(absl::FunctionRef<bool()> ended);
  void Reap();
  void Fill();
  std::optional<Piece> NextPiece();
  void Begin(Piece piece);
  // Moves the pieces of unregistered_ until the end.
  void ServeUnregistered();
  // Ends the pieces that threads have moved. Where one failed, its transfer's others that no thread
  // has begun end with its error.
  void ReapUnregistered();
  // Ends the pieces that no thread has begun and whose transfer `ends` accepts.
  void DropUnregistered(absl::FunctionRef<bool(const NvmeQueue::Moving&)> ends,
                        const absl::Status& why);
  absl::Status Flush();
  void Finish(int slot, int result);
  void End(const Piece& piece, const absl::Status& status);

  EventLoop& loop_;
  io_uring ring_ = {};
  bool ring_open_ = false;
  UniqueFd event_;
  EventLoop::WatchId watch_ = 0;
  std::optional<EventLoop::TimerId> retry_;
  bool refused_ = false;  // By the kernel, in the last turn.
  bool awake_ = false;    // A turn is to come, or under way and not yet at Fill.
  std::optional<SlabPins> pins_;
  NvmeQueue queue_;
  std::deque<Piece> again_;          // Stopped short: they are begun before the others.
  std::array<Piece, kDepth> slots_;  // By their user data.
  std::vector<int> free_slots_;
  int64_t bytes_under_way_ = 0;
  std::deque<int> queued_;  // Slots that the kernel has not taken yet.

  struct Moved {
    Piece piece;
    absl::Status status;
  };
  // Where a slab is not registered, its bytes are copied, and its missing pages made, by whoever
  // moves them. The loop's thread has no time for that: threads move such pieces.
  int num_unregistered_ = 0;  // Pieces of which End is to come.
  Mutex mutex_;               // Never held over I/O.
  std::condition_variable changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Piece> unregistered_ ABSL_GUARDED_BY(mutex_);
  std::vector<Moved> moved_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<WorkerThread>> threads_;  // Last: they use what is above.
};

absl::Status UringNvmeIo::Open() {
  // Completions wait for the next system call of this thread instead of interrupting it; Linux
  // 5.19. They end an epoll_wait once for nothing, which DEFER_TASKRUN would not: but that binds a
  // ring to one thread, and a server is made, run and destroyed by different ones.
  io_uring_params params = {};
  params.flags = IORING_SETUP_COOP_TASKRUN;
  int error = io_uring_queue_init_params(kDepth, &ring_, &params);
  if (error == -EINVAL) error = io_uring_queue_init(kDepth, &ring_, 0);
  if (error < 0) return ErrnoStatus(-error, "io_uring_setup");
  ring_open_ = true;
  pins_.emplace(ring_);
  for (int slot = kDepth; slot-- > 0;) free_slots_.push_back(slot);
  // A program that embeds the server may fork: the child has no use for the rings' memory.
  io_uring_ring_dontfork(&ring_);
  event_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_) return ErrnoStatus(errno, "eventfd");
  error = io_uring_register_eventfd(&ring_, event_.get());
  if (error < 0) return ErrnoStatus(-error, "register an eventfd with io_uring");
  // By edges, and read by the probe alone: 2^64 completions do not come.
  GEMINI_ASSIGN_OR_RETURN(
      watch_, loop_.Watch(event_.get(), EPOLLIN | EPOLLET, [this](uint32_t) { HandleEvent(); }));
  for (int i = 0; i < kThreads; ++i) {
    threads_.push_back(std::make_unique<WorkerThread>(absl::StrCat("nvme-io-", i)));
    threads_.back()->Run([this] { ServeUnregistered(); });
  }
  return absl::OkStatus();
}

// Two memfds stand in for a slab and an extent: what is tried is the kernel's io_uring, and that a
// registered page is reached after its mapping is gone.
absl::Status UringNvmeIo::Probe() {
  GEMINI_ASSIGN_OR_RETURN(const UniqueFd slab,
                          MakeSealedMemfd("gemini-probe", 2 * kPageBytes, MemfdPages::kAllocated));
  GEMINI_ASSIGN_OR_RETURN(const UniqueFd extent,
                          MakeSealedMemfd("gemini-probe", kPageBytes, MemfdPages::kAllocated));
  const std::string sent(kPageBytes, 'p');
  if (::pwrite(slab.get(), sent.data(), sent.size(), 0) != kPageBytes) {
    return ErrnoStatus(errno, "write a probe");
  }
  for (const IoOperation operation : {IoOperation::kWrite, IoOperation::kRead}) {
    // Shared: when the ring fails, it is called by the destructor.
    const auto result = std::make_shared<std::optional<absl::Status>>();
    Submit({.operation = operation,
            .host_fd = slab.get(),
            .host_offset_bytes = operation == IoOperation::kWrite ? 0 : kPageBytes,
            .nvme_fd = extent.get(),
            .size_bytes = kPageBytes},
           [result](const absl::Status& status) { *result = status; });
    GEMINI_RETURN_IF_ERROR(TurnUntil([&] { return result->has_value(); }));
    GEMINI_RETURN_IF_ERROR(**result);
  }
  // If the page was registered, it went through the ring. Where not even a page may be registered,
  // as before Linux 5.19, threads move everything.
  std::string received(kPageBytes, '\0');
  if (::pread(slab.get(), received.data(), received.size(), kPageBytes) != kPageBytes ||
      received != sent) {
    return absl::DataLossError("io_uring moved other bytes than it was told to");
  }
  const auto forgotten = std::make_shared<bool>(false);
  Forget({slab.get()}, [forgotten] { *forgotten = true; });
  return TurnUntil([&] { return *forgotten; });
}

UringNvmeIo::~UringNvmeIo() {
  loop_.owner().AssertHere();
  if (watch_ != 0) loop_.Unwatch(watch_);
  if (retry_.has_value()) loop_.Cancel(*retry_);
  for (const int slot : std::exchange(queued_, {})) Finish(slot, -ECANCELED);
  while (true) {
    // What has not begun, and what `done` submits now.
    const absl::Status stops = absl::AbortedError("the server stops");
    for (const Piece& piece : std::exchange(again_, {})) End(piece, stops);
    for (NvmeQueue::Ended& ended : queue_.CancelAll(stops)) ended.done(ended.status);
    DropUnregistered([](const NvmeQueue::Moving&) { return true; }, stops);
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    threads_.clear();  // Joined: what they had begun is moved.
    ReapUnregistered();
    if (!again_.empty() || !queue_.empty()) continue;
    if (!ring_open_ || free_slots_.size() == kDepth) break;
    io_uring_cqe* cqe = nullptr;
    if (io_uring_wait_cqe(&ring_, &cqe) == 0) Reap();
  }
  pins_.reset();
  if (ring_open_) io_uring_queue_exit(&ring_);
}

void UringNvmeIo::Submit(const NvmeTransfer& transfer, Done done) {
  loop_.owner().AssertHere();
  queue_.Push(transfer, std::move(done));
  Wake();
}

void UringNvmeIo::Cancel(uint64_t tenant, uint64_t space) {
  loop_.owner().AssertHere();
  for (NvmeQueue::Ended& ended : queue_.Cancel(tenant, space)) ended.done(ended.status);
  DropUnregistered(
      [&](const NvmeQueue::Moving& moving) {
        return moving.transfer.tenant == tenant && moving.transfer.space == space;
      },
      absl::AbortedError("the space is closed"));
  Wake();  // Other tenants' pieces may begin in the place of those.
}

void UringNvmeIo::Forget(absl::Span<const int> host_fds, absl::AnyInvocable<void()> forgotten) {
  loop_.owner().AssertHere();
  pins_->Forget(host_fds, std::move(forgotten));
  Wake();
}

void UringNvmeIo::Wake() {
  if (!std::exchange(awake_, true)) Signal();
}

void UringNvmeIo::Signal() {
  const uint64_t one = 1;
  GEMINI_CHECK(::write(event_.get(), &one, sizeof(one)) == sizeof(one));
}

void UringNvmeIo::HandleEvent() {
  const absl::Status turned = Turn();
  const bool was_refused = std::exchange(refused_, !turned.ok());
  if (turned.ok() || retry_.has_value()) return;
  if (!was_refused) ServerLog().warn("NVMe I/O waits: {}; it is tried again", turned.ToString());
  retry_ = loop_.After(kRetryPause, [this] {
    retry_.reset();
    HandleEvent();
  });
}

absl::Status UringNvmeIo::Turn() {
  awake_ = true;  // What `done` submits is taken below.
  Reap();
  awake_ = false;
  Fill();
  GEMINI_RETURN_IF_ERROR(Flush());
  GEMINI_ASSIGN_OR_RETURN(const bool more, pins_->Release(kMaxReleases));
  if (more) Wake();
  return absl::OkStatus();
}

absl::Status UringNvmeIo::TurnUntil(absl::FunctionRef<bool()> ended) {
  while (true) {
    GEMINI_RETURN_IF_ERROR(Turn());
    if (ended()) return absl::OkStatus();
    pollfd event = {.fd = event_.get(), .events = POLLIN, .revents = 0};
    // Completions that wait for a system call of this thread interrupt it.
    if (::poll(&event, 1, -1) < 0 && errno != EINTR) return ErrnoStatus(errno, "poll an eventfd");
    // The next turn sees what it counted.
    uint64_t count = 0;
    (void)!::read(event_.get(), &count, sizeof(count));
  }
}

void UringNvmeIo::Reap() {
  ReapUnregistered();
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
    const uint64_t user_data = io_uring_cqe_get_data64(cqe);
    const int result = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    if (SlabPins::IsRelease(user_data)) {
      pins_->HandleRelease(user_data);
    } else {
      Finish(static_cast<int>(user_data), result);
    }
  }
}

void UringNvmeIo::Fill() {
  const int64_t windows_before = pins_->windows_made();
  while (static_cast<int>(free_slots_.size()) > num_unregistered_ &&
         bytes_under_way_ < kMaxBytesUnderWay) {
    // To register a window takes some milliseconds, more where the client has no pages there.
    if (pins_->windows_made() > windows_before) {
      Wake();  // The loop's other work has its turn first.
      return;
    }
    std::optional<Piece> piece = NextPiece();
    if (!piece.has_value()) return;
    Begin(*std::move(piece));
  }
}

std::optional<Piece> UringNvmeIo::NextPiece() {
  if (again_.empty()) return queue_.Next();
  Piece piece = std::move(again_.front());
  again_.pop_front();
  return piece;
}

void UringNvmeIo::Begin(Piece piece) {
  if (!piece.of->status.ok()) {
    End(piece, piece.of->status);
    return;
  }
  const NvmeTransfer& transfer = piece.of->transfer;
  const int64_t nvme_offset = transfer.nvme_offset_bytes + piece.begin_bytes;
  const std::optional<SlabPins::Place> place =
      pins_->Find(transfer.host_fd, transfer.host_offset_bytes + piece.begin_bytes);
  bytes_under_way_ += piece.size_bytes;
  if (!place.has_value()) {
    ++num_unregistered_;
    MutexLock lock(mutex_);
    unregistered_.push_back(std::move(piece));
    changed_.notify_one();
    return;
  }
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
  GEMINI_CHECK(sqe != nullptr);  // It has an entry for each slot.
  const auto size = static_cast<unsigned>(piece.size_bytes);
  if (transfer.operation == IoOperation::kRead) {
    io_uring_prep_read_fixed(sqe, transfer.nvme_fd, place->address, size, nvme_offset,
                             place->buffer);
  } else {
    io_uring_prep_write_fixed(sqe, transfer.nvme_fd, place->address, size, nvme_offset,
                              place->buffer);
  }
  // Through the page cache the bytes would be copied here, by the thread that owns the metadata.
  const bool direct = (::fcntl(transfer.nvme_fd, F_GETFL) & O_DIRECT) != 0;
  if (!direct) io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  io_uring_sqe_set_data64(sqe, slot);
  slots_[slot] = std::move(piece);
  queued_.push_back(slot);
}

void UringNvmeIo::ServeUnregistered() {
  while (true) {
    Piece piece;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && unregistered_.empty()) mutex_.WaitFor(changed_);
      if (unregistered_.empty()) return;
      piece = std::move(unregistered_.front());
      unregistered_.pop_front();
    }
    absl::Status status = MovePiece(piece);
    {
      MutexLock lock(mutex_);
      moved_.push_back({std::move(piece), std::move(status)});
    }
    Signal();
  }
}

void UringNvmeIo::ReapUnregistered() {
  std::vector<Moved> moved;
  {
    MutexLock lock(mutex_);
    moved.swap(moved_);
  }
  for (const Moved& one : moved) {
    if (!one.status.ok()) {
      DropUnregistered(
          [&](const NvmeQueue::Moving& moving) { return &moving == one.piece.of.get(); },
          one.status);
    }
    --num_unregistered_;
    bytes_under_way_ -= one.piece.size_bytes;
    End(one.piece, one.status);
  }
}

void UringNvmeIo::DropUnregistered(absl::FunctionRef<bool(const NvmeQueue::Moving&)> ends,
                                   const absl::Status& why) {
  std::vector<Piece> dropped;
  {
    MutexLock lock(mutex_);
    std::erase_if(unregistered_, [&](Piece& piece) {
      if (!ends(*piece.of)) return false;
      dropped.push_back(piece);
      return true;
    });
  }
  for (const Piece& piece : dropped) {
    --num_unregistered_;
    bytes_under_way_ -= piece.size_bytes;
    End(piece, why);
  }
}

absl::Status UringNvmeIo::Flush() {
  while (!queued_.empty()) {
    const int taken = io_uring_submit(&ring_);
    if (taken == -EINTR) continue;
    if (taken <= 0) return ErrnoStatus(taken < 0 ? -taken : EAGAIN, "io_uring_enter");
    queued_.erase(queued_.begin(), queued_.begin() + taken);
  }
  return absl::OkStatus();
}

void UringNvmeIo::Finish(int slot, int result) {
  Piece piece = std::exchange(slots_[slot], {});
  free_slots_.push_back(slot);
  bytes_under_way_ -= piece.size_bytes;
  const absl::StatusOr<int64_t> moved =
      MovedBytes(piece.of->transfer, piece.begin_bytes, piece.size_bytes, result, piece.refusals);
  if (moved.ok() && *moved < piece.size_bytes) {
    piece.begin_bytes += *moved;
    piece.size_bytes -= *moved;
    again_.push_back(std::move(piece));
    return;
  }
  End(piece, moved.status());
}

void UringNvmeIo::End(const Piece& piece, const absl::Status& status) {
  if (std::optional<NvmeQueue::Ended> ended = queue_.Finish(piece, status)) {
    ended->done(ended->status);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<NvmeIo>> MakeUringNvmeIo(EventLoop& loop) {
  auto engine = std::make_unique<UringNvmeIo>(loop);
  GEMINI_RETURN_IF_ERROR(engine->Open());
  GEMINI_RETURN_IF_ERROR(engine->Probe());
  return std::unique_ptr<NvmeIo>(std::move(engine));
}

}  // namespace gemini::server
