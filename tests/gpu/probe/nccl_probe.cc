// SPDX-License-Identifier: Apache-2.0
// Whether two NCCL ranks run on one GPU when each calls itself a host of its own, over loopback sockets: what tests
// of parallel trainers on one GPU would need. NCCL is loaded at run time: LD_LIBRARY_PATH must lead to it.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdlib.h>

#include <array>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/probe_process.h"
#include "tests/gpu/probe/vmm_memory.h"

namespace gemini::probe {
namespace {

constexpr int kRanks = 2;
constexpr size_t kElements = 1 << 20;

struct Nccl {
  decltype(&::ncclGetVersion) GetVersion;
  decltype(&::ncclGetUniqueId) GetUniqueId;
  decltype(&::ncclCommInitRank) CommInitRank;
  decltype(&::ncclCommSplit) CommSplit;
  decltype(&::ncclAllGather) AllGather;
  decltype(&::ncclCommDestroy) CommDestroy;
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
  load("ncclGetVersion", nccl.GetVersion);
  load("ncclGetUniqueId", nccl.GetUniqueId);
  load("ncclCommInitRank", nccl.CommInitRank);
  load("ncclCommSplit", nccl.CommSplit);
  load("ncclAllGather", nccl.AllGather);
  load("ncclCommDestroy", nccl.CommDestroy);
  load("ncclGetLastError", nccl.GetLastError);
  return nccl;
}

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
  if (nccl.GetVersion == nullptr) {
    parent.Say("no NCCL");
    return;
  }
  UseDevice();
  ncclUniqueId id = {};
  if (rank == 0) {
    NeedTrue(nccl.GetUniqueId(&id) == ncclSuccess, "ncclGetUniqueId");
    parent.Say({id.internal, sizeof(id.internal)});
  } else {
    parent.Say("ready");
    const std::string bytes = parent.Hear();
    NeedTrue(bytes.size() == sizeof(id.internal), "the size of an id");
    std::memcpy(id.internal, bytes.data(), bytes.size());
  }
  ncclComm_t whole = nullptr;
  ncclComm_t split = nullptr;
  const auto failed = [&](absl::string_view call, ncclResult_t result) {
    if (result == ncclSuccess) return false;
    parent.Say(absl::StrCat(call, ": ", nccl.GetLastError(whole)));
    return true;
  };
  if (failed("ncclCommInitRank", nccl.CommInitRank(&whole, kRanks, id, rank))) return;
  if (failed("ncclCommSplit", nccl.CommSplit(whole, 0, rank, &split, nullptr))) return;
  void* from = nullptr;
  void* all = nullptr;
  GEMINI_NEED(::cudaMalloc(&from, kElements * sizeof(int)));
  GEMINI_NEED(::cudaMalloc(&all, kRanks * kElements * sizeof(int)));
  GEMINI_NEED(::cudaMemset(from, rank + 1, kElements * sizeof(int)));
  for (ncclComm_t comm : {whole, split}) {
    GEMINI_NEED(::cudaMemset(all, 0, kRanks * kElements * sizeof(int)));
    if (failed("ncclAllGather", nccl.AllGather(from, all, kElements, ncclInt, comm, nullptr)))
      return;
    GEMINI_NEED(::cudaDeviceSynchronize());
    for (int peer = 0; peer < kRanks; ++peer) {
      int value = 0;
      const int* last =
          static_cast<const int*>(all) + (static_cast<size_t>(peer) + 1) * kElements - 1;
      GEMINI_NEED(::cudaMemcpy(&value, last, sizeof(value), cudaMemcpyDeviceToHost));
      NeedTrue(value == (peer + 1) * 0x01010101, "what was gathered");
    }
  }
  nccl.CommDestroy(split);
  nccl.CommDestroy(whole);
  parent.Say("gathered by all and by a split");
}

int Main() {
  NeedGpu();
  Process first([](Channel& parent) { Rank(0, parent); });
  Process second([](Channel& parent) { Rank(1, parent); });
  const std::string id = first.channel().Hear();
  if (second.channel().Hear() == "ready") {
    second.channel().Say(id);
    Answer("two ranks on one GPU, each with a NCCL_HOSTID of its own",
           {first.channel().Hear(), second.channel().Hear()});
  } else {
    Answer("two ranks on one GPU, each with a NCCL_HOSTID of its own", "not asked: no NCCL found");
  }
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
