// SPDX-License-Identifier: Apache-2.0
// Defines the interface to what a training session's operators run on: the CPU, for which an arena
// of the server plays DEVICE (cpu_device.h), or a GPU, with slabs of its memory as DEVICE
// (gpu_device.h). Everything else in the hook is the same for both.
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

  // Returns how much of DEVICE the process itself takes, whatever it computes and has in HOST: a
  // GPU's context.
  virtual int64_t context_bytes() const { return 0; }

  // Sets the options for a session on this device: the slabs and copies of a GPU, and how much of
  // DEVICE is apart (not for chunks) at first. RESOURCE_EXHAUSTED: the DEVICE that is wanted has no
  // room for what the process itself needs of the GPU.
  virtual absl::Status Configure(SessionOptions& options) = 0;

  // Begin limits what operators allocate to the session's budget until End. One session at a time;
  // `follower` must live until End. Errors of Begin, End and EndStep are latched in the session.
  virtual void Begin(std::shared_ptr<Session> session, BudgetFollower& follower) = 0;
  virtual void End() = 0;
  // Sets whether what operators allocate is charged, as it is from Begin on. It is switched off for
  // allocations that do not belong to the budget, such as a whole model that LibTorch saves or
  // loads.
  virtual void SetCounting(bool /*counts*/) {}
  // Adds a managed model of which `size_bytes` of chunks may be on DEVICE.
  virtual void AddChunks(int64_t /*size_bytes*/) {}
  // Divides DEVICE anew between chunks and what operators allocate. Called when a step is done and
  // no operator of the next one has begun.
  virtual void EndStep() {}
  // Called when an operator found no memory. Takes memory from chunks, and returns whether
  // operators have more than before.
  virtual bool GiveWay() { return false; }

  // Returns the kernels that compute on chunks. Valid from Begin to End.
  virtual DeviceKernels& kernels() = 0;

  // FAILED_PRECONDITION: the operators of this thread are being recorded, not run (a graph's
  // capture). They cannot use chunks, which will be at other addresses when the graph runs.
  virtual absl::Status CheckOperators() const { return absl::OkStatus(); }
  // Returns memory filled with values that are NaN in every floating type, for operators whose
  // inputs could not be fetched once a session is lost. It is not charged to the session's budget,
  // has at least `size_bytes`, and is valid as long as this device. Returns null if there is none.
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
