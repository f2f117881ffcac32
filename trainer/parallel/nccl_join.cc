// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/nccl_join.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/torch/device/gpu_device.h"
#include "gemini/device_name.h"
#include "gemini/system/nvml.h"
#include "gemini/system/status_macros.h"
#include "trainer/parallel/communicator_nccl.h"
#include "trainer/parallel/exchange_gpu.h"
#include "trainer/parallel/rank_verdict.h"
#include "trainer/parallel/visible_gpus.h"

namespace gemini::trainer {
namespace {

constexpr char kPathVariable[] = "GEMINI_NCCL_LIBRARY";
// What a library for tests has besides NCCL's functions, by its name.
constexpr char kMakeExchangeDevice[] = "gemini_make_exchange_device";
using MakeExchangeDevice = void (*)(absl::StatusOr<std::shared_ptr<ExchangeDevice>>& made);

// What all ranks tell each other before any of them takes memory, by rank.
struct Gpus {
  std::vector<std::string> uuids;  // "": the CPU.
  std::vector<int64_t> free_bytes;
};

std::string Description(const std::optional<RankGpu>& gpu) {
  if (!gpu.has_value()) return "\n-1";
  return absl::StrCat(gpu->uuid, "\n", gpu->free_bytes.value_or(-1));
}

absl::StatusOr<Gpus> ReadGpus(const std::vector<std::string>& texts) {
  Gpus gpus;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const std::pair<std::string, std::string> lines = absl::StrSplit(texts[rank], '\n');
    if (!absl::SimpleAtoi(lines.second, &gpus.free_bytes.emplace_back())) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " is of another Gemini: start all ranks with one build"));
    }
    gpus.uuids.push_back(lines.first);
  }
  return gpus;
}

// Sets what the others say of this rank's GPU: who has it, too, and what was free of it before any
// of them took some.
void NoteOthers(const Gpus& gpus, int64_t rank, RankGpu& gpu) {
  gpu.num_ranks = NumRanksOnGpu(gpus.uuids, rank);
  for (size_t other = 0; other < gpus.uuids.size(); ++other) {
    if (gpus.uuids[other] != gpu.uuid || !gpu.free_bytes.has_value()) continue;
    gpu.free_bytes = gpus.free_bytes[other] < 0
                         ? std::nullopt
                         : std::optional(std::min(*gpu.free_bytes, gpus.free_bytes[other]));
  }
}

std::string Path() {
  const char* const path = std::getenv(kPathVariable);
  return path == nullptr ? kNcclName : path;
}

absl::StatusOr<std::shared_ptr<ExchangeDevice>> OpenForCpus(const std::string& path) {
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto make =
      module == nullptr
          ? nullptr
          : reinterpret_cast<MakeExchangeDevice>(::dlsym(module, kMakeExchangeDevice));
  if (make == nullptr) {
    return absl::UnimplementedError(absl::StrCat(path, " of ", kPathVariable, " has no ",
                                                 kMakeExchangeDevice,
                                                 ", by which it exchanges between CPUs"));
  }
  absl::StatusOr<std::shared_ptr<ExchangeDevice>> made = absl::UnknownError("");
  make(made);
  return made;
}

// Returns "" if it went well, for the others.
absl::StatusOr<std::string> Went(const absl::Status& status) {
  if (status.ok()) return "";
  return status;
}

// What a rank tells when it has opened its device: its version of NCCL, and the first one an id.
absl::StatusOr<std::string> TextOf(const absl::StatusOr<OpenedNccl>& opened, bool makes_id) {
  GEMINI_RETURN_IF_ERROR(opened.status());
  int version = 0;
  GEMINI_RETURN_IF_ERROR(
      NcclStatus(opened->nccl, opened->nccl.GetVersion(&version), "ncclGetVersion", nullptr));
  std::string text = NcclVersionName(version);
  if (!makes_id) return text;
  GEMINI_ASSIGN_OR_RETURN(const NcclId id, MakeNcclId(opened->nccl));
  absl::StrAppend(&text, "\n", absl::string_view(id.bytes, sizeof(id.bytes)));
  return text;
}

