// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/traced_step.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/cpu/Utils.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_strided.h"
#include "ATen/record_function.h"
#include "absl/cleanup/cleanup.h"
#include "absl/container/node_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/torch/hook/operator_inputs.h"
#include "client/torch/hook/operator_traits.h"
#include "client/torch/hook/storage_access_2_11.h"
#include "client/torch/model/element_types.h"
#include "gemini/system/status_macros.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/variable.h"
#include "trainer/forecast/kernel_work.h"
#include "trainer/forecast/meta_kernels.h"
#include "trainer/forecast/meta_memory.h"
#include "trainer/forecast/repeated_blocks.h"
#include "trainer/models/batch.h"
#include "trainer/models/counter_dropout.h"
#include "trainer/models/staged_model.h"

namespace gemini::trainer {
namespace {

using client::hooks::OperatorTraits;

constexpr int64_t kMaxTokens = int64_t{1} << 26;
// Of a trace, and of what makes it: 2^24 operators have a GiB.
constexpr int64_t kMaxPositions = int64_t{1} << 24;
constexpr double kMaxKernelSeconds = 1e4;
constexpr int64_t kMaxKernelNs = 1'000'000'000;
constexpr int64_t kCpuGrainBytes = 64;  // c10::gAlignment, by which every block is charged.
// Of an expert at most so many are live at once that have a row for each of its tokens: input,
// gate, first product, their two activations and product, and gradients of two of them.
constexpr int64_t kTensorsOfExpert = 8;
// On a GPU a gradient's copy to HOST runs beside the operator after its own.
constexpr int32_t kIntervalsOfGradient = 2;

bool ProcessorHas(const char* capability) {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto found = capabilities.find(capability);
  return found != capabilities.end() && found->second.isBool() && found->second.toBool();
}

// Whether this processor multiplies matrices of the type in tiles.
bool HasTiles(ElementType element) {
  return ProcessorHas(element == ElementType::kFp16 ? "amx_fp16" : "amx_tile");
}

// What one that multiplies vectors of 16 bits copies of the matrices, beside the sums: 9 KiB at
// most in the products of traced_step_test, in bf16, and 40 KiB in fp16 in those of
// device_floor_test. For some products it needs less than the sums.
int64_t CopiedBytes(ElementType element) {
  constexpr int64_t kMostCopiedBytes = 64 << 10;
  return ProcessorHas("avx512_bf16") && !HasTiles(element) ? kMostCopiedBytes : 0;
}

// Writes the trace while operators run.
class StepRecorder {
 public:
  using Parameters = torch::OrderedDict<std::string, at::Tensor>;
  StepRecorder(const ModelSpec& spec, const Parameters& parameters, const RoundShape& round,
               const ComputeRate& rate);
  ~StepRecorder();

  void set_backward(bool is_backward) { is_backward_ = is_backward; }
  int64_t num_positions() const { return out_.trace.num_positions(); }
  int64_t computed_ns() const { return computed_ns_; }
  NamedTrace Finish() &&;

  // Runs a callback, unless one has failed before. Torch would swallow its exception.
  void Watch(absl::FunctionRef<void()> callback) {
    if (!status_.ok()) return;
    try {
      callback();
    } catch (const std::exception& error) {
      status_ = absl::InternalError(error.what());
    }
  }
  const absl::Status& status() const { return status_; }

  // The callbacks of Torch.
  void Begin(const at::RecordFunction& function);
  void End(const at::RecordFunction& function);
  void TakeGradient(int32_t tensor);

 private:
  struct ManagedTensor {
    TensorUse use;
    int pins = 0;  // How many operators in flight have it.
  };
  struct Frame {
    const at::RecordFunction* function = nullptr;
    size_t first_pin = 0;      // pins_[first_pin] onwards are its own.
    bool is_operator = false;  // Of the trace, and not part of one.
    bool has_inner_work = false;
    KernelWork work = {};
  };
  struct Leaving {
    int32_t position = 0;
    at::Tensor gradient;
  };

  // Begins the next position of the trace.
  void BeginOperator(std::string name, absl::Span<const TensorUse> uses);
  void CloseInterval();
  // Frees the gradients that began to leave at `position` or before.
  void LetGo(int32_t position);
  std::string NameOf(absl::string_view torch_name, absl::Span<const TensorUse> uses) const;
  void Charge(const KernelWork& work);
  int32_t position() const { return out_.trace.num_positions() - 1; }

