// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/rank_job.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gemini/crc32c.h"
#include "gemini/system/status_macros.h"
#include "gemini/system/unique_fd.h"
#include "trainer/parallel/communicator_host.h"
#include "trainer/parallel/nccl_join.h"
#include "trainer/parallel/nccl_library.h"
#include "trainer/parallel/part_of_run.h"
#include "trainer/parallel/rank_store.h"
#include "trainer/parallel/rank_transport_mpi.h"
#include "trainer/parallel/rank_verdict.h"

namespace gemini::trainer {
namespace {

// Marks an error that all ranks of a machine find alike.
constexpr absl::string_view kOfMachine = "gemini.of_machine";
absl::Status MarkAsOfMachine(absl::Status status) {
  status.SetPayload(kOfMachine, absl::Cord());
  return status;
}

// Beside the program, or where it is installed.
absl::StatusOr<std::string> MpiModule() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::NotFoundError(absl::StrCat("/proc/self/exe: ", error.message()));
  const std::filesystem::path beside = program.parent_path() / "gemini_mpi.so";
  const std::filesystem::path installed =
      program.parent_path().parent_path() / "lib" / "gemini" / "gemini_mpi.so";
  for (const std::filesystem::path& path : {beside, installed}) {
    if (std::filesystem::exists(path, error)) return path.string();
  }
  return absl::NotFoundError(absl::StrCat(
      "several ranks need MPI, and neither ", beside.string(), " nor ", installed.string(),
      " is there: install libopenmpi-dev and openmpi-bin, and build again"));
}

// What is compared, a line each.
std::string Description(const RunConfig& config, const std::string& files) {
  // The checksum of its parts' checksums.
  std::ifstream program("/proc/self/exe", std::ios::binary);
  std::string part(size_t{1} << 20, '\0');
  std::vector<uint32_t> checksums;
  do {
    program.read(part.data(), static_cast<std::streamsize>(part.size()));
    checksums.push_back(Crc32c(
        std::as_bytes(std::span<const char>(part.data(), static_cast<size_t>(program.gcount())))));
  } while (program.gcount() > 0);
  const uint32_t crc = Crc32c(std::as_bytes(std::span<const uint32_t>(checksums)));
  return absl::StrFormat("gemini-train has the checksum %08x\n%s%s", crc, ToToml(config), files);
}

absl::Status Compare(const std::string& own, const std::string& of_first) {
  const std::vector<std::string> here = absl::StrSplit(own, '\n');
  const std::vector<std::string> there = absl::StrSplit(of_first, '\n');
  const auto [differs, other] = std::mismatch(here.begin(), here.end(), there.begin(), there.end());
  if (differs == here.end() && other == there.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(differs == here.end() ? "nothing" : *differs, " here, and ",
                   other == there.end() ? "nothing" : *other, " in rank 0: start all ranks with ",
                   "one build, one configuration and the same files"));
}

}  // namespace

absl::StatusOr<LineOfRank> ParseLineOfRank(absl::Span<const std::string> arguments,
                                           const RankEnvironment& where) {
  GEMINI_ASSIGN_OR_RETURN(CommandLine line, ParseCommandLine(arguments));
  if (line.help || line.version) {
    return LineOfRank{.line = std::move(line), .layout = RankLayout(where.num_ranks)};
  }
  const absl::StatusOr<RankLayout> layout = LayoutOf(line.config, where.num_ranks);
  GEMINI_RETURN_IF_ERROR(AtItsLine(layout.status(), line));
  GEMINI_RETURN_IF_ERROR(AtItsLine(CheckRunOfRanks(line.config, where.num_ranks), line));
  GEMINI_RETURN_IF_ERROR(AtItsLine(CheckScheduleRuns(line.config), line));
  const absl::StatusOr<JoinWish> wish =
      JoinWishOf(line.config, *layout, where.launcher, HasNcclForCpus());
  GEMINI_RETURN_IF_ERROR(AtItsLine(wish.status(), line));
  LineOfRank read = {.line = std::move(line), .layout = *layout, .wish = *wish};
  if (where.num_ranks > 1 && wish->transport == Transport::kNccl && wish->exact &&
      !read.line.config.exact) {
    read.said =
        "sums are exact, as with --exact: ranks that share layers compute alike what several of "
        "them have, and must add it up alike";
  }
  return read;
}

absl::string_view TransportName(Transport transport) {
  return transport == Transport::kMpi ? "mpi" : "nccl";
}

