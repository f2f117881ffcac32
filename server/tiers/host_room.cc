// SPDX-License-Identifier: Apache-2.0
#include "server/tiers/host_room.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"

namespace gemini::server {
namespace {

// Calls `look` with each memory that limits a grant, and with what is promised of it.
void ForEachMemory(const HostMemories& memories, const PromisedDevice& promised, bool charged_here,
                   absl::FunctionRef<void(const HostMemory& memory, int64_t promised_bytes)> look) {
  if (memories.machine.has_value()) look(*memories.machine, promised.bytes);
  if (charged_here && memories.tightest.has_value()) {
    look(*memories.tightest, promised.charged_here_bytes);
  }
}

std::optional<HostMemory> ValueOf(const absl::StatusOr<HostMemory>& read) {
  return read.ok() ? std::optional(*read) : std::nullopt;
}

}  // namespace

HostMemories ReadHostMemories() {
  return {.machine = ValueOf(ReadMachineMemory()), .tightest = ValueOf(ReadHostMemory())};
}

int64_t RoomIn(const HostMemory& memory, int64_t promised_bytes) {
  return memory.available_bytes - KeptBytes(memory) - promised_bytes;
}

absl::Status CheckRoomIn(const HostMemory& memory, int64_t size_bytes, int64_t promised_bytes,
                         absl::string_view what, absl::string_view advice) {
  if (size_bytes == 0 || size_bytes <= RoomIn(memory, promised_bytes)) return absl::OkStatus();
  std::string promised;
  if (promised_bytes > 0) {
    promised = absl::StrCat(FormatByteSize(promised_bytes),
                            " of them are jobs' DEVICE (--device-memory) that is not in use yet, ");
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      what, " needs ", FormatByteSize(size_bytes), " of HOST, the machine has ",
      FormatByteSize(memory.available_bytes), " of ", FormatByteSize(memory.total_bytes),
      " available now, ", promised, "and ", FormatByteSize(KeptBytes(memory)),
      " of them stay free: close other programs or jobs, ", advice));
}

int64_t HostRoom(const HostMemories& memories, const PromisedDevice& promised, bool charged_here) {
  int64_t room_bytes = std::numeric_limits<int64_t>::max();
  ForEachMemory(memories, promised, charged_here,
                [&](const HostMemory& memory, int64_t promised_bytes) {
                  room_bytes = std::min(room_bytes, RoomIn(memory, promised_bytes));
                });
  return room_bytes;
}

absl::Status CheckHostRoom(const HostMemories& memories, int64_t size_bytes,
                           const PromisedDevice& promised, bool charged_here,
                           absl::string_view what, absl::string_view advice) {
  absl::Status status;
  ForEachMemory(memories, promised, charged_here,
                [&](const HostMemory& memory, int64_t promised_bytes) {
                  status.Update(CheckRoomIn(memory, size_bytes, promised_bytes, what, advice));
                });
  return status;
}

}  // namespace gemini::server