// Returns the first one's id.
absl::StatusOr<NcclId> ReadId(const std::vector<std::string>& texts) {
  const std::pair<std::string, std::string> of_first =
      absl::StrSplit(texts.front(), absl::MaxSplits('\n', 1));
  NcclId id;
  if (of_first.second.size() != sizeof(id.bytes)) {
    return absl::InternalError(absl::StrCat("NCCL's id from rank 0 has ", of_first.second.size(),
                                            " bytes, not ", sizeof(id.bytes)));
  }
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == of_first.first) continue;
    return absl::InvalidArgumentError(absl::StrCat("rank 0 has NCCL ", of_first.first,
                                                   ", and rank ", rank, " has ", texts[rank],
                                                   ": install one of them for all ranks"));
  }
  std::memcpy(id.bytes, of_first.second.data(), sizeof(id.bytes));
  return id;
}

}  // namespace

bool HasNcclForCpus() { return std::getenv(kPathVariable) != nullptr; }

absl::StatusOr<NcclParts> FindNcclParts(const GpuWish& wish) {
  NcclParts parts;
  GEMINI_ASSIGN_OR_RETURN(const std::optional<int> gpu, ParseDeviceName(wish.device));
  if (!gpu.has_value()) {
    parts.open = []() -> absl::StatusOr<OpenedNccl> {
      OpenedNccl opened;
      GEMINI_ASSIGN_OR_RETURN(opened.nccl, LoadNccl(Path()));
      GEMINI_ASSIGN_OR_RETURN(opened.exchange, OpenForCpus(Path()));
      return opened;
    };
    return parts;
  }
  const absl::StatusOr<std::vector<std::string>> uuids = VisibleGpus();
  if (!uuids.ok()) {
    return absl::Status(uuids.status().code(),
                        absl::StrCat("--device ", wish.device, ": ", uuids.status().message()));
  }
  GEMINI_ASSIGN_OR_RETURN(const int number, GpuOfRank(wish, std::ssize(*uuids)));
  RankGpu& own = parts.gpu.emplace();
  own.number = number;
  own.uuid = (*uuids)[static_cast<size_t>(number)];
  if (const absl::StatusOr<GpuMemory> memory = ReadGpuMemory(own.uuid); memory.ok()) {
    own.free_bytes = memory->free_bytes;
  }
  parts.open = [number]() -> absl::StatusOr<OpenedNccl> {
    OpenedNccl opened;
    GEMINI_ASSIGN_OR_RETURN(opened.device, client::hooks::OpenGpu(number));
    // Behind Torch's CUDA library, which brings NCCL with it.
    GEMINI_ASSIGN_OR_RETURN(opened.nccl, LoadNccl(Path()));
    GEMINI_ASSIGN_OR_RETURN(opened.exchange, MakeGpuExchange(number));
    return opened;
  };
  return parts;
}

absl::StatusOr<JoinedByNccl> JoinByNccl(RankStore& store, const NcclJoinOptions& options,
                                        absl::StatusOr<NcclParts> parts) {
  const absl::StatusOr<std::string> own =
      parts.ok() ? absl::StatusOr<std::string>(Description(parts->gpu)) : parts.status();
  GEMINI_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                          store.Gather("which GPU it has", own));
  const absl::StatusOr<Gpus> gpus = ReadGpus(texts);
  GEMINI_RETURN_IF_ERROR(MarkAsAgreed(gpus.status()));
  if (!options.gpu.shares) GEMINI_RETURN_IF_ERROR(MarkAsAgreed(CheckGpusApart(gpus->uuids)));

  JoinedByNccl joined = {.gpu = std::move(parts->gpu)};
  if (joined.gpu.has_value()) NoteOthers(*gpus, options.rank, *joined.gpu);
  absl::StatusOr<OpenedNccl> opened = parts->open();
  GEMINI_ASSIGN_OR_RETURN(
      const std::vector<std::string> versions,
      store.Gather("that it has opened NCCL", TextOf(opened, /*makes_id=*/options.rank == 0)));
  const absl::StatusOr<NcclId> id = ReadId(versions);
  GEMINI_RETURN_IF_ERROR(MarkAsAgreed(id.status()));
  joined.device = std::move(opened->device);

  NcclOptions of_nccl;
  of_nccl.exact = options.exact;
  of_nccl.limit = absl::ToChronoNanoseconds(options.limit);
  absl::StatusOr<std::unique_ptr<CommunicatorNccl>> made = CommunicatorNccl::Make(
      opened->nccl, std::move(opened->exchange), *id, options.rank, options.num_ranks, of_nccl);
  // The id's maker lives until all have used it, and what one cannot do all know.
  GEMINI_RETURN_IF_ERROR(store.Gather("that it has joined by NCCL", Went(made.status())).status());
  joined.communicator = *std::move(made);
  return joined;
}

}  // namespace gemini::trainer