  const ModelSpec& spec_;
  const RoundShape& round_;
  const ComputeRate& rate_;
  std::vector<at::Tensor> parameters_;
  NamedTrace out_;
  // By storage: parameters, and gradients that are in their chunks.
  absl::node_hash_map<const c10::StorageImpl*, ManagedTensor> managed_;
  std::vector<ManagedTensor*> pins_;
  std::vector<TensorUse> uses_;
  std::vector<Frame> frames_;
  std::deque<Leaving> leaving_;
  std::vector<at::Tensor> in_chunks_;  // By tensor: the gradient's place there, once it had one.
  int64_t computed_ns_ = 0;            // By all kernels.
  absl::Status status_;
  bool is_backward_ = false;
  // Whether products in 16 bits may pack a matrix anew, for the processor's tiles.
  const bool packs_matrices_;
  const int64_t copied_bytes_;
  MetaMemory memory_;
};

// Callbacks are plain functions: what they fill is found through the thread that they run on.
thread_local StepRecorder* t_recorder = nullptr;

std::unique_ptr<at::ObserverContext> BeginEvent(const at::RecordFunction& function) {
  t_recorder->Watch([&] { t_recorder->Begin(function); });
  return nullptr;
}

void EndEvent(const at::RecordFunction& function, at::ObserverContext*) {
  t_recorder->Watch([&] { t_recorder->End(function); });
}

class TakeAfterAccumulation final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit TakeAfterAccumulation(int32_t tensor) : tensor_(tensor) {}
  void operator()(const at::Tensor&) override { t_recorder->TakeGradient(tensor_); }

