// SPDX-License-Identifier: Apache-2.0
#include "server/plans/calibration.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gemini/system/monotonic_clock.h"
#include "gemini/system/unique_fd.h"
#include "gemini/system/update_team.h"
#include "server/tiers/interleaved_pages.h"

namespace gemini::server {
namespace {

constexpr int64_t kMiBBytes = int64_t{1} << 20;
// Larger than the caches that would make a copy look faster than memory is.
constexpr int64_t kArenaBytes = 32 * kMiBBytes;
constexpr int64_t kPieceBytes = 4 * kMiBBytes;
constexpr int kMaxArenas = 4;  // 128 MiB take some 30 ms to be cleared.
constexpr int64_t kUpdatePartElements = 16384;
// Of the rate of its memory, in kernels that do little else; and that of a small GPU.
constexpr double kUsedPart = 0.7;
constexpr double kSmallGpu = 2.8e11;
static_assert(kArenaBytes / 4 / sizeof(float) % kUpdatePartElements == 0);
constexpr int64_t kMaxFileBytes = 64 * kMiBBytes;
// O_DIRECT wants memory, offsets and sizes at multiples of the disk's blocks.
constexpr int64_t kDiskPieceBytes = kMiBBytes;
// Rates of 20 ms differ from one start to the next by 3%, as do those of 40 ms.
constexpr absl::Duration kCopyTime = absl::Milliseconds(20);
constexpr absl::Duration kUpdateTime = absl::Milliseconds(20);
constexpr absl::Duration kDiskTime = absl::Milliseconds(200);  // In all at most kCalibrationTime.

// Fresh zeroed pages; null when there are none.
class Pages {
 public:
  explicit Pages(int64_t size_bytes) : size_bytes_(size_bytes) {
    void* data = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (data != MAP_FAILED) data_ = static_cast<std::byte*>(data);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    if (data_ != nullptr) ::munmap(data_, size_bytes_);
  }
  std::byte* data() const { return data_; }

 private:
  const int64_t size_bytes_;
  std::byte* data_ = nullptr;
};

// Bytes a second, of `bytes` in `took`; 0 when nothing was measured.
double Rate(int64_t amount, absl::Duration took) {
  return took > absl::ZeroDuration() ? static_cast<double>(amount) / absl::ToDoubleSeconds(took)
                                     : 0;
}

// Copies from the first of `arenas` to the second.
double MeasureCopies(std::byte* arenas, absl::FunctionRef<bool()> stop) {
  const absl::Duration start = MonotonicNow();
  int64_t copied = 0;
  for (int64_t offset = 0; MonotonicNow() - start < kCopyTime && !stop();
       offset = (offset + kPieceBytes) % kArenaBytes) {
    std::memcpy(arenas + kArenaBytes + offset, arenas + offset, kPieceBytes);
    copied += kPieceBytes;
  }
  return Rate(copied, MonotonicNow() - start);
}

// An element costs what AdamW's does: four streams read, three written, one root and one division.
// The count is constant, so that compilers make vectors of it.
void UpdatePart(float* __restrict value, float* __restrict average, float* __restrict square,
                float* __restrict gradient) {
  for (int64_t i = 0; i < kUpdatePartElements; ++i) {
    const float step = gradient[i];
    average[i] += 0.1f * (step - average[i]);
    square[i] += 0.001f * (step * step - square[i]);
    value[i] -= 0.001f * average[i] / (std::sqrt(square[i]) + 1e-8f);
    gradient[i] = step + 1.0f;
  }
}

double MeasureUpdates(WorkerTeam& team, std::byte* arenas, int num_arenas,
                      absl::FunctionRef<bool()> stop) {
  const int64_t num_elements = num_arenas * kArenaBytes / 4 / static_cast<int64_t>(sizeof(float));
  auto* value = reinterpret_cast<float*>(arenas);
  float* average = value + num_elements;
  float* square = average + num_elements;
  float* gradient = square + num_elements;
  const absl::Duration start = MonotonicNow();
  int64_t updated = 0;
  while (MonotonicNow() - start < kUpdateTime && !stop()) {
    team.Run(num_elements, kUpdatePartElements, [&](int64_t begin, int64_t) {
      UpdatePart(value + begin, average + begin, square + begin, gradient + begin);
    });
    updated += num_elements;
  }
  return Rate(updated, MonotonicNow() - start);
}

// Measures copies, too, if `with_copies`: DEVICE is of the same memory then.
void MeasureMemory(bool with_copies, absl::FunctionRef<bool()> stop, CostModel& costs) {
  const std::unique_ptr<WorkerTeam> team = MakeUpdateTeam(0);
  // Threads far apart have caches of their own, and a copy is from one arena to another.
  const int num_arenas = std::clamp(team->num_threads(), 2, kMaxArenas);
  const InterleavedPages interleaved(NodesOfSlabs());  // As slabs are.
  const Pages pages(num_arenas * kArenaBytes);
  if (pages.data() == nullptr) return;
  if (const double rate = with_copies ? MeasureCopies(pages.data(), stop) : 0; rate > 0) {
    costs.host_to_device = rate;
    costs.device_to_host = rate;
  }
  if (const double rate = MeasureUpdates(*team, pages.data(), num_arenas, stop); rate > 0) {
    costs.update_elements_per_second = rate;
    if (with_copies) costs.device_update_elements_per_second = rate;
  }
}

struct DiskRates {
  double read = 0;
  double write = 0;
};

UniqueFd MakeNamelessFile(const std::string& directory) {
  for (const int direct : {O_DIRECT, 0}) {
    UniqueFd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | direct, 0600));
    if (fd) return fd;
  }
  return UniqueFd();
}

