// SPDX-License-Identifier: Apache-2.0
#include "policies/simulator/host_playback.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <utility>

#include "policies/simulator/host_foresight.h"

namespace gemini::policies {
namespace {

// Rounds are alike when they move as much; it takes a few until nothing is left of how the first
// began.
constexpr int kMostRounds = 6;
// A use may look some thousand uses ahead, so they are few enough for some tenths of a second.
constexpr size_t kUsesBetweenQuestions = 4096;
constexpr int64_t kLongAgo = std::numeric_limits<int64_t>::min();

// The chunks of one space.
class Pool {
 public:
  Pool(HostForesight foresight, int32_t space, int64_t num_slots, int64_t num_chunks)
      : foresight_(std::move(foresight)),
        space_(space),
        free_slots_(num_slots),
        chunks_(num_chunks) {
    // The first ones to be used are in HOST, and were on NVME before if they do not change. Who is
    // never used has left it, and is of no account.
    std::vector<std::pair<int64_t, int64_t>> by_use;
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      const int64_t next = foresight_.NextUse(ChunkId(chunk));
      if (next != HostForesight::kNoUse) by_use.emplace_back(next, chunk);
    }
    std::sort(by_use.begin(), by_use.end());
    for (const auto& [next, chunk] : by_use) {
      if (free_slots_ > 0) {
        --free_slots_;
        chunks_[chunk] = {.in_host = true, .on_nvme = KindOf(ChunkId(chunk)) != ChunkKind::kGrad};
        victims_.emplace(next, chunk);
      } else {
        chunks_[chunk].on_nvme = true;
      }
    }
  }

  struct Chunk {
    bool in_host = false;
    bool on_nvme = false;  // With the bytes that are in HOST, if it is there, too.
    int64_t there_ns = kLongAgo;
    int64_t held_until_ns = kLongAgo;
  };
  int32_t space() const { return space_; }
  Chunk& at(ChunkId chunk) { return chunks_[chunk.value()]; }
  bool has_free_slot() const { return free_slots_ > 0; }
  void TakeFreeSlot() { --free_slots_; }
  void GiveSlot() { ++free_slots_; }
  void Used(ChunkId chunk) { foresight_.Used(chunk); }

  // Its hold has ended at `now_ns`, or would have if no other had been taken.
  void Release(ChunkId chunk, int64_t now_ns) {
    if (at(chunk).in_host && at(chunk).held_until_ns <= now_ns) {
      victims_.emplace(foresight_.NextUse(chunk), chunk.value());
    }
  }

  std::optional<ChunkId> NextToRead() {
    return foresight_.NextToRead(
        [this](ChunkId chunk) { return !at(chunk).in_host && at(chunk).on_nvme; });
  }
  // The chunk in HOST that is not held and that is used last.
  std::optional<ChunkId> LastUsed() {
    for (; !victims_.empty(); victims_.pop()) {
      const auto& [next, id] = victims_.top();
      const ChunkId chunk(id);
      if (at(chunk).in_host && foresight_.NextUse(chunk) == next) return chunk;
    }
    return std::nullopt;
  }
  bool IsLater(ChunkId a, ChunkId b) const { return foresight_.NextUse(a) > foresight_.NextUse(b); }

  // It is on NVME alone from now on.
  void Leave(ChunkId chunk) {
    at(chunk).in_host = false;
    at(chunk).on_nvme = true;
    foresight_.Left(chunk);
  }

 private:
  using Entry =
      std::pair<int64_t, int64_t>;  // Its next use, and the chunk. Outdated ones are passed over.

