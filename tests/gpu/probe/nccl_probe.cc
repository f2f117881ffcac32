// SPDX-License-Identifier: Apache-2.0
// Whether two NCCL ranks run on one GPU when each calls itself a host of its own, over loopback
// sockets: what tests of parallel trainers on one GPU would need. NCCL is loaded at run time:
// LD_LIBRARY_PATH must lead to it.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdlib.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <iostream>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_process.h"
#include "tests/gpu/probe/vmm_memory.h"

namespace gemini::probe {
namespace {

constexpr int kRanks = 2;
constexpr size_t kElements = 1 << 20;

struct Nccl {
  decltype(&::ncclGetUniqueId) GetUniqueId;
  decltype(&::ncclCommInitRank) CommInitRank;
  decltype(&::ncclCommSplit) CommSplit;
  decltype(&::ncclAllGather) AllGather;
  decltype(&::ncclCommDestroy) CommDestroy;
  decltype(&::ncclGetErrorString) GetErrorString;
  decltype(&::ncclGetLastError) GetLastError;
};

// Null members where there is no NCCL.
Nccl LoadNccl() {
  Nccl nccl = {};
  void* const library = ::dlopen("libnccl.so.2", RTLD_NOW);
  if (library == nullptr) return nccl;
  const auto load = [library](const char* name, auto& function) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library, name));
    NeedTrue(function != nullptr, name);
  };
  load("ncclGetUniqueId", nccl.GetUniqueId);
  load("ncclCommInitRank", nccl.CommInitRank);
  load("ncclCommSplit", nccl.CommSplit);
  load("ncclAllGather", nccl.AllGather);
  load("ncclCommDestroy", nccl.CommDestroy);
  load("ncclGetErrorString", nccl.GetErrorString);
  load("ncclGetLastError", nccl.GetLastError);
  return nccl;
}

// Whether each rank's part is what that rank gave: bytes of its number plus 1.
bool HasAllParts(const int* all) {
  for (int peer = 0; peer < kRanks; ++peer) {
    int last = 0;
    GEMINI_NEED(::cudaMemcpy(&last, all + (static_cast<size_t>(peer) + 1) * kElements - 1,
                             sizeof(last), cudaMemcpyDeviceToHost));
    if (last != (peer + 1) * 0x01010101) return false;
  }
  return true;
}

// Says "ready", or "no NCCL" and ends. Then rank 0 says an id and rank 1 hears it; and each says
// how it went.
void Rank(int rank, Channel& parent) {
  ::setenv("NCCL_HOSTID", absl::StrCat("host", rank).c_str(), 1);
  constexpr std::array<std::array<const char*, 2>, 6> kSettings = {{{"NCCL_NET", "Socket"},
                                                                    {"NCCL_IB_DISABLE", "1"},
                                                                    {"NCCL_SOCKET_IFNAME", "lo"},
                                                                    {"NCCL_MNNVL_ENABLE", "0"},
                                                                    {"NCCL_NVLS_ENABLE", "0"},
                                                                    {"NCCL_MAX_CTAS", "1"}}};
  for (const auto& [name, value] : kSettings) ::setenv(name, value, 1);
  const Nccl nccl = LoadNccl();
  if (nccl.GetUniqueId == nullptr) {
    parent.Say("no NCCL");
    return;
  }
  UseDevice();
  parent.Say("ready");
  ncclComm_t whole = nullptr;
  ncclComm_t split = nullptr;
  const auto failed = [&](absl::string_view call, ncclResult_t result) {
    if (result == ncclSuccess) return false;
    parent.Say(
        absl::StrCat(call, ": ", nccl.GetErrorString(result), ": ", nccl.GetLastError(whole)));
    return true;
  };
  ncclUniqueId id = {};
  if (rank == 0) {
    if (failed("ncclGetUniqueId", nccl.GetUniqueId(&id))) return;
    parent.Say({id.internal, sizeof(id.internal)});
  } else {
    const std::string bytes = parent.Hear().bytes;
    NeedTrue(bytes.size() == sizeof(id.internal), "an id has its size");
    std::memcpy(id.internal, bytes.data(), bytes.size());
  }
  if (failed("ncclCommInitRank", nccl.CommInitRank(&whole, kRanks, id, rank))) return;
  if (failed("ncclCommSplit", nccl.CommSplit(whole, 0, rank, &split, nullptr))) return;
  void* from = nullptr;
  void* all = nullptr;
  GEMINI_NEED(::cudaMalloc(&from, kElements * sizeof(int)));
  GEMINI_NEED(::cudaMalloc(&all, kRanks * kElements * sizeof(int)));
  GEMINI_NEED(::cudaMemset(from, rank + 1, kElements * sizeof(int)));
  for (ncclComm_t comm : {whole, split}) {
    GEMINI_NEED(::cudaMemset(all, 0, kRanks * kElements * sizeof(int)));
    if (failed("ncclAllGather", nccl.AllGather(from, all, kElements, ncclInt, comm, nullptr))) {
      return;
    }
    const cudaError_t done = ::cudaDeviceSynchronize();
    if (done != cudaSuccess) {
      parent.Say(absl::StrCat("cudaDeviceSynchronize: ", NameOf(done)));
      return;
    }
    if (!HasAllParts(static_cast<const int*>(all))) {
      parent.Say(absl::StrCat("gathered other values by ", comm == whole ? "all" : "a split"));
      return;
    }
  }
  parent.Say("gathered by all and by a split");
  nccl.CommDestroy(split);
  nccl.CommDestroy(whole);
}

int Main() {
  NeedGpu();
  const Process first([](Channel& parent) { Rank(0, parent); });
  const Process second([](Channel& parent) { Rank(1, parent); });
  for (const Process* rank : {&first, &second}) {
    if (rank->channel().Hear().bytes == "ready") continue;
    std::cout << "skipped: libnccl.so.2 is not found, set LD_LIBRARY_PATH" << std::endl;
    return kSkipped;
  }
  constexpr absl::string_view kQuestion =
      "two ranks on one GPU, each with a NCCL_HOSTID of its own";
  const std::string id = first.channel().HearOrWhyNot();
  if (id.size() != NCCL_UNIQUE_ID_BYTES) {
    Answer(kQuestion, id);
    return 0;
  }
  second.channel().Say(id);
  Answer(kQuestion, {first.channel().HearOrWhyNot(), second.channel().HearOrWhyNot()});
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
