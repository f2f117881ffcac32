// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/nccl_library.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

constexpr char kInstall[] = "install NVIDIA's NCCL 2.18 or newer (pip install nvidia-nccl-cu13)";

template <typename Function>
absl::Status Find(void* library, const std::string& path, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(path, " has no ", name, ": ", kInstall));
}

struct Setting {
  const char* name;
  const char* value;
};

// Without these ranks hang, whoever has set another value: some recipes for other programs do.
constexpr std::array<Setting, 4> kNeeded = {{
    // Of messages that are on their way several wait, each on a stream of its own. With an order of
    // launches, which 2.26 can have, NCCL would begin none of them before all that were issued
    // earlier have begun, or below a driver of CUDA 12.3 have ended; of two ranks each would wait
    // for what stands behind its own wait.
    {"NCCL_LAUNCH_ORDER_IMPLICIT", "0"},
    // Communicators that share resources wait for each other's exchanges, as on one stream.
    {"NCCL_COMM_SPLIT_SHARE_RESOURCES", "0"},
    // It goes before what a communicator's configuration says, and a call that blocks would keep
    // the watching thread from NCCL.
    {"NCCL_COMM_BLOCKING", "0"},
    // By default CUDA puts streams beyond the eighth behind each other's work. A rank with a
    // pipeline has more: operators, copies, collectives, and six of messages.
    {"CUDA_DEVICE_MAX_CONNECTIONS", "32"},
}};

// Lets processes that call themselves machines exchange on one GPU.
constexpr std::array<Setting, 6> kOfSharedGpus = {{{"NCCL_NET", "Socket"},
                                                   {"NCCL_IB_DISABLE", "1"},
                                                   {"NCCL_SOCKET_IFNAME", "lo"},
                                                   {"NCCL_MNNVL_ENABLE", "0"},
                                                   {"NCCL_NVLS_ENABLE", "0"},
                                                   {"NCCL_MAX_CTAS", "1"}}};

}  // namespace

absl::StatusOr<NcclLibrary> LoadNccl(const std::string& path) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::NotFoundError(absl::StrCat("NCCL cannot be loaded: ", ::dlerror(), ": ", kInstall,
                                            ", and add its folder to LD_LIBRARY_PATH"));
  }
  NcclLibrary nccl = {};
  nccl.path = path;
  // First, so that an old library is called old.
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclGetVersion", nccl.GetVersion));
  int version = 0;
  const NcclResult result = nccl.GetVersion(&version);
  if (result != NcclResult::kSuccess || version < NcclLibrary::kLeastVersion) {
    return absl::UnimplementedError(absl::StrCat(
        path, " is NCCL ", NcclVersionName(version), ", and ",
        NcclVersionName(NcclLibrary::kLeastVersion), " is the oldest that works: ", kInstall));
  }
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclGetUniqueId", nccl.GetUniqueId));
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclGetErrorString", nccl.GetErrorString));
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclGetLastError", nccl.GetLastError));
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclCommInitRankConfig", nccl.CommInitRankConfig));
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclCommSplit", nccl.CommSplit));
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclCommGetAsyncError", nccl.CommGetAsyncError));
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclCommFinalize", nccl.CommFinalize));
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclCommDestroy", nccl.CommDestroy));
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclCommAbort", nccl.CommAbort));
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclGroupStart", nccl.GroupStart));
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclGroupEnd", nccl.GroupEnd));
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclAllGather", nccl.AllGather));
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclReduceScatter", nccl.ReduceScatter));
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclAllReduce", nccl.AllReduce));
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclBroadcast", nccl.Broadcast));
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclSend", nccl.Send));
  GEMINI_RETURN_IF_ERROR(Find(library, path, "ncclRecv", nccl.Recv));
  return nccl;
}

std::string NcclVersionName(int version) {
  // Before 2.9 the minor version had one digit less.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version / 100 % 10 : version / 100 % 100;
  return absl::StrCat(major, ".", minor, ".", version % 100);
}

absl::Status NcclStatus(const NcclLibrary& nccl, NcclResult result, absl::string_view call,
                        NcclComm* comm) {
  if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) return absl::OkStatus();
  std::string message = absl::StrCat(call, ": ", nccl.GetErrorString(result));
  const char* const last = nccl.GetLastError(comm);
  if (last != nullptr && *last != '\0') absl::StrAppend(&message, ": ", last);
  switch (result) {
    case NcclResult::kInvalidArgument:
    case NcclResult::kInvalidUsage:
      return absl::InternalError(message);
    default:
      return absl::UnavailableError(message);
  }
}

absl::StatusOr<NcclId> MakeNcclId(const NcclLibrary& nccl) {
  NcclId id;
  GEMINI_RETURN_IF_ERROR(NcclStatus(nccl, nccl.GetUniqueId(&id), "ncclGetUniqueId", nullptr));
  return id;
}

void SetNcclEnvironment(const NcclEnvironment& here) {
  for (const auto& [name, value] : kNeeded) ::setenv(name, value, /*overwrite=*/1);
  if (!here.shares_gpu) return;
  const std::string host = absl::StrCat("gemini-rank-", here.rank);
  ::setenv("NCCL_HOSTID", host.c_str(), /*overwrite=*/0);
  for (const auto& [name, value] : kOfSharedGpus) ::setenv(name, value, /*overwrite=*/0);
}

}  // namespace gemini::trainer
