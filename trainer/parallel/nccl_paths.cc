// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/nccl_paths.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

// What a message that waits holds of the GPU.
constexpr int kMessageCtas = 4;
constexpr std::chrono::microseconds kConnectPause(100);

}  // namespace

absl::Status NcclPaths::Connect(NcclComms& comms, ExchangeDevice& device, NcclComm* world,
                                std::chrono::steady_clock::duration limit) {
  if (paths_ == MessagePaths::kNeighbours) {
    GEMINI_RETURN_IF_ERROR(MakeForNeighbours(comms, device, world));
  } else {
    GEMINI_RETURN_IF_ERROR(MakeForAll(comms, device, world));
  }
  return ExchangeBytes(comms, device, limit);
}

absl::Status NcclPaths::MakeEnd(NcclComms& comms, ExchangeDevice& device, NcclComm* world,
                                int64_t color, int64_t key, End& end) {
  GEMINI_ASSIGN_OR_RETURN(NcclComm * comm, comms.Split(world, color, key, kMessageCtas));
  if (color == NcclLibrary::kNoColor) return absl::OkStatus();
  end.comm = comm;
  GEMINI_ASSIGN_OR_RETURN(end.stream, device.MakeStream());
  return absl::OkStatus();
}

absl::Status NcclPaths::MakeForNeighbours(NcclComms& comms, ExchangeDevice& device,
                                          NcclComm* world) {
  const int64_t size = group_.size();
  const int64_t place = group_.place;
  const int64_t before = (place + size - 1) % size;
  // A split gives a rank one communicator, so neighbours come in rounds: pairs that begin at even
  // places, at odd ones, and, where they are odd in number, the last with the first. Other groups
  // may have more ranks, so each makes three.
  const auto round_of = [size](int64_t first) {
    return size % 2 == 1 && first == size - 1 ? 2 : first % 2;
  };
  for (const Direction direction : {kUp, kDown}) {
    for (int64_t round = 0; round < 3; ++round) {
      int64_t first = -1;  // The pair's lower place, or the last one's.
      if (size > 1 && round_of(place) == round) first = place;
      if (size > 1 && round_of(before) == round) first = before;
      End unused;
      if (first < 0) {
        GEMINI_RETURN_IF_ERROR(MakeEnd(comms, device, world, NcclLibrary::kNoColor, 0, unused));
        continue;
      }
      const bool sends = (first == place) == (direction == kUp);
      GEMINI_RETURN_IF_ERROR(MakeEnd(comms, device, world, group_.ranks[static_cast<size_t>(first)],
                                     sends ? 0 : 1,
                                     sends ? senders_[direction] : receivers_[direction]));
    }
  }
  return absl::OkStatus();
}

absl::Status NcclPaths::MakeForAll(NcclComms& comms, ExchangeDevice& device, NcclComm* world) {
  const int64_t color = group_.size() > 1 ? group_.ranks.front() : NcclLibrary::kNoColor;
  for (const Direction direction : {kUp, kDown}) {
    GEMINI_RETURN_IF_ERROR(MakeEnd(comms, device, world, color, group_.place, senders_[direction]));
  }
  return absl::OkStatus();
}

bool NcclPaths::Goes(int64_t from, int64_t to) const {
  return from != to && (paths_ == MessagePaths::kAll || from == 0 || to == 0);
}

