// SPDX-License-Identifier: Apache-2.0
// Who may hold exported device memory, what that costs, and what is left of it when a process is
// killed.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gemini/system/seqpacket.h"
#include "gemini/system/unique_fd.h"
#include "tests/gpu/probe/nvml.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/vmm_peers.h"

namespace gemini::probe {
namespace {

constexpr int64_t kSharedBytes = int64_t{1} << 30;
constexpr uint32_t kPattern = 0xa5c35a3c;

void AskWhatExportingCosts(int64_t idle) {
  const Exporter exporter;
  const int64_t initialised = UsedDeviceBytes();
  Answer("MiB of the device used by an exporter that has called cuInit", MiB(initialised - idle));
  nlohmann::json contexts = exporter.contexts_at_start();
  contexts["before cuMemCreate"] = exporter.HasContext();
  const RemoteCall created = exporter.Create(kSharedBytes);
  contexts["after cuMemCreate"] = exporter.HasContext();
  UniqueFd fd;
  const RemoteCall exported = exporter.Export(fd);
  contexts["after cuMemExportToShareableHandle"] = exporter.HasContext();
  Answer("what calls return to an exporter that has made no context",
         {{"cuMemCreate", created.result}, {"cuMemExportToShareableHandle", exported.result}});
  Answer("whether it has one", contexts);
  Answer("MiB beyond the 1024 that it created and exported",
         MiB(UsedDeviceBytes() - initialised - kSharedBytes));
}

void AskWhenTheExporterIsKilled(int64_t idle) {
  Importer importer;
  Answer("MiB of the device used by an importer's context", MiB(UsedDeviceBytes() - idle));
  Exporter exporter;
  importer.Import(exporter.CreateAndExport(kSharedBytes), kSharedBytes);
  importer.Fill(kPattern);
  importer.Fraction(kPattern);  // The kernel that counts is loaded now, and takes no memory later.
  const int64_t before = UsedDeviceBytes();
  exporter.process().Kill();
  for (const int seconds : {0, 2}) {
    absl::SleepFor(absl::Seconds(seconds));
    Answer(absl::StrCat("what an importer has ", seconds, " s after the exporter was killed"),
           {{"fraction_of_its_bytes", importer.Fraction(kPattern)},
            {"MiB_given_back", MiB(before - UsedDeviceBytes())}});
  }
  const absl::Time start = absl::Now();
  importer.process().Signal();
  Answer("ms from killing the importer, too, until the device's memory is free",
         UntilUsedIsAtMost(start, idle));
}

void AskWhenTheImporterIsKilled() {
  const Exporter exporter;
  Importer importer;
  const Importer heir;
  UniqueFd fd = exporter.CreateAndExport(kSharedBytes);
  UniqueFd second(::dup(fd.get()));
  importer.Import(std::move(fd), kSharedBytes);
  importer.Fill(kPattern);
  importer.process().Kill();
  heir.Import(std::move(second), kSharedBytes);
  Answer("fraction that the next importer finds of the bytes of one that was killed",
         heir.Fraction(kPattern));
  exporter.Release();
  const int64_t before = UsedDeviceBytes();
  const absl::Time start = absl::Now();
  heir.Unmap();
  Answer("ms from the last unmapping until the memory is free, exporter and importer alive",
         UntilUsedIsAtMost(start, before - kSharedBytes));
}

void AskOfADescriptorInASocket(int64_t idle) {
  Exporter exporter;  // Before the socket, which it does not inherit.
  std::array<int, 2> ends = {};
  NeedSystem(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0,
             "socketpair");
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  UniqueFd fd = exporter.CreateAndExport(kSharedBytes);
  GEMINI_NEED(SendPacket(writer.get(), "memory", {fd.get()}));
  fd.Reset();
  absl::Time start = absl::Now();
  exporter.process().Signal();
  Answer("ms from killing an exporter until memory is free whose descriptor is unread in a socket",
         UntilUsedIsAtMost(start, idle));
  exporter.process().Wait();
  start = absl::Now();
  reader.Reset();
  writer.Reset();
  Answer("ms from that socket's end until the memory is free", UntilUsedIsAtMost(start, idle));
}

int Main() {
  NeedGpu();
  const int64_t idle = UsedDeviceBytes();
  AskWhatExportingCosts(idle);
  UntilUsedIsAtMost(absl::Now(), idle);
  AskWhenTheExporterIsKilled(idle);
  AskWhenTheImporterIsKilled();
  UntilUsedIsAtMost(absl::Now(), idle);
  AskOfADescriptorInASocket(idle);
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
