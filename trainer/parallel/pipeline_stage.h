// SPDX-License-Identifier: Apache-2.0
// Runs the micro-batches of a step through the stages that one rank of a pipeline has
// (model_stages.h), by the schedule's list of tasks. What leaves a stage is sent to the rank of the
// next one, and gradients are sent back.
// Bits:   those of one process that runs the same micro-batches, one after the other; with several
//         pipelines, those of as many ranks without, where sums are folds (communicator.h). Of a
//         tied table the sums of look-ups and of heads are added to each other, behind both.
// Memory: between forward and backward, a stage keeps of a micro-batch what its graph keeps, with
//         the input, but not the output: that is dropped once it is sent. One input, or one
//         gradient, is received ahead.
// Order:  a task's input is begun to be received before the task ahead of it is run, and nobody
//         waits for what it has just sent, so two ranks may send to each other at once. A rank that
//         runs ahead, as on a GPU, waits for what it sent two rounds of the stages before: that has
//         been taken wherever ranks keep to their lists.
// Thread: the one that issues the rank's collectives.
// Errors: those of the Communicator are thrown as c10::Error, as Torch's are, and those of a
//         step's check are returned. The job is over behind all of them.
// Source: Narayanan et al., SOSP 2019 and SC 2021, as policies/pipeline/pipeline_schedule.h says.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "policies/pipeline/pipeline_schedule.h"
#include "torch/csrc/autograd/edge.h"
#include "torch/types.h"
#include "trainer/models/staged_model.h"
#include "trainer/models/stream.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/gathered_model.h"

namespace gemini::trainer {

// The stages that one rank has: one, or several where they are interleaved.
class PipelineStage {
 public:
  // `pipeline` are the ranks of the model's pipeline, in its order. All of it outlives this.
  // INVALID_ARGUMENT: of PipelineLists, or the schedule is one that is only foretold.
  static absl::StatusOr<std::unique_ptr<PipelineStage>> Make(GatheredModel& model,
                                                             Communicator& communicator,
                                                             const RankGroup& pipeline,
                                                             policies::PipelineSchedule schedule,
                                                             int64_t micro_batches);

  PipelineStage(const PipelineStage&) = delete;
  PipelineStage& operator=(const PipelineStage&) = delete;
  // What is under way may still be read and written: its memory is kept then.
  ~PipelineStage();

  // What a step needs to know of its micro-batches.
  struct Step {
    absl::Span<const Batch> batches;  // There is one for each, all of one size.
    LossFactors factors;
    absl::FunctionRef<DropoutDraw(int64_t micro_batch)> draw_of;
    // An error ends the step here, and other ranks wait.
    absl::FunctionRef<absl::Status(int64_t micro_batch, double loss)> check;
  };
  // Runs forwards and backwards of a step. Gradients are in .grad of the model's parameters behind
  // it. Returns the losses of the micro-batches in the last rank, and nothing in the others.
  absl::StatusOr<std::vector<LossValues>> Run(const Step& step);
  // Returns the loss of a batch in the last rank; in the others it says nothing. Grad mode is off.
  LossValues Evaluate(const Batch& batch);

  // The tasks of a step, and those that the last Run has run.
  const std::vector<policies::PipelineTask>& tasks() const { return tasks_; }
  const std::vector<policies::PipelineTask>& run_tasks() const { return run_tasks_; }
  // The most micro-batches, of all chunks, that it has kept from forward to backward at one time.
  int64_t most_live() const { return most_live_; }

 private:
  using Kind = policies::PipelineTask::Kind;
  // Tensors that are on their way. The second one are sums of routers, if the model has some.
  struct Transfer {
    int64_t place = 0;  // The other rank's, in the pipeline.
    std::string site;
    std::vector<Work> work;
    std::vector<torch::Tensor> tensors;
  };
  // What a micro-batch left in a chunk, for its backward.
  struct Kept {
    Stream input;  // Leaves; undefined in the first stage.
    std::vector<torch::autograd::Edge> outputs;
    std::optional<BatchLoss> loss;  // Of the last stage.
  };

  PipelineStage(GatheredModel& model, Communicator& communicator, const RankGroup& pipeline,
                std::vector<policies::PipelineTask> tasks, int64_t micro_batches);

  int64_t StageOf(const policies::PipelineTask& task) const;
  bool IsLast(int64_t stage) const { return stage == model_.place().stages.num_stages() - 1; }
  // Returns the stage that sends what a task needs, or nothing if this rank has all of it.
  std::optional<int64_t> SenderFor(const policies::PipelineTask& task) const;
  // Whether there are sums of routers behind the stage.
  bool HasRouterSums(int64_t stage) const;
  int64_t TagOf(Kind kind, int64_t from_stage, int64_t micro_batch) const;
  // Begins to receive what a task needs of another rank, if it does. `tokens` are a micro-batch's.
  void BeginReceive(const policies::PipelineTask& task, const torch::Tensor& tokens);
  // Waits for it, with the limit of a collective.
  void AwaitTransfer(const Transfer& transfer, CollectiveKind kind);
  // Returns what was begun to be received first.
  Stream TakeReceived();
  // Sends what leaves the task's stage: forward, or the gradients of what entered it.
  void Send(const policies::PipelineTask& task, const Stream& stream);
  // Drops what has arrived, and waits for what was sent first while there is more than `most`.
  void DropSent(size_t most);
  // Runs the blocks of a stage for what enters it, and sets `context` to that of the batch.
  Stream RunBlocks(int64_t stage, const Batch& batch, Stream input, BatchContext& context);
  absl::Status RunForward(const policies::PipelineTask& task, const Step& step,
                          std::vector<LossValues>& losses);
  void RunBackward(const policies::PipelineTask& task, const Step& step);

  GatheredModel& model_;
  Communicator& communicator_;
  const RankGroup& pipeline_;
  const std::vector<policies::PipelineTask> tasks_;
  const int64_t micro_batches_;
  const torch::ScalarType hidden_type_;
  std::vector<policies::PipelineTask> run_tasks_;
  std::vector<std::vector<std::optional<Kept>>> kept_;  // By chunk and micro-batch.
  int64_t num_live_ = 0;
  int64_t most_live_ = 0;
  std::deque<Transfer> receiving_, sending_;  // In the order in which they were begun.
};

}  // namespace gemini::trainer
