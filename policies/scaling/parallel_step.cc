// SPDX-License-Identifier: Apache-2.0
#include "policies/scaling/parallel_step.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "absl/types/span.h"
#include "gemini/system/status_macros.h"
#include "policies/pipeline/pipeline_playback.h"
#include "policies/pipeline/stage_split.h"
#include "policies/scaling/unit_cost.h"

namespace gemini::policies {
namespace {

constexpr double kNsPerSecond = 1e9;
// A playback of so many tasks takes some 50 ms. Of more a part is played.
constexpr int64_t kMostPlayedTasks = int64_t{1} << 20;

int64_t Ns(double seconds) { return std::llround(seconds * kNsPerSecond); }
double Seconds(int64_t ns) { return static_cast<double>(ns) / kNsPerSecond; }
double AsDouble(int64_t number) { return static_cast<double>(number); }

// What some units of a rank cost with one micro-batch, all that it has or those of a chunk.
struct UnitsCost {
  double parameters = 0;
  double largest = 0;       // Parameters of the largest unit.
  double largest_kept = 0;  // Bytes.
  double kept = 0;
  double inputs = 0;
  PassCost forward, backward;
  // Of ZeRO's ranks: parameters for both passes, for the next step, and sums of gradients. Their
  // seconds are what is waited for.
  ExchangeCost gathers_forward, gathers_backward, gathers_of_step, sums;

  UnitsCost& operator+=(const UnitsCost& other) {
    parameters += other.parameters;
    largest = std::max(largest, other.largest);
    largest_kept = std::max(largest_kept, other.largest_kept);
    kept += other.kept;
    inputs += other.inputs;
    forward += other.forward;
    backward += other.backward;
    gathers_forward += other.gathers_forward;
    gathers_backward += other.gathers_backward;
    gathers_of_step += other.gathers_of_step;
    sums += other.sums;
    return *this;
  }
};

ExchangeCost Hidden(ExchangeCost cost, double under_seconds) {
  cost.seconds = std::max(cost.seconds - under_seconds, 0.0);
  return cost;
}

class StepForeteller {
 public:
  StepForeteller(const ModelSizes& model, const ParallelRun& run, const RankMachine& machine,
                 const RankGroups& groups)
      : model_(model),
        run_(run),
        machine_(machine),
        groups_(groups),
        shape_({run.size(MeshAxis::kPipeline), run.chunks, run.micro_batches}),
        // Ranks that divide with nobody have all, as at stage 0.
        zero_stage_(groups_.shards.num_ranks > 1 ? run.zero_stage : 0),
        // With one micro-batch all of a step is added in each.
        sums_each_(zero_stage_ >= 2 || run.adds_each || run.micro_batches == 1) {}

  absl::StatusOr<StepForecast> Foretell(bool plays) {
    GEMINI_RETURN_IF_ERROR(CheckPipelineShape(run_.schedule, shape_));
    GEMINI_RETURN_IF_ERROR(MakeStages());
    for (int64_t rank = 0; rank < shape_.ranks; ++rank) ranks_.push_back(CostOfRank(rank));
    slowest_ = *std::ranges::max_element(ranks_, {}, [&](const UnitsCost& rank) {
      return ForwardSeconds(rank) + BackwardSeconds(rank);
    });
    GEMINI_RETURN_IF_ERROR(plays ? Play() : Bound());
    StepForecast forecast;
    AddPasses(forecast);
    AddStep(forecast);
    AddMemory(forecast);
    const double seconds = forecast.seconds.total();
    forecast.tokens_per_second = run_.step_tokens() / seconds;
    forecast.efficiency = forecast.tokens_per_second * model_.flops_of_token() /
                          AsDouble(run_.mesh.num_ranks()) / machine_.flops_per_second;
    return forecast;
  }

 private:
  // What a step moves into DEVICE, which is the busier direction, and updates in HOST.
  struct HostMoves {
    double bytes = 0;
    double updated_elements = 0;
  };

