// SPDX-License-Identifier: Apache-2.0
// Exchanges Torch's tensors among the ranks of a line. Autograd does not see it.
// Waiting: a call returns when tensors in plain memory of the CPU have arrived. For tensors on a
//         GPU it returns at once, and what the calling thread runs on them afterwards runs when
//         they have.
// Memory: tensors are contiguous and lie where the communicator exchanges, unless a function says
//         otherwise.
// Errors: those of the Communicator are thrown as c10::Error. After one the job is over.
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

// Waits until the work is done. Throws its error. `memory`: all tensors that it names.
void AwaitOrThrow(const Work& work, std::vector<torch::Tensor> memory);

// Ranks that share the layers of a model along one axis. Both outlive this. A line of one rank may
// have a null `group`: then only is_shared() may be called.
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
// wanted.
template <typename State>
c10::intrusive_ptr<State> SavedForBackward(torch::autograd::AutogradContext* context) {
  TORCH_CHECK(!at::GradMode::is_enabled(), "layers that ranks share have no second derivative");
  return SavedState<State>(context);
}

// What each rank sends to the next one of a line while it computes (Communicator::Shift).
class TensorShift {
 public:
  // x stays untouched until it has arrived.
  TensorShift(const torch::Tensor& x, const RankLine& line, const std::string& site);
  TensorShift(const TensorShift&) = delete;
  TensorShift& operator=(const TensorShift&) = delete;
  // One that nobody has awaited may still be under way: its memory is kept then.
  ~TensorShift();
  // Returns what the rank before sent. It is called once.
  torch::Tensor Await();

 private:
  torch::Tensor from_;
  torch::Tensor to_;
  Work work_;  // It is null behind Await.
};

// Sends each rank of the line its part of x, which are one behind the other in the first dimension,
// and returns what each rank sent here, in the same order.
torch::Tensor ExchangeParts(const torch::Tensor& x, const RankLine& line, const std::string& site);
// Makes x the sum over the ranks, in each of them. `site` names the place in the program.
void AddOverRanks(const torch::Tensor& x, const RankLine& line, const std::string& site);
// Returns the ranks' tensors, which are of one shape, in a dimension before all others. x may be a
// managed parameter.
torch::Tensor GatherOverRanks(const torch::Tensor& x, const RankLine& line,
                              const std::string& site);
// Returns this rank's part of the sum of the ranks' tensors, which have a part for each rank, one
// behind the other, in their first dimension.
torch::Tensor ReduceScatterOverRanks(const torch::Tensor& all, const RankLine& line,
                                     const std::string& site);

}  // namespace gemini::trainer
