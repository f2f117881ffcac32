// SPDX-License-Identifier: Apache-2.0
#include "server/nvme_io_uring.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "gemini/check.h"
#include "gemini/errno_status.h"
#include "gemini/layout.h"
#include "gemini/status_macros.h"
#include "server/nvme_io_progress.h"
#include "server/sealed_memfd.h"
#include "server/server_log.h"
#include "server/slab_pins.h"
#include "server/slab_window.h"

namespace gemini::server {
namespace {

// Pieces in the kernel at a time, and their bytes. More would not speed a disk up, and may exhaust the
// requests that it has: the kernel then lets the thread that submits wait for one.
constexpr int kDepth = 256;
constexpr int64_t kMaxBytesInKernel = int64_t{64} << 20;
// The kernel itself cuts a piece into what the disk takes, all of it in flight at once: smaller pieces
// are more calls, and were not seen to be faster.
constexpr int64_t kPieceBytes = int64_t{4} << 20;
static_assert(SlabPins::kWindowBytes % kPieceBytes == 0);  // A piece lies in one window.
// Windows given back in a turn of the loop: 2 to 3 ms, as the one that it may register takes.
constexpr int kMaxReleases = 16;
// Long beside a turn, short beside a transfer: until the kernel takes again what it refused to queue.
constexpr absl::Duration kRetryPause = absl::Milliseconds(1);

// A transfer from Submit to its end.
struct Moving {
  NvmeTransfer transfer;
  NvmeIo::Done done;
  absl::Status status;      // The first failure; no piece begins after it.
  int64_t begun_bytes = 0;  // That pieces were made of.
  int pieces = 0;           // Not finished.
  bool direct = false;
  bool ended = false;
  std::optional<SlabWindow> window;  // Where the slab is not registered.
};

// A part of a transfer that one request asks for.
struct Piece {
  std::shared_ptr<Moving> of;
  int64_t begin_bytes = 0;  // In the transfer.
  int64_t size_bytes = 0;
};

class UringNvmeIo : public NvmeIo {
 public:
  explicit UringNvmeIo(EventLoop& loop) : loop_(loop) {}
  ~UringNvmeIo() override;

  // Once, before all else.
  absl::Status Open();
  absl::Status Probe();

  void Submit(const NvmeTransfer& transfer, Done done) override;
  void Forget(absl::Span<const int> host_fds, absl::AnyInvocable<void()> forgotten) override;

 private:
  void Wake();
  void HandleEvent();
  // Reaps, fills the queue and has the kernel take it.
  absl::Status Turn();
  absl::Status TurnUntil(absl::FunctionRef<bool()> ended);
  void Reap();
  void Fill();
  std::optional<Piece> NextPiece();
  void Begin(Piece piece);
  absl::Status Flush();
  void Finish(int slot, int result);
  void EndIfDone(Moving& moving);

  EventLoop& loop_;
  io_uring ring_ = {};
  bool ring_open_ = false;
  UniqueFd event_;
  EventLoop::WatchId watch_ = 0;
  std::optional<EventLoop::TimerId> retry_;
  bool refused_ = false;  // By the kernel, in the last turn.
  bool awake_ = false;    // A turn is to come, or under way and not yet at Fill.
  std::optional<SlabPins> pins_;
  std::deque<std::shared_ptr<Moving>> waiting_;  // The first may have begun.
  std::deque<Piece> again_;                      // Stopped short: they go before the others.
  std::array<Piece, kDepth> slots_;              // Of the requests, by their user data.
  std::vector<int> free_slots_;
  int64_t bytes_in_kernel_ = 0;
  std::deque<int> queued_;  // Slots that the kernel has not taken yet.
};

absl::Status UringNvmeIo::Open() {
  // Completions wait for the next system call of this thread instead of interrupting it; Linux 5.19. They end an
  // epoll_wait once for nothing, which DEFER_TASKRUN would not: but that binds a ring to one thread, and a server is
  // made, run and destroyed by different ones.
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
  // By edges, and never read: 2^64 completions do not come.
  GEMINI_ASSIGN_OR_RETURN(
      watch_, loop_.Watch(event_.get(), EPOLLIN | EPOLLET, [this](uint32_t) { HandleEvent(); }));
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
    while (std::optional<Piece> piece = NextPiece()) {
      piece->of->status.Update(absl::AbortedError("the server stops"));
      --piece->of->pieces;
      EndIfDone(*piece->of);
    }
    if (!ring_open_ || free_slots_.size() == kDepth) break;
    io_uring_cqe* cqe = nullptr;
    if (io_uring_wait_cqe(&ring_, &cqe) == 0) Reap();
  }
  pins_.reset();
  if (ring_open_) io_uring_queue_exit(&ring_);
}

void UringNvmeIo::Submit(const NvmeTransfer& transfer, Done done) {
  loop_.owner().AssertHere();
  auto moving = std::make_shared<Moving>();
  moving->transfer = transfer;
  moving->done = std::move(done);
  moving->direct = (::fcntl(transfer.nvme_fd, F_GETFL) & O_DIRECT) != 0;
  waiting_.push_back(std::move(moving));
  Wake();
}

void UringNvmeIo::Forget(absl::Span<const int> host_fds, absl::AnyInvocable<void()> forgotten) {
  loop_.owner().AssertHere();
  pins_->Forget(host_fds, std::move(forgotten));
  Wake();
}

void UringNvmeIo::Wake() {
  if (std::exchange(awake_, true)) return;
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
    io_uring_cqe* cqe = nullptr;
    const int error = io_uring_wait_cqe(&ring_, &cqe);
    if (error < 0 && error != -EINTR) return ErrnoStatus(-error, "io_uring_enter");
  }
}

