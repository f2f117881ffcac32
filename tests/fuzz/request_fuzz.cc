// SPDX-License-Identifier: Apache-2.0
// What the server reads from a peer's socket: one message, and what its handlers do with it, behind
// a hello and a lease.
// Holds: strings that came out lie inside the message; a space that is planned has sizes that
//        cannot overflow, none below zero, and fits what is left; an observer is answered behind
//        whatever came.
// State: a server serves 32 inputs; what one of them left open is there for those behind it.
// Leaks: each server starts ten threads. When the kernel gives their ids out again (pid_max is
//        often 32,768), clang 14's LeakSanitizer takes a running thread for the ended one of its
//        id, does not look at its stack, and reports what only that stack points to. With
//        LSAN_OPTIONS=log_threads=1 it says "not found in registry" then; -detect_leaks=0 leaves
//        out its looks between inputs.
#include <limits>
#include <memory>

#include "gemini/protocol.h"
#include "gemini/system/check.h"
#include "gemini/wire_generated.h"
#include "server/embedded_server.h"
#include "server/spaces/space_plan.h"
#include "server/wire/request_wire.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/server/wire_client.h"

namespace gemini::server {
namespace {

void CheckSpace(const OpenSpaceRequest& open) {
  const TierMap<int64_t> left = {{0, int64_t{1} << 40, int64_t{1} << 44}};
  for (const TierMap<int64_t>& room : {left, TierMap<int64_t>{{0, 4096, 0}}}) {
    const auto plan = PlanSpace(open, room);
    if (!plan.ok()) continue;
    GEMINI_CHECK(!plan->name.empty() && plan->name.size() <= kMaxSpaceNameChars);
    GEMINI_CHECK(plan->chunk_bytes > 0 && plan->host_slots >= 0 && plan->nvme_slots >= 0);
    GEMINI_CHECK(plan->host_bytes() >= 0 && plan->host_bytes() <= room[Tier::kHost]);
    GEMINI_CHECK(plan->nvme_bytes() >= 0 && plan->nvme_bytes() <= room[Tier::kNvme]);
    GEMINI_CHECK(plan->num_bundles <= kMaxSpaceBundles && plan->num_tensors <= kMaxTensors);
    GEMINI_CHECK(plan->segment_bytes() > 0);
  }
}

// Sends it, and sees that the server goes on.
void Handle(absl::string_view message) {
  constexpr int kInputs = 32;  // A process may leave 64 leases behind, and each keeps its bytes.
  constexpr int64_t kLeaseBytes = 16'384;
  static std::unique_ptr<EmbeddedServer> server;
  static int inputs = 0;
  if (inputs++ % kInputs == 0) {
    ServerOptions options;
    options.capacity_bytes[Tier::kDevice] = kInputs * kLeaseBytes;
    options.capacity_bytes[Tier::kHost] = 2 * kInputs * kLeaseBytes;
    options.epoch_timeout = absl::Milliseconds(1);
    server.reset();
    server = *EmbeddedServer::Start(options);
  }
  WireClient client(*server->Connect());
  GEMINI_CHECK(client.Hello("fuzz").ok());
  GEMINI_CHECK(client.OpenLease({{kLeaseBytes, kLeaseBytes, 0}}, {{}}).ok());
  GEMINI_CHECK(client.OpenSpace({.name = "s", .host_slots = 1}).ok());
  client.SendRaw(message).IgnoreError();
  // Behind it in the queue: a plan or a lease that it asked for may come first, or a hang-up.
  client.CloseSession().IgnoreError();
  WireClient observer(*server->Connect());
  GEMINI_CHECK(observer.Hello("observer", wire::Role::kObserver).ok());
  GEMINI_CHECK(observer.GetStatus().ok());
}

}  // namespace
}  // namespace gemini::server

namespace gemini::fuzz {
namespace {

using flatbuffers::FlatBufferBuilder;

template <typename Make>
std::string Message(wire::Body type, Make make) {
  FlatBufferBuilder builder;
  const flatbuffers::Offset<void> body = make(builder).Union();
  wire::FinishMessageBuffer(builder, wire::CreateMessage(builder, 7, type, body));
  return std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
}

}  // namespace

std::vector<std::string> Seeds() {
  const wire::TierBytes want(1 << 20, 1 << 24, 1 << 24), floor(1 << 16, 1 << 20, 0);
  const wire::MeasuredRates measured(1e9, 2e9, 3e9, 4e9, 5e9, 6e9);
  return {
      Message(wire::Body::Hello,
              [](FlatBufferBuilder& b) {
                return wire::CreateHelloDirect(b, kProtocolVersion, "gemini 0.1.0",
                                               wire::Role::kTrainer, "a label");
              }),
      Message(wire::Body::OpenLease,
              [&](FlatBufferBuilder& b) { return wire::CreateOpenLease(b, &want, &floor, true); }),
      Message(wire::Body::OpenSpace,
              [](FlatBufferBuilder& b) {
                return wire::CreateOpenSpaceDirect(b, "opt-125m", 4096, 4, 12, 20, 9);
              }),
      Message(wire::Body::TakeSlabs,
              [](FlatBufferBuilder& b) { return wire::CreateTakeSlabs(b, 1, 2, 3); }),
      Message(wire::Body::KeepSlabs,
              [](FlatBufferBuilder& b) { return wire::CreateKeepSlabs(b, 2); }),
      Message(wire::Body::CloseSpace,
              [](FlatBufferBuilder& b) { return wire::CreateCloseSpace(b, 1); }),
      Message(wire::Body::CloseSession,
              [](FlatBufferBuilder& b) { return wire::CreateCloseSession(b); }),
      Message(wire::Body::GetStatus, [](FlatBufferBuilder& b) { return wire::CreateGetStatus(b); }),
      Message(
          wire::Body::ListChunks,
          [](FlatBufferBuilder& b) { return wire::CreateListChunksDirect(b, "opt-125m", 3, 70); }),
      Message(wire::Body::OpenTrace,
              [](FlatBufferBuilder& b) { return wire::CreateOpenTrace(b, 999); }),
      Message(wire::Body::MakePlan,
              [&](FlatBufferBuilder& b) {
                return wire::CreateMakePlan(b, 1 << 20, 4096, 1, 0.5, 0.25, &measured, 1e9,
                                            1 << 10);
              }),
      Message(wire::Body::FindTrace,
              [](FlatBufferBuilder& b) { return wire::CreateFindTraceDirect(b, "s", "train", 5); }),
      Message(wire::Body::AckEpoch,
              [](FlatBufferBuilder& b) { return wire::CreateAckEpoch(b, 3, 4096); }),
      Message(wire::Body::ReadTimeline,
              [](FlatBufferBuilder& b) { return wire::CreateReadTimelineDirect(b, "s", 17); }),
      Message(
          wire::Body::FindPlanInputs,
          [](FlatBufferBuilder& b) { return wire::CreateFindPlanInputsDirect(b, "s", "train"); }),
  };
}

}  // namespace gemini::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view message = gemini::fuzz::BytesOf(data, size);
  const auto request = gemini::server::ParseRequest(message);
  if (!request.ok()) return 0;
  gemini::server::Handle(message);
  if (const auto* open = std::get_if<gemini::server::OpenSpaceRequest>(&request->body)) {
    GEMINI_CHECK(open->name.size() <= size);
    gemini::server::CheckSpace(*open);
  }
  if (const auto* hello = std::get_if<gemini::server::HelloRequest>(&request->body)) {
    GEMINI_CHECK(hello->build.size() <= size && hello->label.size() <= size);
  }
  return 0;
}
