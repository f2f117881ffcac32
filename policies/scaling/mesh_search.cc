// SPDX-License-Identifier: Apache-2.0
#include "policies/scaling/mesh_search.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/system/status_macros.h"
#include "policies/scaling/mesh_fit.h"

namespace gemini::policies {
namespace {

std::vector<int64_t> DivisorsOf(int64_t number, int64_t most) {
  std::vector<int64_t> divisors;
  for (int64_t i = 1; i <= std::min(number, most); ++i) {
    if (number % i == 0) divisors.push_back(i);
  }
  return divisors;
}

// Grids of so many ranks, of each mode once, but those of 2.5d by their depth.
std::vector<TensorGrid> GridsOf(int64_t num_ranks) {
  std::vector<TensorGrid> grids;
  const auto add = [&](TensorMode mode, int64_t depth) {
    const absl::StatusOr<TensorGrid> grid = TensorGrid::Make(mode, num_ranks, depth);
    if (grid.ok()) grids.push_back(*grid);
  };
  add(TensorMode::k1d, 1);
  if (num_ranks == 1) return grids;
  add(TensorMode::k2d, 1);
  for (const int64_t depth : DivisorsOf(num_ranks, num_ranks)) {
    // One layer is 2d, and layers of one rank are data parallel.
    if (depth > 1 && depth < num_ranks) add(TensorMode::k2Point5d, depth);
  }
  add(TensorMode::k3d, 1);
  return grids;
}

// How ranks share what is not only data.
std::string WayOf(const ParallelRun& run) {
  std::vector<std::string> ways;
  if (run.size(MeshAxis::kPipeline) > 1) ways.push_back("pipeline");
  if (run.grid.num_ranks() > 1) {
    ways.push_back(absl::StrCat(TensorModeName(run.grid.mode()),
                                run.divides_sequences ? " with parts of sequences" : ""));
  }
  if (run.size(MeshAxis::kSequence) > 1) ways.push_back(run.is_ring ? "ring" : "ulysses");
  return ways.empty() ? "data alone" : absl::StrJoin(ways, " and ");
}

// Whether they share alike, with whatever micro-batches.
bool IsSameMesh(const ParallelRun& a, const ParallelRun& b) {
  return a.mesh.ToString() == b.mesh.ToString() && WayOf(a) == WayOf(b);
}

class Search {
 public:
  Search(const ModelSizes& model, const RankMachine& machine, const ParallelRun& like,
         int64_t num_ranks, int64_t step_sequences)
      : model_(model),
        machine_(machine),
        like_(like),
        num_ranks_(num_ranks),
        step_sequences_(step_sequences) {}

  absl::StatusOr<MeshSearch> Run(size_t num_best) {
    for (const int64_t pipeline :
         DivisorsOf(num_ranks_, static_cast<int64_t>(model_.blocks.size()))) {
      for (const int64_t tensor : DivisorsOf(num_ranks_ / pipeline, kMostSharing)) {
        for (const TensorGrid& grid : GridsOf(tensor)) {
          for (const int64_t sequence : DivisorsOf(num_ranks_ / pipeline / tensor, kMostSharing)) {
            TryMesh({.pipeline = pipeline, .sequence = sequence, .tensor = tensor}, grid);
          }
        }
      }
    }
    return Rank(num_best);
  }

 private:
  void TryMesh(const MeshSizes& sizes, const TensorGrid& grid) {
    const absl::StatusOr<Mesh> mesh = Mesh::Make(num_ranks_, sizes);
    if (!mesh.ok()) return;
    groups_ = GroupsOf(*mesh, grid, machine_.network.ranks_per_node);
    ParallelRun run = like_;
    run.mesh = *mesh;
    run.grid = grid;
    const int64_t num_data = run.size(MeshAxis::kData);
    if (step_sequences_ % num_data != 0) return;
    const int64_t rows = step_sequences_ / num_data;  // Of each pipeline.
    for (const bool is_ring : {false, true}) {
      if (is_ring && sizes.sequence == 1) continue;
      for (const bool divides : {false, true}) {
        if (divides && (sizes.tensor == 1 || sizes.sequence > 1)) continue;
        run.is_ring = is_ring;
        run.divides_sequences = divides;
        for (const int64_t batch : DivisorsOf(rows, rows)) {
          run.batch = batch;
          run.micro_batches = rows / batch;
          TryChunks(run);
        }
      }
    }
  }

  void TryChunks(ParallelRun run) {
    for (int64_t chunks = 1; chunks <= kMostChunks; ++chunks) {
      if (chunks > 1 && run.size(MeshAxis::kPipeline) == 1) return;
      run.chunks = chunks;
      run.schedule = chunks > 1 ? PipelineSchedule::kInterleaved : PipelineSchedule::k1f1b;
      if (!CheckMeshFits(model_, run).ok()) continue;
      ++num_divide_;
      if (!TryMemory(run)) ++num_too_large_;
    }
  }