  double num_shards() const { return AsDouble(groups_.shards.num_ranks); }
  double micro_batches() const { return AsDouble(run_.micro_batches); }
  bool has_pipeline() const { return shape_.ranks > 1; }

  absl::Status MakeStages() {
    std::vector<UnitCost> units = {CostOfEmbedding(model_, run_, machine_)};
    StageTimes times;
    times.first_ns = Ns(units[0].forward.seconds() + units[0].backward.seconds());
    for (size_t i = 0; i < model_.blocks.size(); ++i) {
      // Most blocks are like the one before.
      units.push_back(i > 0 && model_.blocks[i] == model_.blocks[i - 1]
                          ? UnitCost(units.back())
                          : CostOfBlock(model_.blocks[i], model_.width, run_, machine_, groups_));
      times.block_ns.push_back(
          Ns(units.back().forward.seconds() + units.back().backward.seconds()));
    }
    // A tied table is in the last stage, too, where that is another rank's. In zb-v it is not.
    const bool has_ends = has_pipeline() && run_.schedule != PipelineSchedule::kZbV;
    units.push_back(CostOfHead(model_, !model_.tied_head || has_ends, run_, machine_));
    times.last_ns = Ns(units.back().forward.seconds() + units.back().backward.seconds());
    std::vector<int64_t> split = run_.split;
    if (split.empty()) {
      GEMINI_ASSIGN_OR_RETURN(split, DealBlocks(times, run_.num_stages()));
    }
    size_t begin = 0, end = 1;  // The first stage has the embedding, the last one the head.
    for (size_t stage = 0; stage < split.size(); ++stage) {
      end += static_cast<size_t>(split[stage]);
      if (stage + 1 == split.size()) end = units.size();
      stages_.push_back(CostOfUnits(absl::MakeConstSpan(units).subspan(begin, end - begin)));
      begin = end;
    }
    return absl::OkStatus();
  }

  // Adds them up. Only stage 3 gathers a unit while the one before computes, and sums hide under
  // the backward pass that follows, if they do.
  UnitsCost CostOfUnits(absl::Span<const UnitCost> units) const {
    UnitsCost cost;
    const UnitCost* before = nullptr;
    for (const UnitCost& unit : units) {
      cost += {.parameters = unit.parameters,
               .largest = unit.parameters,
               .largest_kept = unit.kept_bytes,
               .kept = unit.kept_bytes,
               .inputs = unit.input_bytes,
               .forward = unit.forward,
               .backward = unit.backward,
               .gathers_forward = {},
               .gathers_backward = {},
               .gathers_of_step = {},
               .sums = {}};
      const double hides =
          run_.gathers_ahead && before != nullptr ? before->forward.computing_seconds : 0;
      if (zero_stage_ == 3) cost.gathers_forward += Hidden(GatherOf(unit.gathered_forward), hides);
      if (zero_stage_ == 1 || zero_stage_ == 2) cost.gathers_of_step += GatherOf(unit.parameters);
      cost.sums += Hidden(SumOf(unit.parameters),
                          run_.hides_sums && before != nullptr ? before->backward.seconds() : 0);
      before = &unit;
    }
    double hides = 0;
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      if (zero_stage_ == 3) {
        cost.gathers_backward += Hidden(GatherOf(unit->gathered_backward), hides);
      }
      if (run_.gathers_ahead) hides = unit->backward.computing_seconds;
    }
    return cost;
  }
  ExchangeCost GatherOf(double parameters) const {
    return AllGatherCost(parameters * run_.bytes.parameter, groups_.shards, machine_.network);
  }
  ExchangeCost SumOf(double parameters) const {
    const double bytes = parameters * run_.bytes.gradient;
    return zero_stage_ == 0 ? AllReduceCost(bytes, groups_.shards, machine_.network)
                            : ReduceScatterCost(bytes, groups_.shards, machine_.network);
  }

  UnitsCost CostOfRank(int64_t rank) const {
    UnitsCost cost;
    for (int64_t chunk = 0; chunk < run_.chunks; ++chunk) {
      cost += stages_[static_cast<size_t>(VirtualStage(run_.schedule, shape_, rank, chunk))];
    }
    return cost;
  }

