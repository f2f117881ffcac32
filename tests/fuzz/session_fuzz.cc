// SPDX-License-Identifier: Apache-2.0
// Sequences of requests against a running server: what one client has open, asks for again, leaves
// unread or hangs up in the middle of, is met by the handlers in every order.
// Holds: whatever came, an observer is answered, and the budgets say that
//        capacity = leased + reclaiming + free.
// Input: three bytes a step: which of three clients, what it does, and a number for it.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
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

class FuzzedClient {
 public:
  explicit FuzzedClient(EmbeddedServer& server) : server_(server) {}

  void Do(uint8_t action, uint8_t byte) {
    const int64_t number = NumberOf(byte);
    FlatBufferBuilder b;
    const std::string space = absl::StrCat("s", byte % 4);
    const wire::TierBytes all(number, number, number), some(number / 2, 0, 0), none(0, 0, 0);
    const wire::MeasuredRates measured(1e9, 0, 0, 0, 0, 0);
    switch (action % 20) {
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
      default:
        return ReadAnswers();
    }
  }

 private:
  void HangUp() { client_.reset(); }

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