bool NeedsExactSums(const RankLayout& layout) {
  constexpr int64_t kLeast = 3;
  const policies::TensorGrid& grid = layout.grid();
  if (grid.num_ranks() == 1) return false;
  if (std::ssize(layout.parts().front()) >= kLeast) return true;
  // On a grid what is held by several ranks is added along one axis after the other.
  return grid.mode() != policies::TensorMode::k1d &&
         std::ranges::any_of(std::array{policies::TensorAxis::kI, policies::TensorAxis::kJ,
                                        policies::TensorAxis::kK},
                             [&](policies::TensorAxis axis) { return grid.size(axis) >= kLeast; });
}

absl::StatusOr<JoinWish> JoinWishOf(const RunConfig& config, const RankLayout& layout,
                                    Launcher launcher, bool has_nccl_for_cpus) {
  const bool on_gpus = config.gpu().has_value();
  JoinWish wish = {.device = config.device,
                   .exact = config.exact || NeedsExactSums(layout),
                   .shares_gpu = config.share_gpu,
                   .limit = absl::Seconds(config.collective_timeout)};
  if (on_gpus || config.transport == "nccl") wish.transport = Transport::kNccl;
  if (layout.num_ranks() == 1) return wish;
  if (wish.transport == Transport::kNccl && !on_gpus && !has_nccl_for_cpus) {
    return absl::InvalidArgumentError(
        absl::StrCat("--transport nccl with --device ", config.device,
                     ": NCCL exchanges what lies on GPUs: add --device cuda, or leave it out"));
  }
  if (wish.transport == Transport::kMpi && launcher == Launcher::kTorchrun) {
    return absl::UnimplementedError(
        "torchrun starts ranks that exchange by NCCL between GPUs: add --device cuda, or use "
        "mpirun, for MPI between CPUs");
  }
  return wish;
}

