// SPDX-License-Identifier: Apache-2.0
// The request of server/server.h that reads what a client wrote to its timeline. The events are
// copied, never the memory passed on: who may look may not write.
#include <algorithm>
#include <optional>

#include "server/server.h"

namespace gemini::server {
namespace {

// No client lives to write so many; beyond it sums could overflow.
constexpr uint64_t kMaxWritten = uint64_t{1} << 62;

}  // namespace

void Server::Handle(PeerSession& session, uint64_t id, const ReadTimelineRequest& read) {
  const NamedSpace found = FindSpace(read.space);
  if (found.opened == nullptr) {
    Refuse(session, id, NoSpace(read.space));
    return;
  }
  // A lease with a space was made whole.
  const auto& ring =
      *reinterpret_cast<const TimelineShm*>(found.session->lease->timeline_map.data());
  TimelineAnswer answer;
  answer.written = ring.written.load(std::memory_order_acquire);
  if (answer.written > kMaxWritten) answer.written = 0;
  const uint64_t oldest =
      answer.written < kTimelineEntries ? 1 : answer.written - kTimelineEntries + 1;
  const uint64_t first = std::min(std::max(read.first, oldest), answer.written + 1);
  answer.next = std::min(first + kMaxTimelineEvents, answer.written + 1);
  for (uint64_t number = first; number < answer.next; ++number) {
    const std::optional<TimelineEvent> event = ReadTimelineEvent(ring, number);
    if (event) answer.events.push_back({number, *event});
  }
  for (const auto& [space_id, opened] : found.session->spaces) {
    if (!opened.destroying) answer.spaces.emplace_back(opened.index, opened.space->plan().name);
  }
  session.connection->Send(EncodeTimelineReply(id, answer), {});
}

}  // namespace gemini::server