  double ForwardSeconds(const UnitsCost& cost) const {
    return cost.forward.seconds() + cost.gathers_forward.seconds;
  }
  double BackwardSeconds(const UnitsCost& cost) const {
    return cost.backward.seconds() + cost.gathers_backward.seconds +
           (sums_each_ ? cost.sums.seconds : 0);
  }

  // Sets idle time and live micro-batches by the schedules' formulas, which the playback equals if
  // transfers take no time.
  absl::Status Bound() {
    if (SplitsBackward(run_.schedule)) {
      return absl::UnimplementedError("a schedule that splits backward is played, not bounded");
    }
    const int64_t p = shape_.ranks, v = shape_.chunks, m = shape_.micro_batches;
    most_live_.clear();
    for (int64_t rank = 0; rank < p; ++rank) {
      const int64_t warm_up = run_.schedule == PipelineSchedule::k1f1b
                                  ? p - rank - 1
                                  : 2 * (p - rank - 1) + (v - 1) * p;
      most_live_.push_back(std::min(warm_up + 1, m * v));
    }
    idle_seconds_ =
        AsDouble(p - 1) * (ForwardSeconds(slowest_) + BackwardSeconds(slowest_)) / AsDouble(v);
    return absl::OkStatus();
  }

  // Plays the step: all ranks take as long as the slowest one.
  absl::Status Play() {
    if (!has_pipeline()) {
      most_live_ = {run_.chunks};
      return absl::OkStatus();
    }
    const double chunks = AsDouble(run_.chunks);
    PipelineTimes times = {.forward_ns = Ns(ForwardSeconds(slowest_) / chunks),
                           .backward_ns = Ns(BackwardSeconds(slowest_) / chunks / 2),
                           .weights_ns = Ns(BackwardSeconds(slowest_) / chunks / 2),
                           .transfer_ns = 0};
    const int64_t busy_ns = run_.micro_batches * run_.chunks *
                            (times.forward_ns + times.backward_ns + times.weights_ns);
    int64_t without_ns = 0;
    if (SplitsBackward(run_.schedule)) {
      GEMINI_ASSIGN_OR_RETURN(without_ns, PlayStep(times));
      idle_seconds_ = Seconds(without_ns - busy_ns);
    } else {
      GEMINI_RETURN_IF_ERROR(Bound());
      without_ns = busy_ns + Ns(idle_seconds_);
    }
    transfer_bytes_ =
        run_.micro_batch_tokens() * model_.width * run_.activation_bytes / HiddenParts(run_);
    times.transfer_ns =
        Ns(SendSeconds(transfer_bytes_, groups_.stages_cross_nodes, machine_.network));
    GEMINI_ASSIGN_OR_RETURN(const int64_t with_ns, PlayStep(times));
    transfer_seconds_ = std::max(Seconds(with_ns - without_ns), 0.0);
    return absl::OkStatus();
  }

  // Returns when the last rank is done. A pipeline that is full repeats what it does, so that few
  // micro-batches show how long many take: of 1f1b to the nanosecond, of others as long as a
  // transfer takes less than half a chunk. Others are played whole, but for the longest.
  absl::StatusOr<int64_t> PlayStep(const PipelineTimes& times) {
    constexpr int64_t kFull = 4, kMore = 5;
    const int64_t tasks = 2 * shape_.ranks * shape_.chunks * shape_.micro_batches;
    const bool repeats =
        run_.schedule == PipelineSchedule::k1f1b ||
        2 * times.transfer_ns < times.forward_ns + times.backward_ns + times.weights_ns;
    if (run_.micro_batches <= kMore * shape_.ranks || (!repeats && tasks <= kMostPlayedTasks)) {
      return PlayOf(shape_, times);
    }
    PipelineShape few = shape_;
    // It is a multiple of the ranks less than the whole.
    few.micro_batches = kFull * shape_.ranks + run_.micro_batches % shape_.ranks;
    GEMINI_ASSIGN_OR_RETURN(const int64_t begin_ns, PlayOf(few, times));
    few.micro_batches += shape_.ranks;
    GEMINI_ASSIGN_OR_RETURN(const int64_t end_ns, PlayOf(few, times));
    const int64_t periods = (run_.micro_batches - few.micro_batches) / shape_.ranks;
    return end_ns + periods * (end_ns - begin_ns);
  }
  absl::StatusOr<int64_t> PlayOf(const PipelineShape& shape, const PipelineTimes& times) {
    GEMINI_ASSIGN_OR_RETURN(const PipelineTaskLists lists, PipelineLists(run_.schedule, shape));
    GEMINI_ASSIGN_OR_RETURN(const std::vector<RankPlayback> ranks,
                            PlayPipeline(run_.schedule, shape, lists, times));
    int64_t end_ns = 0;
    most_live_.clear();
    for (const RankPlayback& rank : ranks) {
      end_ns = std::max(end_ns, rank.end_ns);
      most_live_.push_back(rank.most_live);
    }
    return end_ns;
  }

