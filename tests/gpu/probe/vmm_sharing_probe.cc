// SPDX-License-Identifier: Apache-2.0
// Who may hold exported device memory, what that costs, and what is left of it when a process is killed.
// The exporter stands for the daemon: it never makes a context. Importers stand for trainers.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gemini/seqpacket.h"
#include "gemini/unique_fd.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_kernels.h"
#include "tests/gpu/probe/probe_process.h"
#include "tests/gpu/probe/vmm_memory.h"

namespace gemini::probe {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kSharedBytes = 1024 * kMiB;
constexpr uint32_t kPattern = 0xa5c35a3c;
// What other counters of the driver may move by meanwhile.
constexpr int64_t kSlackBytes = 32 * kMiB;
constexpr absl::Duration kPatience = absl::Seconds(20);

double MiB(int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kMiB); }

nlohmann::json Milliseconds(absl::Duration time) {
  if (time == absl::InfiniteDuration()) return "never, in 20 s";
  return absl::ToDoubleMilliseconds(time);
}

bool HasContext() {
  const Driver& driver = Driver::Get();
  CUcontext current = nullptr;
  unsigned flags = 0;
  int primary_is_active = 0;
  GEMINI_NEED(driver.CtxGetCurrent(&current));
  GEMINI_NEED(driver.DevicePrimaryCtxGetState(0, &flags, &primary_is_active));
  return current != nullptr || primary_is_active != 0;
}

// Creates and exports at "create", drops its own reference at "release".
void Exporter(Channel& parent) {
  GEMINI_NEED(Driver::Get().Init(0));
  parent.Say("initialised");
  parent.Await("create");
  const CUmemGenericAllocationHandle handle = CreateDeviceMemory(kSharedBytes);
  UniqueFd fd = Export(handle);
  Answer("an exporter that has created and exported memory has a context", HasContext());
  parent.Say("created", fd.get());
  fd.Reset();
  parent.Await("release");
  GEMINI_NEED(Driver::Get().MemRelease(handle));
  parent.Say("released");
  parent.Await("end");
}

// Imports what "import" brings; then fills it with the pattern at "fill", and counts that at "count".
void Importer(Channel& parent) {
  UseDevice();
  parent.Say("ready");
  UniqueFd fd = parent.AwaitFd("import");
  const CUmemGenericAllocationHandle handle = Import(fd);
  fd.Reset();
  std::optional<VmmMapping> mapping(std::in_place, handle, kSharedBytes);
  GEMINI_NEED(Driver::Get().MemRelease(handle));
  parent.Say("imported");
  for (;;) {
    const std::string order = parent.Hear();
    if (order == "fill") {
      FillWords(mapping->words(), mapping->num_words(), kPattern, nullptr);
      GEMINI_NEED(::cudaDeviceSynchronize());
      parent.Say("filled");
    } else if (order == "count") {
      parent.Say(std::to_string(Count(*mapping, kPattern)));
    } else if (order == "unmap") {
      mapping.reset();
      parent.Say("unmapped");
    } else {
      return;
    }
  }
}

UniqueFd Create(const Process& exporter) {
  exporter.channel().Say("create");
  return exporter.channel().AwaitFd("created");
}

void GiveTo(const Process& importer, UniqueFd fd) {
  importer.channel().Say("import", fd.get());
  importer.channel().Await("imported");
}

std::string Ask(const Process& process, absl::string_view order) {
  process.channel().Say(order);
  return process.channel().Hear();
}

// Of the words that the importer has mapped, the fraction that hold the pattern.
double PatternFraction(const Process& importer) {
  return std::stod(Ask(importer, "count")) / static_cast<double>(kSharedBytes / 4);
}

absl::Duration UntilUsedIsAtMost(int64_t bytes) {
  return TimeUntil(kPatience, [bytes] { return UsedDeviceBytes() <= bytes + kSlackBytes; });
}

