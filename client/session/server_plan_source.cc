// SPDX-License-Identifier: Apache-2.0
#include "client/session/server_plan_source.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/observed_rates.h"
#include "client/wire/reply_memory.h"
#include "gemini/plan/plan_wire.h"
#include "gemini/plan/trace_wire.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"

namespace gemini::client {
namespace {

using flatbuffers::FlatBufferBuilder;

// By write(2) and not through a mapping: memory that runs out is an error then, no signal.
absl::Status Fill(int fd, absl::string_view bytes) {
  for (size_t written = 0; written < bytes.size();) {
    const ssize_t size = ::pwrite(fd, bytes.data() + written, bytes.size() - written, written);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return ErrnoStatus(errno, "hand a trace to the server");
    written += size;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> ServerPlanSource::MakePlan(const Trace& trace, int64_t device_bytes) {
  const std::string bytes = EncodeTrace(trace);
  MutexLock lock(mutex_);
  GEMINI_ASSIGN_OR_RETURN(
      const Reply room,
      connection_.Call(
          wire::Body::OpenTrace,
          [&bytes](FlatBufferBuilder& builder) {
            return wire::CreateOpenTrace(builder, static_cast<int64_t>(bytes.size())).Union();
          },
          wire::Body::TraceRoom));
  if (room.fds.size() != 1) {
    return absl::InvalidArgumentError("the server sent no memory for a trace");
  }
  GEMINI_RETURN_IF_ERROR(Fill(room.fds[0].get(), bytes));
  const int64_t link_since_ns =
      options_.pins == nullptr ? 0
                               : options_.pins->resting_since_ns.load(std::memory_order_acquire);
  const ObservedRates observed = options_.timeline == nullptr
                                     ? ObservedRates()
                                     : ObserveRates(*options_.timeline, link_since_ns);
  const int64_t apart_bytes =
      options_.apart_bytes == nullptr ? 0 : options_.apart_bytes->load(std::memory_order_relaxed);
  GEMINI_ASSIGN_OR_RETURN(
      const Reply reply,
      connection_.Call(
          wire::Body::MakePlan,
          [&](FlatBufferBuilder& builder) {
            const wire::MeasuredRates measured(
                observed.host_to_device, observed.device_to_host, observed.nvme_read,
                observed.nvme_write, observed.update_elements, observed.device_update_elements);
            return wire::CreateMakePlan(builder, device_bytes, options_.chunk_bytes,
                                        static_cast<uint8_t>(options_.policy.kind),
                                        options_.policy.param_fraction,
                                        options_.policy.optimizer_fraction, &measured,
                                        static_cast<double>(options_.device_bandwidth), apart_bytes)
                .Union();
          },
          wire::Body::PlanReply, kPlanTimeout));
  GEMINI_ASSIGN_OR_RETURN(const std::string content,
                          ReadReplyMemory(reply, reply.As<wire::PlanReply>()->size_bytes()));
  GEMINI_ASSIGN_OR_RETURN(Plan plan, DecodePlan(content));
  if (plan.fingerprint != Fingerprint(trace) || plan.num_positions() != trace.num_positions() ||
      plan.chunk_bytes != options_.chunk_bytes || plan.device_bytes > device_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the server's plan is of another trace: ", plan.num_positions(), " positions and ",
        plan.device_bytes, " bytes, not ", trace.num_positions(), " and ", device_bytes));
  }
  return plan;
}

absl::StatusOr<std::optional<Trace>> ServerPlanSource::FindTrace(
    const std::string& phase, const std::vector<TracedTensor>& tensors) {
  MutexLock lock(mutex_);
  GEMINI_ASSIGN_OR_RETURN(
      const Reply reply,
      connection_.Call(
          wire::Body::FindTrace,
          [&](FlatBufferBuilder& builder) {
            const auto name = builder.CreateString(phase);
            return wire::CreateFindTrace(builder, 0, name, TensorsHash(tensors)).Union();
          },
          // Behind others' plans too.
          wire::Body::TraceReply, kPlanTimeout));
  const int64_t size_bytes = reply.As<wire::TraceReply>()->size_bytes();
  if (size_bytes == 0) return std::nullopt;
  if (size_bytes > kMaxTraceBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a trace of ", size_bytes, " bytes"));
  }
  GEMINI_ASSIGN_OR_RETURN(const std::string content, ReadReplyMemory(reply, size_bytes));
  GEMINI_ASSIGN_OR_RETURN(Trace trace, DecodeTrace(content));
  // Found by a hash; another job's trace would lead to pins of tensors that are none.
  if (trace.phase != phase || trace.tensors != tensors) return std::nullopt;
  return trace;
}

}  // namespace gemini::client