  // What the slowest rank does with all micro-batches.
  void AddPasses(StepForecast& forecast) const {
    PassCost passes = slowest_.forward;
    passes += slowest_.backward;
    ExchangeCost gathers = slowest_.gathers_forward;
    gathers += slowest_.gathers_backward;
    forecast.seconds.computing = micro_batches() * passes.computing_seconds;
    forecast.seconds.layers = micro_batches() * passes.layers.seconds;
    forecast.seconds.sequences = micro_batches() * passes.sequences.seconds;
    forecast.seconds.gathers = micro_batches() * gathers.seconds;
    forecast.seconds.idle = idle_seconds_;
    forecast.seconds.transfers = transfer_seconds_;
    for (const ExchangeCost& each : {passes.layers, passes.sequences, gathers}) {
      forecast.sent += each * micro_batches();
    }
    if (has_pipeline()) {
      // A rank between two others sends one way and the other.
      const double sent = 2 * micro_batches() * AsDouble(run_.chunks) * transfer_bytes_;
      forecast.sent += {0, sent, groups_.stages_cross_nodes ? sent : 0};
    }
  }

  // What is done once a step, by whoever takes longest.
  void AddStep(StepForecast& forecast) const {
    ExchangeCost sums = slowest_.sums * (sums_each_ ? micro_batches() : 1);
    ExchangeCost gathers = slowest_.gathers_of_step;
    forecast.sent += sums;
    forecast.sent += gathers;
    forecast.sent.seconds = 0;
    for (const UnitsCost& rank : ranks_) {
      if (!sums_each_) sums.seconds = std::max(sums.seconds, rank.sums.seconds);
      gathers.seconds = std::max(gathers.seconds, rank.gathers_of_step.seconds);
    }
    forecast.seconds.sums = sums.seconds;
    forecast.seconds.gathers += gathers.seconds;
  }

  double ElementsOf(const UnitsCost& rank) const {
    return rank.parameters / (zero_stage_ > 0 ? num_shards() : 1);
  }

  // Adds the memory of the rank that takes the most, and what it moves and updates.
  void AddMemory(StepForecast& forecast) const {
    HostMoves moves;
    double elements = 0;
    auto most = std::make_tuple(-1.0, -1.0);
    for (size_t i = 0; i < ranks_.size(); ++i) {
      RankMemory memory = MemoryOf(ranks_[i], most_live_[i]);
      const HostMoves own = PlaceInHost(ranks_[i], memory);
      const auto takes = std::make_tuple(memory.lacking, memory.total());
      elements = std::max(elements, ElementsOf(ranks_[i]) - own.updated_elements);
      moves.bytes = std::max(moves.bytes, own.bytes);
      moves.updated_elements = std::max(moves.updated_elements, own.updated_elements);
      if (takes <= most) continue;
      most = takes;
      forecast.memory = memory;
    }
    // Each is read and written but the gradient, which is read.
    forecast.seconds.update =
        elements * (2 * (run_.bytes.parameter + run_.bytes.states) + run_.bytes.gradient) /
        machine_.memory_bytes_per_second;
    if (moves.bytes == 0) return;
    forecast.seconds.host =
        std::max(std::max(moves.bytes / machine_.host_bytes_per_second,
                          moves.updated_elements / machine_.host_updates_per_second) -
                     forecast.seconds.total(),
                 0.0);
  }

