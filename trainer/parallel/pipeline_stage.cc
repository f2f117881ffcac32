// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/pipeline_stage.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/variable.h"
#include "trainer/parallel/tensor_exchange.h"

namespace gemini::trainer {
namespace {

using policies::PipelineTask;
using torch::Tensor;

// Names what a task receives and sends.
std::string SiteOf(PipelineTask::Kind kind) {
  return kind == PipelineTask::Kind::kForward ? "hidden states" : "gradients of hidden states";
}

// Returns the sizes of a stream's tensors between two stages, but for the router sums, for these
// inputs of a batch.
std::vector<std::vector<int64_t>> StreamSizes(const ModelSpec& spec, const HiddenPart& part,
                                              const Tensor& inputs) {
  const int64_t rows = inputs.size(0);
  if (spec.pair_trunk.has_value()) {  // Ranks share none of its layers.
    const int64_t residues = inputs.size(2);
    return {{rows, inputs.size(1), residues, spec.width},
            {rows, residues, residues, spec.pair_trunk->pair_width}};
  }
  const int64_t sequence = spec.image.has_value() ? spec.max_sequence : inputs.size(1);
  return {
      {rows / part.sequences.count, sequence / part.tokens.count, spec.width / part.width.count}};
}

// Whether a task takes what other ranks make of what the task before it sends. Its receive cannot
// end before that, and on a GPU one that waits may keep the other from beginning.
bool TakesWhatComesOf(const PipelineTask& task, const PipelineTask& before) {
  return task.kind == PipelineTask::Kind::kBackward &&
         before.kind == PipelineTask::Kind::kForward && task.chunk == before.chunk &&
         task.micro_batch == before.micro_batch;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PipelineStage>> PipelineStage::Make(
    GatheredModel& model, Communicator& communicator, const RankGroup& pipeline,
    policies::PipelineSchedule schedule, int64_t micro_batches) {
  if (policies::SplitsBackward(schedule)) {
    return absl::InvalidArgumentError(
        absl::StrCat(policies::PipelineScheduleName(schedule),
                     " is only foretold (memstat plan): train by 1f1b or interleaved"));
  }
  GEMINI_ASSIGN_OR_RETURN(
      policies::PipelineTaskLists lists,
      policies::PipelineLists(schedule, {.ranks = model.place().stages.num_ranks(),
                                         .chunks = model.place().stages.num_chunks(),
                                         .micro_batches = micro_batches}));
  return std::unique_ptr<PipelineStage>(
      new PipelineStage(model, communicator, pipeline,
                        std::move(lists[static_cast<size_t>(pipeline.place)]), micro_batches));
}

PipelineStage::PipelineStage(GatheredModel& model, Communicator& communicator,
                             const RankGroup& pipeline, std::vector<PipelineTask> tasks,
                             int64_t micro_batches)
    : model_(model),
      communicator_(communicator),
      pipeline_(pipeline),
      tasks_(std::move(tasks)),
      micro_batches_(micro_batches),
      hidden_type_(model.parameters().front().scalar_type()),
      kept_(static_cast<size_t>(model.place().stages.num_chunks())) {
  for (std::vector<std::optional<Kept>>& of_chunk : kept_) {
    of_chunk.resize(static_cast<size_t>(micro_batches));
  }
}

PipelineStage::~PipelineStage() {
  for (std::deque<Transfer>* transfers : {&receiving_, &sending_}) {
    for (Transfer& transfer : *transfers) {
      KeepForEver(std::make_shared<std::vector<Tensor>>(std::move(transfer.tensors)));
    }
  }
}

int64_t PipelineStage::StageOf(const PipelineTask& task) const {
  return model_.place().stages.StageOf(pipeline_.place, task.chunk);
}

std::optional<int64_t> PipelineStage::SenderFor(const PipelineTask& task) const {
  const int64_t stage = StageOf(task);
  if (task.kind == Kind::kForward) return stage > 0 ? std::optional(stage - 1) : std::nullopt;
  return IsLast(stage) ? std::nullopt : std::optional(stage + 1);
}

bool PipelineStage::HasRouterSums(int64_t stage) const {
  const ModelSpec& spec = model_.spec();
  if (!spec.experts.has_value() || !spec.experts->router_loss_coefficient.has_value()) return false;
  for (int64_t block = 0; block < model_.place().stages.blocks(stage).end; ++block) {
    if (spec.HasExperts(block)) return true;
  }
  return false;
}

int64_t PipelineStage::TagOf(Kind kind, int64_t from_stage, int64_t micro_batch) const {
  // Micro-batches with one tag arrive in the order in which they are sent, which is theirs.
  const int64_t stages = model_.place().stages.num_stages();
  const int64_t tags = (Communicator::kMostTag + 1) / (2 * stages);
  const int64_t way = kind == Kind::kForward ? 0 : 1;  // As MessagePaths::kNeighbours has it.
  return 2 * (from_stage * tags + micro_batch % tags) + way;
}

void PipelineStage::BeginReceive(const PipelineTask& task, const Tensor& inputs) {
  const std::optional<int64_t> from = SenderFor(task);
  if (!from.has_value()) return;
  // Gradients are those of what this stage has sent forward.
  const bool is_forward = task.kind == Kind::kForward;
  const bool has_sums = HasRouterSums(is_forward ? *from : StageOf(task));
  const ModelSpec& spec = model_.spec();
  const torch::TensorOptions options = torch::dtype(hidden_type_).device(inputs.device());
  Transfer& transfer = receiving_.emplace_back();
  transfer.place = model_.place().stages.RankOf(*from);
  transfer.site = SiteOf(task.kind);
  for (const std::vector<int64_t>& sizes : StreamSizes(spec, model_.hidden_part(), inputs)) {
    transfer.tensors.push_back(at::empty(sizes, options));
  }
  if (has_sums) {
    transfer.tensors.push_back(at::empty({2, spec.experts->count}, options.dtype(torch::kFloat32)));
  }
  for (const Tensor& tensor : transfer.tensors) {
    transfer.work.push_back(communicator_.Receive(
        pipeline_, tensor.mutable_data_ptr(), static_cast<int64_t>(tensor.nbytes()), transfer.place,
        TagOf(task.kind, *from, task.micro_batch), transfer.site));
  }
}

void PipelineStage::AwaitTransfer(const Transfer& transfer, CollectiveKind kind) {
  const MessageWait wait(communicator_, kind, pipeline_.ranks[static_cast<size_t>(transfer.place)],
                         transfer.site);
  for (const Work& work : transfer.work) AwaitOrThrow(work, transfer.tensors);
}

Stream PipelineStage::TakeReceived() {
  // Where it fails the destructor keeps the memory.
  AwaitTransfer(receiving_.front(), CollectiveKind::kReceive);
  const std::vector<Tensor> tensors = std::move(receiving_.front().tensors);
  receiving_.pop_front();
  return StreamOf(tensors, model_.spec().pair_trunk.has_value());
}

void PipelineStage::Send(const PipelineTask& task, const Stream& stream) {
  const int64_t stage = StageOf(task);
  Transfer& transfer = sending_.emplace_back();
  transfer.place =
      model_.place().stages.RankOf(task.kind == Kind::kForward ? stage + 1 : stage - 1);
  transfer.site = SiteOf(task.kind);
  for (const Tensor& tensor : TensorsOf(stream)) {
    transfer.tensors.push_back(tensor.detach().contiguous());
  }
  for (const Tensor& tensor : transfer.tensors) {
    transfer.work.push_back(communicator_.Send(
        pipeline_, tensor.const_data_ptr(), static_cast<int64_t>(tensor.nbytes()), transfer.place,
        TagOf(task.kind, stage, task.micro_batch), transfer.site));
  }
}

void PipelineStage::DropSent(size_t most) {
  while (!sending_.empty()) {
    Transfer& first = sending_.front();
    const bool is_done = std::ranges::all_of(first.work, [](const Work& w) { return w->Done(); });
    if (!is_done && sending_.size() <= most) return;
    AwaitTransfer(first, CollectiveKind::kSend);
    sending_.pop_front();
  }
}

Stream PipelineStage::RunBlocks(int64_t stage, const Batch& batch, Stream input,
                                BatchContext& context) {
  model_.set_documents(batch.documents);
  if (stage == 0) input = model_.Embed(batch);
  context = model_.ContextOf(input.hidden);
  const ModelStages::Blocks& blocks = model_.place().stages.blocks(stage);
  return model_.ForwardBlocks(std::move(input), context, static_cast<size_t>(blocks.begin),
                              static_cast<size_t>(blocks.end));
}

absl::Status PipelineStage::RunForward(const PipelineTask& task, const Step& step,
                                       std::vector<LossValues>& losses) {
  const int64_t stage = StageOf(task);
  const Batch& batch = step.batches[static_cast<size_t>(task.micro_batch)];
  Kept& kept =
      kept_[static_cast<size_t>(task.chunk)][static_cast<size_t>(task.micro_batch)].emplace();
  most_live_ = std::max(most_live_, ++num_live_);
  model_.set_dropout_draw(step.draw_of(task.micro_batch));
  if (stage > 0) {
    kept.input = LeavesOf(TakeReceived());
  }
  BatchContext context;
  Stream output = RunBlocks(stage, batch, kept.input, context);
  if (!IsLast(stage)) {
    // The tensors themselves would keep their memory.
    for (const Tensor& tensor : TensorsOf(output)) {
      kept.outputs.push_back(torch::autograd::impl::gradient_edge(tensor));
    }
    Send(task, output);
    return absl::OkStatus();
  }
  kept.loss = model_.LossOf(std::move(output), context, batch.labels, step.factors);
  losses.push_back(kept.loss->Values());
  return step.check(task.micro_batch, losses.back().total);
}

void PipelineStage::RunBackward(const PipelineTask& task, const Step& step) {
  model_.set_last_micro_batch(task.micro_batch + 1 == micro_batches_);
  std::optional<Kept>& place =
      kept_[static_cast<size_t>(task.chunk)][static_cast<size_t>(task.micro_batch)];
  Kept kept = std::move(*place);
  place.reset();
  if (kept.loss.has_value()) {
    std::exchange(kept.loss, std::nullopt)->Backward(step.factors);
  } else {
    torch::autograd::Engine::get_default_engine().execute(
        std::exchange(kept.outputs, {}), TensorsOf(TakeReceived()), /*keep_graph=*/false,
        /*create_graph=*/false, /*accumulate_grad=*/true);
  }
  --num_live_;
  if (StageOf(task) == 0) return;
  Send(task, GradientsOf(kept.input));
}

absl::StatusOr<std::vector<LossValues>> PipelineStage::Run(const Step& step) {
  const at::AutoGradMode with_graph(true);
  // Graphs do not outlive a step that failed: they name what others may take away.
  const absl::Cleanup drop = [this] {
    for (std::vector<std::optional<Kept>>& of_chunk : kept_) {
      for (std::optional<Kept>& one : of_chunk) one.reset();
    }
  };
  std::vector<LossValues> losses;
  run_tasks_.clear();
  num_live_ = most_live_ = 0;
  // Nothing of an earlier step is under way: it went to its end, or to nobody.
  receiving_.clear();
  sending_.clear();
  model_.BeginMicroBatches(micro_batches_);
  BeginReceive(tasks_.front(), step.batches.front().inputs);
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const bool has_next = i + 1 < tasks_.size();
    const bool is_ahead = has_next && !TakesWhatComesOf(tasks_[i + 1], tasks_[i]);
    if (is_ahead) BeginReceive(tasks_[i + 1], step.batches.front().inputs);
    if (tasks_[i].kind == Kind::kForward) {
      GEMINI_RETURN_IF_ERROR(RunForward(tasks_[i], step, losses));
    } else {
      RunBackward(tasks_[i], step);
    }
    run_tasks_.push_back(tasks_[i]);
    DropSent(2 * static_cast<size_t>(model_.place().stages.num_stages()));
    if (has_next && !is_ahead) BeginReceive(tasks_[i + 1], step.batches.front().inputs);
  }
  DropSent(/*most=*/0);
  model_.AddOverCopies();
  return losses;
}

LossValues PipelineStage::Evaluate(const Batch& batch) {
  LossValues loss;
  model_.BeginMicroBatches(1);
  for (int64_t chunk = 0; chunk < model_.place().stages.num_chunks(); ++chunk) {
    const PipelineTask task = {.kind = Kind::kForward, .chunk = static_cast<int>(chunk)};
    BeginReceive(task, batch.inputs);
    const int64_t stage = StageOf(task);
    BatchContext context;
    Stream output = RunBlocks(stage, batch, stage > 0 ? TakeReceived() : Stream(), context);
    if (IsLast(stage)) {
      loss = model_.LossOf(std::move(output), context, batch.labels, LossFactors()).Values();
    } else {
      Send(task, output);
    }
  }
  DropSent(/*most=*/0);
  return loss;
}

}  // namespace gemini::trainer
