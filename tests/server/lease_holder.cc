// SPDX-License-Identifier: Apache-2.0
// A client to be killed: lease_holder SOCKET LABEL HOST_MIB NVME_MIB hold|fork|busy|flood Opens a
// lease and a space of the whole of it with chunks of 1 MiB (`flood`: 64 MiB), writes all HOST
// slots, commits bundle 0 at step 7, prints "ready PID" (of the forked child that holds everything,
// with `fork`) and waits to be killed; `busy` moves chunks to NVME and back, and opens and closes a
// second space; `flood` has 100 writes to NVME queued at any time from "ready" on.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "gemini/byte_size.h"
#include "gemini/shm/commit_shm.h"
#include "gemini/system/status_macros.h"
#include "tests/server/wire_client.h"

namespace gemini::server {
namespace {

constexpr int64_t kQueued = 100;

absl::Status Hold(const std::string& socket, const std::string& label, int64_t host_mib,
                  int64_t nvme_mib, const std::string& mode) {
  GEMINI_ASSIGN_OR_RETURN(WireClient client, WireClient::ConnectTo(socket));
  GEMINI_RETURN_IF_ERROR(client.Hello(label));
  const bool busy = mode == "busy";
  const bool floods = mode == "flood";
  const int64_t chunk_mib = floods ? 64 : 1;
  const int64_t spare_mib = busy ? 4 : 0;
  const TierMap<int64_t> want = {{kMiB, (host_mib + spare_mib) * kMiB, nvme_mib * kMiB}};
  GEMINI_RETURN_IF_ERROR(client.OpenLease(want, want).status());
  GEMINI_ASSIGN_OR_RETURN(WireSpace space, client.OpenSpace({.name = label,
                                                             .chunk_bytes = chunk_mib * kMiB,
                                                             .num_bundles = 4,
                                                             .host_slots = host_mib / chunk_mib,
                                                             .nvme_slots = nvme_mib / chunk_mib}));
  std::vector<MappedMemory> slabs;
  for (int64_t i = 0; i < space.num_slabs; ++i) {
    const int64_t first = i * space.slots_per_slab;
    const int64_t slots = std::min(space.slots_per_slab, host_mib / chunk_mib - first);
    const int64_t bytes = slots * chunk_mib * kMiB;
    GEMINI_ASSIGN_OR_RETURN(MappedMemory slab, MappedMemory::Map(space.slabs[i].get(), bytes,
                                                                 MappedMemory::Access::kReadWrite));
    std::memset(slab.data(), 0xa5, bytes);
    slabs.push_back(std::move(slab));
  }
  space.record(0).slots[0].store(PackChunkSlot({Tier::kHost, SlotId(0)}));
  space.commit(0).store(PackCommitWord({.step = 7, .record = 0}));
  pid_t shown = ::getpid();
  if (mode == "fork") {
    shown = ::fork();
    if (shown == 0) {
      ::prctl(PR_SET_PDEATHSIG, 0);
      while (true) ::pause();
    }
  }
  const auto write = [&](int64_t i) {
    return space.Submit(IoOperation::kWrite, i % (host_mib / chunk_mib),
                        i % (nvme_mib / chunk_mib));
  };
  for (int64_t i = 0; floods && i < kQueued; ++i) write(i);
  std::printf("ready %d\n", static_cast<int>(shown));
  std::fflush(stdout);
  for (int64_t i = 0; floods; ++i) {
    if (space.WaitCompletion(i) != 0) return absl::InternalError("a write failed");
    write(i + kQueued);
  }
  for (uint64_t round = 0; busy; ++round) {
    if (nvme_mib > 0) {
      // Each slot is written, then read.
      const uint64_t sequence =
          space.Submit(round % 2 == 0 ? IoOperation::kWrite : IoOperation::kRead, round % host_mib,
                       round / 2 % nvme_mib);
      if (space.WaitCompletion(sequence) != 0) return absl::InternalError("I/O failed");
    }
    GEMINI_ASSIGN_OR_RETURN(
        const WireSpace extra,
        client.OpenSpace({.name = label + ".extra", .chunk_bytes = kMiB, .host_slots = spare_mib}));
    GEMINI_RETURN_IF_ERROR(client.CloseSpace(extra.id));
  }
  while (true) ::pause();
}

}  // namespace
}  // namespace gemini::server

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const absl::Status status =
      gemini::server::Hold(argv[1], argv[2], std::atoll(argv[3]), std::atoll(argv[4]), argv[5]);
  std::fprintf(stderr, "lease_holder: %s\n", status.ToString().c_str());
  std::printf("failed\n");
  return 1;
}
