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

void SetUnlessSet(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), /*overwrite=*/0);
}

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
  // Of messages that are on their way several wait, each on a stream of its own. With an order of
  // launches NCCL would begin none of them before all that were issued earlier have begun, and of
  // two ranks each would wait for what stands behind its own wait.
  SetUnlessSet("NCCL_LAUNCH_ORDER_IMPLICIT", "0");
  // By default CUDA puts streams beyond the eighth behind each other's work. A rank with a pipeline
  // has more: operators, copies, collectives, and six of messages.
  SetUnlessSet("CUDA_DEVICE_MAX_CONNECTIONS", "32");
  if (!here.shares_gpu) return;
  SetUnlessSet("NCCL_HOSTID", absl::StrCat("gemini-rank-", here.rank));
  constexpr std::array<std::array<const char*, 2>, 6> kSettings = {{{"NCCL_NET", "Socket"},
                                                                    {"NCCL_IB_DISABLE", "1"},
                                                                    {"NCCL_SOCKET_IFNAME", "lo"},
                                                                    {"NCCL_MNNVL_ENABLE", "0"},
                                                                    {"NCCL_NVLS_ENABLE", "0"},
                                                                    {"NCCL_MAX_CTAS", "1"}}};
  for (const auto& [name, value] : kSettings) SetUnlessSet(name, value);
}

}  // namespace gemini::trainer
