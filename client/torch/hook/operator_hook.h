// SPDX-License-Identifier: Apache-2.0
// Intercepts every operator of Torch's dispatcher in the process. At an operator's start each
// managed storage among its inputs is pinned, all or none, and gets its address. At its end, also
// by an exception, the pins are dropped.
// Thread: operators run on any. During Install and the destructor no operator may run.
// Errors: a callback must not throw, because Torch swallows the exception and runs the operator
// anyway. So a failed pin latches an error in the session, with the operator's name. The operator
// gets NaN-filled scratch in place of its managed inputs, except for those that another operator
// has on DEVICE already. If a callback runs out of memory, that is latched, too, and the operator
// throws on the storage without an address. Once an error is latched no step commits, and an
// operator that writes to a parameter or a buffer gets scratch, too: no value that a NaN has
// reached may be written there, so that the last good state can be read.
// Cost: docs/benchmarks.md, hook_ns_per_operator. An operator without managed inputs allocates
// nothing, takes no lock and writes to memory of its own thread only.
// Limits: operators inside at::DisableRecordFunctionGuard are not intercepted, so they throw on a
// storage without an address. A C++ torch::autograd::Function takes raw pointers under a
// ScopedFetch.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/record_function.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/plan/phase_tracker.h"
#include "client/session/session.h"
#include "client/torch/hook/managed_storage.h"
#include "client/torch/hook/session_device.h"

namespace gemini::client::hooks {

struct HookStats {
  int64_t operators = 0;
  int64_t operators_with_chunks = 0;
};

class OperatorHook {
 public:
  // Starts to intercept operators; a process has one hook. `session` outlives this, and so does
  // `phases`, to which operators are reported and which may be null. FAILED_PRECONDITION: the
  // process has a hook already.
  static absl::StatusOr<std::unique_ptr<OperatorHook>> Install(
      Session& session, std::shared_ptr<SessionDevice> device, PhaseTracker* phases = nullptr);
  // Stops intercepting. All pins must have been dropped.
  ~OperatorHook();

  // Pins one storage outside of any operator. Errors: of Residency::Pin, and of the owner.
  absl::Status Pin(ManagedStorage& storage);
  void Unpin(ManagedStorage& storage, bool dirty);
  // Returns a number that differs from that of every other hook of this process, so that a pin is
  // dropped by the hook that took it, or not at all.
  uint64_t generation() const;
  // Returns the hook of this process, or null.
  static OperatorHook* Active();

  // Makes the scratch at least `size_bytes`. The largest managed storage must fit into it.
  void ReserveScratch(int64_t size_bytes);
  SessionDevice& device() const;

  HookStats stats() const;

  // Returns its callbacks, for a benchmark that switches them off. No managed tensor may be used
  // meanwhile.
  const std::vector<at::CallbackHandle>& callbacks() const;

  struct State;

 private:
  explicit OperatorHook(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Returns the name of the innermost operator that runs on this thread, or "no operator" outside.
std::string CurrentOperatorName();
// Returns the error that made the innermost operator of this thread run on scratch, or OK. The
// allocator refuses such an operator its output, so that running out of memory surfaces at once.
absl::Status CurrentOperatorFailure();

}  // namespace gemini::client::hooks
