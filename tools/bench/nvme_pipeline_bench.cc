// SPDX-License-Identifier: Apache-2.0
// What a training step takes whose optimizer states lie on NVMe alone, beside the slower of
// computing and moving them.
// Compute:  the same step with everything in memory.
// Transfer: the bytes that the step read and wrote, by the rate of the disk for that mix: as many
//           chunks read as written, both at once, as many in flight as the product has, by the
//           product's I/O engine, from and to slabs and extents like the job's. Measured in the
//           same process, in turns with both jobs.
// Checked:  parameters and states are the same bits in both jobs, after as many steps.
// Reads: GEMINI_NVME_DIRECTORY, where states lie (default: the current directory).
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/mapped_memory.h"
#include "gemini/system/status_macros.h"
#include "server/loop/event_loop.h"
#include "server/nvme/nvme_io_uring.h"
#include "server/tiers/sealed_memfd.h"
#include "server/tiers/tier_store_nvme.h"
#include "tools/bench/pipeline_job.h"

namespace gemini::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 3;
constexpr int kStepsOfRound = 3;  // One of them without an update beside it.
constexpr int64_t kChunkBytes = PipelineJob::kChunkBytes;

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Chunks that are read and chunks that are written, at once.
class DiskMix {
 public:
  static absl::StatusOr<std::unique_ptr<DiskMix>> Make(const std::string& directory) {
    std::unique_ptr<DiskMix> mix(new DiskMix);
    constexpr int64_t kFileBytes = 2 * kSlots * kChunkBytes;
    GEMINI_ASSIGN_OR_RETURN(mix->loop_, server::EventLoop::Make());
    GEMINI_ASSIGN_OR_RETURN(mix->store_, server::MakeNvmeTierStore({{directory, kFileBytes}}));
    GEMINI_ASSIGN_OR_RETURN(mix->extents_, mix->store_->Make(kChunkBytes, 2 * kSlots));
    GEMINI_ASSIGN_OR_RETURN(mix->slab_,
                            server::MakeSealedMemfd("gemini-slab", kSlabChunks * kChunkBytes,
                                                    server::MemfdPages::kAllocated));
    GEMINI_ASSIGN_OR_RETURN(mix->io_, server::MakeUringNvmeIo(*mix->loop_));
    // Every block once: the first write of one costs the file system more.
    mix->Move(kSlots, IoOperation::kWrite, IoOperation::kWrite);
    return mix;
  }
  ~DiskMix() {
    io_.reset();
    if (store_ != nullptr) store_->Destroy(std::move(extents_));
  }

  // Bytes a second, of reads and writes together.
  double Rate() {
    const Clock::time_point start = Clock::now();
    Move(kChunksOfRate, IoOperation::kRead, IoOperation::kWrite);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return static_cast<double>(2 * kChunksOfRate * kChunkBytes) / seconds;
  }
  bool failed() const { return failed_; }

 private:
  static constexpr int64_t kSlots = 128;  // Read; and as many written.
  static constexpr int64_t kChunksOfRate = 512;
  static constexpr int64_t kLanes = 8;  // The first half moves one way, the second the other.
  // Each lane goes round its part of it, as slots of a job do.
  static constexpr int64_t kSlabChunks = 64;

  DiskMix() = default;
  void Move(int64_t chunks_each, IoOperation first, IoOperation second) {
    left_ = {chunks_each, chunks_each};
    operations_ = {first, second};
    for (int64_t lane = 0; lane < kLanes; ++lane) Continue(lane);
    loop_->Run();
  }
  void Continue(int64_t lane) {
    const auto way = static_cast<size_t>(lane % 2);
    if (left_[way] == 0) {
      if (in_flight_ == 0) loop_->Stop();
      return;
    }
    const int64_t turn = left_[way]--;
    ++in_flight_;
    io_->Submit(
        {.operation = operations_[way],
         .host_fd = slab_.get(),
         .host_offset_bytes = (lane + turn * kLanes) % kSlabChunks * kChunkBytes,
         .nvme_fd = extents_.extents[0].fd.get(),
         .nvme_offset_bytes = (turn % kSlots + static_cast<int64_t>(way) * kSlots) * kChunkBytes,
         .size_bytes = kChunkBytes},
        [this, lane](const absl::Status& status) {
          failed_ |= !status.ok();
          --in_flight_;
          Continue(lane);
        });
  }

  std::unique_ptr<server::EventLoop> loop_;
  std::unique_ptr<server::TierStore> store_;
  server::TierGrant extents_;
  UniqueFd slab_;
  std::unique_ptr<server::NvmeIo> io_;
  std::array<int64_t, 2> left_ = {};
  std::array<IoOperation, 2> operations_ = {};
  int64_t in_flight_ = 0;
  bool failed_ = false;
};

struct Measured {
  std::vector<double> step, compute, rate;
  double read_bytes = 0, written_bytes = 0;  // A step.
  bool checked = false;
  int64_t host_bytes = 0, host_bytes_in_memory = 0;
};

