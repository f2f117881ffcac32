// SPDX-License-Identifier: Apache-2.0
// The table of all keys: names, help, bounds, and what --resume allows.
#include <utility>
#include <vector>

#include "gemini/moment_format.h"
#include "gemini/optimizer_kind.h"
#include "trainer/config/run_config.h"

namespace gemini::trainer {
namespace {

// 2^40 steps are what a commit word can count (gemini/shm/commit_shm.h).
constexpr double kMaxSteps = 1099511627775.0;
// Sizes of a batch beyond these are typing errors: 2^20 sequences, 2^20 tokens.
constexpr double kMaxBatch = 1 << 20;
constexpr double kMaxBytes = 4611686018427387904.0;  // 2^62, as ParseByteSize.

std::vector<ConfigKey> MakeKeys() {
  using C = RunConfig;
  using K = KeyKind;
  using R = ResumeRule;
  std::vector<ConfigKey> keys;
  const auto add = [&keys](ConfigKey key) { keys.push_back(std::move(key)); };
  add({"model", K::kPath, &C::model, "DIR",
       "Hugging Face checkpoint to start from: config.json and safetensors"});
  add({"data", K::kPath, &C::data, "FILE.npy",
       "Tokens to train on: one dimension, uint16 or uint32"});
  add({"output", K::kPath, &C::output, "DIR",
       "Where checkpoints, run.toml and metrics go; made if need be", R::kNotStored});
  add({"steps", K::kCount, &C::steps, "N", "Optimizer steps in all", R::kGrow, 1, kMaxSteps});
  add({"batch", K::kCount, &C::batch, "N", "Sequences a micro-batch", R::kFixed, 1, kMaxBatch});
  add({"sequence", K::kCount, &C::sequence, "N",
       "Tokens a sequence; 0: as many as the model has positions, at most 1024", R::kFixed, 0,
       kMaxBatch});
  add({"accumulate", K::kCount, &C::accumulate, "N",
       "Micro-batches a step, their gradients averaged", R::kFixed, 1, kMaxBatch});
  add({"micro-batch-schedule",
       K::kChoice,
       &C::micro_batch_schedule,
       "NAME",
       "Order in a step: all of a micro-batch and then the next, or each block for all "
       "micro-batches, "
       "so that its parameters move once a step; recomputes as --recompute does",
       R::kFixed,
       0,
       0,
       {"horizontal", "vertical"}});
  add({"lr", K::kNumber, &C::lr, "X", "Learning rate after warm-up", R::kFixed, 0, 1e6});
  add({"schedule",
       K::kChoice,
       &C::schedule,
       "NAME",
       "Learning rate after warm-up over the steps: constant, linear to 0 or half a cosine to 0",
       R::kFixed,
       0,
       0,
       {"constant", "linear", "cosine"}});
  add({"warmup-steps", K::kCount, &C::warmup_steps, "N",
       "Steps over which the learning rate rises from 0", R::kFixed, 0, kMaxSteps});
  add({"optimizer",
       K::kChoice,
       &C::optimizer,
       "NAME",
       "adamw, adam (with L2), sgd with momentum, or layer-wise: lamb, lars",
       R::kFixed,
       0,
       0,
       {kOptimizerKindNames.begin(), kOptimizerKindNames.end()}});
  add({"moments",
       K::kChoice,
       &C::moments,
       "NAME",
       "Format of the optimizer's moments: fp32, or 8bit (block-wise, dynamic quantisation)",
       R::kFixed,
       0,
       0,
       {kMomentFormatNames.begin(), kMomentFormatNames.end()}});
  add({"moment-rounding",
       K::kChoice,
       &C::moment_rounding,
       "NAME",
       "With --moments 8bit: to the nearest code, or stochastic",
       R::kFixed,
       0,
       0,
       {"nearest", "stochastic"}});
  add({"beta1", K::kNumber, &C::beta1, "X", "adamw, adam, lamb: decay of the first moment",
       R::kFixed, 0, 1});
  add({"beta2", K::kNumber, &C::beta2, "X", "adamw, adam, lamb: decay of the second moment",
       R::kFixed, 0, 1});
  add({"epsilon", K::kNumber, &C::epsilon, "X",
       "adamw, adam, lamb: added to the root of the second moment", R::kFixed, 1e-30, 1});
  add({"momentum", K::kNumber, &C::momentum, "X", "sgd, lars: decay of the momentum", R::kFixed, 0,
       1});
  add({"trust-coefficient", K::kNumber, &C::trust_coefficient, "X",
       "lars: part of a layer's norm that a step may change", R::kFixed, 1e-12, 1e6});
  add({"weight-decay", K::kNumber, &C::weight_decay, "X",
       "Decay of parameters of two or more dimensions", R::kFixed, 0, 1e6});
  add({"no-decay", K::kText, &C::no_decay, "PATTERNS",
       "Parameters without weight decay, by name: *.bias,transformer.wte.*", R::kFixed});
  add({"clip", K::kNumber, &C::clip, "X",
       "Largest global norm of a step's gradient; 0: no clipping", R::kFixed, 0, 1e12});
  add({"recompute", K::kSwitch, &C::recompute, "",
       "Keep each block's input only and compute the rest again in backward; the same numbers",
       R::kFree});
  add({"order",
       K::kChoice,
       &C::order,
       "NAME",
       "Order of the sequences: shuffled in each epoch, or sequential",
       R::kFixed,
       0,
       0,
       {"shuffled", "sequential"}});
  add({"seed", K::kCount, &C::seed, "N", "Of the data's order and of dropout", R::kFixed, 0,
       4294967295.0});
  add({"precision",
       K::kChoice,
       &C::precision,
       "NAME",
       "Of parameters, gradients and arithmetic; masters keep the fp32 values, and fp16 scales the "
       "loss",
       R::kFixed,
       0,
       0,
       {"fp32", "bf16", "fp16"}});
  add({"threads", K::kCount, &C::threads, "N",
       "Threads of one operator; 0: as many as Torch takes by itself", R::kFree, 0, 1024});
  add({"update-threads", K::kCount, &C::update_threads, "N",
       "Threads of the optimizer's update and of the gradient norm; 0: half of the processors, at "
       "most 16; the numbers stay the same",
       R::kFree, 0, 1024});
  add({"device", K::kText, &C::device, "NAME",
       "What computes, and whose memory is DEVICE: cpu, or a GPU such as cuda:0", R::kFree});
  add({"device-memory", K::kBytes, &C::device_memory, "SIZE",
       "DEVICE budget: parameters in use and all that operators allocate, on a GPU all that the "
       "process takes of it; auto: a quarter of the memory that is free, of a GPU nearly all",
       R::kFree, 1, kMaxBytes});
  add({"host-memory", K::kBytes, &C::host_memory, "SIZE",
       "HOST budget: parameters, gradients and moments; auto: all of them, or with --nvme half of "
       "the memory that is free if that is less",
       R::kFree, 1, kMaxBytes});
  add({"nvme", K::kNvme, &C::nvme, "DIR:SIZE",
       "Room on a disk for what HOST cannot hold; may be given several times", R::kFree});
  add({"chunk-size", K::kBytes, &C::chunk_size, "SIZE",
       "Unit of placement and transfer, a multiple of 4 KiB from 64 KiB; auto: by the step's "
       "predicted time and the HOST memory that it needs",
       R::kFree, 65536, 1099511627776.0});
  add({"policy",
       K::kChoice,
       &C::policy,
       "NAME",
       "Which parameters lie on DEVICE when: planned, a fixed fraction of them, none, all, or "
       "those used last; the numbers stay the same",
       R::kFree,
       0,
       0,
       {"auto", "static", "cpu", "cuda", "online"}});
  add({"param-fraction", K::kFraction, &C::param_fraction, "X",
       "With --policy static: how much of the parameters stays on DEVICE", R::kFree});
  add({"optimizer-fraction", K::kFraction, &C::optimizer_fraction, "X",
       "With --policy static: how much of the optimizer states stays on DEVICE, and is updated "
       "there",
       R::kFree});
  add({"optimizer-tier",
       K::kChoice,
       &C::optimizer_tier,
       "TIER",
       "Home of optimizer states: host, or nvme, from which each step reads and writes them",
       R::kFree,
       0,
       0,
       {"host", "nvme"}});
  add({"device-bandwidth", K::kBytesPerSecond, &C::device_bandwidth, "RATE",
       "Limit of the link between HOST and DEVICE, each direction, to study a machine that one "
       "does not have; 0: none",
       R::kFree, 1, kMaxBytes});
  add({"daemon", K::kPath, &C::daemon, "SOCKET",
       "Socket of a geminid; the memory flags are then what is asked of it", R::kFree});
  add({"space", K::kText, &C::space, "NAME",
       "Name that memstat shows; the output directory's name when not given", R::kFree});
  add({"metrics", K::kPath, &C::metrics, "FILE.jsonl",
       "One JSON object a step; OUTPUT/metrics.jsonl when not given", R::kFree});
  add({"eval-data", K::kPath, &C::eval_data, "FILE.npy",
       "Tokens to evaluate on: loss and perplexity", R::kFree});
  add({"eval-every", K::kCount, &C::eval_every, "N",
       "Steps between evaluations; 0: only behind the last step", R::kFree, 0, kMaxSteps});
  add({"save-every", K::kCount, &C::save_every, "N",
       "Steps between checkpoints; 0: only behind the last step", R::kFree, 0, kMaxSteps});
  add({"no-save", K::kSwitch, &C::no_save, "",
       "Save nothing, at the end either: for runs that only measure", R::kFree});
  add({"keep", K::kCount, &C::keep, "N", "Checkpoints that stay, the newest; 0: all", R::kFree, 0,
       1e9});
  add({"log-level",
       K::kChoice,
       &C::log_level,
       "NAME",
       "How much is told",
       R::kFree,
       0,
       0,
       {"debug", "info", "warning", "error"}});
  add({"resume", K::kSwitch, &C::resume, "",
       "Go on from the newest checkpoint of --output; keys that are not given are taken from its "
       "run.toml",
       R::kNotStored});
  add({"overwrite", K::kSwitch, &C::overwrite, "",
       "Start anew in an --output that is not empty: what a run left there is deleted",
       R::kNotStored});
  add({"reference", K::kSwitch, &C::reference, "",
       "The same training in plain memory, without session and budget: what the other must equal",
       R::kFree});
  return keys;
}

}  // namespace

absl::Span<const ConfigKey> ConfigKeys() {
  static const std::vector<ConfigKey>& keys = *new std::vector<ConfigKey>(MakeKeys());
  return keys;
}

}  // namespace gemini::trainer
