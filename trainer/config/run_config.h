// SPDX-License-Identifier: Apache-2.0
// What a training run is asked to do: every key of gemini-train, from a TOML file and from flags.
// Keys:   one table (ConfigKeys) holds each key's name, member, help, check and what --resume
// allows.
//         A key reads the same in the file and as a flag; flags win over the file.
// Paths:  relative to the current directory; made absolute here, so that run.toml means the same
//         elsewhere.
// Errors: INVALID_ARGUMENT for everything a user can write wrongly; the message names the key,
// where
//         it was written (file and line, or the flag), the value, and what is allowed.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gemini/element_type.h"
#include "gemini/optimizer_kind.h"
#include "gemini/state_format.h"

namespace gemini::trainer {

// A directory for the NVME tier and how much of it may be used; written DIR:SIZE.
struct NvmeDirectory {
  std::string path;
  int64_t size_bytes = 0;
  bool operator==(const NvmeDirectory&) const = default;
};

// The stand-in for "auto" in a byte size: the program decides and says what it took.
inline constexpr int64_t kAutoBytes = -1;

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
  int64_t device_bandwidth = 0;  // Bytes a second, each direction; 0: no limit.
  std::string policy = "auto";
  double param_fraction = 0;            // Of policy static.
  double optimizer_fraction = 0;        // The same.
  std::string optimizer_tier = "host";  // Home of optimizer states: host, or nvme.
  std::string daemon;                   // Empty: an embedded server.
  std::string space;                    // Empty: named after the output directory.
  int64_t threads = 0;                  // 0: what Torch takes by itself.
  int64_t update_threads = 0;           // 0: by the processors that there are.
  bool operator==(const PlacementKeys&) const = default;
};

// Everything that a run is told, by flags and files.
struct RunConfig : OptimizerKeys, PlacementKeys {
  std::string model;
  std::string data;
  std::string output;
  int64_t steps = 0;
  int64_t batch = 8;
  int64_t sequence = 0;  // 0: as many positions as the model has, at most 1,024.
  int64_t accumulate = 1;
  std::string micro_batch_schedule = "horizontal";
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
  int64_t keep = 2;        // 0: all.
  bool overwrite = false;
  bool reference = false;
  std::string log_level = "info";
  bool operator==(const RunConfig&) const = default;
  ElementType element() const;           // Of `precision`.
  OptimizerKind optimizer_kind() const;  // Of `optimizer`.
  StateFormat format() const;            // Of these, and of `moments`.
  // Of the stochastic rounding of moments, made of `seed`; 0: to nearest.
  uint64_t rounding_seed() const;
  // Of a GPU; none: the CPU. `device` is one that CheckRunConfig has accepted.
  std::optional<int> gpu() const;
  bool states_on_nvme() const { return optimizer_tier == "nvme"; }
};

enum class KeyKind : uint8_t {
  kText,
  kPath,
  kChoice,
  kCount,
  kNumber,
  kFraction,  // 0 to 1, both allowed.
  kSwitch,
  kBytes,
  kBytesPerSecond,
  kNvme
};

enum class ResumeRule : uint8_t {
  kFixed,      // A change would make another run: refused.
  kGrow,       // May become larger.
  kFree,       // Where and how it runs: the same numbers come out.
  kNotStored,  // About this invocation; not part of run.toml.
};

struct ConfigKey {
  absl::string_view name;
  KeyKind kind = KeyKind::kText;
  std::variant<std::string RunConfig::*, int64_t RunConfig::*, double RunConfig::*,
               bool RunConfig::*, std::vector<NvmeDirectory> RunConfig::*>
      member;
  absl::string_view value_name;  // Shown by --help, such as "DIR".
  absl::string_view help;
  ResumeRule resume = ResumeRule::kFixed;
  // Counts and byte sizes: whole bounds. Numbers: min <= value < max.
  double min = 0;
  double max = std::numeric_limits<double>::infinity();
  // The choices of kChoice.
  std::vector<absl::string_view> choices = {};
};

// All keys, in the order of --help and run.toml.
absl::Span<const ConfigKey> ConfigKeys();

// Sets one key from the text of a flag. `where` begins the message, such as "--steps".
absl::Status SetKey(const ConfigKey& key, absl::string_view text, absl::string_view where,
                    RunConfig& config);

// Returns the key of that name. INVALID_ARGUMENT: there is none; suggests the nearest.
absl::StatusOr<const ConfigKey*> FindKey(absl::string_view name, absl::string_view where);

// Sets every key that the TOML text holds and leaves the others. `where` names the file in
// messages.
absl::Status ApplyToml(absl::string_view text, absl::string_view where, RunConfig& config);

// The checks that need several keys: what must be given, what excludes what.
absl::Status CheckRunConfig(const RunConfig& config);

// Writes all stored keys as TOML; ApplyToml gives the same values back.
std::string ToToml(const RunConfig& config);

// Returns what differs in stored keys, one line each: "steps: 5 is now 10". INVALID_ARGUMENT: a
// change that the key's ResumeRule does not allow; names all of them.
absl::StatusOr<std::vector<std::string>> CompareForResume(const RunConfig& before,
                                                          const RunConfig& now);

}  // namespace gemini::trainer