  HostForesight foresight_;
  int32_t space_;
  int64_t free_slots_;
  std::vector<Chunk> chunks_;
  std::priority_queue<Entry> victims_;
};

class Playback {
 public:
  Playback(absl::Span<const HostUse> uses, absl::Span<const int64_t> slots_of_space,
           int64_t chunk_bytes, const CostModel& costs, int64_t round_ns, LateUses late,
           const PlanInterrupt& interrupt)
      : uses_(uses),
        chunk_bytes_(chunk_bytes),
        read_ns_(ChunkNs(costs.nvme_read)),
        write_ns_(ChunkNs(costs.nvme_write)),
        round_ns_(round_ns),
        late_(late),
        interrupt_(interrupt) {
    const std::vector<PlannedHostUse> planned = PlannedHostUses(uses);
    std::vector<int64_t> num_chunks(slots_of_space.size(), 0);
    for (const HostUse& use : uses) {
      num_chunks[use.space] = std::max(num_chunks[use.space], use.chunk.value() + 1);
    }
    for (size_t space = 0; space < slots_of_space.size(); ++space) {
      const auto index = static_cast<int32_t>(space);
      pools_.emplace_back(HostForesight(planned, round_ns, HostReadNs(chunk_bytes, costs), index,
                                        num_chunks[space]),
                          index, slots_of_space[space], num_chunks[space]);
    }
  }

  bool interrupted() const { return interrupted_; }

  HostRound PlayRound() {
    round_ = {};
    round_.ready_ns.reserve(uses_.size());
    int64_t late_ns = 0;
    for (size_t i = 0; i < uses_.size(); ++i) {
      if (i % kUsesBetweenQuestions == 0 && interrupt_ && !interrupt_().ok()) {
        interrupted_ = true;
        round_.ready_ns.resize(uses_.size(), 0);
        break;
      }
      const HostUse& use = uses_[i];
      const int64_t now_ns = begin_ns_ + use.asked_ns + late_ns;
      AdvanceTo(now_ns);
      const int64_t ready_ns = Serve(use, now_ns);
      if (late_ == LateUses::kDelayAll && ready_ns > now_ns) late_ns += ready_ns - now_ns;
      round_.ready_ns.push_back(std::max<int64_t>(ready_ns, begin_ns_) - begin_ns_);
    }
    // Asked for too fast, the uses would fall behind by more every round.
    round_.disk_ns = std::max(round_.read_bytes / chunk_bytes_ * read_ns_,
                              round_.write_bytes / chunk_bytes_ * write_ns_);
    round_.round_ns = std::max(round_ns_ + late_ns, round_.disk_ns);
    begin_ns_ += round_.round_ns;
    return std::move(round_);
  }

 private:
  struct Hold {
    int64_t end_ns = 0;
    int32_t space = 0;
    ChunkId chunk;
    bool operator>(const Hold& other) const { return end_ns > other.end_ns; }
  };

  int64_t ChunkNs(double rate) const { return TransferNs(chunk_bytes_, rate); }

  void ReleaseHolds(int64_t now_ns) {
    for (; !holds_.empty() && holds_.top().end_ns <= now_ns; holds_.pop()) {
      pools_[holds_.top().space].Release(holds_.top().chunk, now_ns);
    }
  }

  void HoldUntil(Pool& pool, ChunkId chunk, int64_t end_ns) {
    Pool::Chunk& at = pool.at(chunk);
    at.held_until_ns = std::max(at.held_until_ns, end_ns);
    holds_.push({at.held_until_ns, pool.space(), chunk});
  }

  // Begins all reading ahead that is decided on before then.
  void AdvanceTo(int64_t now_ns) {
    while (ahead_ns_ < now_ns) {
      ReleaseHolds(ahead_ns_);
      if (ReadAhead()) continue;
      ahead_ns_ = holds_.empty() ? now_ns : std::min(now_ns, holds_.top().end_ns);
    }
    ReleaseHolds(now_ns);
  }

  bool ReadAhead() {
    for (size_t tried = 0; tried < pools_.size(); ++tried) {
      Pool& pool = pools_[turn_];
      turn_ = (turn_ + 1) % pools_.size();
      const std::optional<ChunkId> missing = pool.NextToRead();
      if (!missing) continue;
      int64_t room_ns = ahead_ns_;
      if (pool.has_free_slot()) {
        pool.TakeFreeSlot();
      } else {
        const std::optional<ChunkId> victim = pool.LastUsed();
        if (!victim || !pool.IsLater(*victim, *missing)) continue;
        room_ns = GiveUp(pool, *victim, ahead_ns_);
      }
      ahead_ns_ = Read(pool, *missing, room_ns);
      return true;
    }
    return false;
  }

