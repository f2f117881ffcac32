// SPDX-License-Identifier: Apache-2.0
// Gathers a part of a model as one: its tensors are cut into shards (shard_cut.h), of
// which each rank has its own, and lie whole in each rank's memory only while they are used.
//         With whole tensors beside the shards (stages 1 and 2) it is gathered once for each
//         update, into these.
//         With replicas in place of shards (ZeRO stage 0) each rank has the tensors whole: nothing
//         is gathered and there is no buffer, but gradients are added alike.
// Use:    Views gathers, and gives the tensors as functions of this rank's pieces. Backward adds
//         their gradients over the ranks, and gives each piece its part of the sum, so that hooks
//         of the pieces see it. Views that are used in several places of one micro-batch have one
//         sum, of what the places add up to.
// Sync:   where the ranks add once a step, each rank first adds up the gradients of its own
//         micro-batches. Replicas are added up in their parameters' .grad, as they would be alone,
//         and with whole tensors (stage 1) there are other tensors for it beside these.
// Copies: of a tied table the first and the last rank of a pipeline have the same piece each, one
//         for the look-up and one for the head. What comes of either is kept beside the parameters
//         until AddOverCopies adds them, behind a step's last backward.
// Memory: one buffer, however many micro-batches have views of it. It is empty while nobody holds
//         it: views that a graph saved do not keep its memory.
// Order:  all ranks of the group call Views, and run backward, in the same order.
// Errors: those of the Communicator are thrown as c10::Error. The job is over behind them.
// Owner:  one thread at a time. It outlives the graphs of its views.
// Source: Rajbhandari et al., "ZeRO", arXiv:1910.02054, section 5.3.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "torch/types.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/shard_cut.h"

