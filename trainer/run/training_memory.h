// SPDX-License-Identifier: Apache-2.0
// Opens the device, the server and the session that a run trains in, and moves the model's
// parameters there.
// Owner: one thread.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/torch/device/gpu_device.h"
#include "client/torch/model/training_session.h"
#include "server/embedded_server.h"
#include "trainer/config/run_config.h"
#include "trainer/families/model_spec.h"
#include "trainer/forecast/memory_plan.h"
#include "trainer/models/activation_store.h"
#include "trainer/models/expert_cache.h"
#include "trainer/models/staged_model.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/gathered_model.h"
#include "trainer/parallel/rank_layout.h"
#include "trainer/run/rank_job.h"
#include "trainer/store/parameter_store.h"

namespace gemini::trainer {

// What must live as long as a run. Destroyed from the last member up.
struct TrainingMemory {
  std::unique_ptr<server::EmbeddedServer> server;
  std::unique_ptr<client::hooks::TrainingSession> session;
  std::unique_ptr<ParameterStore> store;
  std::unique_ptr<ActivationStore> activations;
  FetchWeights fetch_expert;  // Null in plain memory.
};

// The device that computes.
struct TrainingDevice {
  std::shared_ptr<client::hooks::SessionDevice> gpu;  // Null: the CPU.
  server::ServerOptions server;  // Of a server of our own: has the GPU's memory.
  torch::Device torch() const {
    return gpu != nullptr ? gpu->device() : torch::Device(torch::kCPU);
  }
};

// Opens the run's device, or takes that which the rank has joined the others with. On a GPU without
// a daemon, sets config.device_memory to what there is, divided by the ranks that have the GPU.
absl::StatusOr<TrainingDevice> OpenTrainingDevice(RunConfig& config, const RankJob& job);

client::OptimizerSpec MakeOptimizer(const RunConfig& config);

// Opens the session, with a server of its own unless a daemon is named, and moves the model into
// it. `config` has DEVICE as a number. `available`: bytes of memory that are free.
absl::Status OpenManaged(const RunConfig& config, TrainingDevice device, const ModelSpec& spec,
                         StagedModel& model, const std::vector<ParameterShape>& parameters,
                         int64_t available, TrainingMemory& memory);

// Returns what PlanShards plans for `rank`, and logs where nothing is known of its operators.
// `available`: as OpenShards.
// `context_bytes`: as PlanShards.
absl::StatusOr<MemoryPlan> PlanForShards(const RunConfig& config, const GatheredModel& model,
                                         const RankLayout& layout, int64_t rank, int64_t available,
                                         int64_t context_bytes = 0);

// The same as OpenManaged for this rank's shards of a model, in a space named after the rank.
// `layout`: of all ranks. `available`: this rank's part of the memory that is free. Model and
// communicator outlive `memory`.
absl::Status OpenShards(const RunConfig& config, TrainingDevice device, GatheredModel& model,
                        Communicator& communicator, const RankLayout& layout, int64_t available,
                        TrainingMemory& memory);

}  // namespace gemini::trainer