void AskWhatExportingCosts(int64_t idle) {
  Process exporter(Exporter);
  exporter.channel().Await("initialised");
  const int64_t initialised = UsedDeviceBytes();
  Answer("MiB of the device used by an exporter that has called cuInit", MiB(initialised - idle));
  const UniqueFd fd = Create(exporter);
  Answer("MiB beyond the 1024 that it created and exported",
         MiB(UsedDeviceBytes() - initialised - kSharedBytes));
}

void AskWhenTheExporterIsKilled(int64_t idle) {
  Process exporter(Exporter);
  Process importer(Importer);
  exporter.channel().Await("initialised");
  importer.channel().Await("ready");
  Answer("MiB of the device used by an importer's context", MiB(UsedDeviceBytes() - idle));
  GiveTo(importer, Create(exporter));
  Ask(importer, "fill");
  const int64_t before = UsedDeviceBytes();
  exporter.Kill();
  Answer("fraction that an importer still finds of its bytes when the exporter is killed",
         PatternFraction(importer));
  Answer("MiB of the device that this gave back", MiB(before - UsedDeviceBytes()));
  importer.Kill();
  Answer("ms from the killed importer's end until the device's memory is free",
         Milliseconds(UntilUsedIsAtMost(idle)));
}

void AskWhenTheImporterIsKilled(int64_t idle) {
  Process exporter(Exporter);
  Process importer(Importer);
  Process heir(Importer);
  exporter.channel().Await("initialised");
  importer.channel().Await("ready");
  heir.channel().Await("ready");
  UniqueFd fd = Create(exporter);
  UniqueFd second(::dup(fd.get()));
  GiveTo(importer, std::move(fd));
  Ask(importer, "fill");
  importer.Kill();
  GiveTo(heir, std::move(second));
  Answer("fraction that the next importer finds of the bytes of one that was killed",
         PatternFraction(heir));
  Ask(exporter, "release");
  const int64_t before = UsedDeviceBytes();
  Ask(heir, "unmap");
  Answer("ms from the last unmapping until the memory is free, exporter and importer alive",
         Milliseconds(UntilUsedIsAtMost(before - kSharedBytes)));
  heir.Kill();
  exporter.Kill();
  UntilUsedIsAtMost(idle);
}

void AskOfADescriptorInASocket(int64_t idle) {
  std::array<int, 2> ends = {};
  NeedTrue(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()) == 0, "socketpair");
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  Process exporter([&writer](Channel& parent) {
    GEMINI_NEED(Driver::Get().Init(0));
    const CUmemGenericAllocationHandle handle = CreateDeviceMemory(kSharedBytes);
    const int fd = Export(handle).Release();
    NeedTrue(SendPacket(writer.get(), "memory", {fd}).ok(), "send the descriptor");
    parent.Say("sent");
    parent.Await("end");
  });
  exporter.channel().Await("sent");
  exporter.Kill();
  const absl::Duration freed = UntilUsedIsAtMost(idle);
  Answer("ms until memory is free whose exporter was killed, its descriptor unread in a socket",
         Milliseconds(freed));
  reader.Reset();
  writer.Reset();
  Answer("ms from that socket's end until the memory is free",
         Milliseconds(UntilUsedIsAtMost(idle)));
}

void AskWhetherMemoryIsScrubbed(int64_t idle) {
  for (const bool fills : {true, false}) {
    Process exporter(Exporter);
    Process importer(Importer);
    exporter.channel().Await("initialised");
    importer.channel().Await("ready");
    GiveTo(importer, Create(exporter));
    if (fills) {
      Ask(importer, "fill");
    } else {
      Answer("fraction of new memory that holds what the tenant before wrote",
             PatternFraction(importer));
    }
    importer.Kill();
    exporter.Kill();
    UntilUsedIsAtMost(idle);
  }
}

int Main() {
  NeedGpu();
  const int64_t idle = UsedDeviceBytes();
  NeedTrue(idle >= 0, "NVML");
  AskWhatExportingCosts(idle);
  UntilUsedIsAtMost(idle);
  AskWhenTheExporterIsKilled(idle);
  AskWhenTheImporterIsKilled(idle);
  AskOfADescriptorInASocket(idle);
  AskWhetherMemoryIsScrubbed(idle);
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
