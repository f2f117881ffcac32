// SPDX-License-Identifier: Apache-2.0
// Controls the process that runs the optimizers of DeepSpeed and Torch
// (tools/bench/adam_baseline.py), in the environment of tools/adam-baseline-setup. It waits without
// work while nothing is asked of it.
#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace gemini::bench {

class AdamBaseline {
 public:
  // Starts the process and makes its tensors. NOT_FOUND: no environment. UNAVAILABLE: it ended.
  static absl::StatusOr<std::unique_ptr<AdamBaseline>> Start(int64_t elements, int num_threads);
  AdamBaseline(const AdamBaseline&) = delete;
  AdamBaseline& operator=(const AdamBaseline&) = delete;
  ~AdamBaseline();  // Ends the process and waits for it.

  struct Times {
    double seconds = 0;         // The whole job.
    double kernel_seconds = 0;  // The optimizer's call in it.
    double norm = 0;
  };
  // Runs the job once with `engine`, "deepspeed" or "torch". The first call makes its tensors
  // before.
  absl::StatusOr<Times> Step(absl::string_view engine);

 private:
  AdamBaseline() = default;
  absl::StatusOr<nlohmann::json> Ask(const nlohmann::json& request);

  pid_t process_ = -1;
  std::FILE* requests_ = nullptr;
  std::FILE* answers_ = nullptr;
};

}  // namespace gemini::bench
