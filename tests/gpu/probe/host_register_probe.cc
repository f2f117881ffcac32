// SPDX-License-Identifier: Apache-2.0
// What cudaHostRegister takes on the memory files that slabs are, and what it refuses. Each
// question has a process of its own: a limit or an error of one is no other's.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gemini/system/unique_fd.h"
#include "tests/gpu/probe/memory_file.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_process.h"
#include "tests/gpu/probe/vmm_memory.h"

namespace gemini::probe {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kSlabBytes = 256 * kMiB;
constexpr int64_t kNumSlabs = 8;

cudaError_t Register(const FileMapping& slab) {
  return ::cudaHostRegister(slab.data(), slab.size(), cudaHostRegisterDefault);
}

// A virtual machine may get its memory at the first use: that is no part of what is timed.
void TouchMemory(int64_t size_bytes) {
  const auto size = static_cast<size_t>(size_bytes);
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  NeedSystem(memory != MAP_FAILED, "mmap");
  ::munmap(memory, size);
}

// What a file has before it is mapped for its registration.
enum class Pages {
  kNone,
  kSmall,
  kOfASlab,
  kOfASlabMapped,  // And that mapping has them all, too.
};

double GibibytesPerSecond(absl::Duration time) {
  constexpr auto kBytes = static_cast<double>(kNumSlabs * kSlabBytes);
  return kBytes / absl::ToDoubleSeconds(time) / static_cast<double>(1024 * kMiB);
}

void AskForRate(absl::string_view name, Pages pages) {
  const std::string question = absl::StrCat("GiB/s of registering memory files of 256 MiB, ", name);
  UseDevice();
  void* device = nullptr;
  GEMINI_NEED(::cudaMalloc(&device, static_cast<size_t>(kSlabBytes)));
  absl::Duration prepare, enter, copy, leave;
  int64_t huge_bytes = 0;
  for (int64_t i = 0; i < kNumSlabs; ++i) {
    const UniqueFd file = NewMemoryFile(kSlabBytes);
    const absl::Time start = absl::Now();
    if (pages == Pages::kSmall) {
      NeedSystem(::fallocate(file.get(), 0, 0, kSlabBytes) == 0, "fallocate");
    } else if (pages != Pages::kNone) {
      huge_bytes += AllocateAsASlab(file, kSlabBytes);
    }
    const FileMapping slab(file, kSlabBytes);
    if (pages == Pages::kOfASlabMapped) {
      NeedSystem(::madvise(slab.data(), slab.size(), MADV_POPULATE_WRITE) == 0, "madvise");
    }
    const absl::Time prepared = absl::Now();
    const cudaError_t result = Register(slab);
    const absl::Time entered = absl::Now();
    if (result != cudaSuccess) {
      Answer(question, NameOf(result));
      return;
    }
    GEMINI_NEED(::cudaMemcpy(device, slab.data(), slab.size(), cudaMemcpyHostToDevice));
    const absl::Time copied = absl::Now();
    GEMINI_NEED(::cudaHostUnregister(slab.data()));
    prepare += prepared - start;
    enter += entered - prepared;
    copy += copied - entered;
    leave += absl::Now() - copied;
  }
  nlohmann::json answer = {{"register", GibibytesPerSecond(enter)},
                           {"copy_to_device", GibibytesPerSecond(copy)},
                           {"unregister", GibibytesPerSecond(leave)},
                           {"huge_fraction", static_cast<double>(huge_bytes) /
                                                 static_cast<double>(kNumSlabs * kSlabBytes)}};
  if (pages != Pages::kNone) answer["prepare"] = GibibytesPerSecond(prepare);
  Answer(question, answer);
}

void AskWhetherTwoMayRegister() {
  const UniqueFd file = NewMemoryFile(kSlabBytes);
  AllocateAsASlab(file, kSlabBytes);
  const auto registers = [&file](Channel& parent) {
    UseDevice();
    const FileMapping slab(file, kSlabBytes);
    parent.Say(NameOf(Register(slab)));
    parent.Await("end");
  };
  const Process one(registers);
  const Process other(registers);
  Answer("registering one memory file in two processes at once",
         {one.channel().HearOrWhyNot(), other.channel().HearOrWhyNot()});
}

// As a user without capabilities, whose limit on locked memory is 64 KiB.
void AskWhatTheLockLimitDoes() {
  constexpr absl::string_view kQuestion = "registering 1 GiB with RLIMIT_MEMLOCK at 64 KiB";
  if (::geteuid() == 0) {
    NeedSystem(::setgid(65534) == 0 && ::setuid(65534) == 0, "setuid");
    // A change of user takes both away: to die with the parent, and to read /proc/self.
    NeedSystem(::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "prctl");
    NeedSystem(::prctl(PR_SET_DUMPABLE, 1) == 0, "prctl");
  }
  const cudaError_t used = ::cudaFree(nullptr);
  if (used != cudaSuccess) {
    Answer(kQuestion,
           absl::StrCat("not asked, an ordinary user may not use the GPU: ", NameOf(used)));
    return;
  }
  constexpr rlimit kLimit = {.rlim_cur = 64 << 10, .rlim_max = 64 << 10};
  NeedSystem(::setrlimit(RLIMIT_MEMLOCK, &kLimit) == 0, "setrlimit");
  const UniqueFd file = NewMemoryFile(1024 * kMiB);
  const FileMapping slab(file, 1024 * kMiB);
  Answer(kQuestion, NameOf(Register(slab)));
}

void AskOfReadOnlyMappings() {
  UseDevice();
  int supported = 0;
  GEMINI_NEED(::cudaDeviceGetAttribute(&supported, cudaDevAttrHostRegisterReadOnlySupported, 0));
  Answer("the attribute says that cudaHostRegisterReadOnly is supported", supported != 0);
  const UniqueFd file = NewMemoryFile(kSlabBytes);
  AllocateAsASlab(file, kSlabBytes);
  const FileMapping slab(file, kSlabBytes, PROT_READ);
  for (const unsigned flags : {cudaHostRegisterDefault, cudaHostRegisterReadOnly}) {
    const cudaError_t result = ::cudaHostRegister(slab.data(), slab.size(), flags);
    Answer(absl::StrCat("registering a read-only mapping, ", flags == cudaHostRegisterDefault
                                                                 ? "default flags"
                                                                 : "cudaHostRegisterReadOnly"),
           NameOf(result));
    if (result == cudaSuccess) {
      GEMINI_NEED(::cudaHostUnregister(slab.data()));
    } else {
      Answer("the last error pending after that failure", NameOf(::cudaGetLastError()));
    }
  }
}

// Slabs side by side are registered one by one: may a copy span two of them?
void AskOfACopyAcrossTwo() {
  UseDevice();
  const UniqueFd file = NewMemoryFile(2 * kSlabBytes);
  AllocateAsASlab(file, 2 * kSlabBytes);
  const FileMapping both(file, 2 * kSlabBytes);
  constexpr auto kHalf = static_cast<size_t>(kSlabBytes);
  constexpr auto kCopied = static_cast<size_t>(2 * kMiB);
  for (const size_t half : {0, 1}) {
    std::byte* const data = both.data() + half * kHalf;
    std::memset(data, static_cast<int>(half) + 1, kHalf);
    GEMINI_NEED(::cudaHostRegister(data, kHalf, cudaHostRegisterDefault));
  }
  const std::byte* const from = both.data() + kHalf - kCopied / 2;
  void* device = nullptr;
  GEMINI_NEED(::cudaMalloc(&device, kCopied));
  GEMINI_NEED(::cudaMemset(device, 0, kCopied));
  const cudaError_t enqueued =
      ::cudaMemcpyAsync(device, from, kCopied, cudaMemcpyHostToDevice, nullptr);
  const cudaError_t done = ::cudaDeviceSynchronize();
  nlohmann::json answer = {{"cudaMemcpyAsync", NameOf(enqueued)},
                           {"cudaDeviceSynchronize", NameOf(done)}};
  if (enqueued == cudaSuccess && done == cudaSuccess) {
    std::vector<std::byte> arrived(kCopied);
    GEMINI_NEED(::cudaMemcpy(arrived.data(), device, kCopied, cudaMemcpyDeviceToHost));
    answer["the_bytes_are_right"] = std::memcmp(arrived.data(), from, kCopied) == 0;
  }
  Answer("an asynchronous copy that begins in one registration and ends in the next", answer);
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
  TouchMemory(kNumSlabs * kSlabBytes);
  const auto ask_for_rate = [](absl::string_view name, Pages pages) {
    AskInAProcess(absl::StrCat("files ", name), [&] { AskForRate(name, pages); });
  };
  ask_for_rate("without pages", Pages::kNone);
  ask_for_rate("with small pages", Pages::kSmall);
  ask_for_rate("with a slab's pages", Pages::kOfASlab);
  ask_for_rate("with a slab's pages, mapped before", Pages::kOfASlabMapped);
  AskWhetherTwoMayRegister();
  AskInAProcess("the limit on locked memory", AskWhatTheLockLimitDoes);
  AskInAProcess("read-only mappings", AskOfReadOnlyMappings);
  AskInAProcess("a copy across two registrations", AskOfACopyAcrossTwo);
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
