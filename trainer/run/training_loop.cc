// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/training_loop.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <type_traits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gemini/system/monotonic_clock.h"
#include "gemini/system/status_macros.h"
#include "torch/autograd.h"
#include "trainer/models/plain_layers.h"
#include "trainer/models/vertical_schedule.h"
#include "trainer/parallel/rank_losses.h"
#include "trainer/parallel/rank_verdict.h"
#include "trainer/run/learning_rate.h"
#include "trainer/run/operator_room.h"
#include "trainer/run/read_batch.h"
#include "trainer/run/run_checkpoint.h"
#include "trainer/run/torch_failure.h"
#include "trainer/store/non_finite_parameter.h"

namespace gemini::trainer {
namespace {

class Loop {
 public:
  Loop(const TrainingParts& parts, const TrainerState* resumed, const std::string& resumed_path,
       LearningRate::Schedule schedule)
      : parts_(parts),
        config_(parts.config),
        rate_(schedule, config_.lr, config_.warmup_steps, config_.steps),
        batches_(config_, parts.data, parts.source.config().spec.vocab_size, parts.part,
                 parts.device),
        room_(parts.model, parts.store, parts.activations, parts.ranks, parts.log) {
    summary_.item_name = std::string(parts.data.item_name());
    if (resumed == nullptr) return;
    state_ = *resumed;
    saved_step_ = tried_step_ = state_.step;
    summary_.first_step = state_.step;
    summary_.first_loss = state_.first_loss;
    summary_.last_loss = state_.last_loss;
    summary_.checkpoint = resumed_path;
  }

  absl::StatusOr<TrainingSummary> Run();

 private:
  // Trains until the last step or a signal, saves and evaluates.
  absl::Status TrainAndSave();
  absl::Status Step();
  // Forward and backward of this rank's part of a step, of so many micro-batches, or of all where
  // they run together. Returns their losses.
  absl::StatusOr<LossSum> ForwardBackward(const LossFactors& factors, int64_t micro_batches);
  // The same, vertically or in a pipeline.
  absl::StatusOr<LossSum> ForwardBackwardTogether(const LossFactors& factors);
  // Loss of one micro-batch after backward. The step adds gradients up in its last one.
  absl::StatusOr<LossValues> RunMicroBatch(int64_t micro_batch, bool is_last,
                                           const LossFactors& factors);
  absl::StatusOr<Batch> MicroBatch(int64_t micro_batch) const {
    return Explained("the batch", [&] { return batches_.Read(numbers(), micro_batch); });
  }
  DropoutDraw DrawOf(int64_t micro_batch) const { return batches_.DrawOf(numbers(), micro_batch); }
  StepNumbers numbers() const { return {state_.step, state_.sequences_taken}; }
  // Refuses a loss that is not to be learned from.
  absl::Status CheckLoss(int64_t micro_batch, double loss);
  // Returns an error, unless other ranks wait for what this one computes with them: then all of
  // them hear of it in AddUp.
  absl::Status TellLater(absl::Status status) {
    if (room_.is_by_itself()) return status;
    told_later_.Update(std::move(status));
    return absl::OkStatus();
  }
  // Adds what the ranks have to `sum`, in their order. Exchanges errors and signals with it.
  absl::Status AddUp(const LossSum& own, LossSum& sum);
  // The signal that ends the run: of this rank if it is alone, else what all know of.
  int signal() const { return parts_.ranks.is_alone() ? parts_.interrupt.signal() : signal_; }
  // Returns the factors of the next step of all ranks.
  absl::StatusOr<LossFactors> FactorsOfStep();
  // Evaluates, if that is due at this step and was not completed.
  absl::Status Evaluate();
  // Makes room on DEVICE for the experts of an evaluation.
  absl::StatusOr<std::unique_ptr<ExpertCache>> MakeExpertCache() const;
  absl::Status Save();
  // Writes the checkpoint, on the first rank.
  absl::Status WriteCheckpoint();
  // Saves; one that fails where a later one will be tried is a warning.
  absl::Status SavePeriodically();
  // Saves before the run ends with the error `why`, if the memory's server is gone: what the last
  // complete step left lies in this process's memory, too. Tries that once, and returns the error
  // that the run is to end with.
  absl::Status SaveBefore(const absl::Status& why);
  // Writes a line of the metrics; that it cannot is a warning, once.
  template <typename Metrics>
  void Append(const Metrics& metrics);
  absl::Status EnsureBegun();
  // Explains a loss that is not finite: names a parameter that is not, if there is one.
  absl::Status NonFiniteLoss(double loss, int64_t micro_batch);
  // What an exception of Torch means: the store's error if it has one.
  absl::Status Explain(const std::exception& error, absl::string_view what) const;
  // Returns what `call` returns, or what it throws means.
  template <typename Call>
  std::invoke_result_t<Call> Explained(absl::string_view what, const Call& call) const {
    try {
      return call();
    } catch (const std::exception& error) {
      return Explain(error, what);
    }
  }
  static absl::Status AtStep(int64_t step, const absl::Status& status) {
    if (status.ok()) return status;
    absl::Status at_step(status.code(), absl::StrCat("step ", step, ": ", status.message()));
    return IsAgreed(status) ? MarkAsAgreed(at_step) : at_step;
  }
  void Account(const client::TrainingStats& usage);
  bool scales_loss() const { return config_.element() == ElementType::kFp16; }
  double loss_scale() const { return scales_loss() ? state_.loss_scale.value : 1; }

