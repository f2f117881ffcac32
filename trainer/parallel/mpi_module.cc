// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/mpi_module.h"

#include <mpi.h>

#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gemini/system/status_macros.h"
#include "trainer/parallel/rank_bell.h"

namespace gemini::trainer {
namespace {

absl::Status StatusOf(int result, absl::string_view call) {
  if (result == MPI_SUCCESS) return absl::OkStatus();
  std::array<char, MPI_MAX_ERROR_STRING> text = {};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  return absl::InternalError(
      absl::StrCat(call, ": ", absl::string_view(text.data(), static_cast<size_t>(length))));
}

// A number of bytes as MPI counts them: a type, and how many of it. Where an int does not hold the
// number, it is one element of a type that has them all.
class ByteCount {
 public:
  static absl::StatusOr<ByteCount> Of(int64_t bytes) {
    ByteCount made;
    if (bytes <= std::numeric_limits<int>::max()) {
      made.count_ = static_cast<int>(bytes);
      return made;
    }
    constexpr int kBlock = 1 << 20;
    std::array<int, 2> counts = {static_cast<int>(bytes / kBlock),
                                 static_cast<int>(bytes % kBlock)};
    const std::array<MPI_Aint, 2> places = {0, static_cast<MPI_Aint>(bytes - counts[1])};
    std::array<MPI_Datatype, 2> types = {MPI_DATATYPE_NULL, MPI_BYTE};
    GEMINI_RETURN_IF_ERROR(
        StatusOf(MPI_Type_contiguous(kBlock, MPI_BYTE, &types[0]), "MPI_Type_contiguous"));
    const int result =
        MPI_Type_create_struct(2, counts.data(), places.data(), types.data(), &made.type_);
    MPI_Type_free(&types[0]);
    GEMINI_RETURN_IF_ERROR(StatusOf(result, "MPI_Type_create_struct"));
    made.is_own_ = true;
    made.count_ = 1;
    GEMINI_RETURN_IF_ERROR(StatusOf(MPI_Type_commit(&made.type_), "MPI_Type_commit"));
    return made;
  }
  ByteCount(ByteCount&& other) noexcept
      : type_(other.type_), count_(other.count_), is_own_(std::exchange(other.is_own_, false)) {}
  ByteCount& operator=(ByteCount&&) = delete;
  // MPI keeps the type for what is under way.
  ~ByteCount() {
    if (is_own_) MPI_Type_free(&type_);
  }
  MPI_Datatype type() const { return type_; }
  int count() const { return count_; }

 private:
  ByteCount() = default;
  MPI_Datatype type_ = MPI_BYTE;
  int count_ = 0;
  bool is_own_ = false;
};

// The bells of the ranks of this machine, in a window of memory that they share. Where MPI has no
// such memory, the rank has a bell that no other rank rings.
class MachineBells {
 public:
  MachineBells() = default;
  MachineBells(const MachineBells&) = delete;
  MachineBells& operator=(const MachineBells&) = delete;
  // COLLECTIVE over the machine's ranks.
  ~MachineBells() {
    if (window_ != MPI_WIN_NULL) MPI_Win_free(&window_);
    if (machine_ != MPI_COMM_NULL) MPI_Comm_free(&machine_);
  }

