// SPDX-License-Identifier: Apache-2.0
// Sequences of requests against a running server: what one client has open, asks for again, leaves
// unread or hangs up in the middle of, is met by the handlers in every order.
// Holds: whatever came, an observer is answered, and the budgets say that
//        capacity = leased + reclaiming + free.
// Input: three bytes a step: which of three clients, what it does, and a number for it.
// Files:  NVMe extents are in a directory below /dev/shm, else TMPDIR, that goes with the process.
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <array>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "gemini/plan/trace_wire.h"
#include "gemini/system/check.h"
#include "server/embedded_server.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/server/traces.h"
#include "tests/server/wire_client.h"

namespace gemini::server {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

constexpr size_t kStepBytes = 3;
constexpr size_t kMostSteps = 64;

// Small ones, those at ends of their ranges, and all between.
int64_t NumberOf(uint8_t byte) {
  constexpr std::array<int64_t, 8> kEnds = {0,
                                            1,
                                            -1,
                                            4096,
                                            int64_t{1} << 20,
                                            int64_t{1} << 40,
                                            std::numeric_limits<int64_t>::max(),
                                            std::numeric_limits<int64_t>::min()};
  return byte < 128 ? byte % 16 : byte < 192 ? (byte % 64) * 4096 : kEnds[byte % kEnds.size()];
}

// In memory where there is such a place, for a disk would take most of the time. Extents have no
// name, so it stays empty.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    path_ = std::filesystem::exists("/dev/shm") ? "/dev/shm"
                                                : std::filesystem::temp_directory_path().string();
    path_ += "/fuzz-XXXXXX";
    GEMINI_CHECK(::mkdtemp(path_.data()) != nullptr);
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class FuzzedClient {
 public:
  explicit FuzzedClient(EmbeddedServer& server) : server_(server) {}

  void Do(uint8_t action, uint8_t byte) {
    const int64_t number = NumberOf(byte);
    FlatBufferBuilder b;
    const std::string space = absl::StrCat("s", byte % 4);
    const wire::TierBytes all(number, number, number), some(number / 2, 0, 0), none(0, 0, 0);
    const wire::MeasuredRates measured(1e9, 0, 0, 0, 0, 0);
    switch (action % 25) {
      case 0:
        return HangUp();
      case 1:
        return Hello();
      case 2:
        return Send(b, wire::Body::OpenLease,
                    wire::CreateOpenLease(b, &all, byte % 2 == 0 ? &some : &none, byte % 3 == 0));
      case 3:
        return Send(b, wire::Body::OpenSpace,
                    wire::CreateOpenSpaceDirect(b, space.c_str(), 4096, 1 + byte % 5, byte % 9,
                                                byte % 7, byte % 3));
      case 4:
        return Send(b, wire::Body::OpenSpace,
                    wire::CreateOpenSpaceDirect(b, space.c_str(), number, number, number, number));
      case 5:
        return Send(b, wire::Body::TakeSlabs, wire::CreateTakeSlabs(b, byte % 40, 0, number));
      case 6:
        return Send(b, wire::Body::KeepSlabs, wire::CreateKeepSlabs(b, number));
      case 7:
        return Send(b, wire::Body::CloseSpace, wire::CreateCloseSpace(b, byte % 40));
      case 8:
        return Send(b, wire::Body::CloseSession, wire::CreateCloseSession(b));
      case 9:
        return Send(b, wire::Body::OpenTrace, wire::CreateOpenTrace(b, number));
      case 10:
        return WriteTrace(byte);
      case 11:
        return Send(b, wire::Body::MakePlan,
                    wire::CreateMakePlan(b, number, 4096, byte % 5, 0.5, 0.5, &measured,
                                         byte % 2 == 0 ? 0.0 : 1e9, number));
      case 12:
        return Send(b, wire::Body::FindTrace,
                    wire::CreateFindTraceDirect(b, space.c_str(), "train", byte % 2));
      case 13:
        return Send(b, wire::Body::FindPlanInputs,
                    wire::CreateFindPlanInputsDirect(b, space.c_str(), "train"));
      case 14:
        return Send(b, wire::Body::AckEpoch, wire::CreateAckEpoch(b, byte % 4, number));
      case 15:
        return Send(b, wire::Body::ReadTimeline,
                    wire::CreateReadTimelineDirect(b, space.c_str(), number));
      case 16:
        return Send(b, wire::Body::ListChunks,
                    wire::CreateListChunksDirect(b, space.c_str(), number, number));
      case 17:
        return Send(b, wire::Body::GetStatus, wire::CreateGetStatus(b));
      case 18:
        if (client_.has_value()) (void)!::shutdown(client_->fd(), byte % 3);
        return;
      case 19:
        return ReadAnswers();
      case 20:
        return TakeSpace(byte);
      case 21:
        if (!space_.has_value()) return;
        return Store(byte);
      case 22:
        if (!space_.has_value()) return;
        space_->client().submit_tail.store(space_->client().submit_tail.load() + byte);
        return Kick();
      case 23:
        if (!space_.has_value()) return;
        space_->client().submit_tail.store(static_cast<uint64_t>(number));
        return Kick();
      default:
        return PunchHoles();
    }
  }

 private:
  void HangUp() { client_.reset(); }

  // A space with a ring, whose memory is mapped here: it outlives what the server says of it.
  void TakeSpace(uint8_t byte) {
    if (!client_.has_value()) Hello();
    ReadAnswers();
    ::fcntl(client_->fd(), F_SETFL, 0);
    // Refused where there is a lease already, or nothing is left.
    client_->OpenLease({{4096, 1 << 18, 1 << 18}}, {{}}).IgnoreError();
    absl::StatusOr<WireSpace> space = client_->OpenSpace(
        {.name = absl::StrCat("r", byte % 4), .num_bundles = 2, .host_slots = 3, .nvme_slots = 4});
    ::fcntl(client_->fd(), F_SETFL, O_NONBLOCK);
    if (space.ok()) space_ = *std::move(space);
  }

  // Slots and operations that there are, and a few that there are not. Some are waited for, so that
  // reads find what writes left.
  void Store(uint8_t byte) {
    const uint64_t sequence =
        space_->Submit(static_cast<IoOperation>(byte % 4), byte / 4 % 4, byte / 16 % 5,
                       byte >= 192 ? static_cast<uint64_t>(NumberOf(byte)) : kUncheckedContents);
    if (byte % 8 < 4) space_->WaitCompletion(sequence, /*timeout_ms=*/5);
  }

  void Kick() {
    const uint64_t one = 1;
    (void)!::write(space_->kick.get(), &one, sizeof(one));
  }

  void PunchHoles() {
    if (!space_.has_value()) return;
    constexpr int kPunch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    for (const UniqueFd& slab : space_->slabs) {
      (void)!::fallocate(slab.get(), kPunch, 0, 3 * 4096);
    }
    (void)!::fallocate(space_->client_segment.get(), kPunch, 0, 4096);
  }

  void Hello() {
    client_.emplace(*server_.Connect());
    client_->Hello("fuzz").IgnoreError();
    ::fcntl(client_->fd(), F_SETFL, O_NONBLOCK);
  }

  template <typename Body>
  void Send(FlatBufferBuilder& builder, wire::Body type, Offset<Body> body) {
    if (!client_.has_value()) Hello();
    wire::FinishMessageBuffer(builder, wire::CreateMessage(builder, ++id_, type, body.Union()));
    client_
        ->SendRaw(absl::string_view(reinterpret_cast<const char*>(builder.GetBufferPointer()),
                                    builder.GetSize()))
        .IgnoreError();
  }

  // A trace that may be planned, or the same with a byte of it changed.
  void WriteTrace(uint8_t byte) {
    if (!client_.has_value()) Hello();
    ReadAnswers();
    std::string trace = EncodeTrace(StepTrace(1 + byte % 4, 4096));
    if (byte >= 128) trace[byte % trace.size()] ^= static_cast<char>(byte);
    ::fcntl(client_->fd(), F_SETFL, 0);
    client_->WriteTrace(trace).IgnoreError();
    ::fcntl(client_->fd(), F_SETFL, O_NONBLOCK);
  }

  void ReadAnswers() {
    if (!client_.has_value()) return;
    for (int i = 0; i < 64 && !absl::IsNotFound(client_->Receive().status()); ++i) {
    }
  }

  EmbeddedServer& server_;
  std::optional<WireClient> client_;
  std::optional<WireSpace> space_;  // The last that was taken.
  uint64_t id_ = 100;
};

void CheckBudgets(const WireReply& status) {
  for (const Tier tier : kAllTiers) {
    const TierNumbers numbers = NumbersOf(status, tier);
    GEMINI_CHECK(numbers.leased >= 0 && numbers.reclaiming >= 0 && numbers.free >= 0);
    GEMINI_CHECK(numbers.capacity == numbers.leased + numbers.reclaiming + numbers.free);
  }
}

void Play(absl::string_view input) {
  ServerOptions options;
  options.capacity_bytes[Tier::kDevice] = int64_t{1} << 20;
  options.capacity_bytes[Tier::kHost] = int64_t{1} << 20;
  static const TemporaryDirectory nvme;
  options.nvme_directories = {{.path = nvme.path(), .capacity_bytes = int64_t{1} << 20}};
  options.epoch_timeout = absl::Milliseconds(5);
  auto server = EmbeddedServer::Start(options);
  GEMINI_CHECK(server.ok());
  WireClient observer(*(*server)->Connect());
  GEMINI_CHECK(observer.Hello("observer", wire::Role::kObserver).ok());
  std::array<FuzzedClient, 3> clients = {FuzzedClient(**server), FuzzedClient(**server),
                                         FuzzedClient(**server)};
  const size_t steps = std::min(input.size() / kStepBytes, kMostSteps);
  for (size_t i = 0; i < steps; ++i) {
    const auto byte = [&](size_t at) { return static_cast<uint8_t>(input[i * kStepBytes + at]); };
    clients[byte(0) % clients.size()].Do(byte(1), byte(2));
    if (i % 16 == 15) {
      const auto status = observer.GetStatus();
      GEMINI_CHECK(status.ok());
      CheckBudgets(*status);
    }
  }
  const auto status = observer.GetStatus();
  GEMINI_CHECK(status.ok());
  CheckBudgets(*status);
}

}  // namespace
}  // namespace gemini::server