  RankMemory MemoryOf(const UnitsCost& rank, int64_t most_live) const {
    const auto held = [&](const ParameterBytes& bytes) {
      return rank.parameters *
             ZeroBytes(zero_stage_, groups_.shards.num_ranks, bytes,
                       {.micro_batches = run_.micro_batches, .adds_each = sums_each_});
    };
    RankMemory memory = {.parameters = held({run_.bytes.parameter, 0, 0}),
                         .gradients = held({0, run_.bytes.gradient, 0}),
                         .states = held({0, 0, run_.bytes.states})};
    // One is used, one may be ahead, and one has the gradients that are added up.
    if (zero_stage_ == 3) {
      memory.gathered = rank.largest * (run_.gathers_ahead ? 2 : 1) * run_.bytes.parameter;
    }
    if (zero_stage_ > 0 && sums_each_) memory.gathered += rank.largest * run_.bytes.gradient;
    memory.activations =
        (run_.recompute ? rank.inputs : rank.kept) * AsDouble(most_live) / AsDouble(run_.chunks) +
        (run_.recompute ? rank.largest_kept : 0);
    return memory;
  }

  // Finds room in HOST for what DEVICE lacks.
  HostMoves PlaceInHost(const UnitsCost& rank, RankMemory& memory) const {
    memory.lacking = std::max(memory.total() - machine_.memory_bytes, 0.0);
    if (machine_.host_bytes == 0 || memory.lacking == 0) return {};
    const double states = std::min(memory.lacking, memory.states);
    const double values = memory.parameters + memory.gradients;
    double more = memory.lacking - states;
    // One unit is used, and one is fetched meanwhile.
    if (more > 0) {
      more += rank.largest / (zero_stage_ == 3 ? num_shards() : 1) *
              (2 * run_.bytes.parameter + run_.bytes.gradient);
    }
    const double moved_values = std::min(more, values);
    memory.host = std::min(states + moved_values, machine_.host_bytes);
    memory.lacking = states + more - memory.host;
    HostMoves moves;
    moves.updated_elements = memory.states > 0 ? ElementsOf(rank) * states / memory.states : 0;
    moves.bytes = moves.updated_elements * run_.bytes.parameter;
    // Parameters for forward and for backward, and gradients to be added to.
    moves.bytes +=
        micro_batches() * moved_values / values * (2 * memory.parameters + memory.gradients);
    return moves;
  }

  const ModelSizes& model_;
  const ParallelRun& run_;
  const RankMachine& machine_;
  const RankGroups& groups_;
  const PipelineShape shape_;
  const int zero_stage_;
  const bool sums_each_;
  std::vector<UnitsCost> stages_;   // By virtual stage.
  std::vector<UnitsCost> ranks_;    // By rank of the pipeline.
  UnitsCost slowest_;               // Of those.
  std::vector<int64_t> most_live_;  // Chunks of micro-batches, by rank of the pipeline.
  double idle_seconds_ = 0;
  double transfer_seconds_ = 0;
  double transfer_bytes_ = 0;  // Of one, each way.
};

}  // namespace

absl::StatusOr<StepForecast> ForetellStep(const ModelSizes& model, const ParallelRun& run,
                                          const RankMachine& machine) {
  const RankGroups groups = GroupsOf(run.mesh, run.grid, machine.network.ranks_per_node);
  return StepForeteller(model, run, machine, groups).Foretell(/*plays=*/true);
}

absl::StatusOr<StepForecast> BoundStep(const ModelSizes& model, const ParallelRun& run,
                                       const RankMachine& machine, const RankGroups& groups) {
  return StepForeteller(model, run, machine, groups).Foretell(/*plays=*/false);
}

}  // namespace gemini::policies