  // COLLECTIVE over the job.
  absl::Status Begin(MPI_Comm world, int rank) {
    GEMINI_RETURN_IF_ERROR(
        StatusOf(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &machine_),
                 "MPI_Comm_split_type"));
    int size = 0;
    GEMINI_RETURN_IF_ERROR(StatusOf(MPI_Comm_size(machine_, &size), "MPI_Comm_size"));
    std::vector<int> ranks(static_cast<size_t>(size));
    GEMINI_RETURN_IF_ERROR(StatusOf(
        MPI_Allgather(&rank, 1, MPI_INT, ranks.data(), 1, MPI_INT, machine_), "MPI_Allgather"));
    void* memory = nullptr;
    MPI_Win made = MPI_WIN_NULL;
    const int is_made = MPI_Win_allocate_shared(kLineBytes, kLineBytes, MPI_INFO_NULL, machine_,
                                                &memory, &made) == MPI_SUCCESS
                            ? 1
                            : 0;
    int are_all_made = 0;
    GEMINI_RETURN_IF_ERROR(StatusOf(
        MPI_Allreduce(&is_made, &are_all_made, 1, MPI_INT, MPI_MIN, machine_), "MPI_Allreduce"));
    if (are_all_made == 0) return absl::OkStatus();
    window_ = made;
    // A window does not have its communicator's handler.
    GEMINI_RETURN_IF_ERROR(
        StatusOf(MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler"));
    own_ = new (memory) RankBell;
    for (int i = 0; i < size; ++i) {
      MPI_Aint bytes = 0;
      int unit = 0;
      void* line = nullptr;
      GEMINI_RETURN_IF_ERROR(
          StatusOf(MPI_Win_shared_query(window_, i, &bytes, &unit, &line), "MPI_Win_shared_query"));
      by_rank_[ranks[static_cast<size_t>(i)]] = static_cast<RankBell*>(line);
    }
    // Nobody rings a bell that is not there yet.
    return StatusOf(MPI_Barrier(machine_), "MPI_Barrier");
  }

  RankBell& own() const { return *own_; }
  // Rings those of the group's other ranks, or the one at `place`.
  void Ring(const RankGroup& group, std::optional<int64_t> place) const {
    for (int64_t i = 0; i < group.size(); ++i) {
      if (i == group.place || (place.has_value() && i != *place)) continue;
      const auto found = by_rank_.find(group.ranks[static_cast<size_t>(i)]);
      if (found != by_rank_.end()) found->second->RingOfOther();
    }
  }

 private:
  static constexpr MPI_Aint kLineBytes = 64;  // A bell has a line of caches for itself.

  RankBell lonely_;  // This rank's where there is no window.
  MPI_Comm machine_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  RankBell* own_ = &lonely_;
  std::map<int64_t, RankBell*> by_rank_;
};

class MpiTransfer final : public Transfer {
 public:
  // `place` is that of the one other rank that takes part; without it all of the group take part.
  // `received_bytes` is the size that a message must have.
  MpiTransfer(MPI_Request request, const MachineBells& bells, const RankGroup& group,
              std::optional<int64_t> place, std::optional<int64_t> received_bytes)
      : request_(request),
        bells_(bells),
        group_(group),
        place_(place),
        received_bytes_(received_bytes) {
    bells_.Ring(group_, place_);
  }
  absl::StatusOr<bool> Test() override {
    int is_done = 0;
    MPI_Status status = {};
    GEMINI_RETURN_IF_ERROR(StatusOf(MPI_Test(&request_, &is_done, &status), "MPI_Test"));
    if (is_done == 0) return false;
    bells_.Ring(group_, place_);
    if (!received_bytes_.has_value()) return true;
    MPI_Count bytes = 0;
    GEMINI_RETURN_IF_ERROR(
        StatusOf(MPI_Get_elements_x(&status, MPI_BYTE, &bytes), "MPI_Get_elements_x"));
    if (bytes == *received_bytes_) return true;
    return absl::InternalError(absl::StrCat("a message of ", static_cast<int64_t>(bytes),
                                            " bytes where ", *received_bytes_, " are received"));
  }

 private:
  MPI_Request request_;
  const MachineBells& bells_;
  const RankGroup& group_;
  const std::optional<int64_t> place_;
  const std::optional<int64_t> received_bytes_;
};

class MpiTransport final : public RankTransport {
 public:
  ~MpiTransport() override {
    bells_.reset();
    for (auto& [id, comm] : comms_) MPI_Comm_free(&comm);
    MPI_Finalize();
  }