namespace gemini::trainer {

struct UnitTensor {
  std::string name;
  std::vector<int64_t> sizes;
  bool is_trained = true;
};

// Returns the name of a rank's parameter for a piece of a tensor: "wte.weight[1024:4096]", by the
// elements that it has.
std::string PieceName(absl::string_view tensor, const ShardPiece& piece);
// Returns the name of the tensor, of a name that PieceName has made; others as they are.
absl::string_view NameOfWhole(absl::string_view piece);

// What each rank of the group has of a unit.
enum class UnitDivision : uint8_t {
  kShards,          // A part of it, other than the others' (ZeRO stage 3).
  kShardsAndWhole,  // The same, and all values (stages 1 and 2).
  kReplicas,        // All of it (stage 0).
};

// When the ranks add their gradients.
enum class GradientSync : uint8_t {
  kEach,  // In the backward of each micro-batch.
  kLast,  // In that of a step's last one. Not of shards alone, which have no room for the others.
};

struct UnitOptions {
  UnitDivision division = UnitDivision::kShards;
  GradientSync sync = GradientSync::kEach;
  int64_t block_elements = 0;  // As ShardCut.
  // Whether this rank has any of it. If not, nothing but its description is there.
  bool is_here = true;
  // The ranks that have copies of this rank's pieces, which add their gradients; it outlives the
  // unit. Null: there are none.
  const RankGroup* copies = nullptr;
  // Where operators compute, and units are gathered; the meta device in a dry run. Pieces get there
  // when they are managed.
  torch::Device device = torch::kCPU;
};

// What backward needs of the buffer.
enum class UnitUse : uint8_t {
  kOnce,      // No operator reads a value of it in backward, so it is freed behind forward.
  kAgain,     // It is gathered once more: GatherBehind stands at the end of the forward.
  kToTheEnd,  // It stays from forward to backward.
};

class GatheredUnit {
 public:
  // The tensors are of `type`, fp32, bf16 or fp16; one at least is trained. Parameters and what is
  // beside them are made on the CPU, or on the meta device if that is the options'.
  // Communicator and group outlive this.
  GatheredUnit(std::string name, std::vector<UnitTensor> tensors, torch::ScalarType type,
               Communicator& communicator, const RankGroup& group, const UnitOptions& options);
  ~GatheredUnit();
  GatheredUnit(const GatheredUnit&) = delete;
  GatheredUnit& operator=(const GatheredUnit&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<UnitTensor>& tensors() const { return tensors_; }
  const ShardCut& cut() const { return cut_; }
  // Returns what this rank has, and the parameters that hold it: [1, elements] of a tensor of
  // several dimensions, else [elements], so that a piece decays as its tensor does.
  const std::vector<ShardPiece>& pieces() const { return pieces_; }
  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  // Returns what this rank has beside its pieces. It needs no gradient. "whole.NAME" is a whole
  // tensor. In "sum.NAME" gradients of a whole tensor are added until the ranks add theirs. In
  // "copy.NAME" those of a piece that has copies wait for AddOverCopies.
  struct NamedTensor {
    std::string name;
    torch::Tensor tensor;
  };
  std::vector<NamedTensor> BesidePieces() const;
  // Adds the gradients of copies, in the type of the parameters, and gives them to the parameters,
  // whose hooks see them. The ranks with copies call it behind the last backward of a step. It does
  // nothing where there are no copies.
  void AddOverCopies();
  // Tells that an update has changed the ranks' pieces, or that a step was given up: the whole
  // tensors are stale, and gradients that wait to be added are forgotten.
  void NoteUpdate();
  // Gathers the values of the pieces into the whole tensors, if there are any that lack them. Views
  // does that, too.
  void Refresh();
  // Whether backwards from now on are of a step's last micro-batch. They are at first.
  void set_last_micro_batch(bool is_last);

  // Returns the tensors, in the graph if grad mode is on. The buffer is held from now on, until
  // Release, or until the views' backward if `use` is kToTheEnd and there is a graph.
  std::vector<torch::Tensor> Views(UnitUse use);
  // Begins to gather the unit, unless that is under way or the buffer is held. The next Hold waits
  // for it.
  void BeginGather();
  // Hold gathers the unit unless the buffer is held already, and counts one more user of it.
  // Release counts one user less, and frees the buffer behind the last one.
  void Hold();
  void Release();
  // Frees the buffer, whoever holds it. A forward that threw, or whose backward was not run, holds
  // it for ever, and the next one would find values of before an update in it.
  void ReleaseAll();
  // Takes the tensors that leave the part of the model that used the views, and returns the same
  // values. Their backward gathers the buffer again, before that of what computed them, and holds
  // it until the views' backward. As soon as the buffer is there, it calls `when_gathered`, unless
  // that is null.
  std::vector<torch::Tensor> GatherBehind(const std::vector<torch::Tensor>& outputs,
                                          std::function<void()> when_gathered = nullptr);
  bool is_held() const { return num_users_ > 0; }
  // Whether there is a buffer.
  bool gathers() const { return options_.division == UnitDivision::kShards; }
  // Whether this is the only rank that has the tensors, which adds nothing.
  bool is_alone() const { return !has_parts() && group_.size() == 1; }

 private:
  friend class UnitViews;
  class Gradients;

  bool has_parts() const { return options_.division != UnitDivision::kReplicas; }
  // A gather that was begun, and what it reads.
  struct Gather {
    Work work;  // Null: there is none.
    torch::Tensor part;
  };
  // Begins to gather into memory of cut_.num_elements().
  Gather GatherInto(void* memory);
  // The tensors without a graph: in the buffer, or this rank's own.
  std::vector<torch::Tensor> Whole() const;

  const std::string name_;
  const std::vector<UnitTensor> tensors_;
  Communicator& communicator_;
  const RankGroup& group_;
  const UnitOptions options_;
  const ShardCut cut_;
  const std::vector<ShardPiece> pieces_;
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> wholes_;
  bool is_stale_ = true;
  std::unique_ptr<Gradients> gradients_;
  torch::Tensor buffer_;  // [cut_.num_elements()]; without memory while nobody holds it.
  Gather ahead_;          // Into the buffer, which nobody holds yet.
  int64_t num_users_ = 0;
};

}  // namespace gemini::trainer