// `compute_by_transfer`: how long the operators compute, about.
absl::StatusOr<Measured> Measure(const std::string& directory, double compute_by_transfer) {
  GEMINI_ASSIGN_OR_RETURN(const auto in_memory, PipelineJob::Start(""));
  GEMINI_ASSIGN_OR_RETURN(const auto on_nvme, PipelineJob::Start(directory));
  GEMINI_ASSIGN_OR_RETURN(const auto disk, DiskMix::Make(directory));
  // The first two steps make the moments, and move everything once.
  for (PipelineJob* const job : {in_memory.get(), on_nvme.get()}) {
    GEMINI_RETURN_IF_ERROR(job->Run(2).status());
  }
  constexpr double kStateBytes = 10;  // For an element: low half of the master and two moments.
  const double transfer =
      2 * kStateBytes * static_cast<double>(on_nvme->num_elements()) / disk->Rate();
  const double work_ns =
      compute_by_transfer * transfer / 3 / static_cast<double>(on_nvme->num_elements()) * 1e9;
  in_memory->set_work_ns(work_ns);
  on_nvme->set_work_ns(work_ns);
  Measured measured;
  measured.host_bytes = on_nvme->host_bytes();
  measured.host_bytes_in_memory = in_memory->host_bytes();
  const auto append = [](std::vector<double>& to, const std::vector<double>& values) {
    to.insert(to.end(), values.begin(), values.end());
  };
  const client::StoredBytes before = on_nvme->stored_bytes();
  for (int round = 0; round < kRounds; ++round) {
    measured.rate.push_back(disk->Rate());
    GEMINI_ASSIGN_OR_RETURN(const auto compute, in_memory->Run(kStepsOfRound));
    append(measured.compute, compute);
    GEMINI_ASSIGN_OR_RETURN(const auto step, on_nvme->Run(kStepsOfRound));
    append(measured.step, step);
    measured.rate.push_back(disk->Rate());
  }
  const client::StoredBytes after = on_nvme->stored_bytes();
  const auto a_step = [](int64_t bytes) {
    return static_cast<double>(bytes) / (kRounds * kStepsOfRound);
  };
  measured.read_bytes = a_step(after.nvme_read_bytes - before.nvme_read_bytes);
  measured.written_bytes = a_step(after.nvme_written_bytes - before.nvme_written_bytes);
  GEMINI_ASSIGN_OR_RETURN(const uint32_t expected, in_memory->Checksum());
  GEMINI_ASSIGN_OR_RETURN(const uint32_t found, on_nvme->Checksum());
  measured.checked = expected == found && !disk->failed();
  return measured;
}

// `sum_of_passes`: compare with backward, beside which no update runs, and the slower of forward
// and moving.
void Run(benchmark::State& state, double compute_by_transfer, bool sum_of_passes) {
  const char* const place = std::getenv("GEMINI_NVME_DIRECTORY");
  std::string directory = absl::StrCat(place == nullptr ? "." : place, "/gemini-bench-XXXXXX");
  if (::mkdtemp(directory.data()) == nullptr) return state.SkipWithError("no directory of its own");
  const absl::Cleanup remove = [&directory] { std::filesystem::remove_all(directory); };
  for (auto _ : state) {
    const absl::StatusOr<Measured> measured = Measure(directory, compute_by_transfer);
    if (!measured.ok()) return state.SkipWithError(measured.status().ToString().c_str());
    const double step = Median(measured->step);
    const double compute = Median(measured->compute);
    const double rate = Median(measured->rate);
    const double transfer = (measured->read_bytes + measured->written_bytes) / rate;
    const double bound = sum_of_passes ? compute * 2 / 3 + std::max(compute / 3, transfer)
                                       : std::max(compute, transfer);
    state.SetIterationTime(step);
    state.counters["value"] = step / bound;
    state.counters["baseline"] = bound;
    state.counters["checked"] = measured->checked ? 1 : 0;
    state.counters["step_s"] = step;
    state.counters["step_min_s"] = *std::ranges::min_element(measured->step);
    state.counters["step_max_s"] = *std::ranges::max_element(measured->step);
    state.counters["compute_s"] = compute;
    state.counters["transfer_s"] = transfer;
    state.counters["disk_gib_per_second"] = rate / static_cast<double>(kGiB);
    const auto [slowest, fastest] = std::ranges::minmax_element(measured->rate);
    state.counters["disk_slowest_gib_per_second"] = *slowest / static_cast<double>(kGiB);
    state.counters["disk_fastest_gib_per_second"] = *fastest / static_cast<double>(kGiB);
    state.counters["read_bytes"] = measured->read_bytes;
    state.counters["written_bytes"] = measured->written_bytes;
    state.counters["host_bytes"] = static_cast<double>(measured->host_bytes);
    state.counters["host_bytes_in_memory"] = static_cast<double>(measured->host_bytes_in_memory);
  }
}

void nvme_pipeline_over_bound(benchmark::State& state) { Run(state, 4, /*sum_of_passes=*/false); }
void nvme_pipeline_over_disk(benchmark::State& state) { Run(state, 0, /*sum_of_passes=*/false); }
void nvme_pipeline_equal(benchmark::State& state) { Run(state, 1, /*sum_of_passes=*/true); }
BENCHMARK(nvme_pipeline_over_bound)->UseManualTime()->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK(nvme_pipeline_over_disk)->UseManualTime()->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK(nvme_pipeline_equal)->UseManualTime()->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace gemini::bench
