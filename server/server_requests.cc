// SPDX-License-Identifier: Apache-2.0
// The requests of server/server.h that are for no desk.
#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gemini/byte_size.h"
#include "gemini/protocol.h"
#include "gemini/system/monotonic_clock.h"
#include "server/loop/server_log.h"
#include "server/reply_wire.h"
#include "server/server.h"

namespace gemini::server {
namespace {

constexpr size_t kMaxLabelChars = 128;

std::string Shown(absl::string_view text) {
  return absl::CHexEscape(text.substr(0, kMaxLabelChars));
}

absl::Duration ThreadTime() {
  timespec used = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return absl::DurationFromTimespec(used);
}

}  // namespace

absl::Status Server::Handle(PeerSession& session, uint64_t id, const HelloRequest& hello) {
  session.label = Shown(hello.label);
  absl::Status refusal;
  if (hello.protocol != kProtocolVersion) {
    refusal = absl::FailedPreconditionError(absl::StrCat(
        "this server speaks protocol ", kProtocolVersion, " (", options_.build, "), you speak ",
        hello.protocol, " (", Shown(hello.build), "): use the same version on both sides"));
  } else if (hello.label.size() > kMaxLabelChars) {
    refusal = absl::InvalidArgumentError(
        absl::StrCat("a label of ", hello.label.size(), " characters, at most ", kMaxLabelChars));
  } else if (std::ranges::count_if(sessions_.all(), [](const auto& entry) {
               return entry.second->said_hello && !entry.second->kept_for_process();
             }) >= kMaxSessions) {
    refusal = absl::ResourceExhaustedError(
        absl::StrCat("the server has ", kMaxSessions, " sessions, its limit: close some"));
  } else if (std::ranges::count_if(sessions_.all(), [&](const auto& entry) {
               return entry.second->kept_for_process() &&
                      entry.second->peer.pid == session.peer.pid;
             }) >= kMaxHungUpSessions) {
    refusal = absl::ResourceExhaustedError(absl::StrCat(
        "pid ", session.peer.pid, " hung up on ", kMaxHungUpSessions,
        " sessions without closing them, and their memory is kept until it ends: end it, "
        "and close sessions"));
  } else if (hello.role == PeerRole::kUnknown) {
    refusal = absl::InvalidArgumentError("a hello without a role: trainer or observer");
  } else if (leases_.draining()) {
    refusal = absl::UnavailableError("the server is draining: it takes no new sessions");
  }
  loop_->Cancel(*std::exchange(session.hello_timer, std::nullopt));
  if (!refusal.ok()) {
    sessions_.Refuse(session, id, refusal);
    session.connection->CloseAfterSend();
    return absl::OkStatus();
  }
  session.said_hello = true;
  session.role = hello.role;
  HelloAnswer answer;
  answer.build = options_.build;
  answer.session = session.id;
  for (Tier tier : kAllTiers) {
    answer.free[tier] = book_.tier(tier).free_bytes();
    answer.capacity[tier] = book_.tier(tier).capacity_bytes;
  }
  session.connection->Send(EncodeHelloReply(id, answer), {});
  return absl::OkStatus();
}

absl::Status Server::Handle(PeerSession& session, uint64_t id, const CloseSessionRequest&) {
  session.connection->Send(EncodeDone(id), {});
  if (session.lease.has_value() && !session.reclaiming()) {
    // The client has unmapped: its bytes may go to others without waiting for its death.
    leases_.Fence(session, "closed");
    leases_.BeginReclaim(session);
  }
  session.connection->CloseAfterSend();
  return absl::OkStatus();
}

void Server::CountWear(int64_t place, int64_t size_bytes) {
  if (!nvme_wear_.Add(place, size_bytes, absl::Now())) return;
  ServerLog().warn(
      "more than {} were written to NVMe directory '{}' today (UTC): give jobs more HOST, or raise "
      "--nvme-daily-write-budget",
      FormatByteSize(nvme_wear_.daily_budget_bytes()),
      absl::CHexEscape(options_.nvme_directories[place].path));
}

absl::Status Server::Handle(PeerSession& session, uint64_t id, const GetStatusRequest&) {
  // Counts that took long are shown again for 100 times as long: however many ask, counting takes a
  // hundredth of this thread. By its processor time, for a wait is no cost of counting. Spaces that
  // were opened since are counted with the others when that time is over, and shown untouched until
  // then: else a client that opens one before each status has each of them counted at once.
  const absl::Duration now = MonotonicNow();
  const bool counts_anew = now >= counts_valid_until_;
  const absl::Duration started_counting = ThreadTime();
  StatusAnswer answer;
  answer.build = options_.build;
  answer.uptime = now - started_;
  answer.costs = plans_.costs();
  for (Tier tier : kAllTiers) answer.tiers[tier] = book_.tier(tier);
  answer.nvme_wear = nvme_wear_.Read(absl::Now());
  answer.nvme_daily_write_budget_bytes = nvme_wear_.daily_budget_bytes();
  answer.device_gpu_uuid = stores_.device->gpu_uuid();
  answer.device_is_counted = !stores_.device->shares_memory();
  for (auto& [session_id, tenant] : sessions_.all()) {
    if (!tenant->lease.has_value()) continue;
    const Lease& lease = *tenant->lease;
    TenantAnswer& shown =
        answer.tenants.emplace_back(TenantAnswer{.session = session_id,
                                                 .label = tenant->label,
                                                 .pid = tenant->peer.pid,
                                                 .uid = tenant->peer.uid,
                                                 .lease = lease.id,
                                                 .generation = lease.generation,
                                                 .fenced = lease.terms.fenced,
                                                 .granted = lease.terms.granted,
                                                 .floor = lease.terms.floor,
                                                 .used = lease.used,
                                                 .requests = tenant->requests,
                                                 .want = lease.terms.want,
                                                 .epoch = lease.epoch,
                                                 .device_target = lease.terms.device_target,
                                                 .plan_refusal = tenant->plan_refusal});
    for (auto& [space_id, opened] : tenant->spaces) {
      if (opened.destroying) continue;
      const Space& space = *opened.space;
      if (counts_anew) opened.counts = space.reader().Count();
      // All spaces of a session share the arena and state the same number.
      shown.used[Tier::kDevice] =
          std::max(shown.used[Tier::kDevice],
                   std::min(opened.counts.device_used_bytes, lease.terms.granted[Tier::kDevice]));
      if (answer.spaces.size() == kMaxStatusEntries) continue;
      answer.spaces.push_back({.space = space_id,
                               .name = space.plan().name,
                               .session = session_id,
                               .chunk_bytes = space.plan().chunk_bytes,
                               .num_bundles = space.plan().num_bundles,
                               .slots = space.slots(),
                               .counts = opened.counts});
    }
  }
  const absl::Duration counting = ThreadTime() - started_counting;
  if (counts_anew && counting > absl::Milliseconds(1)) {
    counts_valid_until_ = now + 100 * counting;
  }
  session.connection->Send(EncodeStatusReply(id, answer), {});
  return absl::OkStatus();
}

}  // namespace gemini::server