  // Returns when the slot of the chunk is free.
  int64_t GiveUp(Pool& pool, ChunkId chunk, int64_t now_ns) {
    int64_t free_ns = now_ns;
    if (!pool.at(chunk).on_nvme) {
      free_ns = Transfer(true, pool, chunk, std::max(now_ns, write_free_ns_));
      write_free_ns_ = free_ns;
    }
    pool.Leave(chunk);
    return free_ns;
  }

  // Reads the chunk into a slot that is free then; returns when that begins.
  int64_t Read(Pool& pool, ChunkId chunk, int64_t room_ns) {
    const int64_t begin_ns = std::max(room_ns, read_free_ns_);
    read_free_ns_ = Transfer(false, pool, chunk, begin_ns);
    pool.at(chunk).in_host = true;
    pool.at(chunk).on_nvme = KindOf(chunk) != ChunkKind::kGrad;
    pool.at(chunk).there_ns = read_free_ns_;
    HoldUntil(pool, chunk, read_free_ns_);
    return begin_ns;
  }

  int64_t Transfer(bool is_write, const Pool& pool, ChunkId chunk, int64_t begin_ns) {
    const int64_t end_ns = begin_ns + (is_write ? write_ns_ : read_ns_);
    (is_write ? round_.write_bytes : round_.read_bytes) += chunk_bytes_;
    round_.transfers.push_back(
        {is_write, pool.space(), chunk, begin_ns - begin_ns_, end_ns - begin_ns_});
    return end_ns;
  }

  // Makes room on demand; returns when it is there.
  int64_t TakeSlot(Pool& pool, int64_t now_ns) {
    for (;;) {
      if (pool.has_free_slot()) {
        pool.TakeFreeSlot();
        return now_ns;
      }
      if (const std::optional<ChunkId> victim = pool.LastUsed(); victim) {
        return GiveUp(pool, *victim, now_ns);
      }
      // All are held; more than one use at a time has slots.
      now_ns = std::max(now_ns, holds_.top().end_ns);
      ReleaseHolds(now_ns);
    }
  }

  // Returns when the chunk, or the room for it, is there.
  int64_t Serve(const HostUse& use, int64_t now_ns) {
    Pool& pool = pools_[use.space];
    Pool::Chunk& chunk = pool.at(use.chunk);
    if (use.kind == HostUseKind::kGivesUp) {
      if (std::exchange(chunk.in_host, false)) pool.GiveSlot();
      chunk.on_nvme = false;
      return kLongAgo;
    }
    pool.Used(use.chunk);
    int64_t ready_ns = kLongAgo;
    if (chunk.in_host) {
      ready_ns = chunk.there_ns;
    } else {
      const int64_t room_ns = TakeSlot(pool, now_ns);
      if (room_ns > now_ns) ready_ns = room_ns;
      if (chunk.on_nvme && use.kind != HostUseKind::kOverwrites) {
        Read(pool, use.chunk, room_ns);
        ready_ns = chunk.there_ns;
      } else {
        chunk.in_host = true;
        chunk.there_ns = room_ns;
      }
    }
    if (use.kind != HostUseKind::kReads) chunk.on_nvme = false;
    HoldUntil(pool, use.chunk, std::max(now_ns, ready_ns) + use.held_ns);
    return ready_ns;
  }

  const absl::Span<const HostUse> uses_;
  const int64_t chunk_bytes_;
  const int64_t read_ns_;
  const int64_t write_ns_;
  const int64_t round_ns_;
  const LateUses late_;
  const PlanInterrupt& interrupt_;
  bool interrupted_ = false;
  std::vector<Pool> pools_;  // By space.
  size_t turn_ = 0;          // The pool whose turn it is.
  int64_t begin_ns_ = 0;
  int64_t ahead_ns_ = 0;  // When it is next decided what to read ahead.
  int64_t read_free_ns_ = 0;
  int64_t write_free_ns_ = 0;
  std::priority_queue<Hold, std::vector<Hold>, std::greater<>> holds_;
  HostRound round_;
};

int64_t ChunksOf(const RangeTrace& trace) {
  int64_t chunks = 0;
  for (const int64_t of_space : trace.chunks_of_space) chunks += of_space;
  return chunks;
}

}  // namespace

