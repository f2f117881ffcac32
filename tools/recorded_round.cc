// SPDX-License-Identifier: Apache-2.0
#include "tools/recorded_round.h"

#include "absl/time/time.h"
#include "client/wire/reply_memory.h"
#include "gemini/plan/trace_wire.h"
#include "gemini/system/status_macros.h"

namespace gemini::tools {
namespace {

using flatbuffers::FlatBufferBuilder;

// A trace's plan takes half a second, and others' may be under way before the trace is found.
constexpr absl::Duration kPlanTimeout = absl::Minutes(5);

}  // namespace

absl::StatusOr<std::optional<RecordedRound>> FindRecordedRound(client::Connection& server,
                                                               const std::string& space,
                                                               const std::string& first_space,
                                                               const std::string& phase) {
  const absl::StatusOr<client::Reply> inputs = server.Call(
      wire::Body::FindPlanInputs,
      [&](FlatBufferBuilder& builder) {
        return wire::CreateFindPlanInputsDirect(builder, space.c_str(), phase.c_str()).Union();
      },
      wire::Body::PlanInputsReply);
  if (absl::IsNotFound(inputs.status())) return std::nullopt;
  if (!inputs.ok()) return inputs.status();
  const auto& used = *inputs->As<wire::PlanInputsReply>();
  if (used.budget() == nullptr || used.costs() == nullptr) return std::nullopt;
  GEMINI_ASSIGN_OR_RETURN(const client::Reply found, server.Call(
                                                         wire::Body::FindTrace,
                                                         [&](FlatBufferBuilder& builder) {
                                                           return wire::CreateFindTraceDirect(
                                                                      builder, first_space.c_str(),
                                                                      phase.c_str(), 0)
                                                               .Union();
                                                         },
                                                         wire::Body::TraceReply, kPlanTimeout));
  const int64_t size_bytes = found.As<wire::TraceReply>()->size_bytes();
  if (size_bytes == 0) return std::nullopt;  // Dropped: others' traces took its room.
  GEMINI_ASSIGN_OR_RETURN(const std::string bytes, client::ReadReplyMemory(found, size_bytes));
  RecordedRound round = {
      .budget_bytes = {{used.budget()->device(), used.budget()->host(), used.budget()->nvme()}},
      .chunk_bytes = used.chunk_bytes(),
      .policy = {.kind = static_cast<PolicyKind>(used.policy()),
                 .param_fraction = used.param_fraction(),
                 .optimizer_fraction = used.optimizer_fraction()},
      .costs = {.host_to_device = used.costs()->host_to_device(),
                .device_to_host = used.costs()->device_to_host(),
                .nvme_read = used.costs()->nvme_read(),
                .nvme_write = used.costs()->nvme_write(),
                .update_elements_per_second = used.costs()->update_elements(),
                .device_update_elements_per_second = used.costs()->device_update_elements(),
                .copy_latency_ns = used.costs()->copy_latency_ns()}};
  GEMINI_ASSIGN_OR_RETURN(round.trace, DecodeTrace(bytes));
  return round;
}

}  // namespace gemini::tools
