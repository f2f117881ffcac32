// SPDX-License-Identifier: Apache-2.0
// What a training session's operators run on, and whose memory is DEVICE then: the CPU, for which
// an arena of the server's plays DEVICE (cpu_device.h), or a GPU with slabs of its memory
// (gpu_device.h). The one place where the hook asks which.
// Thread: any; Configure, Begin, End, EndStep and GiveWay one at a time, with no operator running.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "c10/core/Device.h"
#include "client/kernels/device_kernels.h"
#include "client/session/budget_follower.h"
#include "client/session/session.h"

namespace gemini::client::hooks {

class SessionDevice {
 public:
  virtual ~SessionDevice() = default;

  // Of managed tensors, of their gradients, and of what operators take beside them.
  virtual c10::Device device() const = 0;

  // Sets what a session on it is opened with: the slabs and copies of a GPU, and what of DEVICE is
  // apart to begin with.
  // RESOURCE_EXHAUSTED: the DEVICE that is asked for has no room for what the process takes of it
  // before all else.
  virtual absl::Status Configure(SessionOptions& options) = 0;

  // From here to End, what operators allocate is held to the session's budget. One session at a
  // time; `follower` outlives End. Errors of these and of EndStep are latched in the session.
  virtual void Begin(std::shared_ptr<Session> session, BudgetFollower& follower) = 0;
  virtual void End() = 0;
  // Whether what operators allocate counts; it does from Begin on. For what belongs beside the
  // budget: a whole model that LibTorch saves or loads.
  virtual void SetCounting(bool /*counts*/) {}
  // A model is managed of which so many bytes of chunks may be on DEVICE.
  virtual void AddChunks(int64_t /*size_bytes*/) {}
  // A step is done and no operator of the next one has begun: the time to divide DEVICE anew
  // between chunks and what operators allocate.
  virtual void EndStep() {}
  // An operator found no memory. Whether there is more than before, taken from chunks.
  virtual bool GiveWay() { return false; }

  // Computes on chunks. From Begin to End.
  virtual DeviceKernels& kernels() = 0;

  // FAILED_PRECONDITION: what operators of this thread do now is recorded, not done (a graph's
  // capture), and cannot be given chunks, which lie elsewhere when it is.
  virtual absl::Status CheckOperators() const { return absl::OkStatus(); }
  // Memory full of what is NaN in every floating type, for operators whose inputs could not be
  // brought: once a session is lost, and not of its budget. At least size_bytes, valid until the
  // end of this. Null: there is none.
  virtual std::byte* NanScratch(int64_t size_bytes) = 0;

  // What operators have taken now, where the session's own budget (DeviceBudget) does not count it.
  virtual int64_t outside_bytes() const { return 0; }
  // The largest of what operators had allocated at one time since ResetPeaks, where the session's
  // own budget (DeviceBudget) does not count it.
  virtual int64_t non_model_peak_bytes() const { return 0; }
  virtual void ResetPeaks() {}
};

}  // namespace gemini::client::hooks
