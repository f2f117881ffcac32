// SPDX-License-Identifier: Apache-2.0
// Preloaded into the ranks of gemini-train, stands in front of MPI's collectives and messages,
// counts those that a rank begins, and kills it in front of one of them or, of collectives, right
// behind its beginning. MPI's profiling interface has the functions themselves.
// Environment: GEMINI_KILL_AT=RANK:NUMBER:front or RANK:NUMBER:behind, by numbers of collectives
//              from 1, or RANK:NUMBER:send, by those of messages that the rank sends. In place of
//              front: halt has the process stop there. In place of send: stop has the process stop
//              there, and hang has MPI's thread go no further;
//              GEMINI_COUNT_IN=FILE, where the first rank writes how many collectives there were.
#include <fcntl.h>
#include <mpi.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace {

int64_t OwnRank() {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank == nullptr ? -1 : std::strtoll(rank, nullptr, 10);
}

enum class What : uint8_t {
  kNothing,
  kDieInFront,
  kDieBehind,
  kStopInFront,
  kDieAtMessage,
  kStopAtMessage,
  kHangAtMessage,
};
constexpr std::array<std::pair<const char*, What>, 6> kNames = {{{":front", What::kDieInFront},
                                                                 {":behind", What::kDieBehind},
                                                                 {":halt", What::kStopInFront},
                                                                 {":send", What::kDieAtMessage},
                                                                 {":stop", What::kStopAtMessage},
                                                                 {":hang", What::kHangAtMessage}}};

// What the environment asks of this rank.
struct Plan {
  Plan() {
    if (const char* const at = std::getenv("GEMINI_KILL_AT"); at != nullptr) {
      char* rest = nullptr;
      if (std::strtoll(at, &rest, 10) == OwnRank()) number = std::strtoll(rest + 1, &rest, 10);
      for (const auto& [name, one] : kNames) {
        if (std::strcmp(rest, name) == 0) what = one;
      }
    }
    const char* const path = std::getenv("GEMINI_COUNT_IN");
    if (path != nullptr && OwnRank() == 0) {
      file = ::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    }
  }
  int64_t number = 0;  // None.
  What what = What::kNothing;
  int file = -1;
};

const Plan& ThePlan() {
  static const Plan plan;
  return plan;
}

template <typename Begin>
int Counted(const Begin& begin) {
  const Plan& plan = ThePlan();
  static int64_t count = 0;  // One thread owns MPI.
  const bool is_here = ++count == plan.number;
  if (is_here && plan.what == What::kDieInFront) std::raise(SIGKILL);
  if (is_here && plan.what == What::kStopInFront) std::raise(SIGSTOP);
  const int result = begin();
  if (is_here && plan.what == What::kDieBehind) std::raise(SIGKILL);
  if (plan.file >= 0) {
    const std::string text = std::to_string(count);
    if (::pwrite(plan.file, text.data(), text.size(), 0) < 0) std::abort();
  }
  return result;
}

}  // namespace

extern "C" int MPI_Iallgather(const void* sent, int sent_count, MPI_Datatype sent_type, void* all,
                              int count, MPI_Datatype type, MPI_Comm comm, MPI_Request* request) {
  return Counted([&] {
    return PMPI_Iallgather(sent, sent_count, sent_type, all, count, type, comm, request);
  });
}

extern "C" int MPI_Ialltoall(const void* sent, int sent_count, MPI_Datatype sent_type, void* all,
                             int count, MPI_Datatype type, MPI_Comm comm, MPI_Request* request) {
  return Counted(
      [&] { return PMPI_Ialltoall(sent, sent_count, sent_type, all, count, type, comm, request); });
}

extern "C" int MPI_Isend(const void* sent, int count, MPI_Datatype type, int to, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  static int64_t number = 0;
  if (++number == ThePlan().number) {
    const What what = ThePlan().what;
    if (what == What::kDieAtMessage) std::raise(SIGKILL);
    if (what == What::kStopAtMessage) std::raise(SIGSTOP);
    while (what == What::kHangAtMessage) ::pause();
  }
  return PMPI_Isend(sent, count, type, to, tag, comm, request);
}