namespace gemini::fuzz {

std::vector<std::string> Seeds() {
  const auto steps = [](const std::vector<std::array<int, 3>>& all) {
    std::string bytes;
    for (const auto& step : all) {
      for (const int byte : step) bytes += static_cast<char>(byte);
    }
    return bytes;
  };
  return {
      // A lease, a space, slabs, their end.
      steps({{0, 2, 148}, {0, 3, 5}, {0, 5, 4}, {0, 16, 1}, {0, 7, 4}, {0, 8, 0}, {1, 17, 0}}),
      // Traces replaced, planned, hung up on.
      steps({{0, 2, 148}, {0, 9, 8}, {0, 9, 8}, {0, 10, 3}, {0, 11, 130}, {0, 0, 0}, {1, 12, 1}}),
      // One asks another to give way, who answers, or does not.
      steps({{0, 2, 171}, {1, 2, 170}, {0, 14, 1}, {1, 19, 0}, {2, 2, 180}, {2, 0, 0}, {1, 8, 0}}),
      // Writes and reads by the ring, a tail that no client has, and the space's end.
      steps({{0, 20, 1},
             {0, 21, 2},
             {0, 21, 18},
             {0, 21, 1},
             {0, 21, 17},
             {0, 24, 0},
             {0, 21, 2},
             {0, 21, 6},
             {0, 17, 0},
             {0, 22, 9},
             {0, 23, 198},
             {0, 21, 1},
             {0, 7, 1},
             {0, 20, 2},
             {0, 21, 34},
             {0, 21, 33},
             {0, 0, 0}}),
      steps({{1, 20, 0}, {2, 20, 3}, {1, 21, 2}, {2, 21, 2}, {1, 21, 1}, {1, 22, 255}, {1, 8, 0}}),
      // Answers are left unread.
      steps({{0, 2, 148}, {0, 9, 8}, {0, 9, 8}, {0, 17, 0}, {0, 18, 0}, {0, 17, 1}, {0, 18, 2}}),
  };
}

}  // namespace gemini::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gemini::server::Play(gemini::fuzz::BytesOf(data, size));
  return 0;
}