void UringNvmeIo::Reap() {
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
  while (!free_slots_.empty() && bytes_in_kernel_ < kMaxBytesInKernel) {
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
  if (!again_.empty()) {
    Piece piece = std::move(again_.front());
    again_.pop_front();
    return piece;
  }
  while (!waiting_.empty()) {
    const std::shared_ptr<Moving> moving = waiting_.front();
    const NvmeTransfer& transfer = moving->transfer;
    const int64_t left_bytes = transfer.size_bytes - moving->begun_bytes;
    if (left_bytes == 0 || !moving->status.ok()) {
      waiting_.pop_front();
      EndIfDone(*moving);
      continue;
    }
    // Pieces end at multiples of their size in the slab, and with that inside a window of it.
    const int64_t begin_bytes = moving->begun_bytes;
    const int64_t host_offset = transfer.host_offset_bytes + begin_bytes;
    const int64_t size_bytes = std::min(left_bytes, kPieceBytes - host_offset % kPieceBytes);
    moving->begun_bytes += size_bytes;
    ++moving->pieces;
    return Piece{moving, begin_bytes, size_bytes};
  }
  return std::nullopt;
}

void UringNvmeIo::Begin(Piece piece) {
  Moving& moving = *piece.of;
  const NvmeTransfer& transfer = moving.transfer;
  const int64_t host_offset = transfer.host_offset_bytes + piece.begin_bytes;
  const int64_t nvme_offset = transfer.nvme_offset_bytes + piece.begin_bytes;
  const std::optional<SlabPins::Place> place = pins_->Find(transfer.host_fd, host_offset);
  if (!place.has_value() && !moving.window.has_value() && moving.status.ok()) {
    absl::StatusOr<SlabWindow> mapped =
        SlabWindow::Map(transfer.host_fd, transfer.host_offset_bytes, transfer.size_bytes);
    if (mapped.ok()) {
      moving.window.emplace(*std::move(mapped));
    } else {
      moving.status = mapped.status();
    }
  }
  if (!moving.status.ok()) {
    --moving.pieces;
    EndIfDone(moving);
    return;
  }
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
  GEMINI_CHECK(sqe != nullptr);  // It has an entry for each slot.
  const bool reads = transfer.operation == IoOperation::kRead;
  const auto size = static_cast<unsigned>(piece.size_bytes);
  if (place.has_value()) {
    if (reads) {
      io_uring_prep_read_fixed(sqe, transfer.nvme_fd, place->address, size, nvme_offset,
                               place->buffer);
    } else {
      io_uring_prep_write_fixed(sqe, transfer.nvme_fd, place->address, size, nvme_offset,
                                place->buffer);
    }
  } else {
    std::byte* const address = moving.window->data() + piece.begin_bytes;
    if (reads) {
      io_uring_prep_read(sqe, transfer.nvme_fd, address, size, nvme_offset);
    } else {
      io_uring_prep_write(sqe, transfer.nvme_fd, address, size, nvme_offset);
    }
  }
  // Through the page cache the bytes would be copied here, by the thread that owns the metadata.
  if (!moving.direct) io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  io_uring_sqe_set_data64(sqe, slot);
  bytes_in_kernel_ += piece.size_bytes;
  slots_[slot] = std::move(piece);
  queued_.push_back(slot);
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
  bytes_in_kernel_ -= piece.size_bytes;
  const std::shared_ptr<Moving> moving = piece.of;
  const absl::StatusOr<int64_t> moved =
      MovedBytes(moving->transfer, piece.begin_bytes, piece.size_bytes, result);
  if (moved.ok() && *moved < piece.size_bytes) {
    piece.begin_bytes += *moved;
    piece.size_bytes -= *moved;
    again_.push_back(std::move(piece));
    return;
  }
  if (!moved.ok()) moving->status.Update(moved.status());
  --moving->pieces;
  EndIfDone(*moving);
}

void UringNvmeIo::EndIfDone(Moving& moving) {
  const bool begun = moving.begun_bytes == moving.transfer.size_bytes;
  if (moving.ended || moving.pieces > 0 || (moving.status.ok() && !begun)) return;
  moving.ended = true;
  moving.window.reset();
  moving.done(moving.status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NvmeIo>> MakeUringNvmeIo(EventLoop& loop) {
  auto engine = std::make_unique<UringNvmeIo>(loop);
  GEMINI_RETURN_IF_ERROR(engine->Open());
  GEMINI_RETURN_IF_ERROR(engine->Probe());
  return std::unique_ptr<NvmeIo>(std::move(engine));
}

}  // namespace gemini::server
