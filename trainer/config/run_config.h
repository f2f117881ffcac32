// SPDX-License-Identifier: Apache-2.0
// Has every key of gemini-train, from a TOML file and from flags: what a training run is asked to
// do.
// Keys:   one table (RunKeys) holds each key's name, variable, help, check and what --resume
//         allows.
// Paths:  relative to the current directory; made absolute where they are read, so that run.toml
//         means the same elsewhere.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gemini/config/key_table.h"
#include "gemini/element_type.h"
#include "gemini/nvme_directory.h"
#include "gemini/optimizer_kind.h"
#include "gemini/state_format.h"

namespace gemini::trainer {

// How parameters change in a step.
struct OptimizerKeys {
  double lr = 5e-5;
  std::string schedule = "linear";
  int64_t warmup_steps = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  std::string no_decay;             // Patterns of names, separated by commas.
  std::string optimizer = "adamw";  // An OptimizerKindName.
  std::string moments = "fp32";     // One of kMomentFormatNames.
  std::string moment_rounding = "nearest";
  double momentum = 0.9;
  double trust_coefficient = 1e-3;
  double clip = 1.0;  // 0: no clipping.
  bool operator==(const OptimizerKeys&) const = default;
};

// Where a run computes, and where it keeps what.
struct PlacementKeys {
  std::string device = "cpu";  // Or a GPU: cuda:0.
  int64_t device_memory = kAutoBytes;
  int64_t host_memory = kAutoBytes;
  std::vector<NvmeDirectory> nvme;
  int64_t chunk_size = kAutoBytes;
  int64_t vocabulary_blocks = 0;  // 0: by the DEVICE budget.
  int64_t device_bandwidth = 0;   // Bytes a second, each direction; 0: no limit.
  std::string policy = "auto";
  double param_fraction = 0;            // Of policy static.
  double optimizer_fraction = 0;        // The same.
  std::string optimizer_tier = "host";  // Home of optimizer states: host, or nvme.
  std::string experts = "auto";         // In evaluations: planned, routed, or by the tokens.
  int64_t expert_cache = kAutoBytes;    // Of DEVICE, for routed experts; an eighth of it.
  std::string daemon;                   // Empty: an embedded server.
  std::string space;                    // Empty: named after the output directory.
  int64_t threads = 0;                  // 0: what Torch takes by itself.
  int64_t update_threads = 0;           // 0: by the processors that there are.
  bool operator==(const PlacementKeys&) const = default;
};

// How ranks share blocks, layers and sequences.
struct SharingKeys {
  int64_t pipeline = 1;                    // How many ranks have the blocks one after the other.
  std::string pipeline_schedule = "1f1b";  // A policies::PipelineScheduleName.
  int64_t pipeline_chunks = 1;             // Runs of blocks that each of them has.
  std::string pipeline_split;              // Blocks of each run; empty: they take about as long.
  std::string tensor = "none";             // How ranks share each layer.
  int64_t tensor_size = 0;                 // How many do; 0: all that the other sizes leave.
  int64_t tensor_depth = 1;                // Layers of a 2.5d grid.
  std::string sequence_parallel = "none";  // How ranks share each sequence.
  int64_t sequence_size = 0;               // How many do by ulysses or ring; 0: all that are left.
  std::string sequence_layout = "zigzag";  // What of a sequence each rank of a ring has.
  std::string rank_order = "pp,dp,sp,tp";  // A policies::MeshOrder.

