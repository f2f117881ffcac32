// SPDX-License-Identifier: Apache-2.0
// What a training session's operators run on, and whose memory is DEVICE: the CPU, for which an
// arena of the server's plays DEVICE (cpu_device.h), or a GPU with slabs of its memory
// (gpu_device.h). Only here the hook distinguishes the two.
// Thread: any. Configure, Begin, End, EndStep and GiveWay: one at a time, with no operator running.
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

  // Returns the device of managed tensors, of their gradients and of what operators allocate.
  virtual c10::Device device() const = 0;

  // Sets the options for a session on it: the slabs and copies of a GPU, and the part of DEVICE
  // that is apart at first. RESOURCE_EXHAUSTED: the DEVICE that is wanted has no room for what the
  // process needs of it before all else.
  virtual absl::Status Configure(SessionOptions& options) = 0;

  // Begin limits what operators allocate to the session's budget until End. One session at a time;
  // `follower` outlives End. Errors of both and of EndStep are latched in the session.
  virtual void Begin(std::shared_ptr<Session> session, BudgetFollower& follower) = 0;
  virtual void End() = 0;
  // Sets whether what operators allocate counts; it does from Begin on. Off for what belongs beside
  // the budget: a whole model that LibTorch saves or loads.
  virtual void SetCounting(bool /*counts*/) {}
  // Adds a managed model of which `size_bytes` of chunks may be on DEVICE.
  virtual void AddChunks(int64_t /*size_bytes*/) {}
  // Divides DEVICE anew between chunks and what operators allocate. Called when a step is done and
  // no operator of the next one has begun.
  virtual void EndStep() {}
  // Called when an operator found no memory. Returns whether there is more than before, taken from
  // chunks.
  virtual bool GiveWay() { return false; }

  // Returns the kernels that compute on chunks. From Begin to End.
  virtual DeviceKernels& kernels() = 0;

  // FAILED_PRECONDITION: the operators of this thread are being recorded, not run (a graph's
  // capture). They cannot be given chunks, which will lie elsewhere when the graph runs.
  virtual absl::Status CheckOperators() const { return absl::OkStatus(); }
  // Returns memory filled with values that are NaN in every floating type, for operators whose
  // inputs could not be fetched once a session is lost. It is not charged to the session's budget,
  // has at least size_bytes and is valid until the end of this. Null: there is none.
  virtual std::byte* NanScratch(int64_t size_bytes) = 0;

  // Returns what operators have allocated now, if the session's own budget (DeviceBudget) does not
  // count it.
  virtual int64_t outside_bytes() const { return 0; }
  // Returns the largest amount that operators had allocated at one time since ResetPeaks, if the
  // session's own budget (DeviceBudget) does not count it.
  virtual int64_t non_model_peak_bytes() const { return 0; }
  virtual void ResetPeaks() {}
};

}  // namespace gemini::client::hooks
