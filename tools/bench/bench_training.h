// SPDX-License-Identifier: Apache-2.0
// Trains a GPT-2 under a DEVICE budget and a link of a set rate, for measurements: the same weights
// and tokens whatever the memory, so that losses can be compared.
// Thread: one. Owner: holds its own server.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/torch/model/training_session.h"
#include "server/embedded_server.h"
#include "trainer/models/staged_model.h"

namespace gemini::trainer {

// A GPT-2 without dropout; one sequence a step.
struct BenchShape {
  int64_t num_layers;
  int64_t width;
  int64_t vocab_size;
  int64_t sequence;
};

struct StepTimes {
  std::vector<double> forward, backward, step;  // Seconds.
};

class BenchTraining {
 public:
  // bandwidth: bytes a second in each direction, 0: as fast as the memory is.
  static absl::StatusOr<std::unique_ptr<BenchTraining>> Start(const BenchShape& shape,
                                                              int64_t device_bytes,
                                                              int64_t chunk_bytes,
                                                              int64_t bandwidth);

  // Runs steps and returns the times of the last `measured` of them.
  absl::StatusOr<StepTimes> Run(int warm_up, int measured);

  client::hooks::TrainingSession& session() { return *session_; }
  // Around the measured steps of the last Run.
  const client::TrainingStats& before() const { return before_; }
  const client::TrainingStats& after() const { return after_; }
  int64_t parameter_bytes() const { return parameter_bytes_; }
  const std::vector<double>& losses() const { return losses_; }  // By step.

 private:
  BenchTraining() = default;
  absl::Status Open(const BenchShape& shape, int64_t device_bytes, int64_t chunk_bytes,
                    int64_t bandwidth);

  std::unique_ptr<StagedModel> model_;
  std::vector<at::Tensor> tokens_;
  std::unique_ptr<server::EmbeddedServer> server_;
  std::unique_ptr<client::hooks::TrainingSession> session_;
  client::hooks::ManagedModel* managed_ = nullptr;
  int64_t parameter_bytes_ = 0;
  client::TrainingStats before_, after_;
  std::vector<double> losses_;
};

}  // namespace gemini::trainer
