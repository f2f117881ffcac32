// SPDX-License-Identifier: Apache-2.0
// What cudaHostRegister takes on the memory files that slabs are, and what it refuses. Each question has a process
// of its own: a limit or an error of one is no other's.
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gemini/unique_fd.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_process.h"
#include "tests/gpu/probe/vmm_memory.h"

namespace gemini::probe {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kSlabBytes = 256 * kMiB;
constexpr int64_t kNumSlabs = 8;
constexpr int64_t kHugePageBytes = 2 * kMiB;

// A memory file of `size_bytes`, mapped at a multiple of 2 MiB.
class Slab {
 public:
  explicit Slab(int64_t size_bytes, int protection = PROT_READ | PROT_WRITE)
      : size_bytes_(size_bytes), fd_(::memfd_create("probe", MFD_CLOEXEC)) {
    NeedTrue(::ftruncate(fd_.get(), size_bytes) == 0, "ftruncate");
    reserved_ = ::mmap(nullptr, reserved_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NeedTrue(reserved_ != MAP_FAILED, "mmap");
    const auto start = reinterpret_cast<uintptr_t>(reserved_);
    data_ = reinterpret_cast<void*>((start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes);
    NeedTrue(::mmap(data_, size(), protection, MAP_SHARED | MAP_FIXED, fd_.get(), 0) == data_,
             "mmap");
  }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  ~Slab() { ::munmap(reserved_, reserved_bytes()); }

  void* data() const { return data_; }
  size_t size() const { return static_cast<size_t>(size_bytes_); }

 private:
  size_t reserved_bytes() const { return static_cast<size_t>(size_bytes_ + kHugePageBytes); }

  const int64_t size_bytes_;
  const UniqueFd fd_;
  void* reserved_ = nullptr;
  void* data_ = nullptr;
};

void InAProcess(const std::function<void()>& ask) {
  Process process([&ask](Channel&) { ask(); });
  NeedTrue(process.Wait() == 0, "a question's process ends well");
}

enum class Preparation { kNone, kTouched, kHugePages };

double GibibytesPerSecond(int64_t bytes, absl::Duration time) {
  return static_cast<double>(bytes) / absl::ToDoubleSeconds(time) /
         static_cast<double>(1024 * kMiB);
}

void AskForRate(absl::string_view name, Preparation preparation) {
  UseDevice();
  absl::Duration prepare, enter, leave, copy;
  void* device = nullptr;
  GEMINI_NEED(::cudaMalloc(&device, static_cast<size_t>(kSlabBytes)));
  bool advised = true;
  for (int64_t i = 0; i < kNumSlabs; ++i) {
    const Slab slab(kSlabBytes);
    const absl::Time start = absl::Now();
    if (preparation == Preparation::kHugePages) {
      advised = ::madvise(slab.data(), slab.size(), MADV_HUGEPAGE) == 0 && advised;
    }
    if (preparation != Preparation::kNone) std::memset(slab.data(), 1, slab.size());
    const absl::Time prepared = absl::Now();
    GEMINI_NEED(::cudaHostRegister(slab.data(), slab.size(), cudaHostRegisterDefault));
    const absl::Time entered = absl::Now();
    GEMINI_NEED(::cudaMemcpy(device, slab.data(), slab.size(), cudaMemcpyHostToDevice));
    const absl::Time copied = absl::Now();
    GEMINI_NEED(::cudaHostUnregister(slab.data()));
    prepare += prepared - start;
    enter += entered - prepared;
    copy += copied - entered;
    leave += absl::Now() - copied;
  }
  constexpr int64_t kBytes = kNumSlabs * kSlabBytes;
  Answer(absl::StrCat("GiB/s of registering memory files of 256 MiB, ", name),
         {{"prepare", GibibytesPerSecond(kBytes, prepare)},
          {"register", GibibytesPerSecond(kBytes, enter)},
          {"copy_to_device", GibibytesPerSecond(kBytes, copy)},
          {"unregister", GibibytesPerSecond(kBytes, leave)},
          {"madvise_accepted", advised}});
}

void AskWhetherTwoMayRegister() {
  const Slab slab(kSlabBytes);
  const auto registers = [&slab](Channel& parent) {
    UseDevice();
    parent.Say(NameOf(::cudaHostRegister(slab.data(), slab.size(), cudaHostRegisterDefault)));
    parent.Await("end");
  };
  Process one(registers);
  Process other(registers);
  Answer("registering one memory file in two processes at once",
         {one.channel().Hear(), other.channel().Hear()});
}

// As a user without capabilities, whose limit on locked memory is 64 KiB.
void AskWhatTheLockLimitDoes() {
  constexpr rlimit kLimit = {.rlim_cur = 64 << 10, .rlim_max = 64 << 10};
  NeedTrue(::setrlimit(RLIMIT_MEMLOCK, &kLimit) == 0, "setrlimit");
  if (::geteuid() == 0) NeedTrue(::setgid(65534) == 0 && ::setuid(65534) == 0, "setuid");
  const cudaError_t used = ::cudaFree(nullptr);
  if (used != cudaSuccess) {
    Answer("registering 1 GiB with RLIMIT_MEMLOCK at 64 KiB",
           absl::StrCat("not asked, an ordinary user may not use the GPU: ", NameOf(used)));
    return;
  }
  const Slab slab(1024 * kMiB);
  Answer("registering 1 GiB with RLIMIT_MEMLOCK at 64 KiB",
         NameOf(::cudaHostRegister(slab.data(), slab.size(), cudaHostRegisterDefault)));
}

void AskOfReadOnlyMappings() {
  UseDevice();
  const Slab slab(kSlabBytes, PROT_READ);
  Answer("registering a read-only mapping, default flags",
         NameOf(::cudaHostRegister(slab.data(), slab.size(), cudaHostRegisterDefault)));
  const cudaError_t pending = ::cudaGetLastError();
  Answer("the last error pending after a registration that failed", NameOf(pending));
  Answer("registering a read-only mapping, cudaHostRegisterReadOnly",
         NameOf(::cudaHostRegister(slab.data(), slab.size(), cudaHostRegisterReadOnly)));
}

// Slabs side by side are registered one by one: may a copy span two of them?
void AskOfACopyAcrossTwo() {
  UseDevice();
  const Slab slab(2 * kSlabBytes);
  auto* const data = static_cast<std::byte*>(slab.data());
  std::memset(data, 1, slab.size());
  GEMINI_NEED(::cudaHostRegister(data, slab.size() / 2, cudaHostRegisterDefault));
  GEMINI_NEED(::cudaHostRegister(data + slab.size() / 2, slab.size() / 2, cudaHostRegisterDefault));
  void* device = nullptr;
  GEMINI_NEED(::cudaMalloc(&device, 2 * static_cast<size_t>(kMiB)));
  Answer("an asynchronous copy that begins in one registration and ends in the next",
         NameOf(::cudaMemcpyAsync(device, data + kSlabBytes - kMiB, 2 * static_cast<size_t>(kMiB),
                                  cudaMemcpyHostToDevice, nullptr)));
  static_cast<void>(::cudaGetLastError());
  GEMINI_NEED(::cudaDeviceSynchronize());
}

void AskWhatTheKernelOffers() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string setting;
  std::getline(file, setting);
  Answer("huge pages of memory files (shmem_enabled)", setting);
}

int Main() {
  NeedGpu();
  AskWhatTheKernelOffers();
  InAProcess([] { AskForRate("fresh", Preparation::kNone); });
  InAProcess([] { AskForRate("touched by one thread before", Preparation::kTouched); });
  InAProcess([] { AskForRate("MADV_HUGEPAGE, then touched", Preparation::kHugePages); });
  AskWhetherTwoMayRegister();
  InAProcess(AskWhatTheLockLimitDoes);
  InAProcess(AskOfReadOnlyMappings);
  InAProcess(AskOfACopyAcrossTwo);
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