  // Whether ranks share sequences along an axis of their own.
  bool has_sequence_axis() const {
    return sequence_parallel == "ulysses" || sequence_parallel == "ring";
  }
  // How many of `num_ranks` share each layer, and how many each sequence along that axis.
  int64_t tensor_ranks(int64_t num_ranks) const;
  int64_t sequence_ranks(int64_t num_ranks) const;
  bool operator==(const SharingKeys&) const = default;
};

// How ranks exchange what they compute.
struct ExchangeKeys {
  std::string transport = "auto";    // mpi, nccl, or what the device wants.
  bool exact = false;                // Sums in the order of ranks, also by NCCL.
  bool share_gpu = false;            // Ranks may have one GPU together.
  int64_t collective_timeout = 120;  // Seconds.
  bool operator==(const ExchangeKeys&) const = default;
};

// Everything that a run is told, by flags and files.
struct RunConfig : OptimizerKeys, PlacementKeys, SharingKeys, ExchangeKeys {
  std::string model;
  std::string task = "auto";  // One of kTaskNames (trainer/families/task_spec.h).
  std::string data;
  std::string output;
  int64_t steps = 0;  // Optimizer steps in all, with those of the runs that this one goes on from.
  int64_t batch = 8;  // Sequences in a micro-batch of one rank.
  // If it is 0, the length of the data's rows is taken. A text has no rows: it is then cut into as
  // many tokens as the model has positions, at most 1,024.
  int64_t sequence = 0;
  bool has_documents = false;  // Rows of data hold several. It is no key: the files say it.
  int64_t accumulate = 1;      // Micro-batches in a step of one rank.
  std::string micro_batch_schedule = "horizontal";
  std::string zero = "auto";  // Of several ranks: what of the model each of them has in parts.
  std::string gradient_sync = "auto";  // When they add their gradients.
  int64_t gather_ahead = 0;            // Units that are gathered while one computes.
  bool recompute = false;
  std::string order = "shuffled";
  std::string metrics;  // Empty: metrics.jsonl in the output directory.
  int64_t seed = 42;
  std::string precision = "fp32";  // An ElementTypeName.
  bool resume = false;
  std::string eval_data;
  int64_t eval_every = 0;  // 0: at the end only.
  int64_t save_every = 0;  // 0: at the end only.
  bool no_save = false;    // Not at the end either: a run that only measures.
  int64_t keep = 2;        // How many of the newest checkpoints stay. 0: all.
  bool overwrite = false;
  bool reference = false;
  std::string log_level = "info";
  bool operator==(const RunConfig&) const = default;
  ElementType element() const;           // Of `precision`.
  OptimizerKind optimizer_kind() const;  // Of `optimizer`.
  StateFormat format() const;            // Of these, and of `moments`.
  // Of the stochastic rounding of moments, made of `seed`; 0: to nearest.
  uint64_t rounding_seed() const;
  // Returns the GPU's number, or nothing if `device` is the CPU. CheckRunConfig has accepted it.
  // With several ranks "cuda" is the GPU of each (trainer/parallel/gpu_of_rank.h), which is 0 here.
  std::optional<int> gpu() const;
  // What `zero` says: 0 to 3.
  int zero_stage() const;
  // Whether ranks add their gradients behind all micro-batches of a step, and not in each.
  bool adds_gradients_once() const;
  bool states_on_nvme() const { return optimizer_tier == "nvme"; }
  // Whether an evaluation fetches the experts alone that tokens choose, `chosen` of `count` each.
  bool routes_experts(int64_t count, int64_t chosen) const;
};

// All keys, in the order of --help and run.toml. `config` outlives the table.
KeyTable RunKeys(RunConfig& config);
// What stands in run.toml.
std::string ToToml(RunConfig config);

// The checks that need several keys: what must be given, what excludes what. INVALID_ARGUMENT names
// the keys.
absl::Status CheckRunConfig(const RunConfig& config);
// The same for a run of several ranks, or for its forecast; one rank can do all. UNIMPLEMENTED,
// INVALID_ARGUMENT: names the key.
absl::Status CheckRunOfRanks(const RunConfig& config, int64_t num_ranks);
// Refuses a pipeline whose schedule is only foretold. INVALID_ARGUMENT: names the keys.
absl::Status CheckScheduleRuns(const RunConfig& config);

}  // namespace gemini::trainer