int64_t HostReadNs(int64_t chunk_bytes, const CostModel& costs) {
  return TransferNs(chunk_bytes, std::min(costs.nvme_read, costs.nvme_write));
}

bool HostHoldsAll(const RangeTrace& trace, int64_t host_bytes) {
  int64_t spare = 0;
  for (size_t space = 0; space < trace.formats.size(); ++space) spare += trace.SpareSlotsOf(space);
  return ChunksOf(trace) + spare <= host_bytes / trace.chunk_bytes;
}

std::vector<int64_t> SlotsOfSpaces(const RangeTrace& trace, int64_t host_bytes) {
  const int64_t all_slots = host_bytes / trace.chunk_bytes;
  const int64_t all_chunks = ChunksOf(trace);
  std::vector<int64_t> slots;
  for (size_t space = 0; space < trace.chunks_of_space.size(); ++space) {
    // Not many more slots than chunks: the product is far from overflowing.
    const int64_t of_chunks = all_slots * trace.chunks_of_space[space] / all_chunks;
    const StateFormat& format = trace.formats[space];
    slots.push_back(std::max(of_chunks - SlotsBetweenChunks(format), UpdateSlots(format)));
  }
  return slots;
}

HostRound PlayHost(absl::Span<const HostUse> uses, absl::Span<const int64_t> slots_of_space,
                   int64_t chunk_bytes, const CostModel& costs, int64_t round_ns, LateUses late,
                   const PlanInterrupt& interrupt) {
  Playback playback(uses, slots_of_space, chunk_bytes, costs, round_ns, late, interrupt);
  HostRound before, round = playback.PlayRound();
  for (int rounds = 1; rounds < kMostRounds && !playback.interrupted(); ++rounds) {
    before = std::exchange(round, playback.PlayRound());
    if (round.read_bytes == before.read_bytes && round.write_bytes == before.write_bytes) break;
  }
  return round;
}

HostTimes TimesOf(absl::Span<const HostAccess> accesses, absl::Span<const HostUse> uses,
                  const HostRound& round) {
  HostTimes times;
  for (const HostAccess& access : accesses) {
    std::vector<HostReady>& of_event = times.ready[static_cast<int>(access.event)];
    of_event.resize(std::max<size_t>(of_event.size(), access.index + 1));
  }
  const auto ready_of = [&](const HostUse& use) -> HostReady& {
    const HostAccess& access = accesses[use.access];
    return times.ready[static_cast<int>(access.event)][access.index];
  };
  std::vector<int32_t> last_part(accesses.size(), 0);
  for (size_t i = 0; i < uses.size(); ++i) {
    const HostUse& use = uses[i];
    last_part[use.access] = std::max(last_part[use.access], use.part);
    if (use.part > 0) continue;
    // Counted from the round in which it is ready: what is late there makes the ones before no
    // longer.
    HostReady& ready = ready_of(use);
    ready.rounds_after =
        std::max(ready.rounds_after, use.rounds_after + round.ready_ns[i] / round.round_ns);
  }
  for (size_t i = 0; i < uses.size(); ++i) {
    const HostUse& use = uses[i];
    if (round.ready_ns[i] == 0) continue;
    HostReady& ready = ready_of(use);
    const int64_t ready_ns =
        AfterRounds(round.ready_ns[i], use.rounds_after - ready.rounds_after, round.round_ns);
    if (use.part == 0) ready.first_ns = std::max(ready.first_ns, ready_ns);
    // The chunks behind it follow one another.
    const int64_t chunks_behind = last_part[use.access] - use.part;
    ready.last_ns =
        std::max(ready.last_ns, ready_ns + chunks_behind * accesses[use.access].chunk_ns);
  }
  times.least_round_ns = round.disk_ns;
  return times;
}

}  // namespace gemini::policies