 private:
  const int32_t tensor_;
};

StepRecorder::StepRecorder(const ModelSpec& spec, const Parameters& parameters,
                           const RoundShape& round, const ComputeRate& rate)
    : spec_(spec),
      round_(round),
      rate_(rate),
      packs_matrices_(HasTiles(round.element)),
      copied_bytes_(CopiedBytes(round.element)),
      memory_(round.on_cpu ? kCpuGrainBytes : 1) {
  out_.trace.phase = round.train ? "train" : "eval";
  for (const auto& parameter : parameters) {
    const auto tensor = static_cast<int32_t>(parameters_.size());
    parameters_.push_back(parameter.value());
    out_.tensor_names.push_back(parameter.key());
    out_.trace.tensors.push_back({.size_bytes = static_cast<int64_t>(parameter.value().nbytes()),
                                  .group = parameter.value().requires_grad()
                                               ? TensorGroup::kTrainable
                                               : TensorGroup::kFrozen,
                                  .format = round.format(),
                                  .states_on_nvme = round.states_on_nvme});
    managed_[parameter.value().storage().unsafeGetStorageImpl()] = {
        {tensor, ChunkKind::kParam, /*written=*/false}};
    if (!parameter.value().requires_grad()) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(parameter.value(),
                                                   std::make_unique<TakeAfterAccumulation>(tensor));
  }
  in_chunks_.resize(parameters_.size());
  t_recorder = this;
}

StepRecorder::~StepRecorder() { t_recorder = nullptr; }

void StepRecorder::Begin(const at::RecordFunction& function) {
  Frame frame = {.function = &function, .first_pin = pins_.size()};
  const c10::FunctionSchema* const schema = client::hooks::SchemaOf(function);
  const OperatorTraits& traits = client::hooks::TraitsOf(schema, function.name());
  uses_.clear();
  bool is_outer = false;
  client::hooks::ForEachInputTensor(function, schema, [&](c10::TensorImpl* tensor, int argument) {
    if (traits.is_view) return;
    const auto found = managed_.find(tensor->unsafe_storage().unsafeGetStorageImpl());
    if (found == managed_.end()) return;
    TensorUse use = found->second.use;
    use.written = traits.custom || traits.Writes(argument);
    uses_.push_back(use);
    pins_.push_back(&found->second);
    is_outer |= found->second.pins == 0;
  });
  if (is_outer) {
    BeginOperator(NameOf(function.name(), uses_), uses_);
    frame.is_operator = true;
  }
  for (size_t i = frame.first_pin; i < pins_.size(); ++i) ++pins_[i]->pins;
  // A kernel that takes its inputs apart may drop them, so they are looked at now.
  if (schema != nullptr && !traits.is_view) frame.work = WorkOfInputs(*schema, function.inputs());
  if (absl::string_view(function.name()) == kDropoutEvent) {
    frame.work = WorkOfDropout(function.inputs());
  }
  frames_.push_back(frame);
}

void StepRecorder::End(const at::RecordFunction& function) {
  TORCH_CHECK(!frames_.empty() && frames_.back().function == &function,
              "an operator ended out of turn");
  Frame frame = frames_.back();
  frames_.pop_back();
  if (frame.work.is_kernel && !frame.has_inner_work) {
    AddOutputs(function.outputs(), frame.work);
    Charge(frame.work);
  }
  if (!frames_.empty()) frames_.back().has_inner_work |= frame.work.is_kernel;
  for (size_t i = frame.first_pin; i < pins_.size(); ++i) --pins_[i]->pins;
  pins_.resize(frame.first_pin);
  if (frame.is_operator) {
    out_.needs.back().pinned_bytes = memory_.needed_peak_bytes();
  }
}

void StepRecorder::Charge(const KernelWork& work) {
  const bool has_own_rate = work.is_attention && rate_.attention_flops_per_second > 0;
  const double flops_per_second =
      has_own_rate ? rate_.attention_flops_per_second : rate_.flops_per_second;
  const double seconds =
      std::max(work.flops / flops_per_second, work.bytes / rate_.memory_bytes_per_second);
  const int64_t kernel_ns =
      rate_.kernel_ns + std::llround(std::min(seconds, kMaxKernelSeconds) * 1e9);
  computed_ns_ += kernel_ns;
  if (out_.trace.operators.empty()) return;  // Belongs to the round before.
  if (round_.on_cpu && round_.counts_kernels && work.sum_bytes > 0) {
    const int64_t scratch_bytes =
        work.sum_bytes + copied_bytes_ + (packs_matrices_ ? work.packed_bytes : 0);
    memory_.Add(scratch_bytes);
    memory_.Add(-scratch_bytes);
  }
  out_.trace.operators.back().compute_ns += kernel_ns;
}

void StepRecorder::TakeGradient(int32_t tensor) {
  const at::Tensor& parameter = parameters_[tensor];
  at::Tensor gradient = parameter.grad();
  if (!gradient.defined()) return;  // Ranks add it later, or elsewhere.
  if (managed_.contains(gradient.storage().unsafeGetStorageImpl())) return;  // It was added to.
  out_.trace.gradient_outs.push_back({position(), tensor});
  // On a CPU its copy was done before this one is begun.
  if (round_.on_cpu) LetGo(position());
  at::Tensor& in_chunk = in_chunks_[tensor];
  if (!in_chunk.defined()) {
    const MetaMemory::Pause pause;
    in_chunk = at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options());
    managed_[in_chunk.storage().unsafeGetStorageImpl()] = {
        {tensor, ChunkKind::kGrad, /*written=*/false}};
  }
  parameter.mutable_grad() = in_chunk;
  memory_.SetAside(static_cast<int64_t>(gradient.nbytes()));
  leaving_.push_back({position(), std::move(gradient)});
}

void StepRecorder::LetGo(int32_t position) {
  while (!leaving_.empty() && leaving_.front().position <= position) {
    const auto bytes = static_cast<int64_t>(leaving_.front().gradient.nbytes());
    leaving_.pop_front();
    memory_.SetAside(-bytes);
  }
}

void StepRecorder::BeginOperator(std::string name, absl::Span<const TensorUse> uses) {
  CloseInterval();
  if (!round_.on_cpu) LetGo(out_.trace.num_positions() - kIntervalsOfGradient);
  memory_.ResetPeaks();
  out_.trace.operators.push_back({.first_use = static_cast<int32_t>(out_.trace.uses.size()),
                                  .num_uses = static_cast<int32_t>(uses.size())});
  out_.trace.uses.insert(out_.trace.uses.end(), uses.begin(), uses.end());
  out_.operator_names.push_back(std::move(name));
  out_.needs.push_back({.pinned_bytes = memory_.needed_peak_bytes()});
}