absl::Status NcclPaths::ExchangeBytes(NcclComms& comms, ExchangeDevice& device,
                                      std::chrono::steady_clock::duration limit) {
  const std::string what = absl::StrCat("connecting the ranks of ", group_.name, " for messages");
  const int64_t size = group_.size();
  const auto deadline = std::chrono::steady_clock::now() + limit;
  // What comes goes nowhere, so one byte takes it from all.
  GEMINI_ASSIGN_OR_RETURN(std::shared_ptr<ExchangeMemory> memory, device.MakeDeviceMemory(2));
  // Where it fails, others may still read and write it.
  absl::Cleanup keep = [&memory] { KeepForEver(std::move(memory)); };
  std::byte* const from = memory->bytes();
  std::byte* const to = from + 1;
  std::vector<std::shared_ptr<StreamPoint>> points;
  const auto exchange =
      [&](const End& end,
          absl::FunctionRef<absl::Status(const NcclLibrary&)> calls) -> absl::Status {
    if (end.comm == nullptr) return absl::OkStatus();
    GEMINI_RETURN_IF_ERROR(comms.Group(end.comm, what, calls));
    GEMINI_ASSIGN_OR_RETURN(points.emplace_back(), end.stream->Mark());
    return absl::OkStatus();
  };
  for (const Direction direction : {kUp, kDown}) {
    const End& sender = senders_[direction];
    const End& receiver = receivers_[direction];
    const auto send = [&](const NcclLibrary& nccl, const End& end, int64_t peer) {
      return NcclStatus(nccl,
                        nccl.Send(from, 1, NcclType::kByte, static_cast<int>(peer), end.comm,
                                  end.stream->handle()),
                        "ncclSend", end.comm);
    };
    const auto receive = [&](const NcclLibrary& nccl, const End& end, int64_t peer) {
      return NcclStatus(
          nccl,
          nccl.Recv(to, 1, NcclType::kByte, static_cast<int>(peer), end.comm, end.stream->handle()),
          "ncclRecv", end.comm);
    };
    if (paths_ == MessagePaths::kNeighbours) {
      // In the order of the rounds, in which no rank waits for one that waits for it.
      const bool sends_first = group_.place % 2 == (direction == kUp ? 0 : 1);
      for (const bool sends : {sends_first, !sends_first}) {
        const End& end = sends ? sender : receiver;
        GEMINI_RETURN_IF_ERROR(exchange(end, [&](const NcclLibrary& nccl) {
          return sends ? send(nccl, end, 1) : receive(nccl, end, 0);
        }));
      }
      continue;
    }
    const absl::Status enqueued = exchange(sender, [&](const NcclLibrary& nccl) -> absl::Status {
      for (int64_t other = 0; other < size; ++other) {
        if (!Goes(group_.place, other)) continue;
        const bool sends = (other > group_.place) == (direction == kUp);
        GEMINI_RETURN_IF_ERROR(sends ? send(nccl, sender, other) : receive(nccl, sender, other));
      }
      return absl::OkStatus();
    });
    GEMINI_RETURN_IF_ERROR(enqueued);
  }
  for (const std::shared_ptr<StreamPoint>& point : points) {
    for (;;) {
      GEMINI_RETURN_IF_ERROR(comms.failure()->status());
      GEMINI_ASSIGN_OR_RETURN(const bool reached, point->Reached());
      if (reached) break;
      if (std::chrono::steady_clock::now() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat(what, ": not all of them have come within ",
                         std::chrono::duration_cast<std::chrono::milliseconds>(limit).count(),
                         " ms: see what the others say"));
      }
      std::this_thread::sleep_for(kConnectPause);
    }
  }
  std::move(keep).Cancel();
  return absl::OkStatus();
}

absl::StatusOr<NcclPath> NcclPaths::Find(CollectiveKind kind, int64_t place, int64_t tag) const {
  const int64_t size = group_.size();
  const bool sends = kind == CollectiveKind::kSend;
  const int64_t from = sends ? group_.place : place;
  const int64_t to = sends ? place : group_.place;
  if (paths_ == MessagePaths::kNeighbours) {
    const Direction direction = tag % 2 == 0 ? kUp : kDown;
    const int64_t next = direction == kUp ? (from + 1) % size : (from + size - 1) % size;
    const End& end = sends ? senders_[direction] : receivers_[direction];
    if (to == next && to != from) {
      return NcclPath{.comm = end.comm, .stream = end.stream.get(), .peer = sends ? 1 : 0};
    }
  } else if (Goes(from, to)) {
    const End& end = senders_[to > from ? kUp : kDown];
    return NcclPath{.comm = end.comm, .stream = end.stream.get(), .peer = static_cast<int>(place)};
  }
  return absl::FailedPreconditionError(
      absl::StrCat("group ", group_.name, " was not prepared for a message from place ", from,
                   " to place ", to, " with tag ", tag, ": see MessagePaths"));
}

}  // namespace gemini::trainer
