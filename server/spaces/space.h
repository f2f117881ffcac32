// SPDX-License-Identifier: Apache-2.0
// A space as the server keeps it: its memory, and the I/O ring that its client posts to.
// Owner:  the server thread.
// Errors: nothing here aborts or waits on what a client wrote.
#pragma once
#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gemini/shm/space_shm.h"
#include "server/nvme/nvme_io.h"
#include "server/spaces/space_memory.h"
#include "server/spaces/space_plan.h"
#include "server/spaces/space_reader.h"

namespace gemini::server {

class Space {
 public:
  // `device_slots` bounds what residency words may name. Stores `generation` for the client.
  Space(uint64_t id, SpacePlan plan, SpaceMemory memory, int64_t device_slots, uint64_t generation);

  uint64_t id() const { return id_; }
  const SpacePlan& plan() const { return plan_; }
  const SpaceMemory& memory() const { return memory_; }
  TierMap<int64_t> slots() const { return {{device_slots_, plan_.host_slots, plan_.nvme_slots}}; }
  SpaceReader reader() const {
    return SpaceReader(memory_.client_map.data(), plan_.num_bundles, plan_.num_tensors, slots());
  }

  struct Transfer {
    uint64_t sequence = 0;
    int64_t nvme_slot = 0;
    int64_t nvme_place = 0;  // TierExtent::place of that slot.
    uint64_t found = 0;      // A read: the slot's contents word.
    NvmeTransfer transfer;
  };
  // Takes up to `most` requests off the ring. Calls `take`, which must not call the space, with
  // each that is valid: it is in flight until Complete. The others are completed here, with
  // INVALID_ARGUMENT, or with DATA_LOSS where they read a slot that no write has filled. Returns
  // HasRequests(). FAILED_PRECONDITION: the client wrote a tail that no honest client writes.
  // Nothing was taken, and the ring cannot be used any more.
  absl::StatusOr<bool> TakeRequests(int64_t most, absl::FunctionRef<void(const Transfer&)> take);
  // Returns whether TakeRequests would take a request, or return an error, now. If not, it will
  // after Complete, or after the client's next kick.
  bool HasRequests() const;
  // Completes a request. After a successful write, the slot has the contents word that the entry
  // holds now, which the client may have stored since. The slot has no contents if that is no
  // contents word, or if the write failed.
  void Complete(const Transfer& taken, absl::StatusCode code);
  int64_t in_flight() const { return in_flight_; }

  // Ends the client's right to the space. Requests that wait complete with ABORTED, later ones are
  // never taken, and waiting threads wake up and see the new generation.
  void Fence(uint64_t generation);
  bool fenced() const { return fenced_; }

  // Gives the memory up for destruction. in_flight() is 0.
  SpaceMemory TakeMemory();

 private:
  const ClientSegmentHeaderShm& client() const;
  ServerSegmentShm& server() const;
  const IoEntryShm& entry(uint64_t sequence) const;
  absl::StatusOr<Transfer> Validate(const IoEntryShm& shared) const;
  // Writes how a request ended, which is in flight no more. WakeClient has to follow.
  void Report(uint64_t sequence, absl::StatusCode code, uint64_t contents);
  // Counts `num_completions`, and wakes the client's threads that wait for a completion with one of
  // these bits (gemini/shm/space_shm.h).
  void WakeClient(uint32_t num_completions, uint32_t bits);
  // The number of requests on the ring; past kIoRingEntries, FAILED_PRECONDITION.
  absl::StatusOr<uint64_t> Waiting() const;

  const uint64_t id_;
  const SpacePlan plan_;
  SpaceMemory memory_;
  const int64_t device_slots_;
  uint64_t head_ = 0;  // Requests ever taken.
  int64_t in_flight_ = 0;
  bool fenced_ = false;
};

}  // namespace gemini::server
