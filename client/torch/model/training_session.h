// SPDX-License-Identifier: Apache-2.0
// Puts a LibTorch training loop under a memory budget, by three lines:
//
//     auto session = TrainingSession::Open("/run/gemini/geminid.sock", options);  // Or a socket.
//     auto model = (*session)->Manage(module, OptimizerSpec{}, ManageOptions{});
//     ... forward, backward ...;  (*model)->Step(StepOptions{});  // Was optimizer.step().
//
// From Manage on, a parameter has bytes only while an operator uses it. zero_grad, clip_grad_norm_,
// gradient accumulation, evaluation and views work as before: they are operators. A raw read
// (data_ptr, torch::save) throws and says what to use: ManagedModel::Read or ManagedModel::Fetch.
// Thread: Open, Manage, Close and the destructor on one thread, with no operator running elsewhere.
// Owner: the session owns its models. It keeps the parameters alive, so the module may be destroyed
// earlier.
// Errors: absl::Status. An error of an operator in forward or backward is latched and returned by
// the next call here. Nothing commits once an error is latched.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/plan/phase_tracker.h"
#include "client/session/session.h"
#include "client/session/training_stats.h"
#include "client/torch/hook/session_device.h"
#include "client/torch/model/managed_model.h"
#include "gemini/policy_options.h"
#include "gemini/system/unique_fd.h"

namespace torch::nn {
class Module;
}

namespace gemini::client::hooks {

struct TrainingOptions {
  int64_t device_memory = 0;  // Bytes for chunks and all that operators allocate, together.
  // The part of device_memory that suffices at first, where other jobs hold the rest; it grows as
  // they end. If an operator needs more, the step fails with the operator's name, so set it above
  // what a step is predicted to need. 0: all of device_memory.
  int64_t device_floor = 0;
  int64_t host_memory = 0;  // Bytes for parameters, moments, gradients, and a few spare chunks.
  int64_t nvme_memory = 0;  // Bytes for what HOST cannot hold; 0 for none.
  int64_t chunk_bytes = 0;  // A multiple of kPageBytes; 0: ChooseChunkBytes of device_memory.
  std::string label;        // Shown by memstat.
  // Bytes a second, in each direction, of the link between HOST and the DEVICE arena, to study
  // overlap without a GPU. 0: no limit.
  int64_t device_bandwidth = 0;
  PolicyOptions policy;  // Which chunks are on DEVICE when; the bits are the same with each.
  // What operators run on. Null: the CPU, and an arena in the server's host memory plays DEVICE.
  // OpenGpu (gpu_device.h) makes one for a GPU.
  std::shared_ptr<SessionDevice> device;
  // Threads of one update or norm; 0: as in SessionOptions. The bits are the same with each number.
  int update_threads = 0;
};

// Returns the largest power of two from 64 KiB to 16 MiB of which DEVICE holds at least 32, or 64
// KiB if there is none. Rounding up to whole chunks then costs little beside what one operator
// pins.
int64_t ChooseChunkBytes(int64_t device_memory);
// As above, but at most a quarter of what the module's parameters take, and at least 64 KiB.
int64_t ChooseChunkBytes(int64_t device_memory, const torch::nn::Module& module);

struct ManageOptions {
  std::string space_name = "model";  // 1 to 128 of [A-Za-z0-9._-]; different for each model.
  // Names of parameters in the order of their first use (first_use_order.h); those not named follow
  // in the module's order. Tensors that are used together then share chunks.
  std::vector<std::string> first_use_order;
  int64_t host_memory = 0;  // Part of the session's; 0: what the model needs, or all that is left.
  int64_t nvme_memory = 0;  // As host_memory.
  // Whether optimizer states are kept on NVME and are in HOST only around their update. HOST then
  // needs room for parameters, gradients and some spare chunks. The bits are the same.
  bool states_on_nvme = false;
};

class TrainingSession {
 public:
  // Takes a connected socket (EmbeddedServer::Connect) or connects to a daemon's, takes the lease,
  // and from then on limits the process's allocations on the device to it (SessionDevice::Begin).
  // FAILED_PRECONDITION: a session is open in this process already. Others: as Session::Open.
  static absl::StatusOr<std::unique_ptr<TrainingSession>> Open(UniqueFd socket,
                                                               const TrainingOptions& options);
  static absl::StatusOr<std::unique_ptr<TrainingSession>> Open(absl::string_view socket_path,
                                                               const TrainingOptions& options);
  ~TrainingSession();
  TrainingSession(const TrainingSession&) = delete;
  TrainingSession& operator=(const TrainingSession&) = delete;

  // Moves the module's floating parameters and buffers into a space of their own, chunk by chunk,
  // and frees their memory. Tensors on the meta device get room but no values: fill each with
  // ManagedModel::Write(name, ChunkKind::kParam, ...) before the first forward. The result lives as
  // long as this object; once the session is closed its calls return FAILED_PRECONDITION. Trained
  // parameters of 16 bits get a master that keeps their fp32 values (gemini/state_format.h).
  // UNIMPLEMENTED: a floating tensor that is not fp32, bf16 or fp16, two trained ones of different
  // types, or two that overlap in memory without being one tensor (names them). RESOURCE_EXHAUSTED:
  // HOST and NVME do not hold the model; the message has the numbers. FAILED_PRECONDITION: the
  // session is closed, or a tensor cannot be managed as it is, for example because it is managed
  // already (names it). Others: as Session::OpenSpace.
  absl::StatusOr<ManagedModel*> Manage(torch::nn::Module& module, const OptimizerSpec& optimizer,
                                       const ManageOptions& options);

  // Returns the first error since Open. Once it is latched no Step commits.
  absl::Status status() const;
  TrainingStats stats() const;
  // Starts new peaks of DEVICE use from what is used now.
  void ResetPeaks();

  // Returns the tracker of rounds, traces and plans. Its BeginPhase and EndPhase name rounds that
  // are neither training nor a plain evaluation. Not after Close.
  PhaseTracker& phases();

  // Returns where models are, and where their inputs must be.
  c10::Device device() const;
  // Call it when an operator threw c10::OutOfMemoryError and its step is given up. Returns whether
  // operators have more memory now, taken from chunks, so that trying again is worthwhile. That is
  // so on a GPU; on the CPU chunks were evicted already. No operator may run.
  bool GiveWay();
  // Forgets the gradients of a step that is given up, behind the modules' zero_grad: waits for
  // those that are on their way out, which hold memory of operators. No operator may run.
  void ForgetGradients();

  // As SessionDevice::SetCounting, while the session is open.
  void SetCounting(bool counts);
  // Returns the underlying session, for its budget and residency.
  Session& session();

  // Gives all memory back. Managed tensors throw on any later use ("the session is closed"), so
  // read before what is to be kept. A second call does nothing. FAILED_PRECONDITION, and the
  // session stays open: a ScopedFetch lives (names the tensor). The destructor closes regardless.
  absl::Status Close();
  bool is_open() const;

 private:
  struct State;
  explicit TrainingSession(std::unique_ptr<State> state);
  absl::Status Shut();
  static absl::StatusOr<std::unique_ptr<TrainingSession>> Start(
      absl::StatusOr<std::unique_ptr<Session>> session, std::shared_ptr<SessionDevice> device);
  std::unique_ptr<State> state_;
};

}  // namespace gemini::client::hooks
