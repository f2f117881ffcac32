// SPDX-License-Identifier: Apache-2.0
#include "server/slab_desk.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gemini/system/seqpacket.h"
#include "gemini/system/status_macros.h"
#include "server/leases/device_grant.h"
#include "server/reply_wire.h"

namespace gemini::server {
namespace {

// Of one lease, which only the thread of the loop changes.
int64_t NumSlabs(const Lease& lease) { return static_cast<int64_t>(lease.arena.extents.size()); }

absl::Status CheckHasSlabs(const PeerSession& session, const TierStore& device) {
  // A memfd goes with the lease's answer.
  if (session.lease.has_value() && !session.reclaiming() && device.slab_bytes() > 0) {
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

absl::Status SlabDesk::Handle(PeerSession& session, uint64_t id, const TakeSlabsRequest& take) {
  if (take.space == 0) return TakeDeviceSlabs(session, id, take);
  const auto found = session.spaces.find(take.space);
  if (found == session.spaces.end()) {
    return absl::NotFoundError(absl::StrCat("no space ", take.space, " here"));
  }
  const std::vector<TierExtent>& slabs = found->second.space->memory().host.extents;
  if (take.first < 0 || take.first > static_cast<int64_t>(slabs.size()) || take.count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(take.count, " slabs from ", take.first, " on of ", slabs.size()));
  }
  SendSlabs(session, id,
            absl::MakeConstSpan(slabs).subspan(take.first, static_cast<size_t>(take.count)));
  return absl::OkStatus();
}

absl::Status SlabDesk::TakeDeviceSlabs(PeerSession& session, uint64_t id,
                                       const TakeSlabsRequest& take) {
  GEMINI_RETURN_IF_ERROR(CheckHasSlabs(session, device_));
  const Lease& lease = *session.lease;
  const int64_t granted = lease.terms.granted[Tier::kDevice] / device_.slab_bytes();
  const int64_t most = lease.terms.device_target / device_.slab_bytes();
  if (take.first < 0 || take.first > NumSlabs(lease) || take.count < 0 ||
      take.count > granted - take.first) {
    return absl::InvalidArgumentError(absl::StrCat(take.count, " slabs of DEVICE from ", take.first,
                                                   " on: there are ", NumSlabs(lease),
                                                   ", and may be ", granted));
  }
  if (take.count > 0 && take.first >= most) {
    // Asked before the client could know.
    return absl::AbortedError(
        absl::StrCat("epoch ", lease.epoch, " leaves room for ", most, " slabs of DEVICE"));
  }
  // What does not fit this answer is asked for again.
  const int64_t end = std::min(take.first + std::min<int64_t>(take.count, kMaxMessageFds),
                               std::max(most, take.first));
  const auto send = [id, first = take.first, count = end - take.first](PeerSession& to) {
    SendSlabs(to, id, absl::MakeConstSpan(to.lease->arena.extents).subspan(first, count));
  };
  const int64_t missing = end - NumSlabs(lease);
  if (missing <= 0) {
    send(session);
    return absl::OkStatus();
  }
  sessions_.RunSessionJob(
      session, Tier::kDevice, [&device = device_, missing] { return MakeSlabs(device, missing); },
      [this, id, first = take.first, send](PeerSession& found, MadeSlabs made) {
        std::move(made.slabs.begin(), made.slabs.end(),
                  std::back_inserter(found.lease->arena.extents));
        if (!found.answerable()) return;
        if (NumSlabs(*found.lease) > first) {
          send(found);
        } else {
          sessions_.Refuse(found, id, made.status);
        }
      });
  return absl::OkStatus();
}

absl::Status SlabDesk::Handle(PeerSession& session, uint64_t id, const KeepSlabsRequest& keep) {
  GEMINI_RETURN_IF_ERROR(CheckHasSlabs(session, device_));
  if (keep.num_slabs < 0 || keep.num_slabs > NumSlabs(*session.lease)) {
    return absl::InvalidArgumentError(
        absl::StrCat("keeps ", keep.num_slabs, " slabs of ", NumSlabs(*session.lease)));
  }
  sessions_.RunSessionJob(
      session, Tier::kDevice,
      CutDeviceGrant(device_, session.lease->arena, keep.num_slabs * device_.slab_bytes()),
      [id](PeerSession& found) {
        if (found.answerable()) found.connection->Send(EncodeDone(id), {});
      });
  return absl::OkStatus();
}

}  // namespace gemini::server
