// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/rank_job.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gemini/crc32c.h"
#include "gemini/system/status_macros.h"
#include "trainer/parallel/rank_transport_mpi.h"

namespace gemini::trainer {
namespace {

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

absl::StatusOr<RankJob> JoinRanks(const RankEnvironment& where) {
  RankJob job = {.where = where, .communicator = nullptr};
  if (where.num_ranks == 1) return job;
  if (where.launcher == Launcher::kTorchrun) {
    return absl::UnimplementedError(
        "torchrun starts ranks that exchange by NCCL between GPUs, which is not built yet: use "
        "mpirun");
  }
  GEMINI_ASSIGN_OR_RETURN(const std::string module, MpiModule());
  GEMINI_ASSIGN_OR_RETURN(job.communicator,
                          CommunicatorHost::Make(where.rank, where.num_ranks, [module, &where] {
                            return MakeMpiTransport(module, where.rank, where.num_ranks);
                          }));
  return job;
}

absl::Status CheckSameRun(const RankAgreement& ranks, const RunConfig& config,
                          const std::string& files) {
  const std::string own = Description(config, files);
  GEMINI_ASSIGN_OR_RETURN(const std::string of_first, ranks.TextOfFirst(own));
  return ranks.Agree(Compare(own, of_first));
}

int64_t ThreadsOfRank(int64_t processors, int64_t usable, int64_t num_local_ranks) {
  return std::max<int64_t>(1, std::min(usable, processors / num_local_ranks));
}

}  // namespace gemini::trainer