namespace {

// Tells an error while others wait for this rank.
using TellError = absl::FunctionRef<void(const absl::Status& status)>;

// By MPI, for its own sake or to say where the store is.
absl::StatusOr<std::unique_ptr<Communicator>> JoinByMpi(const RankEnvironment& where) {
  GEMINI_ASSIGN_OR_RETURN(const std::string module, MpiModule());
  return CommunicatorHost::Make(where.rank, where.num_ranks, [module, &where] {
    return MakeMpiTransport(module, where.rank, where.num_ranks);
  });
}

// COLLECTIVE. Returns the transport that all ranks want.
absl::StatusOr<Transport> AgreeOnTransport(const RankAgreement& ranks,
                                           const absl::StatusOr<JoinWish>& wish) {
  GEMINI_RETURN_IF_ERROR(ranks.Agree(wish.status()));
  const std::string own(TransportName(wish->transport));
  GEMINI_ASSIGN_OR_RETURN(const std::string of_first, ranks.TextOfFirst(own));
  GEMINI_RETURN_IF_ERROR(
      ranks.Agree(own == of_first ? absl::OkStatus()
                                  : absl::InvalidArgumentError(absl::StrCat(
                                        "it exchanges by ", own, ", and rank 0 by ", of_first,
                                        ": start all ranks with one configuration"))));
  return wish->transport;
}

// COLLECTIVE. The first rank listens, and tells the others where.
absl::StatusOr<RankStoreOptions> TellPlace(const RankAgreement& ranks, bool one_machine) {
  RankStoreOptions options;
  absl::StatusOr<UniqueFd> listening = UniqueFd();
  if (ranks.is_first()) listening = ListenForRanks(one_machine, options.place);
  GEMINI_RETURN_IF_ERROR(ranks.Agree(listening.status()));
  options.listening = *std::move(listening);
  GEMINI_RETURN_IF_ERROR(SharePlace(ranks, options.place));
  return options;
}

absl::Status NoPlace(const RankEnvironment& where) {
  return absl::FailedPreconditionError(absl::StrCat(
      "nothing says where the ranks of ", LauncherName(where.launcher),
      " find each other: set MASTER_ADDR to the first one's host and MASTER_PORT to a free port "
      "there, for all of them"));
}

// COLLECTIVE. A rank without a wish tells the others why.
absl::StatusOr<RankJob> JoinByStore(const RankEnvironment& where,
                                    const absl::StatusOr<JoinWish>& wish, RankStoreOptions options,
                                    TellError tell) {
  options.rank = where.rank;
  options.num_ranks = where.num_ranks;
  options.limit = wish.ok() ? wish->limit : JoinWish().limit;
  NcclJoinOptions join = {.rank = where.rank, .num_ranks = where.num_ranks};
  if (wish.ok()) {
    join.gpu = {.device = wish->device,
                .shares = wish->shares_gpu,
                .local_rank = where.local_rank,
                .num_local_ranks = where.num_local_ranks};
    join.exact = wish->exact;
    join.limit = wish->limit;
  }
  absl::StatusOr<NcclParts> parts =
      wish.ok() ? FindNcclParts(join.gpu) : absl::StatusOr<NcclParts>(wish.status());
  absl::StatusOr<std::unique_ptr<RankStore>> store = RankStore::Open(std::move(options));
  // What this rank itself cannot do says more than that it could not tell.
  if (!store.ok()) return parts.ok() ? store.status() : parts.status();
  absl::StatusOr<JoinedByNccl> joined = JoinByNccl(**store, join, std::move(parts));
  if (!joined.ok()) {
    tell(joined.status());  // Before it leaves the store.
    return joined.status();
  }
  return RankJob{.where = where,
                 .transport = Transport::kNccl,
                 .gpu = std::move(joined->gpu),
                 .device = std::move(joined->device),
                 .communicator = std::move(joined->communicator)};
}

absl::StatusOr<RankJob> Join(const RankEnvironment& where, const absl::StatusOr<JoinWish>& wish,
                             TellError tell) {
  if (where.num_ranks == 1) {
    GEMINI_RETURN_IF_ERROR(wish.status());
    return RankJob{.where = where};
  }
  // A rank that cannot go on comes where the others are likely to be, to tell them.
  const bool by_nccl =
      wish.ok() ? wish->transport == Transport::kNccl : where.launcher == Launcher::kTorchrun;
  if (by_nccl) {
    // Before anything of CUDA, and before there are threads.
    SetNcclEnvironment({.rank = where.rank, .shares_gpu = wish.ok() && wish->shares_gpu});
    if (where.rendezvous.has_value()) {
      RankStoreOptions options;
      options.place = *where.rendezvous;
      return JoinByStore(where, wish, std::move(options), tell);
    }
  }
  absl::StatusOr<std::unique_ptr<Communicator>> by_mpi = JoinByMpi(where);
  if (!by_mpi.ok()) {
    GEMINI_RETURN_IF_ERROR(wish.status());
    if (!absl::IsNotFound(by_mpi.status())) return by_mpi.status();
    return MarkAsOfMachine(by_nccl ? NoPlace(where) : by_mpi.status());
  }
  const RankAgreement ranks(**by_mpi);
  const absl::StatusOr<Transport> agreed = AgreeOnTransport(ranks, wish);
  if (!agreed.ok()) {
    tell(agreed.status());  // Before MPI's end, to which all come.
    return agreed.status();
  }
  if (*agreed == Transport::kMpi) {
    return RankJob{.where = where, .communicator = *std::move(by_mpi)};
  }
  GEMINI_ASSIGN_OR_RETURN(RankStoreOptions options,
                          TellPlace(ranks, where.num_local_ranks == where.num_ranks));
  // MPI has done its part: it ends in all ranks, which have come here.
  by_mpi->reset();
  return JoinByStore(where, wish, std::move(options), tell);
}

// Returns what this rank says of an error, or "".
std::string SaidHere(const absl::Status& status, const RankEnvironment& where) {
  const std::string text(status.message());
  if (IsAgreed(status)) return where.rank == 0 ? text : "";
  if (status.GetPayload(kOfMachine).has_value()) return where.local_rank == 0 ? text : "";
  return where.num_ranks == 1 ? text : absl::StrCat("rank ", where.rank, ": ", text);
}

}  // namespace

absl::StatusOr<RankJob> JoinRanks(const RankEnvironment& where,
                                  const absl::StatusOr<JoinWish>& wish,
                                  absl::FunctionRef<void(const absl::Status& why)> say) {
  bool is_told = false;
  const auto tell = [&](const absl::Status& status) {
    if (std::exchange(is_told, true)) return;
    const std::string text = SaidHere(status, where);
    if (!text.empty()) say(absl::Status(status.code(), text));
  };
  absl::StatusOr<RankJob> job = Join(where, wish, tell);
  if (!job.ok()) tell(job.status());
  return job;
}

absl::Status CheckSameRun(const RankAgreement& ranks, const RunConfig& config,
                          const std::string& files) {
  const std::string own = Description(config, files);
  GEMINI_ASSIGN_OR_RETURN(const std::string of_first, ranks.TextOfFirst(own));
  return ranks.Agree(Compare(own, of_first));
}

}  // namespace gemini::trainer
