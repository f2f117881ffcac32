// SPDX-License-Identifier: Apache-2.0
// The requests of server/server.h about slabs: those of a space, which are made with it, and those
// of a lease's DEVICE, which are made when they are asked for and given back when they are not.
#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/protocol.h"
#include "gemini/system/seqpacket.h"
#include "gemini/wire_generated.h"
#include "server/leases/device_grant.h"
#include "server/loop/server_log.h"
#include "server/server.h"

namespace gemini::server {
namespace {

// Of one lease, which only the thread of the loop changes.
int64_t NumSlabs(const Lease& lease) { return static_cast<int64_t>(lease.arena.extents.size()); }

absl::Status CheckHasSlabs(const PeerSession& session, const TierStore& device) {
  // A memfd goes with the lease's answer.
  if (session.lease.has_value() && !session.lease->reclaiming && device.slab_bytes() > 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError("there is no lease of DEVICE slabs here");
}

// As many as a message holds.
void SendSlabs(PeerSession& session, uint64_t id, absl::Span<const TierExtent> slabs) {
  std::vector<int> fds;
  for (const TierExtent& slab : slabs.subspan(0, kMaxMessageFds)) fds.push_back(slab.fd.get());
  session.connection->Send(EncodeSlabsReply(id, static_cast<int64_t>(fds.size())), fds);
}

}  // namespace

std::string Server::Undeliverable(PeerSession& session, const std::string& answer) {
  const wire::Message& message = *wire::GetMessage(answer.data());
  const uint64_t id = message.request_id();
  const absl::Status refusal = absl::ResourceExhaustedError(
      absl::StrCat("the kernel has taken no descriptors for ",
                   absl::FormatDuration(PeerConnection::kDescriptorPatience),
                   ": this user has too many descriptors in flight, in messages that nobody reads. "
                   "End the program that does not read, or raise the limit (ulimit -n)"));
  ServerLog().warn("cannot answer a request of session {} '{}' (pid {}): {}", session.id,
                   session.label, session.peer.pid, refusal.ToString());
  // Nobody knows of what it would have told: it is taken back.
  if (message.body_type() == wire::Body::LeaseReply && session.lease.has_value() &&
      !session.lease->reclaiming) {
    session.connection->Pause();
    session.lease->refusal = Lease::RefusalShown{id, refusal};
    BeginReclaim(session);
    return "";
  }
  if (const wire::SpaceReply* reply = message.body_as_SpaceReply()) {
    const auto found = session.spaces.find(reply->space());
    if (found != session.spaces.end() && !found->second.closing) {
      session.connection->Pause();
      found->second.closing = true;
      loop_->Unwatch(std::exchange(found->second.kick_watch, 0));
      ContinueCloseSpace(session, reply->space());
    }
  }
  return EncodeRefusal(id, refusal);
}

void Server::Handle(PeerSession& session, uint64_t id, const TakeSlabsRequest& take) {
  if (take.space == 0) {
    TakeDeviceSlabs(session, id, take);
    return;
  }
  const auto found = session.spaces.find(take.space);
  if (found == session.spaces.end()) {
    Refuse(session, id, absl::NotFoundError(absl::StrCat("no space ", take.space, " here")));
    return;
  }
  const std::vector<TierExtent>& slabs = found->second.space->memory().host.extents;
  if (take.first < 0 || take.first > static_cast<int64_t>(slabs.size()) || take.count < 0) {
    Refuse(session, id,
           absl::InvalidArgumentError(
               absl::StrCat(take.count, " slabs from ", take.first, " on of ", slabs.size())));
    return;
  }
  SendSlabs(session, id,
            absl::MakeConstSpan(slabs).subspan(take.first, static_cast<size_t>(take.count)));
}

void Server::TakeDeviceSlabs(PeerSession& session, uint64_t id, const TakeSlabsRequest& take) {
  absl::Status refusal = CheckHasSlabs(session, *stores_.device);
  int64_t most = 0;
  if (refusal.ok()) {
    const Lease& lease = *session.lease;
    const int64_t slab_bytes = stores_.device->slab_bytes();
    const int64_t granted = lease.granted[Tier::kDevice] / slab_bytes;
    most = lease.device_target / slab_bytes;
    if (take.first < 0 || take.first > NumSlabs(lease) || take.count < 0 ||
        take.count > granted - take.first) {
      refusal = absl::InvalidArgumentError(absl::StrCat(take.count, " slabs of DEVICE from ",
                                                        take.first, " on: there are ",
                                                        NumSlabs(lease), ", and may be ", granted));
    } else if (take.count > 0 && take.first >= most) {
      // Asked before the client could know.
      refusal = absl::AbortedError(
          absl::StrCat("epoch ", lease.epoch, " leaves room for ", most, " slabs of DEVICE"));
    }
  }
  if (!refusal.ok()) {
    Refuse(session, id, refusal);
    return;
  }
  // What does not fit this answer is asked for again.
  const int64_t end = std::min(take.first + std::min<int64_t>(take.count, kMaxMessageFds),
                               std::max(most, take.first));
  const auto send = [id, first = take.first, count = end - take.first](PeerSession& to) {
    SendSlabs(to, id, absl::MakeConstSpan(to.lease->arena.extents).subspan(first, count));
  };
  const int64_t missing = end - NumSlabs(*session.lease);
  if (missing <= 0) {
    send(session);
    return;
  }
  session.connection->Pause();
  ++session.worker_jobs;
  RunJob(Tier::kDevice, [this, session_id = session.id, id, first = take.first, missing, send] {
    MadeSlabs made = MakeSlabs(*stores_.device, missing);
    loop_->Post([this, session_id, id, first, send, made = std::move(made)]() mutable {
      PeerSession& found = *Find(session_id);
      --found.worker_jobs;
      std::move(made.slabs.begin(), made.slabs.end(),
                std::back_inserter(found.lease->arena.extents));
      if (found.lease->reclaiming) {
        ContinueReclaim(found);
      } else if (found.connection != nullptr) {
        if (NumSlabs(*found.lease) > first) {
          send(found);
        } else {
          Refuse(found, id, made.status);
        }
        found.connection->Resume();
      }
    });
  });
}

void Server::Handle(PeerSession& session, uint64_t id, const KeepSlabsRequest& keep) {
  absl::Status refusal = CheckHasSlabs(session, *stores_.device);
  if (refusal.ok() && (keep.num_slabs < 0 || keep.num_slabs > NumSlabs(*session.lease))) {
    refusal = absl::InvalidArgumentError(
        absl::StrCat("keeps ", keep.num_slabs, " slabs of ", NumSlabs(*session.lease)));
  }
  if (!refusal.ok()) {
    Refuse(session, id, refusal);
    return;
  }
  session.connection->Pause();
  ++session.worker_jobs;
  auto free_rest = CutDeviceGrant(*stores_.device, session.lease->arena,
                                  keep.num_slabs * stores_.device->slab_bytes());
  RunJob(Tier::kDevice, [this, session_id = session.id, id, free_rest = std::move(free_rest)] {
    free_rest();
    loop_->Post([this, session_id, id] {
      PeerSession& found = *Find(session_id);
      --found.worker_jobs;
      if (found.lease->reclaiming) {
        ContinueReclaim(found);
      } else if (found.connection != nullptr) {
        found.connection->Send(EncodeDone(id), {});
        found.connection->Resume();
      }
    });
  });
}

}  // namespace gemini::server
