// SPDX-License-Identifier: Apache-2.0
// Collectives on Torch's tensors, which wait until they are done. Autograd does not see them.
// Memory: what is exchanged lies in plain memory of the CPU, contiguous.
// Errors: those of the Communicator are thrown as c10::Error. The job is over behind them.
// Thread: the one that issues the rank's collectives.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/custom_class.h"
#include "torch/types.h"
#include "trainer/models/saved_state.h"
#include "trainer/parallel/communicator.h"

namespace gemini::trainer {

// Returns how tensors of fp64, fp32, bf16 or fp16 are added. Throws c10::Error: of another type.
SumType SumTypeOf(torch::ScalarType type);

// Throws the work's error. `memory`: all tensors that it names.
void AwaitOrThrow(const Work& work, std::vector<torch::Tensor> memory);

// Ranks that share the layers of a model along one axis. Both outlive this.
struct RankLine {
  Communicator* communicator = nullptr;
  const RankGroup* group = nullptr;
  int64_t size() const { return group->size(); }
  int64_t place() const { return group->place; }
  // Whether there are others to exchange with.
  bool is_shared() const { return group != nullptr && group->size() > 1; }
};

// What an autograd function exchanges by in backward.
struct SavedLine : torch::CustomClassHolder {
  SavedLine(const RankLine& the_line, std::string the_site)
      : line(the_line), site(std::move(the_site)) {}
  const RankLine line;
  const std::string site;
};

// Returns what an autograd function saved, in its backward. Throws where a second derivative is
// wanted: there is none.
template <typename State>
c10::intrusive_ptr<State> SavedForBackward(torch::autograd::AutogradContext* context) {
  TORCH_CHECK(!at::GradMode::is_enabled(), "layers that ranks share have no second derivative");
  return SavedState<State>(context);
}

// Makes x the sum over the ranks, in each of them. `site` names the place in the program.
void AddOverRanks(const torch::Tensor& x, const RankLine& line, const std::string& site);
// Returns the ranks' tensors, which are of one shape, in a dimension before all others.
torch::Tensor GatherOverRanks(const torch::Tensor& x, const RankLine& line,
                              const std::string& site);
// Returns this rank's part of the sum of the ranks' tensors, which have a part for each rank, one
// behind the other, in their first dimension.
torch::Tensor ReduceScatterOverRanks(const torch::Tensor& all, const RankLine& line,
                                     const std::string& site);

}  // namespace gemini::trainer