  const TrainingParts& parts_;
  const RunConfig& config_;
  const LearningRate rate_;
  const StepBatches batches_;
  OperatorRoom room_;
  TrainerState state_;
  TrainingSummary summary_;
  StepClock clock_;
  client::TrainingStats before_;  // At the last step's end.
  bool told_of_registration_ = false;
  bool told_of_metrics_ = false;
  bool told_of_housekeeping_ = false;
  bool told_of_signal_ = false;
  bool has_begun_ = false;              // The output directory is ready.
  std::optional<MetricsFile> metrics_;  // Of the first rank, once begun.
  int64_t saved_step_ = 0;              // Nothing was done yet: nothing to save.
  int64_t tried_step_ = 0;              // The last step that a save was tried of.
  absl::Status told_later_;             // Of TellLater.
  int signal_ = 0;                      // Of the first rank that said one in AddUp.
};

absl::Status Loop::EnsureBegun() {
  if (has_begun_) return absl::OkStatus();
  // It may remove large files, and is waited for as a save is: without a limit.
  GEMINI_RETURN_IF_ERROR(parts_.store.OnFirstRank([this]() -> absl::Status {
    GEMINI_ASSIGN_OR_RETURN(metrics_, parts_.begin());
    return absl::OkStatus();
  }));
  has_begun_ = true;
  return absl::OkStatus();
}

absl::Status Loop::AddUp(const LossSum& own, LossSum& sum) {
  const RankLosses part = {RankVerdict(std::exchange(told_later_, absl::OkStatus())),
                           parts_.part.speaks ? own : LossSum(), parts_.interrupt.signal()};
  GEMINI_ASSIGN_OR_RETURN(const std::vector<RankLosses> parts, GatherLosses(parts_.ranks, part));
  std::vector<RankVerdict> verdicts;
  for (const RankLosses& one : parts) {
    verdicts.push_back(one.verdict);
    sum.Add(one.loss);
    if (signal_ == 0) signal_ = static_cast<int>(one.signal);
  }
  const absl::Status worst = WorstOf(verdicts);
  // Interrupt says so where one rank is alone.
  if (!std::exchange(told_of_signal_, signal_ != 0) && signal_ != 0 && worst.ok() &&
      !parts_.ranks.is_alone()) {
    parts_.warn(absl::StrCat("stopping, as signal ", signal_, " asks all ranks"));
  }
  // As it is with one rank.
  return absl::IsOutOfRange(worst) ? MarkAsAgreed(absl::FailedPreconditionError(worst.message()))
                                   : worst;
}

absl::Status Loop::Explain(const std::exception& error, absl::string_view what) const {
  GEMINI_RETURN_IF_ERROR(parts_.store.status());
  return StatusOfFailure(error, what);
}

absl::Status Loop::NonFiniteLoss(double loss, int64_t micro_batch) {
  std::string culprit = "all parameters are finite: the learning rate may be too high";
  if (!parts_.ranks.is_alone()) {
    // Others have a part of the parameters, and wait for this rank elsewhere. What is worse in one
    // of them may have caused it.
    return absl::OutOfRangeError(absl::StrCat(
        "the loss is ", loss, " in micro-batch ", micro_batch + 1, " of ", config_.accumulate,
        "; a parameter holds a NaN or an infinity, or the learning rate is too high"));
  }
  GEMINI_ASSIGN_OR_RETURN(const std::string found, FindNonFinite(parts_.store, parts_.parameters));
  if (!found.empty()) culprit = absl::StrCat("parameter ", found, " holds a NaN or an infinity");
  return absl::FailedPreconditionError(absl::StrCat("the loss is ", loss, " in micro-batch ",
                                                    micro_batch + 1, " of ", config_.accumulate,
                                                    "; ", culprit));
}

absl::Status Loop::CheckLoss(int64_t micro_batch, double loss) {
  // A failed fetch gives an operator NaN, so the store is asked before the loss is.
  GEMINI_RETURN_IF_ERROR(parts_.store.status());
  if (room_.is_rehearsing() || std::isfinite(loss)) return absl::OkStatus();
  return NonFiniteLoss(loss, micro_batch);
}

absl::StatusOr<LossFactors> Loop::FactorsOfStep() {
  // Rows of a masked task are read for it, so that each rank that speaks counts in its own, and
  // they add up.
  GEMINI_ASSIGN_OR_RETURN(int64_t num_labels, batches_.CountLabels(numbers()));
  if (batches_.counts_own()) {
    LossSum own, sum;
    own.Add({.labels = num_labels}, batches_.num_counted());
    GEMINI_RETURN_IF_ERROR(AddUp(own, sum));
    num_labels = sum.Mean().labels;
  }
  return LossFactors::OfStep(loss_scale(), num_labels, batches_.num_micro_batches());
}

absl::StatusOr<LossSum> Loop::ForwardBackward(const LossFactors& factors, int64_t micro_batches) {
  if (parts_.stage != nullptr || config_.micro_batch_schedule == "vertical") {
    return ForwardBackwardTogether(factors);
  }
  LossSum loss;
  for (int64_t i = 0; i < micro_batches; ++i) {
    GEMINI_ASSIGN_OR_RETURN(const LossValues one,
                            RunMicroBatch(i, /*is_last=*/i + 1 == micro_batches, factors));
    loss.Add(one, config_.batch);
  }
  return loss;
}

absl::StatusOr<LossSum> Loop::ForwardBackwardTogether(const LossFactors& factors) {
  std::vector<Batch> micro_batches;
  for (int64_t i = 0; i < config_.accumulate; ++i) {
    GEMINI_ASSIGN_OR_RETURN(micro_batches.emplace_back(), MicroBatch(i));
  }
  const auto check = [this](int64_t i, double one) { return TellLater(CheckLoss(i, one)); };
  const auto draw_of = [this](int64_t i) { return DrawOf(i); };
  LossSum loss;
  parts_.model.set_dropout_draw(DrawOf(0));
  try {
    GEMINI_ASSIGN_OR_RETURN(
        const std::vector<LossValues> losses,
        parts_.stage != nullptr
            ? parts_.stage->Run({micro_batches, factors, draw_of, check})
            : RunVertically(parts_.model, micro_batches, parts_.activations, check, factors));
    for (const LossValues& one : losses) loss.Add(one, config_.batch);
  } catch (const std::exception& error) {
    return Explain(error, "forward or backward");
  }
  GEMINI_RETURN_IF_ERROR(TellLater(parts_.store.status()));
  return loss;
}

absl::StatusOr<LossValues> Loop::RunMicroBatch(int64_t micro_batch, bool is_last,
                                               const LossFactors& factors) {
  GEMINI_ASSIGN_OR_RETURN(const Batch batch, MicroBatch(micro_batch));
  LossValues values;
  parts_.model.set_dropout_draw(DrawOf(micro_batch));
  parts_.model.set_last_micro_batch(is_last);
  try {
    const BatchLoss loss = parts_.model.Losses(batch, factors);
    values = loss.Values();
    GEMINI_RETURN_IF_ERROR(TellLater(CheckLoss(micro_batch, values.total)));
    loss.Backward(factors);
  } catch (const std::exception& error) {
    return Explain(error, "forward or backward");
  }
  GEMINI_RETURN_IF_ERROR(TellLater(parts_.store.status()));
  return values;
}

void Loop::Account(const client::TrainingStats& usage) {
  const client::TrainingStats before = std::exchange(summary_.memory, usage);
  client::TrainingStats& now = summary_.memory;
  now.device_peak_bytes = std::max(now.device_peak_bytes, before.device_peak_bytes);
  now.non_model_peak_bytes = std::max(now.non_model_peak_bytes, before.non_model_peak_bytes);
}

absl::Status Loop::Step() {
  const absl::Duration start = MonotonicNow();
  const SentByKind sent_before = parts_.ranks.sent();
  parts_.store.ResetPeaks();
  GEMINI_ASSIGN_OR_RETURN(const LossFactors factors, FactorsOfStep());
  GEMINI_ASSIGN_OR_RETURN(const LossSum own, room_.Run(absl::StrCat("step ", state_.step + 1), [&] {
    return ForwardBackward(factors, config_.accumulate);
  }));
  LossSum sum;
  GEMINI_RETURN_IF_ERROR(AddUp(own, sum));
  const LossValues values = sum.Mean();
  const double loss = values.total;
  const double rate = rate_.At(state_.step);
  const double scale = loss_scale();
  GEMINI_ASSIGN_OR_RETURN(const client::StepResult update,
                          parts_.store.Update({.learning_rate = rate,
                                               .max_grad_norm = config_.clip,
                                               .loss_scale = scale,
                                               .skip_non_finite = scales_loss()}));
  if (scales_loss() && !state_.loss_scale.After(update.skipped)) {
    return MarkAsAgreed(absl::FailedPreconditionError(
        "the gradients overflow fp16 however small the loss is: train with --precision bf16 or "
        "fp32"));
  }
  const int64_t sequences = batches_.num_sequences();
  ++state_.step;
  state_.sequences_taken += sequences;
  if (state_.step == 1) state_.first_loss = summary_.first_loss = loss;
  state_.last_loss = summary_.last_loss = loss;
  // After the counts: the parameters are those of this step already, and a save must say so.
  GEMINI_RETURN_IF_ERROR(Explained("zero_grad", [this] {
    parts_.model.zero_grad();
    return absl::OkStatus();
  }));

  const absl::Duration duration = MonotonicNow() - start;
  clock_.Add(duration);
  const client::TrainingStats usage = parts_.store.usage();
  Account(usage);
  const double seconds = absl::ToDoubleSeconds(duration);
  const int64_t items = sequences * parts_.data.items_per_row();
  summary_.items += items;
  const StepMetrics metrics = {
      .step = state_.step,
      .loss = loss,
      .router_loss = values.router,
      .lr = rate,
      .loss_scale = scale,
      .update = update,
      .seconds = seconds,
      .item_name = std::string(parts_.data.item_name()),
      .items_per_second = static_cast<double>(items) / std::max(seconds, 1e-9),
      .memory = usage.Since(before_),
      .sent = SentSince(sent_before, parts_.ranks.sent())};
  if (!usage.registration_error.empty() && !std::exchange(told_of_registration_, true)) {
    parts_.log(
        absl::StrCat("copies to the GPU are slower than they could be: ", usage.registration_error,
                     ": raise the limit of locked memory (ulimit -l)"));
  }
  before_ = usage;
  GEMINI_RETURN_IF_ERROR(EnsureBegun());
  Append(metrics);
  parts_.progress.Show({.step = state_.step,
                        .num_steps = config_.steps,
                        .loss = loss,
                        .item_name = metrics.item_name,
                        .items_per_second = metrics.items_per_second,
                        .device_used_bytes = usage.device_peak_bytes,
                        .device_budget_bytes = usage.device_budget_bytes,
                        .host_bytes = usage.host_bytes,
                        .left = clock_.Left(config_.steps - state_.step)},
                       MonotonicNow());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ExpertCache>> Loop::MakeExpertCache() const {
  constexpr int64_t kPartOfDevice = 8;
  const int64_t bytes = config_.expert_cache != kAutoBytes
                            ? config_.expert_cache
                            : parts_.store.usage().device_budget_bytes / kPartOfDevice;
  const torch::Tensor parameter = parts_.model.parameters().front();
  PlainLayers layers(parameter.options().device(parts_.device));
  return Explained("--expert-cache", [&]() -> absl::StatusOr<std::unique_ptr<ExpertCache>> {
    return std::make_unique<ExpertCache>(parts_.source.config().spec, layers, bytes,
                                         parts_.fetch_expert);
  });
}

absl::Status Loop::Evaluate() {
  const bool is_due = state_.step == config_.steps ||
                      (config_.eval_every > 0 && state_.step % config_.eval_every == 0);
  if (parts_.eval_data == nullptr || !is_due || state_.evaluated_step == state_.step) {
    return absl::OkStatus();
  }
  const TrainingData& data = *parts_.eval_data;
  const std::optional<ExpertsSpec>& experts = parts_.source.config().spec.experts;
  bool routed = experts.has_value() && config_.routes_experts(experts->count, experts->chosen);
  std::unique_ptr<ExpertCache> cache;  // Null where experts are not fetched one by one.
  LossSum sum;
  parts_.model.eval();
  const absl::Cleanup end = [&] {
    parts_.model.EndEvaluation();
    parts_.model.train();
  };
  {
    const torch::NoGradGuard no_grad;
    if (!parts_.ranks.is_alone()) {
      const PhaseScope phase(parts_.store, "eval-begin");
      GEMINI_RETURN_IF_ERROR(Explained("evaluation", [this] {
        parts_.model.BeginEvaluation();
        return absl::OkStatus();
      }));
    }
    const int64_t sequences = config_.batch * parts_.part.count;  // At one time.
    for (int64_t round = 0; round < data.num_sequences(); round += sequences) {
      // A rank for which there is no batch left takes part with another one's.
      const int64_t own = round + parts_.part.index * config_.batch;
      const bool is_needed = own < data.num_sequences();
      const int64_t first = is_needed ? own : round;
      const int64_t count = std::min(config_.batch, data.num_sequences() - first);
      // What is short of parts is filled up with a sequence that is not to be predicted.
      const int64_t parts = parts_.part.batch_parts;
      std::vector<int64_t> rows(static_cast<size_t>((count + parts - 1) / parts * parts),
                                first + count - 1);
      std::iota(rows.begin(), rows.begin() + count, first);
      RowMasks masks = batches_.MasksFrom(first);
      masks.is_evaluation = true;
      GEMINI_ASSIGN_OR_RETURN(const Batch batch, Explained("the batch", [&] {
                                return ReadBatch(data, rows, count, masks, parts_.device);
                              }));
      // The last batch may be a short one, which needs less memory.
      const PhaseScope phase(parts_.store,
                             absl::StrCat("eval", routed ? "-routed" : "",
                                          batch.inputs.size(0) == config_.batch ? "" : "-last"));
      // In the phase: what comes before it is of a plan that knows no cache.
      if (routed && parts_.fetch_expert != nullptr && cache == nullptr) {
        absl::StatusOr<std::unique_ptr<ExpertCache>> made = MakeExpertCache();
        // Nobody asked for a cache: what has no room for one evaluates all the same.
        routed = made.ok() || config_.experts == "routed" || !parts_.store.status().ok();
        if (routed) {
          GEMINI_ASSIGN_OR_RETURN(cache, std::move(made));
        }
      }
      parts_.model.set_routing({.routed = routed, .cache = cache.get()});
      const absl::Cleanup plan_experts = [&] { parts_.model.set_routing({}); };
      const auto evaluate = [&]() -> absl::StatusOr<LossSum> {
        LossSum loss;
        loss.Add(parts_.stage != nullptr ? parts_.stage->Evaluate(batch)
                                         : parts_.model.Losses(batch, LossFactors()).Values(),
                 count);
        return loss;
      };
      GEMINI_ASSIGN_OR_RETURN(const LossSum loss, room_.Run("an evaluation's batch", [&] {
        return Explained("evaluation", evaluate);
      }));
      GEMINI_RETURN_IF_ERROR(TellLater(parts_.store.status()));
      GEMINI_RETURN_IF_ERROR(AddUp(is_needed ? loss : LossSum(), sum));
      parts_.progress.ShowPart(
          {"evaluating", std::min(round + sequences, data.num_sequences()), data.num_sequences()},
          MonotonicNow());
      if (signal() != 0) {
        // Half of an evaluation is no result; the state to save does not depend on it.
        return absl::OkStatus();
      }
    }
  }
  state_.evaluated_step = state_.step;
  const LossValues mean = sum.Mean();
  EvalMetrics metrics;
  metrics.step = state_.step;
  metrics.eval_loss = mean.total;
  metrics.eval_router_loss = mean.router;
  metrics.of_task = MetricsOf(parts_.source.config().spec.task, mean);
  if (cache != nullptr) metrics.expert_fetch_bytes = cache->fetched_bytes();
  summary_.eval_loss = metrics.eval_loss;
  summary_.eval_metrics = metrics.of_task;
  parts_.log(absl::StrFormat("step %d: eval loss %.4f%s", state_.step, metrics.eval_loss,
                             Describe(metrics.of_task)));
  before_ = parts_.store.usage();
  Account(before_);
  GEMINI_RETURN_IF_ERROR(EnsureBegun());
  Append(metrics);
  if (parts_.directory == nullptr || saved_step_ != state_.step) return absl::OkStatus();
  // Saved before: an evaluation that fails costs no step.
  if (const absl::Status noted = NoteEvaluation(summary_.checkpoint); !noted.ok()) {
    parts_.warn(absl::StrCat("that step ", state_.step,
                             " was evaluated is in the metrics alone: ", noted.message()));
  }
  return absl::OkStatus();
}

template <typename Metrics>
void Loop::Append(const Metrics& metrics) {
  if (!metrics_.has_value()) return;
  const absl::Status status = metrics_->Append(metrics);
  if (status.ok() || std::exchange(told_of_metrics_, true)) return;
  parts_.warn(absl::StrCat("the metrics have gaps from step ", state_.step,
                           " on: ", status.message(), "; training goes on"));
}

absl::Status Loop::Save() {
  if (saved_step_ == state_.step) return absl::OkStatus();
  // Without a GPU the heap holds what activations left; saving, which takes long, needs none of it.
  ::malloc_trim(0);
  GEMINI_RETURN_IF_ERROR(EnsureBegun());
  tried_step_ = state_.step;
  GEMINI_RETURN_IF_ERROR(parts_.store.OnFirstRank([this] { return WriteCheckpoint(); }));
  saved_step_ = state_.step;
  return absl::OkStatus();
}

absl::Status Loop::WriteCheckpoint() {
  const absl::StatusOr<SaveResult> saved =
      parts_.directory->Save(state_.step, config_.keep, [&](const std::string& directory) {
        return WriteRunCheckpoint(directory, parts_.source, parts_.parameters, parts_.store, state_,
                                  [&](int64_t done_bytes, int64_t total_bytes) {
                                    parts_.progress.ShowPart(
                                        {"saving", done_bytes, total_bytes, /*is_bytes=*/true},
                                        MonotonicNow());
                                  });
      });
  if (!saved.ok()) {
    return absl::Status(saved.status().code(),
                        absl::StrCat("saving step ", state_.step, ": ", saved.status().message()));
  }
  summary_.checkpoint = saved->path;
  parts_.log(absl::StrCat("step ", state_.step, ": saved ", saved->path));
  if (!saved->housekeeping.ok() && !std::exchange(told_of_housekeeping_, true)) {
    parts_.warn(absl::StrCat("the checkpoint is complete, but: ", saved->housekeeping.message(),
                             "; this is said once"));
  }
  return absl::OkStatus();
}

absl::Status Loop::SavePeriodically() {
  const absl::Status status = Save();
  if (status.ok() || state_.step == config_.steps || signal() != 0) return status;
  // What the next step would end with anyway.
  GEMINI_RETURN_IF_ERROR(TellLater(parts_.store.status()));
  parts_.warn(absl::StrCat(status.message(), "; the next save is at step ",
                           std::min(state_.step + config_.save_every, config_.steps)));
  return absl::OkStatus();
}

absl::Status Loop::SaveBefore(const absl::Status& why) {
  // Ranks save together or not at all: after an error that is one rank's alone, it would wait for
  // others that know nothing of a save.
  const bool all_know = parts_.ranks.is_alone() || IsAgreed(why);
  const bool has_steps = has_begun_ && tried_step_ != state_.step;
  if (!absl::IsUnavailable(why) || !all_know || !has_steps || config_.no_save) return why;
  // A rank whose own server lives has no error. Any other error than this one may mean that values
  // are lost.
  const absl::Status own = parts_.store.status();
  absl::Status saved = parts_.ranks.Agree(absl::IsUnavailable(own) ? absl::OkStatus() : own);
  if (saved.ok()) saved = Save();
  if (saved.ok()) return why;
  if (!parts_.ranks.is_alone() && !IsAgreed(saved)) {
    // The ranks lost each other meanwhile, so this one has to end alone.
    return absl::Status(why.code(), absl::StrCat(why.message(), "; ", saved.message()));
  }
  parts_.warn(absl::StrCat("what was trained since the last save is lost: ", saved.message()));
  return why;
}

absl::StatusOr<TrainingSummary> Loop::Run() {
  const absl::Duration start = MonotonicNow();
  GEMINI_ASSIGN_OR_RETURN(state_.data, parts_.data.Fingerprint());
  parts_.model.train();
  if (parts_.rehearses && state_.step < config_.steps && signal() == 0) {
    // Of two micro-batches, the first one's gradients are kept for the last one, as of all.
    GEMINI_RETURN_IF_ERROR(room_.Rehearse([this] {
      return ForwardBackward(LossFactors(), std::min<int64_t>(config_.accumulate, 2));
    }));
  }
  before_ = parts_.store.usage();
  if (const absl::Status trained = TrainAndSave(); !trained.ok()) return SaveBefore(trained);
  summary_.step = state_.step;
  summary_.signal = signal();
  summary_.duration = MonotonicNow() - start;
  return summary_;
}

absl::Status Loop::TrainAndSave() {
  // What the run was interrupted in that this one goes on with.
  if (state_.step > 0) GEMINI_RETURN_IF_ERROR(AtStep(state_.step, Evaluate()));
  while (state_.step < config_.steps && signal() == 0) {
    GEMINI_RETURN_IF_ERROR(AtStep(state_.step + 1, Step()));
    if (config_.save_every > 0 && state_.step % config_.save_every == 0) {
      GEMINI_RETURN_IF_ERROR(SavePeriodically());
    }
    if (state_.step < config_.steps) GEMINI_RETURN_IF_ERROR(AtStep(state_.step, Evaluate()));
  }
  if (!config_.no_save) GEMINI_RETURN_IF_ERROR(Save());
  return signal() == 0 ? AtStep(state_.step, Evaluate()) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrainingSummary> Train(const TrainingParts& parts, const TrainerState* resumed,
                                      const std::string& resumed_path) {
  GEMINI_ASSIGN_OR_RETURN(const LearningRate::Schedule schedule,
                          LearningRate::ParseSchedule(parts.config.schedule));
  return Loop(parts, resumed, resumed_path, schedule).Run();
}

}  // namespace gemini::trainer
