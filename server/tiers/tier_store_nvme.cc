// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/tier_store_nvme.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <limits>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/numeric/int128.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/system/check.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/mutex.h"
#include "gemini/system/status_macros.h"
#include "server/loop/server_log.h"

namespace gemini::server {
namespace {

// Some tenths of a second on a slow file system.
constexpr int64_t kAllocatedAtOnce = kGiB;

struct OpenDirectory {
  std::string path;
  UniqueFd fd;          // Held open: a path that is replaced later changes nothing.
  int direct_flag = 0;  // O_DIRECT where its files take it.
  int64_t capacity_bytes = 0;
  int64_t taken_bytes = 0;
};

// Makes a file that nobody else can name: a fresh name, then no name.
absl::StatusOr<UniqueFd> MakeUnlinkedFile(const OpenDirectory& directory) {
  static std::atomic<uint64_t> next_name = 0;
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::string name = absl::StrCat(".gemini-", ::getpid(), "-", next_name++);
    UniqueFd fd(::openat(directory.fd.get(), name.c_str(),
                         O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | directory.direct_flag,
                         0600));
    if (!fd && errno == EEXIST) continue;  // Left by a server that died between the two calls.
    if (!fd) return ErrnoStatus(errno, absl::StrCat("make a file in ", directory.path));
    if (::unlinkat(directory.fd.get(), name.c_str(), 0) != 0) {
      return ErrnoStatus(errno, absl::StrCat("unlink ", name, " in ", directory.path));
    }
    return fd;
  }
  return absl::AlreadyExistsError(absl::StrCat("no free file name in ", directory.path));
}

// Files of a directory that has the flag are to take a page from an aligned place, and give it
// back.
absl::Status TryDirect(const OpenDirectory& directory) {
  GEMINI_ASSIGN_OR_RETURN(const UniqueFd fd, MakeUnlinkedFile(directory));
  alignas(kPageBytes) std::array<char, kPageBytes> sent;
  alignas(kPageBytes) std::array<char, kPageBytes> received = {};
  sent.fill('p');
  const ssize_t written = ::pwrite(fd.get(), sent.data(), sent.size(), kPageBytes);
  if (written != kPageBytes) return ErrnoStatus(written < 0 ? errno : ENOSPC, "write a page");
  const ssize_t read = ::pread(fd.get(), received.data(), received.size(), kPageBytes);
  if (read != kPageBytes) return ErrnoStatus(read < 0 ? errno : EIO, "read a page");
  if (received != sent) return absl::DataLossError("another page came back");
  return absl::OkStatus();
}

class NvmeTierStore : public TierStore {
 public:
  explicit NvmeTierStore(std::vector<OpenDirectory> directories)
      : capacity_bytes_(Sum(directories)),
        num_directories_(static_cast<int64_t>(directories.size())),
        directories_(std::move(directories)) {}

  Tier tier() const override { return Tier::kNvme; }
  int64_t capacity_bytes() const override { return capacity_bytes_; }
  int64_t granted_bytes() const override {
    MutexLock lock(mutex_);
    int64_t taken_bytes = 0;
    for (const OpenDirectory& directory : directories_) taken_bytes += directory.taken_bytes;
    return taken_bytes;
  }

  absl::StatusOr<TierGrant> Make(int64_t slot_bytes, int64_t num_slots) override {
    TierGrant grant;
    grant.slot_bytes = slot_bytes;
    std::vector<bool> refused(num_directories_, false);
    absl::Status refusal;  // The first.
    while (grant.size_bytes() < num_slots * slot_bytes) {
      const int64_t left_slots = num_slots - grant.size_bytes() / slot_bytes;
      absl::StatusOr<std::vector<TierExtent>> extents = TakeRoom(slot_bytes, left_slots, refused);
      if (!extents.ok()) {
        Destroy(std::move(grant));
        return refusal.ok() ? extents.status() : refusal;
      }
      for (TierExtent& extent : *extents) {
        const absl::Status made = Allocate(extent, slot_bytes);
        if (made.ok()) {
          grant.extents.push_back(std::move(extent));
          continue;
        }
        GiveRoomBack(extent, slot_bytes);
        refused[extent.place] = true;
        refusal.Update(made);
        ServerLog().warn("an NVMe directory refuses room, others are asked: {}", made.ToString());
      }
    }
    return grant;
  }

  void Stop() override { stopping_ = true; }

  void Destroy(TierGrant grant) override {
    // The files have no name: closing frees their blocks, so it comes before the room is given
    // back.
    for (TierExtent& extent : grant.extents) extent.fd.Reset();
    for (const TierExtent& extent : grant.extents) GiveRoomBack(extent, grant.slot_bytes);
  }

 private:
  static int64_t Sum(const std::vector<OpenDirectory>& directories) {
    int64_t sum = 0;
    for (const OpenDirectory& directory : directories) sum += directory.capacity_bytes;
    return sum;
  }

