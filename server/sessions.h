// SPDX-License-Identifier: Apache-2.0
// Keeps the sessions of a server, one for each client, and runs the jobs that workers do for them.
// While a job is in flight, its session is not destroyed and its connection is not read.
// Owner:  the server thread, except RunJob, which any thread may call.
// Errors: none.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "gemini/tier.h"
#include "server/loop/event_loop.h"
#include "server/loop/worker_thread.h"
#include "server/peer_session.h"

namespace gemini::server {

// As log lines name it.
std::string Named(const PeerSession& session);

class Sessions {
 public:
  using Map = std::map<uint64_t, std::unique_ptr<PeerSession>>;

  // `reclaim` is called with a session whose lease is being reclaimed when something that was under
  // way for it has ended. The loop must outlive this.
  Sessions(EventLoop& loop, std::function<void(PeerSession&)> reclaim);
  // Waits for the jobs that have begun.
  ~Sessions();

  EventLoop& loop() { return loop_; }
  const Map& all() const { return sessions_; }
  // Returns an id for a session, a lease or a space. No id is returned twice.
  uint64_t NextId() { return next_id_++; }
  void Add(std::unique_ptr<PeerSession> session);
  // Returns null where there is no such session any more.
  PeerSession* Find(uint64_t id) const;
  // Destroys the session, which has no lease, space, job, timer or watch any more.
  void Erase(PeerSession& session) { sessions_.erase(session.id); }

  // Answers a request with a refusal, and logs it.
  void Refuse(PeerSession& session, uint64_t request, const absl::Status& status);
  // Destroys the connection, after the handler that may be running in it.
  void RetireConnection(PeerSession& session);

  // Runs `job` on the worker of DEVICE, or on the one of HOST and NVME. What the job uses must
  // outlive the sessions, for a desk may end while the job runs.
  void RunJob(Tier tier, WorkerThread::Job job);
  // Has a worker call `job`, then calls `done(session, what it returned)` on the owner thread. The
  // connection is read again after that, unless another job or a reclaim is under way. When `done`
  // is called the peer may have hung up: see PeerSession::answerable.
  template <typename Work, typename Done>
  void RunSessionJob(PeerSession& session, Tier tier, Work job, Done done) {
    RunJob(tier, SessionJob(session, std::move(job), std::move(done)));
  }
  // Returns the same job for a caller that has it called once, by any thread.
  template <typename Work, typename Done>
  WorkerThread::Job SessionJob(PeerSession& session, Work job, Done done) {
    Begin(session);
    return [this, id = session.id, job = std::move(job), done = std::move(done)]() mutable {
      absl::AnyInvocable<void(PeerSession&)> finish;
      if constexpr (std::is_void_v<std::invoke_result_t<Work&>>) {
        job();
        finish = std::move(done);
      } else {
        finish = [made = job(), done = std::move(done)](PeerSession& found) mutable {
          done(found, std::move(made));
        };
      }
      loop_.Post([this, id, finish = std::move(finish)]() mutable { End(id, std::move(finish)); });
    };
  }
  // Continues the reclaim of the session's lease, if one is under way. To be called when a
  // transfer of the session's has ended; at the end of a job it is.
  void ReclaimIfDue(PeerSession& session);
  // Hangs up on all; jobs that have not begun do nothing from now on.
  void Stop();

 private:
  void Begin(PeerSession& session);
  void End(uint64_t id, absl::AnyInvocable<void(PeerSession&)> done);

  EventLoop& loop_;
  const std::function<void(PeerSession&)> reclaim_;
  Map sessions_;
  uint64_t next_id_ = 1;
  std::atomic<bool> stopping_ = false;
  // Last, so that they end first. One makes the DEVICE of leases, the other spaces.
  WorkerThread device_worker_{"gemini-device"}, slab_worker_{"gemini-slabs"};
};

}  // namespace gemini::server
