// SPDX-License-Identifier: Apache-2.0
// Implements a gemini::Session: its parsed options, the server that it embeds or connects to, and
// the training session, which is opened when the first model comes and its needs are known.
// Thread: one at a time. Owner: shared by the Session and its models.
// Errors: absl::Status; gemini.cc throws them.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/front/gemini.h"
#include "client/front/quick_errors.h"
#include "client/torch/model/managed_model.h"
#include "client/torch/model/module_tensors.h"
#include "client/torch/model/training_session.h"
#include "server/embedded_server.h"

namespace gemini::client::front {

using ::gemini::SessionOptions;  // Not the client's own.

class FrontSession {
 public:
  // INVALID_ARGUMENT: an option is wrong (names it). FAILED_PRECONDITION: a session lives.
  static absl::StatusOr<std::shared_ptr<FrontSession>> Make(const SessionOptions& options);
  ~FrontSession();
  FrontSession(const FrontSession&) = delete;
  FrontSession& operator=(const FrontSession&) = delete;

  // Moves the module into a space of its own; opens the session for the first. RESOURCE_EXHAUSTED:
  // it does not fit (what it needs and what is free). Others: as TrainingSession's.
  absl::StatusOr<hooks::ManagedModel*> Manage(torch::nn::Module& module,
                                              const OptimizerSpec& optimizer);
  // As TrainingSession::Close.
  absl::Status Close();
  // Closes regardless. Models look at is_open() before they use the session below.
  void End();
  bool is_open() const { return is_open_; }
  absl::Status status() const;
  SessionStats stats() const;
  // From a BeginPlain to its EndPlain, what operators allocate does not count; they may nest.
  void BeginPlain();
  void EndPlain();
  // The session below; null before the first model.
  hooks::TrainingSession* training() { return training_.get(); }

 private:
  struct Settings {
    std::optional<int64_t> device_bytes, host_bytes;
    std::string nvme_directory;
    int64_t nvme_bytes = 0;
    int64_t chunk_bytes = 0;
    std::optional<int> gpu;
    PolicyOptions policy;
    std::string daemon, name;
  };
  explicit FrontSession(Settings settings);
  static absl::StatusOr<Settings> Parse(const SessionOptions& options);
  absl::Status Open(torch::nn::Module& module, const std::vector<hooks::ModuleTensor>& tensors,
                    const OptimizerSpec& optimizer);

  const Settings settings_;
  std::optional<QuickErrors> quick_errors_;  // While open.
  bool is_open_ = true;
  int num_models_ = 0;
  int num_plain_ = 0;
  std::unique_ptr<server::EmbeddedServer> server_;
  std::unique_ptr<hooks::TrainingSession> training_;
};

}  // namespace gemini::client::front