void StepRecorder::CloseInterval() {
  if (out_.trace.operators.empty()) return;
  out_.trace.operators.back().non_model_peak_bytes = memory_.peak_bytes();
  out_.needs.back().bytes = std::max(out_.needs.back().pinned_bytes, memory_.needed_peak_bytes());
}

std::string StepRecorder::NameOf(absl::string_view torch_name,
                                 absl::Span<const TensorUse> uses) const {
  const std::string& tensor = out_.tensor_names[uses.front().tensor];
  if (uses.front().kind == ChunkKind::kGrad) return absl::StrCat("accumulation of ", tensor);
  absl::string_view layer = absl::string_view(tensor).substr(0, tensor.rfind('.'));
  const bool is_head =
      spec_.tied_head && layer == spec_.layers.token_embedding && torch_name != "aten::embedding";
  if (is_head) layer = spec_.layers.head;
  const char* const pass = !is_backward_                ? "forward of "
                           : at::GradMode::is_enabled() ? "recomputation of "
                                                        : "backward of ";
  return absl::StrCat(pass, layer);
}

NamedTrace StepRecorder::Finish() && {
  TORCH_CHECK(frames_.empty() && pins_.empty(), "an operator has not ended");
  if (round_.train) {
    LetGo(position());
    BeginOperator("update", {});
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].requires_grad()) out_.trace.updated.push_back(static_cast<int32_t>(i));
    }
  }
  CloseInterval();
  return std::move(out_);
}

absl::Status CheckRound(const ModelSpec& spec, const RoundShape& round, const ComputeRate& rate) {
  if (round.batch < 1 || round.sequence < 1 || round.micro_batches < 1 ||
      round.batch > kMaxTokens / round.sequence) {
    return absl::InvalidArgumentError(absl::StrCat(
        round.micro_batches, " micro-batches of ", round.batch, " sequences of ", round.sequence,
        " tokens: each must be at least 1, and a micro-batch have at most ", kMaxTokens,
        " tokens"));
  }
  if (round.sequence > spec.max_sequence) {
    return absl::InvalidArgumentError(absl::StrCat("a sequence of ", round.sequence,
                                                   " tokens: the model has ", spec.max_sequence,
                                                   " positions"));
  }
  if (spec.image.has_value() && round.sequence != spec.max_sequence) {
    return absl::InvalidArgumentError(absl::StrCat("a sequence of ", round.sequence,
                                                   " tokens: an image of the model's has ",
                                                   spec.max_sequence));
  }
  if (!(rate.flops_per_second > 0 && rate.memory_bytes_per_second > 0 && rate.kernel_ns >= 0 &&
        rate.kernel_ns <= kMaxKernelNs)) {
    return absl::InvalidArgumentError(
        "a rate of computing that is not above 0, or a kernel's time above a second");
  }
  return absl::OkStatus();
}

// On a GPU fused attention drops weights inside, and keeps nothing for it.
ModelSpec WithDropoutOf(const RoundShape& round, ModelSpec spec) {
  if (!round.on_cpu) spec.attention.dropout = 0;
  return spec;
}

absl::Status TooManyOperators() {
  return absl::InvalidArgumentError(
      absl::StrCat("a round of more than ", kMaxPositions, " operators"));
}

SharedDocuments DocumentsOf(const RoundShape& round) {
  if (!round.has_documents || round.sequence == 1) return nullptr;
  RowDocuments documents;
  documents.lengths.assign(static_cast<size_t>(round.batch), {round.sequence - 1, 1});
  return std::make_shared<RowDocuments>(std::move(documents));
}

torch::Tensor InputsOf(const ModelSpec& spec, const RoundShape& round) {
  if (!spec.image.has_value()) {
    std::vector<int64_t> sizes = {round.batch, round.sequence};
    if (spec.pair_trunk.has_value()) {
      sizes.insert(sizes.begin() + 1, spec.pair_trunk->num_sequences);
    }
    return at::empty(sizes, torch::dtype(torch::kInt64).device(torch::kMeta));
  }
  const ImageSpec& image = *spec.image;
  return at::empty({round.batch, image.channels, image.height, image.width},
                   torch::dtype(torch::kFloat32).device(torch::kMeta));
}