DiskRates MeasureDisk(const NvmeDirectory& directory, absl::Duration time,
                      absl::FunctionRef<bool()> stop) {
  DiskRates rates;
  const Pages piece(kDiskPieceBytes);
  const UniqueFd fd = MakeNamelessFile(directory.path);
  if (!fd || piece.data() == nullptr) return rates;
  // Not zeros: a disk may store those without writing them.
  for (int64_t i = 0; i < kDiskPieceBytes; ++i) {
    piece.data()[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  }
  const int64_t max_bytes = std::min(kMaxFileBytes, directory.capacity_bytes);
  absl::Duration start = MonotonicNow();
  int64_t written = 0;
  while (written + kDiskPieceBytes <= max_bytes && MonotonicNow() - start < time / 2 && !stop()) {
    if (::pwrite(fd.get(), piece.data(), kDiskPieceBytes, written) != kDiskPieceBytes) break;
    written += kDiskPieceBytes;
  }
  if (written == 0 || ::fdatasync(fd.get()) != 0) return rates;
  rates.write = Rate(written, MonotonicNow() - start);
  // Where the page cache was used after all, it must not answer for the disk.
  (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  start = MonotonicNow();
  int64_t read = 0;
  while (read < written && MonotonicNow() - start < time / 2 && !stop()) {
    if (::pread(fd.get(), piece.data(), kDiskPieceBytes, read) != kDiskPieceBytes) break;
    read += kDiskPieceBytes;
  }
  rates.read = Rate(read, MonotonicNow() - start);
  return rates;
}

// A space's extents fill the directories one after another, so the slowest one is met sooner or
// later.
void KeepSlower(double measured, bool first, double& rate) {
  if (measured > 0) rate = first ? measured : std::min(rate, measured);
}

}  // namespace

CostModel Calibrate(const std::vector<NvmeDirectory>& nvme_directories,
                    std::optional<double> gpu_memory_rate, absl::FunctionRef<bool()> stop) {
  CostModel costs;
  // No kernel runs here: until a client measures it.
  if (gpu_memory_rate.has_value()) {
    const double rate = *gpu_memory_rate > 0 ? *gpu_memory_rate : kSmallGpu;
    costs.device_update_elements_per_second = kUsedPart * rate / kBytesAnUpdate;
    costs.copy_latency_ns = kGpuCopyLatencyNs;
  }
  MeasureMemory(/*with_copies=*/!gpu_memory_rate.has_value(), stop, costs);
  for (size_t i = 0; i < nvme_directories.size(); ++i) {
    const DiskRates rates = MeasureDisk(
        nvme_directories[i], kDiskTime / static_cast<int64_t>(nvme_directories.size()), stop);
    KeepSlower(rates.read, i == 0, costs.nvme_read);
    KeepSlower(rates.write, i == 0, costs.nvme_write);
  }
  return costs;
}

}  // namespace gemini::server