  // Adds the stages of ZeRO that fit, and those with recomputation. Returns whether there are any.
  bool TryMemory(ParallelRun run) {
    // Ranks that divide with nobody are at stage 0.
    const bool divides =
        run.size(MeshAxis::kData) * run.size(MeshAxis::kSequence) > 1 ||
        (run.grid.mode() == TensorMode::k2Point5d && run.grid.size(TensorAxis::kK) > 1);
    const int last_stage = divides ? 3 : 0;
    bool fits = false;
    for (const bool recompute : {false, true}) {
      run.recompute = recompute;
      bool all_on_device = true;
      for (int stage = 0; stage <= last_stage; ++stage) {
        run.zero_stage = stage;
        absl::StatusOr<StepForecast> forecast = BoundStep(model_, run, machine_, groups_);
        if (!forecast.ok()) return fits;
        FoundMesh found = {run, *std::move(forecast)};
        const RankMemory& memory = found.forecast.memory;
        all_on_device &= memory.lacking == 0 && memory.host == 0;
        if (memory.lacking > 0) {
          if (nearest_.empty() || memory.lacking < nearest_.front().forecast.memory.lacking) {
            nearest_ = {std::move(found)};
          }
          continue;
        }
        fitting_.push_back(std::move(found));
        fits = true;
      }
      if (all_on_device) return true;  // Computing again only takes time then.
    }
    return fits;
  }

  absl::StatusOr<MeshSearch> Rank(size_t num_best) {
    MeshSearch search;
    search.num_divide = num_divide_;
    search.num_too_large = num_too_large_;
    const auto is_faster = [](const FoundMesh& a, const FoundMesh& b) {
      return a.forecast.tokens_per_second > b.forecast.tokens_per_second;
    };
    std::ranges::stable_sort(fitting_, is_faster);
    // A bound is not slower than what it bounds: behind the last of the best nothing better comes.
    std::map<std::string, FoundMesh> kinds;
    for (FoundMesh& found : fitting_) {
      const std::string name = WayOf(found.run);
      const auto kind = kinds.find(name);
      const bool may_be_best =
          search.best.size() < num_best || is_faster(found, search.best.back());
      if (!may_be_best && kind != kinds.end() && !is_faster(found, kind->second)) continue;
      GEMINI_ASSIGN_OR_RETURN(found.forecast, ForetellStep(model_, found.run, machine_));
      if (kind == kinds.end()) {
        kinds.emplace(name, found);
      } else if (is_faster(found, kind->second)) {
        kind->second = found;
      }
      const auto same = std::ranges::find_if(
          search.best, [&](const FoundMesh& other) { return IsSameMesh(found.run, other.run); });
      if (same != search.best.end()) {
        if (!is_faster(found, *same)) continue;
        search.best.erase(same);
      }
      search.best.insert(std::ranges::upper_bound(search.best, found, is_faster), found);
      if (search.best.size() > num_best) search.best.pop_back();
    }
    for (auto& [name, found] : kinds) search.kinds.push_back({name, std::move(found)});
    std::ranges::stable_sort(
        search.kinds, [&](const auto& a, const auto& b) { return is_faster(a.found, b.found); });
    if (fitting_.empty()) search.nearest = std::move(nearest_);
    return search;
  }

  const ModelSizes& model_;
  const RankMachine& machine_;
  const ParallelRun& like_;
  const int64_t num_ranks_;
  const int64_t step_sequences_;
  RankGroups groups_;               // Of the mesh that is tried.
  std::vector<FoundMesh> fitting_;  // With bounds.
  std::vector<FoundMesh> nearest_;
  int64_t num_divide_ = 0;
  int64_t num_too_large_ = 0;
};

}  // namespace

std::string DescribeMesh(const ParallelRun& run) {
  std::string text = absl::StrCat(run.mesh.ToString(), ", ", WayOf(run), ", ZeRO ", run.zero_stage,
                                  ", ", run.micro_batches, " x ", run.batch, " sequences");
  if (run.chunks > 1) absl::StrAppend(&text, ", ", run.chunks, " chunks");
  if (run.recompute) absl::StrAppend(&text, ", recomputed");
  if (run.zero_stage == 3 && run.gathers_ahead) absl::StrAppend(&text, ", --gather-ahead 1");
  return text;
}

absl::StatusOr<MeshSearch> SearchMeshes(const ModelSizes& model, const RankMachine& machine,
                                        const ParallelRun& like, int64_t num_ranks,
                                        int64_t step_sequences, size_t num_best) {
  if (num_ranks < 1 || step_sequences < 1 || num_best < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a search for ", num_best, " meshes of ",
                                                   num_ranks, " ranks with ", step_sequences,
                                                   " sequences a step"));
  }
  return Search(model, machine, like, num_ranks, step_sequences).Run(num_best);
}

}  // namespace gemini::policies
