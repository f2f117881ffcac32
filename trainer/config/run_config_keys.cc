// SPDX-License-Identifier: Apache-2.0
// The table of all keys: names, help, bounds, and what --resume allows.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gemini/byte_size.h"
#include "gemini/moment_format.h"
#include "gemini/optimizer_kind.h"
#include "policies/mesh/mesh.h"
#include "trainer/config/run_config.h"

namespace gemini::trainer {
namespace {

// 2^40 steps are what a commit word can count (gemini/shm/commit_shm.h).
constexpr int64_t kMaxSteps = (int64_t{1} << 40) - 1;
// Sizes of a batch beyond these are typing errors: 2^20 sequences, 2^20 tokens.
constexpr int64_t kMaxBatch = 1 << 20;
constexpr int64_t kMaxSeed = 4'294'967'295;
constexpr int64_t kMaxTimeout = 1'000'000;
constexpr int64_t kMostAxisRanks = 1 << 20;  // policies/mesh/tensor_grid.h
constexpr int64_t kMaxCheckpoints = 1'000'000'000;

absl::Status CheckSpaceName(absl::string_view name) {
  const bool valid =
      name.size() <= 128 && name.find_first_not_of(
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                "0123456789._-") == absl::string_view::npos;
  return valid ? absl::OkStatus()
               : absl::InvalidArgumentError("wants at most 128 characters of A-Z a-z 0-9 . _ -");
}

// The keys of the table [parallel], in which files may say how ranks share the work.
std::vector<ConfigKey> ParallelTable(const std::vector<ConfigKey>& keys) {
  constexpr std::pair<absl::string_view, absl::string_view> kSpellings[] = {
      {"parallel.tensor.mode", "tensor"},          {"parallel.tensor.size", "tensor-size"},
      {"parallel.tensor.depth", "tensor-depth"},   {"parallel.sequence.mode", "sequence-parallel"},
      {"parallel.sequence.size", "sequence-size"}, {"parallel.sequence.layout", "sequence-layout"},
      {"parallel.rank-order", "rank-order"},       {"parallel.pipeline", "pipeline"}};
  std::vector<ConfigKey> table;
  for (const auto& [name, flat] : kSpellings) {
    table.push_back(*std::ranges::find(keys, flat, &ConfigKey::name));
    table.back().name = name;
    table.back().same_as = flat;
  }
  return table;
}

}  // namespace

KeyTable RunKeys(RunConfig& config) {
  using R = ResumeRule;
  std::vector<ConfigKey> keys = {
      PathKey(
          {"model", "DIR", "Hugging Face checkpoint to start from: config.json and safetensors"},
          config.model),
      ChoiceKey({"task", "NAME",
                 "What to learn: the next token, tokens that are hidden, labels, or the bins of "
                 "residues' distances; auto: what "
                 "the model's config.json says. Files of another task get a new head"},
                config.task,
                {"auto", "causal", "masked", "sequence-classification", "image-classification",
                 "distogram"}),
      PathKey({"data", "FILE",
               "What to train on, as tools/prepare_data.py writes it: a text as .npy (tokens, one "
               "dimension, uint16 or uint32), or as .safetensors chats, of which the answers are "
               "learned, or what the task needs"},
              config.data),
      PathKey({"output", "DIR", "Where checkpoints, run.toml and metrics go; made if need be",
               R::kNotStored},
              config.output),
      CountKey({"steps", "N", "Optimizer steps in all", R::kGrow}, config.steps, 1, kMaxSteps),
      CountKey({"batch", "N", "Sequences a micro-batch of one rank", R::kFree}, config.batch, 1,
               kMaxBatch),
      CountKey({"sequence", "N",
                "Tokens a sequence; 0: as many as the rows of a .safetensors have, else as the "
                "model has positions, at most 1024"},
               config.sequence, 0, kMaxBatch),
      CountKey({"accumulate", "N",
                "Micro-batches a step of one rank, whose labels all weigh alike; a resumed run "
                "keeps batch x accumulate x ranks",
                R::kFree},
               config.accumulate, 1, kMaxBatch),
      ChoiceKey(
          {"zero", "STAGE",
           "With several ranks (mpirun -n N gemini-train ...), what each has of the model: 0: "
           "all; 1: parameters and gradients, and a part of the optimizer states; 2: parameters, "
           "and a part of the rest; 3: a part of all; auto: 3, in pipelines 1",
           R::kFree},
          config.zero, {"auto", "0", "1", "2", "3"}),
      ChoiceKey({"gradient-sync", "NAME",
                 "When ranks add their gradients: behind the last micro-batch of a step, or in "
                 "each; auto: the last with --zero 0 and 1, which have room for those before it. "
                 "Sums are rounded in another order then",
                 R::kFree},
                config.gradient_sync, {"auto", "last", "each"}),
      CountKey({"gather-ahead", "N",
                "With --zero 3: 1 gathers the next block while one computes, and takes its room "
                "on DEVICE",
                R::kFree},
               config.gather_ahead, 0, 1),
      CountKey({"pipeline", "P",
                "How many ranks have the model's blocks one after the other, each a part of them; "
                "the micro-batches of --accumulate go through all. The others learn from other "
                "sequences",
                R::kFree},
               config.pipeline, 1, kMostAxisRanks),
      ChoiceKey({"pipeline-schedule", "NAME",
                 "With --pipeline: 1f1b, or interleaved, in which ranks have several runs of "
                 "blocks and wait less. zb-h1, zb-h2 and zb-v are only foretold",
                 R::kFree},
                config.pipeline_schedule, {"1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"}),
      CountKey(
          {"pipeline-chunks", "V",
           "With --pipeline-schedule interleaved: how many runs of blocks a rank has", R::kFree},
          config.pipeline_chunks, 1, kMostAxisRanks),
      TextKey({"pipeline-split", "N,N,...",
               "With --pipeline: how many blocks each run has, in the model's order; when not "
               "given, so many that all take about as long",
               R::kFree},
              config.pipeline_split),
      ChoiceKey({"tensor", "MODE",
                 "How ranks share each layer: none; 1d: each has some heads, and columns and rows "
                 "of its matrices; 2d, 2.5d, 3d: each has blocks of matrices and of what is "
                 "computed, on a grid of q x q, depth x q x q or q x q x q ranks",
                 R::kFree},
                config.tensor, {"none", "1d", "2d", "2.5d", "3d"}),
      CountKey({"tensor-size", "N",
                "With --tensor: how many ranks share a layer, neighbours; 0: all that "
                "--sequence-size leaves. The others learn from other sequences",
                R::kFree},
               config.tensor_size, 0, kMostAxisRanks),
      CountKey({"tensor-depth", "D",
                "With --tensor 2.5d: how many layers of q x q ranks the grid has", R::kFree},
               config.tensor_depth, 1, kMostAxisRanks),
      ChoiceKey(
          {"sequence-parallel", "MODE",
           "How ranks share each sequence: none; megatron: with --tensor 1d, each has a part "
           "of it between the layers, so that norms and what is kept of them are divided, too; "
           "ulysses: each has a part, and in attention some heads of the whole; ring: each has a "
           "part, and keys and values go from rank to rank",
           R::kFree},
          config.sequence_parallel, {"none", "megatron", "ulysses", "ring"}),
      CountKey({"sequence-size", "P",
                "With --sequence-parallel ulysses or ring: how many ranks share a sequence; 0: all "
                "that --tensor-size leaves",
                R::kFree},
               config.sequence_size, 0, kMostAxisRanks),
      ChoiceKey({"sequence-layout", "NAME",
                 "With --sequence-parallel ring: a rank has two parts of a sequence, one from each "
                 "end, so that all compute as much, or one part",
                 R::kFree},
                config.sequence_layout, {"zigzag", "contiguous"}),
      TextKey({"rank-order", "AXES",
               "In which order ranks are counted through, the slowest first: stages (pp), other "
               "sequences (dp), parts of sequences (sp), parts of layers (tp)",
               R::kFree},
              config.rank_order,
              [](absl::string_view text) { return policies::ParseMeshOrder(text).status(); }),
      ChoiceKey({"transport", "NAME",
                 "With several ranks: how they exchange, by MPI in host memory or by NCCL between "
                 "GPUs; auto: nccl with --device cuda, else mpi",
                 R::kFree},
                config.transport, {"auto", "mpi", "nccl"}),
      SwitchKey({"exact", "",
                 "By NCCL: add in the order of ranks, as MPI always does, so that sums have the "
                 "same bits on any machine; slower",
                 R::kFree},
                config.exact),
      SwitchKey({"share-gpu", "",
                 "Several ranks may have one GPU, whose memory they divide: to try a job on a "
                 "machine that has fewer GPUs; slow",
                 R::kFree},
                config.share_gpu),
      CountKey({"collective-timeout", "SECONDS",
                "With several ranks: how long one of them is waited for before all end", R::kFree},
               config.collective_timeout, 5, kMaxTimeout),
      ChoiceKey({"micro-batch-schedule", "NAME",
                 "Order in a step: all of a micro-batch and then the next, or each block for all "
                 "micro-batches, so that its parameters move once a step; recomputes as "
                 "--recompute does"},
                config.micro_batch_schedule, {"horizontal", "vertical"}),
      NumberKey({"lr", "X", "Learning rate after warm-up"}, config.lr, 0, 1e6),
      ChoiceKey({"schedule", "NAME",
                 "Learning rate after warm-up over the steps: constant, linear to 0 or half a "
                 "cosine to 0"},
                config.schedule, {"constant", "linear", "cosine"}),
      CountKey({"warmup-steps", "N", "Steps over which the learning rate rises from 0"},
               config.warmup_steps, 0, kMaxSteps),
      ChoiceKey({"optimizer", "NAME",
                 "adamw, adam (with L2), sgd with momentum, or layer-wise: lamb, lars"},
                config.optimizer, {kOptimizerKindNames.begin(), kOptimizerKindNames.end()}),
      ChoiceKey(
          {"moments", "NAME",
           "Format of the optimizer's moments: fp32, or 8bit (block-wise, dynamic quantisation)"},
          config.moments, {kMomentFormatNames.begin(), kMomentFormatNames.end()}),
      ChoiceKey(
          {"moment-rounding", "NAME", "With --moments 8bit: to the nearest code, or stochastic"},
          config.moment_rounding, {"nearest", "stochastic"}),
      NumberKey({"beta1", "X", "adamw, adam, lamb: decay of the first moment"}, config.beta1, 0, 1),
      NumberKey({"beta2", "X", "adamw, adam, lamb: decay of the second moment"}, config.beta2, 0,
                1),
      NumberKey({"epsilon", "X", "adamw, adam, lamb: added to the root of the second moment"},
                config.epsilon, 1e-30, 1),
      NumberKey({"momentum", "X", "sgd, lars: decay of the momentum"}, config.momentum, 0, 1),
      NumberKey({"trust-coefficient", "X", "lars: part of a layer's norm that a step may change"},
                config.trust_coefficient, 1e-12, 1e6),
      NumberKey({"weight-decay", "X", "Decay of parameters of two or more dimensions"},
                config.weight_decay, 0, 1e6),
      TextKey({"no-decay", "PATTERNS",
               "Parameters without weight decay, by name: *.bias,transformer.wte.*"},
              config.no_decay),
      NumberKey({"clip", "X", "Largest global norm of a step's gradient; 0: no clipping"},
                config.clip, 0, 1e12),
      SwitchKey(
          {"recompute", "",
           "Keep each block's input only and compute the rest again in backward; the same numbers",
           R::kFree},
          config.recompute),
      ChoiceKey({"order", "NAME", "Order of the sequences: shuffled in each epoch, or sequential"},
                config.order, {"shuffled", "sequential"}),
      CountKey({"seed", "N", "Of the data's order, dropout, hidden words and a new head"},
               config.seed, 0, kMaxSeed),
      ChoiceKey({"precision", "NAME",
                 "Of parameters, gradients and arithmetic; masters keep the fp32 values, and fp16 "
                 "scales the loss"},
                config.precision, {"fp32", "bf16", "fp16"}),
      CountKey({"threads", "N", "Threads of one operator; 0: as many as Torch takes by itself",
                R::kFree},
               config.threads, 0, 1024),
      CountKey({"update-threads", "N",
                "Threads of the optimizer's update and of the gradient norm; 0: half of the "
                "processors, at most 16; the numbers stay the same",
                R::kFree},
               config.update_threads, 0, 1024),
      TextKey({"device", "NAME",
               "What computes, and whose memory is DEVICE: cpu, or a GPU such as cuda:0; cuda: of "
               "several ranks of a machine each has the next one",
               R::kFree},
              config.device),
      SizeKey({"device-memory", "SIZE",
               "DEVICE budget: parameters in use and all that operators allocate, on a GPU all "
               "that the process takes of it; auto: a quarter of the memory that is free, or what "
               "HOST leaves of it, of a GPU nearly all",
               R::kFree},
              config.device_memory, 1),
      SizeKey({"host-memory", "SIZE",
               "HOST budget: parameters, gradients and moments; auto: all of them, or with --nvme "
               "half of the memory that is free if that is less",
               R::kFree},
              config.host_memory, 1),
      NvmeKey({"nvme", "DIR:SIZE",
               "Room on a disk for what HOST cannot hold; may be given several times", R::kFree},
              config.nvme),
      SizeKey({"chunk-size", "SIZE",
               "Unit of placement and transfer, a multiple of 4 KiB from 16 KiB; auto: by the "
               "step's predicted time and the HOST memory that it needs",
               R::kFree},
              config.chunk_size, 16 * kKiB, 4 * kKiB, int64_t{1} << 40),
      CountKey({"vocabulary-blocks", "N",
                "Parameters into which rows of the token embedding and of the head are parted, at "
                "most 16, on a GPU fewer; 0: one, unless it and its gradient exceed an eighth of "
                "DEVICE; files and numbers stay the same",
                R::kFree},
               config.vocabulary_blocks, 0, 16),
      ChoiceKey({"policy", "NAME",
                 "Which parameters lie on DEVICE when: planned, a fixed fraction of them, none, "
                 "all, or those used last; the numbers stay the same",
                 R::kFree},
                config.policy, {"auto", "static", "cpu", "cuda", "online"}),
      FractionKey({"param-fraction", "X",
                   "With --policy static: how much of the parameters stays on DEVICE", R::kFree},
                  config.param_fraction),
      FractionKey({"optimizer-fraction", "X",
                   "With --policy static: how much of the optimizer states stays on DEVICE, and is "
                   "updated there",
                   R::kFree},
                  config.optimizer_fraction),
      ChoiceKey(
          {"optimizer-tier", "TIER",
           "Home of optimizer states: host, or nvme, from which each step reads and writes them",
           R::kFree},
          config.optimizer_tier, {"host", "nvme"}),
      ChoiceKey(
          {"experts", "NAME",
           "Which experts an evaluation runs: planned: all, ahead of time; routed: those that "
           "tokens chose, fetched when they are chosen; auto: routed where a micro-batch is so "
           "small that it leaves more than a tenth of them out; the numbers stay the same",
           R::kFree},
          config.experts, {"auto", "planned", "routed"}),
      SizeKey({"expert-cache", "SIZE",
               "Of DEVICE, for the experts that a routed evaluation chose last; auto: an eighth of "
               "it",
               R::kFree},
              config.expert_cache, 1),
      RateKey({"device-bandwidth", "RATE",
               "Limit of the link between HOST and DEVICE, each direction, to study a machine that "
               "one does not have; 0: none",
               R::kFree},
              config.device_bandwidth),
      PathKey({"daemon", "SOCKET",
               "Socket of a geminid; the memory flags are then what is asked of it", R::kFree},
              config.daemon),
      TextKey({"space", "NAME",
               "Name that memstat shows; the output directory's name when not given", R::kFree},
              config.space, CheckSpaceName),
      PathKey({"metrics", "FILE.jsonl",
               "One JSON object a step; OUTPUT/metrics.jsonl when not given", R::kFree},
              config.metrics),
      PathKey({"eval-data", "FILE",
               "What to evaluate on, as --data: loss and perplexity of what is to be learned",
               R::kFree},
              config.eval_data),
      CountKey(
          {"eval-every", "N", "Steps between evaluations; 0: only behind the last step", R::kFree},
          config.eval_every, 0, kMaxSteps),
      CountKey(
          {"save-every", "N", "Steps between checkpoints; 0: only behind the last step", R::kFree},
          config.save_every, 0, kMaxSteps),
      SwitchKey({"no-save", "", "Save nothing, at the end either: for runs that only measure",
                 R::kNotStored},
                config.no_save),
      CountKey({"keep", "N", "Checkpoints that stay, the newest; 0: all", R::kFree}, config.keep, 0,
               kMaxCheckpoints),
      ChoiceKey({"log-level", "NAME", "How much is told", R::kFree}, config.log_level,
                {"debug", "info", "warning", "error"}),
      SwitchKey({"resume", "",
                 "Go on from the newest checkpoint of --output; keys that are not given are taken "
                 "from its run.toml",
                 R::kNotStored},
                config.resume),
      SwitchKey({"overwrite", "",
                 "Start anew in an --output that is not empty: what a run left there is deleted",
                 R::kNotStored},
                config.overwrite),
      SwitchKey({"reference", "",
                 "The same training in plain memory, without session and budget: what the other "
                 "must equal",
                 R::kFree},
                config.reference),
  };
  std::vector<ConfigKey> table_keys = ParallelTable(keys);
  return KeyTable(std::move(keys), std::move(table_keys));
}

}  // namespace gemini::trainer
