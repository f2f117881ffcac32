// SPDX-License-Identifier: Apache-2.0
#include "server/sessions.h"

#include "absl/strings/str_cat.h"
#include "gemini/system/check.h"
#include "server/loop/server_log.h"
#include "server/reply_wire.h"

namespace gemini::server {

std::string Named(const PeerSession& session) {
  return absl::StrCat("session ", session.id, " '", session.label, "' (pid ", session.peer.pid,
                      ")");
}

Sessions::Sessions(EventLoop& loop, std::function<void(PeerSession&)> reclaim)
    : loop_(loop), reclaim_(std::move(reclaim)) {}

Sessions::~Sessions() { stopping_ = true; }

void Sessions::Stop() {
  stopping_ = true;
  for (auto& [id, session] : sessions_) session->connection.reset();
}

void Sessions::Add(std::unique_ptr<PeerSession> session) {
  const uint64_t id = session->id;
  sessions_.emplace(id, std::move(session));
}

PeerSession* Sessions::Find(uint64_t id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

void Sessions::Refuse(PeerSession& session, uint64_t request, const absl::Status& status) {
  ServerLog().warn("refused a request of {}: {}", Named(session), status.ToString());
  session.connection->Send(EncodeRefusal(request, status), {});
}

void Sessions::RetireConnection(PeerSession& session) {
  if (session.connection == nullptr) return;
  session.connection->Pause();
  loop_.Post([retired = std::move(session.connection)] {});
}

void Sessions::RunJob(Tier tier, WorkerThread::Job job) {
  (tier == Tier::kDevice ? device_worker_ : slab_worker_)
      .Run([this, job = std::move(job)]() mutable {
        // The kernel takes back what a job not run holds.
        if (!stopping_) job();
      });
}

void Sessions::Begin(PeerSession& session) {
  if (session.connection != nullptr) session.connection->Pause();
  ++session.worker_jobs;
}

void Sessions::End(uint64_t id, absl::AnyInvocable<void(PeerSession&)> done) {
  PeerSession& session = *Find(id);  // A session with a job is never erased,
  --session.worker_jobs;
  done(session);
  PeerSession* const left = Find(id);  // but may have no other.
  if (left == nullptr || left->worker_jobs > 0) return;
  ReclaimIfDue(*left);
  if (left->answerable()) left->connection->Resume();
}

void Sessions::ReclaimIfDue(PeerSession& session) {
  if (session.reclaiming()) reclaim_(session);
}

}  // namespace gemini::server
