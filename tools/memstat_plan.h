// SPDX-License-Identifier: Apache-2.0
// Runs `memstat plan`, which predicts what a model needs and how long a step takes on a machine, or
// on many together (ranks_plan.h), from its config.json alone; or what a recorded round would take
// with other budgets and rates: a running job's, or one in a file. Nothing is computed.
// gemini-trace foretells a model's steps (tools/trace_helper.h). A daemon is contacted for a
// running job's round alone.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/wire/connection.h"
#include "tools/forecast.h"
#include "trainer/config/run_config.h"
#include "trainer/families/model_spec.h"
#include "trainer/families/task_choice.h"

namespace gemini::tools {

// Flags as the user writes them; sizes and rates are still text.
struct PlanFlags {
  std::string model;
  std::string trace;  // In place of `model`: a file that gemini-trace wrote.
  std::string space;  // In place of both: of a running job, and its phase.
  std::string phase = "train";
  std::string task;    // What the model learns, as gemini-train's key. Empty: what that says.
  std::string gpu;     // kCpu: the CPU plays DEVICE, as in gemini-train without a GPU.
  std::string device;  // Empty: the GPU's memory less kContextBytes.
  std::string host;
  std::string nvme;
  std::string precision;  // Empty: bf16, or what the GPU has.
  std::string optimizer = "adamw";
  std::string moments = "fp32";
  std::string optimizer_tier = "host";
  int64_t batch = 8;
  int64_t sequence = 0;        // 0: ModelSpec::default_sequence().
  bool has_documents = false;  // Rows of the run's data may have several, or padding.
  int64_t accumulate = 1;
  bool recompute = false;
  std::string chunk_size;
  int64_t vocabulary_blocks = 0;  // As gemini-train's key, behind "--" alone. 0: by DEVICE.
  // The rates that the GPU reaches, in place of the table's. 0 and empty stand for the table.
  double tflops = 0;
  std::string memory_bandwidth;
  std::string pcie;  // Each direction.
  std::string nvme_read;
  std::string nvme_write;
  double update_rate = 0;  // Parameters a second through the update in HOST.
  int64_t kernel_ns = 0;
  std::string costs;      // A file of a geminid's state directory, in place of the defaults.
  std::string plan_file;  // Gets the plan as a server sends it (gemini/plan.fbs).
  bool json = false;
  bool print_request = false;
  std::vector<std::string> train_keys;  // Those of gemini-train, behind "--".
  // How many ranks train together. 0 stands for one, whose placement is simulated.
  int64_t ranks = 0;
  int64_t gpus_per_node = 8;
  // A file of gemini-bench ranks: the rates of a processor's ranks in place of a GPU's.
  std::string measured;
  std::string link;            // How fast a rank sends to others of its node, and
  std::string network;         // to other nodes.
  bool search = false;         // For the best mesh, with any micro-batches that make up a step.
  int64_t step_sequences = 0;  // That a search takes; 0 stands for 4 Mi tokens.
  int64_t trace_limit_seconds = 300;  // Of gemini-trace, for one answer.
};
inline constexpr char kCpu[] = "cpu";

// Adds the subcommand `plan` to `app`; `flags` outlives it.
CLI::App* AddPlanCommand(CLI::App& app, PlanFlags& flags);

// Prints the forecast, or the GPUs for `--gpu list`; errors go to stderr. `connect` connects to the
// daemon. Returns the exit status: 0 it fits, 1 it does not, its config.json is not one of ours or
// no plan was made of the recorded round, 2 a flag is wrong.
int RunPlan(PlanFlags flags,
            absl::FunctionRef<absl::StatusOr<std::unique_ptr<client::Connection>>()> connect);

// Parses the flags. INVALID_ARGUMENT names the flag.
absl::StatusOr<Machine> MachineOf(const PlanFlags& flags, ElementType precision);
absl::StatusOr<ElementType> PrecisionOf(const PlanFlags& flags);
// Returns the task of the run that the keys describe, with the labels of its data. Where the data
// are not on this machine, labels are those of the model's config. Errors: of data that are there.
absl::StatusOr<trainer::TaskWish> TaskWishOf(const trainer::RunConfig& run);
// Returns how many tokens a sequence has: as many as the flags say, which the model must have.
absl::StatusOr<int64_t> SequenceOf(const PlanFlags& flags, const trainer::ModelSpec& spec);
// Parses "12GiB/s". Leaves `rate` alone if there is no text.
absl::Status ParseRate(const char* flag, const std::string& text, double& rate);

}  // namespace gemini::tools