  absl::Status Begin(int64_t rank, int64_t num_ranks) {
    int here = 0;
    int size = 0;
    MPI_Comm world = MPI_COMM_NULL;
    // Calls without a communicator use this one's handler, and those made of it inherit it.
    GEMINI_RETURN_IF_ERROR(StatusOf(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
                                    "MPI_Comm_set_errhandler"));
    GEMINI_RETURN_IF_ERROR(StatusOf(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup"));
    comms_[0] = world;
    GEMINI_RETURN_IF_ERROR(StatusOf(MPI_Comm_rank(world, &here), "MPI_Comm_rank"));
    GEMINI_RETURN_IF_ERROR(StatusOf(MPI_Comm_size(world, &size), "MPI_Comm_size"));
    if (here == rank && size == num_ranks) {
      bells_ = std::make_unique<MachineBells>();
      return bells_->Begin(world, here);
    }
    return absl::InvalidArgumentError(absl::StrCat("the launcher says rank ", rank, " of ",
                                                   num_ranks, ", and MPI rank ", here, " of ", size,
                                                   ": start the ranks by the mpirun of Open MPI"));
  }

  absl::Status Prepare(const RankGroup& group) override {
    MPI_Comm comm = MPI_COMM_NULL;
    GEMINI_RETURN_IF_ERROR(
        StatusOf(MPI_Comm_split(comms_.at(0), static_cast<int>(group.ranks.front()),
                                static_cast<int>(group.place), &comm),
                 "MPI_Comm_split"));
    comms_[group.id] = comm;
    return absl::OkStatus();
  }

  RankBell& bell() override { return bells_->own(); }

  BegunTransfer AllGather(const RankGroup& group, const std::byte* part, std::byte* all,
                          int64_t part_bytes) override {
    GEMINI_ASSIGN_OR_RETURN(const ByteCount bytes, ByteCount::Of(part_bytes));
    // MPI asks that all ranks gather in place, or none.
    std::byte* const here = all + group.place * part_bytes;
    if (here != part && part_bytes > 0) std::memcpy(here, part, static_cast<size_t>(part_bytes));
    return Begun("MPI_Iallgather", group, [&](MPI_Request* request) {
      return MPI_Iallgather(MPI_IN_PLACE, bytes.count(), bytes.type(), all, bytes.count(),
                            bytes.type(), comms_.at(group.id), request);
    });
  }
  BegunTransfer AllToAll(const RankGroup& group, const std::byte* to_each, std::byte* from_each,
                         int64_t bytes_each) override {
    GEMINI_ASSIGN_OR_RETURN(const ByteCount bytes, ByteCount::Of(bytes_each));
    return Begun("MPI_Ialltoall", group, [&](MPI_Request* request) {
      return MPI_Ialltoall(to_each, bytes.count(), bytes.type(), from_each, bytes.count(),
                           bytes.type(), comms_.at(group.id), request);
    });
  }
  BegunTransfer Broadcast(const RankGroup& group, std::byte* data, int64_t size_bytes,
                          int64_t place) override {
    GEMINI_ASSIGN_OR_RETURN(const ByteCount bytes, ByteCount::Of(size_bytes));
    return Begun("MPI_Ibcast", group, [&](MPI_Request* request) {
      return MPI_Ibcast(data, bytes.count(), bytes.type(), static_cast<int>(place),
                        comms_.at(group.id), request);
    });
  }
  BegunTransfer Send(const RankGroup& group, const std::byte* data, int64_t size_bytes,
                     int64_t to_place, int64_t tag) override {
    GEMINI_ASSIGN_OR_RETURN(const ByteCount bytes, ByteCount::Of(size_bytes));
    return Begun(
        "MPI_Isend", group,
        [&](MPI_Request* request) {
          return MPI_Isend(data, bytes.count(), bytes.type(), static_cast<int>(to_place),
                           static_cast<int>(tag), comms_.at(group.id), request);
        },
        to_place);
  }
  BegunTransfer Receive(const RankGroup& group, std::byte* data, int64_t size_bytes,
                        int64_t from_place, int64_t tag) override {
    GEMINI_ASSIGN_OR_RETURN(const ByteCount bytes, ByteCount::Of(size_bytes));
    return Begun(
        "MPI_Irecv", group,
        [&](MPI_Request* request) {
          return MPI_Irecv(data, bytes.count(), bytes.type(), static_cast<int>(from_place),
                           static_cast<int>(tag), comms_.at(group.id), request);
        },
        from_place, size_bytes);
  }

 private:
  template <typename Call>
  BegunTransfer Begun(absl::string_view name, const RankGroup& group, Call call,
                      std::optional<int64_t> place = std::nullopt,
                      std::optional<int64_t> received_bytes = std::nullopt) const {
    MPI_Request request = MPI_REQUEST_NULL;
    GEMINI_RETURN_IF_ERROR(StatusOf(call(&request), name));
    return std::make_unique<MpiTransfer>(request, *bells_, group, place, received_bytes);
  }

  std::unique_ptr<MachineBells> bells_;
  std::map<int64_t, MPI_Comm> comms_;  // By group.
};

absl::StatusOr<std::unique_ptr<RankTransport>> Make(int64_t rank, int64_t num_ranks) {
  int is_begun = 0;
  int provided = 0;
  MPI_Initialized(&is_begun);
  if (is_begun != 0) return absl::InternalError("MPI was begun in this process before");
  GEMINI_RETURN_IF_ERROR(StatusOf(
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread"));
  if (provided < MPI_THREAD_SERIALIZED) {
    return absl::InternalError(
        "this MPI knows no threads: it was built without MPI_THREAD_SERIALIZED");
  }
  auto transport = std::make_unique<MpiTransport>();
  absl::Status begun = transport->Begin(rank, num_ranks);
  if (begun.ok()) return transport;
  // Its end would wait for ranks that wait for this one. The launcher ends them with this process.
  transport.release();
  return begun;
}

}  // namespace
}  // namespace gemini::trainer

extern "C" void gemini_make_mpi_transport(
    int64_t rank, int64_t num_ranks,
    absl::StatusOr<std::unique_ptr<gemini::trainer::RankTransport>>& made) {
  made = gemini::trainer::Make(rank, num_ranks);
}