// As trainer/run/training_loop.cc does.
void RunMicroBatch(const ModelSpec& spec, StagedModel& model, const RoundShape& round,
                   StepRecorder& recorder) {
  recorder.set_backward(false);
  const Batch batch = DryBatchOf(spec, round);  // It is there until backward has ended.
  const BatchLoss loss = model.Losses(batch, LossFactors());
  if (!round.train) return;
  recorder.set_backward(true);
  loss.Backward(LossFactors());
}

using ModelMaker =
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<StagedModel>>(const ModelSpec&)>;

// Makes the model as one rank has it.
struct PlainModel {
  const RoundShape& round;
  absl::StatusOr<std::unique_ptr<StagedModel>> operator()(const ModelSpec& spec) const {
    return MakeStagedModel(
        spec, torch::dtype(client::hooks::ScalarTypeOf(round.element)).device(torch::kMeta),
        {.blocks = round.vocabulary_blocks, .on_cpu = round.on_cpu});
  }
};

// Has the recorder see what `run` does.
template <typename Run>
auto Recorded(StepRecorder& recorder, Run run) {
  const at::CallbackHandle callbacks =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&BeginEvent, &EndEvent)
                                     .needsInputs(true)
                                     .needsOutputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
  const absl::Cleanup stop = [&] { at::removeCallback(callbacks); };
  return run(recorder);
}

// Returns the trace of what `run` does.
absl::StatusOr<NamedTrace> Record(const ModelSpec& spec, StagedModel& model,
                                  const RoundShape& round, const ComputeRate& rate,
                                  absl::FunctionRef<absl::Status(StepRecorder&)> run) {
  model.train(round.train);
  const at::AutoGradMode with_graph(round.train);
  StepRecorder recorder(spec, model.named_parameters(), round, rate);
  GEMINI_RETURN_IF_ERROR(Recorded(recorder, run));
  GEMINI_RETURN_IF_ERROR(recorder.status());
  if (recorder.num_positions() > kMaxPositions) return TooManyOperators();
  return std::move(recorder).Finish();
}

