// SPDX-License-Identifier: Apache-2.0
// Loads the functions of NCCL that this project calls. NCCL is never linked: it is loaded when
// ranks exchange by it, so that one binary runs with it and without.
// Types: nccl.h needs the headers of a CUDA toolkit, and is part of none. What is declared here has
//        not changed since 2.18, and tests/gpu compares it with nccl.h.
// Thread: any.
#pragma once
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gemini::trainer {

// A handle of NCCL's (ncclComm_t is a pointer to one).
struct NcclComm;

// ncclUniqueId: by what the ranks of a job find each other. Copied as bytes.
struct NcclId {
  char bytes[128] = {};
};

// ncclResult_t.
enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// ncclDataType_t, those that are used.
enum class NcclType : int { kByte = 0, kFp16 = 6, kFp32 = 7, kFp64 = 8, kBf16 = 9 };

// ncclConfig_t of 2.18. Newer libraries fill in by its size and version what they have besides.
struct NcclConfig {
  static constexpr int kUndefined = -2147483647 - 1;
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
};

// Each is named as in nccl.h without the `nccl`. A stream is a cudaStream_t.
struct NcclLibrary {
  static constexpr int kSum = 0;       // ncclSum, an ncclRedOp_t.
  static constexpr int kNoColor = -1;  // NCCL_SPLIT_NOCOLOR: the rank is in none of the parts.
  // 2.18, as NCCL writes it: the first with ncclCommSplit and with everything in NcclConfig.
  static constexpr int kLeastVersion = 21800;

  NcclResult (*GetVersion)(int* version);
  NcclResult (*GetUniqueId)(NcclId* id);
  const char* (*GetErrorString)(NcclResult result);
  const char* (*GetLastError)(NcclComm* comm);
  NcclResult (*CommInitRankConfig)(NcclComm** comm, int num_ranks, NcclId id, int rank,
                                   NcclConfig* config);
  NcclResult (*CommSplit)(NcclComm* comm, int color, int key, NcclComm** part, NcclConfig* config);
  NcclResult (*CommGetAsyncError)(NcclComm* comm, NcclResult* error);
  NcclResult (*CommFinalize)(NcclComm* comm);
  NcclResult (*CommDestroy)(NcclComm* comm);
  NcclResult (*CommAbort)(NcclComm* comm);
  NcclResult (*GroupStart)();
  NcclResult (*GroupEnd)();
  NcclResult (*AllGather)(const void* part, void* all, size_t count, NcclType type, NcclComm* comm,
                          void* stream);
  NcclResult (*ReduceScatter)(const void* all, void* part, size_t count, NcclType type, int sum,
                              NcclComm* comm, void* stream);
  NcclResult (*AllReduce)(const void* from, void* to, size_t count, NcclType type, int sum,
                          NcclComm* comm, void* stream);
  NcclResult (*Broadcast)(const void* from, void* to, size_t count, NcclType type, int root,
                          NcclComm* comm, void* stream);
  NcclResult (*Send)(const void* from, size_t count, NcclType type, int peer, NcclComm* comm,
                     void* stream);
  NcclResult (*Recv)(void* to, size_t count, NcclType type, int peer, NcclComm* comm, void* stream);
  std::string path;  // Where it was loaded from, as it was asked for.
};

// The name by which the dynamic linker finds NCCL: in LD_LIBRARY_PATH, or because Torch's CUDA
// library has loaded it.
inline constexpr char kNcclName[] = "libnccl.so.2";

// Loads NCCL from a path, or by a name that the dynamic linker looks for. It stays loaded.
// NOT_FOUND: it is not there (says what to install). UNIMPLEMENTED: it lacks a function, or is
// older than kLeastVersion (says both versions).
absl::StatusOr<NcclLibrary> LoadNccl(const std::string& path = kNcclName);

// Returns a version as people write it: "2.28.9" of 22809.
std::string NcclVersionName(int version);

// Returns "<call>: <NCCL's name of the error>: <what it says of the last one>". kSuccess and
// kInProgress: OK. kRemoteError: UNAVAILABLE, another rank or the network failed.
// kInvalidArgument, kInvalidUsage: INTERNAL. Others: UNAVAILABLE. `comm` may be null.
absl::Status NcclStatus(const NcclLibrary& nccl, NcclResult result, absl::string_view call,
                        NcclComm* comm);

// Returns a new id, which one rank makes and all ranks of the job give to CommunicatorNccl::Make.
// That rank's process must live until all have made theirs.
absl::StatusOr<NcclId> MakeNcclId(const NcclLibrary& nccl);

// Sets what NCCL and CUDA read from this process's environment. Call it before the process first
// uses CUDA, while it has one thread. What CommunicatorNccl relies on is set whatever the user has
// set: with other values ranks wait for each other for ever. Nothing of it needs a newer NCCL than
// kLeastVersion or a certain driver: an NCCL that does not know a variable has no such mode.
// `shares_gpu`: ranks share a GPU, which NCCL refuses within a machine. So this process calls
// itself a machine of its own, and the ranks exchange over loopback sockets, unless the user has
// set these variables: for tests, and slow. NVIDIA does not support it.
struct NcclEnvironment {
  int64_t rank = 0;
  bool shares_gpu = false;
};
void SetNcclEnvironment(const NcclEnvironment& here);

}  // namespace gemini::trainer
