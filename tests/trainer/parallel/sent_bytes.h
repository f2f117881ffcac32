// SPDX-License-Identifier: Apache-2.0
// What each rank sends in a step of a model that ranks share, for tests that hold it beside
// formulas.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "trainer/families/model_spec.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/gathered_model.h"
#include "trainer/parallel/rank_layout.h"

namespace gemini::trainer {

// Bytes by the collective's kind ("all-gather"), its group and its site. Whatever sends none is
// left out. Units are not told apart: their sites are "gather", "gradients of" and "which gradients
// of".
using Sent = std::map<std::tuple<std::string, std::string, std::string>, int64_t>;
inline constexpr char kAllGather[] = "all-gather", kReduceScatter[] = "reduce-scatter",
                      kAllReduce[] = "all-reduce", kAllToAll[] = "all-to-all", kShift[] = "shift";

// Returns what a rank sends over a ring where all gather `bytes`, or add them up in parts.
int64_t PanelBytes(int64_t bytes, int64_t ranks);
// Returns what a rank sends for a sum of `elements`, which are padded to as many for each rank.
int64_t SumBytes(int64_t elements, int64_t ranks, int64_t element_bytes = 4);

// Which ranks train what.
struct StepOfRanks {
  ModelSpec spec;
  RankLayout layout;
  int64_t sequences = 0;  // Of a rank that shares no layer.
  int64_t tokens = 0;     // Of each sequence.
  UnitDivision division = UnitDivision::kReplicas;
  bool recompute = false;
  torch::ScalarType type = torch::kFloat32;
};

// Each tensor of a unit, and each of its shards, is padded to blocks of so many elements. Runs have
// blocks of 1,024 or more, whose padding would hide what is sent.
inline constexpr int64_t kBlockElements = 8;

struct SentInStep {
  Sent sent;
  Sent of_units;  // What the formulas of data parallelism and ZeRO say that its units send.
  int64_t unit_elements = 0;  // Of all its units, padded.
};

// Trains one micro-batch in a thread for each rank. Returns what each one has sent.
std::vector<SentInStep> RunStep(const StepOfRanks& step);

}  // namespace gemini::trainer