// Runs what may throw, and checks the trace that it returns.
absl::StatusOr<NamedTrace> Checked(absl::FunctionRef<absl::StatusOr<NamedTrace>()> record) {
  try {
    GEMINI_ASSIGN_OR_RETURN(NamedTrace made, record());
    GEMINI_RETURN_IF_ERROR(CheckTrace(made.trace));
    return made;
  } catch (const c10::Error& error) {
    return absl::InternalError(
        absl::StrCat("the step cannot be foretold: ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("the step cannot be foretold: ", error.what()));
  }
}

absl::StatusOr<NamedTrace> RunAllBlocks(const ModelSpec& spec, const RoundShape& round,
                                        const ComputeRate& rate, bool crowds_first,
                                        ModelMaker make) {
  GEMINI_RETURN_IF_ERROR(CheckRound(spec, round, rate));
  RegisterMetaKernels();
  return Checked([&]() -> absl::StatusOr<NamedTrace> {
    GEMINI_ASSIGN_OR_RETURN(const std::unique_ptr<StagedModel> model,
                            make(WithDropoutOf(round, spec)));
    model->set_recompute(round.recompute);
    model->set_routing({.crowds_first = crowds_first});
    return Record(spec, *model, round, rate, [&](StepRecorder& recorder) -> absl::Status {
      for (int64_t i = 0; i < round.micro_batches; ++i) {
        RunMicroBatch(spec, *model, round, recorder);
        GEMINI_RETURN_IF_ERROR(recorder.status());
        if (recorder.num_positions() > kMaxPositions) return TooManyOperators();
      }
      return absl::OkStatus();
    });
  });
}

absl::StatusOr<NamedTrace> RunFewBlocks(const ModelSpec& spec, const RoundShape& round,
                                        const ComputeRate& rate, bool crowds_first,
                                        ModelMaker make) {
  const std::optional<RepeatedBlocks> repeated = FindRepeatedBlocks(spec);
  if (!repeated.has_value()) return RunAllBlocks(spec, round, rate, crowds_first, make);
  GEMINI_ASSIGN_OR_RETURN(const NamedTrace few, RunAllBlocks(WithFewerBlocks(spec, *repeated),
                                                             round, rate, crowds_first, make));
  const int64_t most =
      std::max(few.trace.num_positions(), static_cast<int32_t>(few.trace.uses.size()));
  if (most > kMaxPositions / (repeated->left_out + 1)) return TooManyOperators();
  std::optional<NamedTrace> made = RepeatBlocks(few, spec, *repeated);
  if (made.has_value() && CheckTrace(made->trace).ok()) return *std::move(made);
  return RunAllBlocks(spec, round, rate, crowds_first, make);
}

// Whether an operator is an expert's, by the first tensor that it uses.
bool IsOfExpert(const NamedTrace& made, int32_t position, absl::string_view experts) {
  const absl::Span<const TensorUse> uses = made.trace.uses_of(position);
  return !uses.empty() && absl::StrContains(made.tensor_names[uses.front().tensor], experts);
}

}  // namespace

Batch DryBatchOf(const ModelSpec& spec, const RoundShape& round) {
  const torch::Tensor inputs = InputsOf(spec, round);
  return {.inputs = inputs,
          .labels = Labels::OfTask(spec.task, inputs),
          .documents = DocumentsOf(round)};
}

absl::StatusOr<NamedTrace> TraceStep(const ModelSpec& spec, const RoundShape& round,
                                     const ComputeRate& rate) {
  return TraceStep(spec, round, rate, PlainModel{round});
}

absl::StatusOr<NamedTrace> TraceStep(const ModelSpec& spec, const RoundShape& round,
                                     const ComputeRate& rate, ModelMaker make) {
  return RunFewBlocks(spec, round, rate, /*crowds_first=*/false, make);
}

absl::StatusOr<NamedTrace> TraceRun(
    const ModelSpec& spec, StagedModel& model, const RoundShape& round, const ComputeRate& rate,
    absl::FunctionRef<absl::Status(absl::FunctionRef<int64_t()> computed_ns)> run) {
  GEMINI_RETURN_IF_ERROR(CheckRound(spec, round, rate));
  RegisterMetaKernels();
  return Checked([&] {
    return Record(spec, model, round, rate, [&](StepRecorder& recorder) {
      return run([&recorder] { return recorder.computed_ns(); });
    });
  });
}

int64_t ForetoldKernelNs(const ComputeRate& rate, absl::FunctionRef<void()> run) {
  RegisterMetaKernels();
  const ModelSpec nothing;
  const StepRecorder::Parameters none;
  const RoundShape round = {.on_cpu = true};
  StepRecorder recorder(nothing, none, round, rate);
  Recorded(recorder, [&](StepRecorder&) { run(); });
  return recorder.computed_ns();
}

absl::StatusOr<NamedTrace> TraceAllBlocks(const ModelSpec& spec, const RoundShape& round,
                                          const ComputeRate& rate) {
  return RunAllBlocks(spec, round, rate, /*crowds_first=*/false, PlainModel{round});
}

// What an expert needs is a sum over experts of tokens times bytes: those of tensors that are kept,
// and, for itself, of temporary ones. It is largest at a corner of what routers can deal, where
// each expert has all tokens or none, and experts are alike: so with the first ones crowded one of
// them needs as much as any can.
absl::StatusOr<std::vector<int64_t>> MostNonModelBytes(const ModelSpec& spec,
                                                       const RoundShape& round) {
  std::vector<int64_t> most;
  if (!spec.experts.has_value()) return most;
  GEMINI_ASSIGN_OR_RETURN(
      const NamedTrace made,
      RunFewBlocks(spec, round, ComputeRate(), /*crowds_first=*/true, PlainModel{round}));
  // Blocks of memory are whole grains, and with few tokens each there are more of them.
  const int64_t grains_bytes = kCpuGrainBytes * kTensorsOfExpert * spec.experts->count;
  const ExpertNames& names = spec.layers.block.experts;
  const std::string experts = absl::StrCat(".", names.part, ".", names.experts, ".");
  const int32_t count = made.trace.num_positions();
  most.resize(static_cast<size_t>(count));
  for (int32_t first = 0; first < count;) {
    int32_t last = first;
    int64_t bytes = 0;
    for (; last < count && IsOfExpert(made, last, experts); ++last) {
      bytes = std::max(bytes, made.trace.operators[last].non_model_peak_bytes);
    }
    std::fill(most.begin() + first, most.begin() + last, bytes + grains_bytes);
    first = std::max(last, first + 1);
  }
  return most;
}

}  // namespace gemini::trainer
