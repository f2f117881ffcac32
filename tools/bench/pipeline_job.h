// SPDX-License-Identifier: Apache-2.0
// Runs a job of GPT-2's shape without a model, to measure what updates cost beside a training step:
// bf16, AdamW, one thread that computes and the one that updates. An operator uses the parameters
// of one bundle and works on each element for a set time; gradients come from the parameters' bits,
// so that each bit that was ever wrong spreads.
// Thread: one. Owner: holds its own server.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/session.h"
#include "client/update/bundle_update.h"
#include "client/update/update_queue.h"
#include "gemini/layout.h"
#include "server/embedded_server.h"

namespace gemini::bench {

class PipelineJob {
 public:
  // Optimizer states on NVME in `nvme_directory`; or, where that is empty, in HOST with everything
  // else.
  static absl::StatusOr<std::unique_ptr<PipelineJob>> Start(const std::string& nvme_directory);
  PipelineJob(const PipelineJob&) = delete;
  PipelineJob& operator=(const PipelineJob&) = delete;
  ~PipelineJob();

  // Sets the work for an element in forward, for all steps from now on. Backward works twice as
  // long.
  void set_work_ns(double work_ns) { work_ns_ = work_ns; }

  // Runs steps, each with the update of the one before beside it, then waits for the last update.
  // Returns the seconds of each but the first, which has no update beside it.
  absl::StatusOr<std::vector<double>> Run(int steps);

  // The CRC32C of all parameters and states; all updates are finished.
  absl::StatusOr<uint32_t> Checksum();

  int64_t num_elements() const { return num_elements_; }
  int64_t host_bytes() const { return host_bytes_; }
  client::StoredBytes stored_bytes() const { return store_->stored_bytes(); }

  // Shape of the space, which the disk's rate depends on.
  static constexpr int64_t kChunkBytes = int64_t{2} << 20;

 private:
  PipelineJob() = default;
  absl::Status Open(const std::string& nvme_directory);
  absl::Status Load();
  absl::Status Forward();
  absl::Status Backward();
  absl::Status Update();
  void Work(double seconds);

  std::unique_ptr<server::EmbeddedServer> server_;
  std::unique_ptr<client::Session> session_;
  client::ChunkStore* store_ = nullptr;
  std::vector<std::vector<client::TensorPiece>> pieces_;  // By bundle.
  int64_t num_tensors_ = 0;
  int64_t num_elements_ = 0;
  int64_t host_bytes_ = 0;
  double work_ns_ = 0;
  Intent intent_;
  std::unique_ptr<client::UpdateQueue> updates_;
};

}  // namespace gemini::bench