  // Splits `num_slots` over the directories that have not refused, in proportion to their room; no
  // file yet.
  absl::StatusOr<std::vector<TierExtent>> TakeRoom(int64_t slot_bytes, int64_t num_slots,
                                                   const std::vector<bool>& refused) {
    MutexLock lock(mutex_);
    std::vector<int64_t> room_slots(num_directories_);
    int64_t free_bytes = 0;
    int64_t free_slots = 0;
    for (int64_t i = 0; i < num_directories_; ++i) {
      if (refused[i]) continue;
      const int64_t room_bytes = directories_[i].capacity_bytes - directories_[i].taken_bytes;
      free_bytes += room_bytes;
      room_slots[i] = room_bytes / slot_bytes;
      free_slots += room_slots[i];
    }
    if (num_slots > free_slots) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "needs ", FormatByteSize(num_slots * slot_bytes), " of NVME, ",
          FormatByteSize(free_bytes), " of ", FormatByteSize(capacity_bytes_), " left in ",
          num_directories_, " directories, in whole chunks of ", FormatByteSize(slot_bytes)));
    }
    std::vector<TierExtent> extents;
    for (int64_t i = 0; i < num_directories_; ++i) {
      // Of what is left for this and later directories, so that roundings do not add up.
      const int64_t slots = ShareOf(num_slots, room_slots[i], free_slots);
      free_slots -= room_slots[i];
      num_slots -= slots;
      if (slots == 0) continue;
      directories_[i].taken_bytes += slots * slot_bytes;
      extents.push_back({UniqueFd(), slots, i});
    }
    return extents;
  }

  // The part of `slots` that a directory with `room` of `all` gets; rounded up, for the last gets
  // what is left.
  static int64_t ShareOf(int64_t slots, int64_t room, int64_t all) {
    if (room == 0) return 0;
    const auto product = static_cast<absl::uint128>(slots) * static_cast<absl::uint128>(room);
    return static_cast<int64_t>((product + all - 1) / all);
  }

  void GiveRoomBack(const TierExtent& extent, int64_t slot_bytes) {
    MutexLock lock(mutex_);
    OpenDirectory& directory = directories_[extent.place];
    directory.taken_bytes -= extent.num_slots * slot_bytes;
    GEMINI_CHECK(directory.taken_bytes >= 0);
  }

  absl::Status Allocate(TierExtent& extent, int64_t slot_bytes) {
    const OpenDirectory* directory;
    {
      MutexLock lock(mutex_);
      directory = &directories_[extent.place];  // Path and descriptor never change.
    }
    GEMINI_ASSIGN_OR_RETURN(extent.fd, MakeUnlinkedFile(*directory));
    const int64_t size_bytes = extent.num_slots * slot_bytes;
    GEMINI_RETURN_IF_ERROR(CheckFree(extent.fd.get(), size_bytes, directory->path));
    // By the kernel's call: where the file system cannot allocate, the C library would write each
    // block, for hours, or fail by EINVAL below O_DIRECT. In parts, so that the server's end does
    // not wait for a large one.
    for (int64_t done = 0; done < size_bytes;) {
      if (stopping_.load(std::memory_order_relaxed)) return absl::CancelledError("the server ends");
      const int64_t part_bytes = std::min(size_bytes - done, kAllocatedAtOnce);
      if (::fallocate(extent.fd.get(), 0, done, part_bytes) == 0) {
        done += part_bytes;
      } else if (errno != EINTR) {
        return RefusalOf(errno, size_bytes, directory->path);
      }
    }
    return absl::OkStatus();
  }

  // Before others on that disk are brought to its last byte for what is refused in the end.
  static absl::Status CheckFree(int fd, int64_t size_bytes, const std::string& path) {
    struct statvfs disk;
    if (::fstatvfs(fd, &disk) != 0) return absl::OkStatus();  // The allocation itself will tell.
    const auto free_bytes = absl::uint128(disk.f_bavail) * disk.f_frsize;
    if (free_bytes >= static_cast<absl::uint128>(size_bytes)) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " was to give ", FormatByteSize(size_bytes), ", its disk has free ",
                     FormatByteSize(static_cast<int64_t>(free_bytes)),
                     ": remove files there, or give --nvme less of it"));
  }

  static absl::Status RefusalOf(int error, int64_t size_bytes, const std::string& path) {
    const absl::Status status =
        ErrnoStatus(error, absl::StrCat("allocate ", FormatByteSize(size_bytes), " in ", path));
    if (error != EOPNOTSUPP) return status;
    return absl::UnimplementedError(
        absl::StrCat(status.message(),
                     ": its file system reserves no room (fallocate). Use a "
                     "directory on a local ext4 or XFS"));
  }

  const int64_t capacity_bytes_;
  const int64_t num_directories_;
  std::atomic<bool> stopping_ = false;
  mutable Mutex mutex_;
  std::vector<OpenDirectory> directories_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<TierStore>> MakeNvmeTierStore(
    const std::vector<NvmeDirectory>& directories) {
  std::vector<OpenDirectory> opened;
  int64_t sum_bytes = 0;
  for (const NvmeDirectory& directory : directories) {
    const std::string name =
        absl::StrCat("NVMe directory '", absl::CHexEscape(directory.path), "'");
    if (directory.capacity_bytes < 0 ||
        directory.capacity_bytes > std::numeric_limits<int64_t>::max() - sum_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " with a capacity of ", directory.capacity_bytes, " bytes"));
    }
    sum_bytes += directory.capacity_bytes;
    OpenDirectory open;
    open.path = name;
    open.capacity_bytes = directory.capacity_bytes;
    open.fd =
        UniqueFd(::open(directory.path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!open.fd) return ErrnoStatus(errno, absl::StrCat("open ", name));
    GEMINI_RETURN_IF_ERROR(MakeUnlinkedFile(open).status());
    open.direct_flag = O_DIRECT;
    const absl::Status direct = TryDirect(open);
    if (!direct.ok()) {
      open.direct_flag = 0;
      ServerLog().warn(
          "{} takes no O_DIRECT ({}): its chunks go through the page cache, which costs memory and "
          "processor time; use a directory on a local disk's file system",
          name, std::string(direct.message()));
    }
    opened.push_back(std::move(open));
  }
  return std::make_unique<NvmeTierStore>(std::move(opened));
}

}  // namespace gemini::server
