// SPDX-License-Identifier: Apache-2.0
// What part of fio's rate the NVMe engine reaches, in turns with fio: between the same slab and the
// same extent, with the same block size and depth, O_DIRECT, registered buffers and io_uring.
// Extents lie elsewhere on a disk, and pages of another slab in another order in memory: on a
// virtual disk the rates of scattered and of contiguous pages were seen to differ by three. Besides
// the counters of client_bench.cc it reports fio against itself, run after run, and the processor's
// seconds a GiB.
// Reads: GEMINI_NVME_DIRECTORY, as nvme_folder.h.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/layout.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/mapped_memory.h"
#include "gemini/system/status_macros.h"
#include "nlohmann/json.hpp"
#include "server/loop/event_loop.h"
#include "server/nvme/nvme_io_uring.h"
#include "server/tiers/sealed_memfd.h"
#include "server/tiers/tier_store_nvme.h"
#include "tools/bench/nvme_folder.h"

namespace gemini::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPairs = 9;
constexpr int kSeconds = 5;  // Length of each run.
constexpr int64_t kFileBytes = kGiB;
// A chunk is one of the engine's pieces, so that both have as many requests in flight at any time.
constexpr int64_t kChunkBytes = 4 * kMiB;
constexpr int64_t kLanes = 8;  // Chunks in flight.
// As fio wants its memory: for all that is in flight, and to align it.
constexpr int64_t kSlabBytes = kLanes * kChunkBytes + kPageBytes - 1;
constexpr int64_t kSlots = kFileBytes / kChunkBytes;
constexpr int64_t kNone = -1;

struct Run {
  double bytes_per_second = 0;
  double cpu_seconds_per_gib = 0;
};

double ProcessSeconds() {
  timespec used = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

// The engine, with a lane for each chunk in flight: each has its HOST slot.
class Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Make(const std::string& directory) {
    std::unique_ptr<Engine> engine(new Engine);
    GEMINI_ASSIGN_OR_RETURN(engine->loop_, EventLoop::Make());
    GEMINI_ASSIGN_OR_RETURN(engine->nvme_store_, MakeNvmeTierStore({{directory, kFileBytes}}));
    GEMINI_ASSIGN_OR_RETURN(engine->nvme_, engine->nvme_store_->Make(kChunkBytes, kSlots));
    GEMINI_ASSIGN_OR_RETURN(engine->slab_,
                            MakeSealedMemfd("gemini-slab", kSlabBytes, MemfdPages::kHuge));
    GEMINI_ASSIGN_OR_RETURN(engine->host_map_, MappedMemory::Map(engine->slab_fd(), kSlabBytes,
                                                                 MappedMemory::Access::kReadWrite));
    if ((::fcntl(engine->nvme_fd(), F_GETFL) & O_DIRECT) == 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          directory, " takes no O_DIRECT: set GEMINI_NVME_DIRECTORY to one on a local disk"));
    }
    GEMINI_ASSIGN_OR_RETURN(engine->io_, MakeUringNvmeIo(*engine->loop_));
    return engine;
  }
  ~Engine() {
    io_.reset();
    if (nvme_store_ != nullptr) nvme_store_->Destroy(std::move(nvme_));
  }

  // Moves chunk after chunk, around the file, until `end` or until all slots had their turn.
  struct Plan {
    IoOperation operation = IoOperation::kRead;
    Clock::time_point end = Clock::time_point::max();
    int64_t max_chunks = INT64_MAX;
    std::function<void(int64_t lane, int64_t slot)> moved = [](int64_t, int64_t) {};
  };
  Run Move(const Plan& plan) {
    begun_ = finished_ = in_flight_ = 0;
    const Clock::time_point start = Clock::now();
    const double used = ProcessSeconds();
    for (int64_t lane = 0; lane < kLanes; ++lane) Continue(plan, lane);
    if (in_flight_ > 0) loop_->Run();
    const double gib = static_cast<double>(finished_ * kChunkBytes) / static_cast<double>(kGiB);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return {.bytes_per_second = static_cast<double>(finished_ * kChunkBytes) / seconds,
            .cpu_seconds_per_gib = (ProcessSeconds() - used) / gib};
  }

  void Fill(int64_t lane) {
    uint64_t* const words = LaneWords(lane);
    for (int64_t i = 0; i < kChunkBytes / 8; ++i) words[i] = Word(lane, i);
  }
  bool Holds(int64_t lane, int64_t content) const {
    const uint64_t* const words = LaneWords(lane);
    for (int64_t i = 0; i < kChunkBytes / 8; ++i) {
      if (words[i] != Word(content, i)) return false;
    }
    return true;
  }
  bool failed() const { return failed_; }
  int nvme_fd() const { return nvme_.extents[0].fd.get(); }
  int slab_fd() const { return slab_.get(); }

 private:
  Engine() = default;
  uint64_t* LaneWords(int64_t lane) const {
    return reinterpret_cast<uint64_t*>(host_map_.data() + lane * kChunkBytes);
  }
  // No two are alike: a disk may store those once.
  static uint64_t Word(int64_t content, int64_t i) {
    return (static_cast<uint64_t>(content) << 32 | static_cast<uint64_t>(i)) * 0x9e3779b97f4a7c15;
  }

  void Continue(const Plan& plan, int64_t lane) {
    if (begun_ == plan.max_chunks || Clock::now() >= plan.end) {
      if (in_flight_ == 0) loop_->Stop();
      return;
    }
    const int64_t slot = begun_++ % kSlots;
    ++in_flight_;
    io_->Submit({.operation = plan.operation,
                 .host_fd = slab_fd(),
                 .host_offset_bytes = lane * kChunkBytes,
                 .nvme_fd = nvme_fd(),
                 .nvme_offset_bytes = slot * kChunkBytes,
                 .size_bytes = kChunkBytes},
                [this, &plan, lane, slot](const absl::Status& status) {
                  failed_ |= !status.ok();
                  --in_flight_;
                  ++finished_;
                  plan.moved(lane, slot);
                  Continue(plan, lane);
                });
  }

  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<TierStore> nvme_store_;
  TierGrant nvme_;
  UniqueFd slab_;
  MappedMemory host_map_;
  std::unique_ptr<NvmeIo> io_;
  int64_t begun_ = 0;
  int64_t finished_ = 0;
  int64_t in_flight_ = 0;
  bool failed_ = false;
};

// One run of fio between an extent and a slab that this process has open. What it writes it fills
// in at its start only, as the engine does.
absl::StatusOr<Run> RunFio(const Engine& engine, absl::string_view operation) {
  const std::string descriptors = absl::StrCat("/proc/", ::getpid(), "/fd/");
  const std::string command = absl::StrCat(
      "fio --name=gemini --filename=", descriptors, engine.nvme_fd(),
      " --mem=mmapshared:", descriptors, engine.slab_fd(), " --rw=", operation,
      " --bs=", kChunkBytes, " --iodepth=", kLanes, " --size=", kFileBytes,
      " --ioengine=io_uring --direct=1 --fixedbufs=1 --registerfiles=1 --scramble_buffers=0",
      " --allow_file_create=0 --overwrite=1 --time_based --runtime=", kSeconds,
      " --output-format=json 2>&1");
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return ErrnoStatus(errno, "start fio");
  std::string output;
  std::array<char, 4096> part;
  for (size_t size; (size = std::fread(part.data(), 1, part.size(), pipe)) > 0;) {
    output.append(part.data(), size);
  }
  const int status = ::pclose(pipe);
  if (status != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("fio does not run (install it: apt-get install fio): ", output));
  }
  const auto report = nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
  if (report.is_discarded() || !report.contains("jobs")) {
    return absl::InternalError(absl::StrCat("fio wrote no report: ", output));
  }
  const auto& job = report["jobs"][0];
  const auto& way = job[operation == "read" ? "read" : "write"];
  const double bytes = way["io_bytes"].get<double>();
  const double took = way["runtime"].get<double>() / 1e3;
  const double busy_percent = job["usr_cpu"].get<double>() + job["sys_cpu"].get<double>();
  if (bytes == 0 || took == 0) return absl::InternalError("fio moved nothing");
  return Run{
      .bytes_per_second = bytes / took,
      .cpu_seconds_per_gib = busy_percent / 100 * took / (bytes / static_cast<double>(kGiB))};
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

absl::Status Compare(benchmark::State& state, IoOperation operation) {
  GEMINI_ASSIGN_OR_RETURN(const std::unique_ptr<NvmeFolder> folder, NvmeFolder::Make());
  GEMINI_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Make(folder->path()));
  const absl::string_view name = operation == IoOperation::kRead ? "read" : "write";
  std::vector<int64_t> content(kSlots);  // The lane whose bytes a slot holds; none: fio's.
  const auto written = [&](int64_t lane, int64_t slot) { content[slot] = lane; };
  int64_t wrong = 0;
  const auto check = [&] {
    engine->Move({.operation = IoOperation::kRead,
                  .max_chunks = kSlots,
                  .moved = [&](int64_t lane, int64_t slot) {
                    const bool known = content[slot] != kNone;
                    wrong += known && !engine->Holds(lane, content[slot]) ? 1 : 0;
                  }});
  };
  // Every block once: the first write of one costs the file system more.
  for (int64_t lane = 0; lane < kLanes; ++lane) engine->Fill(lane);
  engine->Move({.operation = IoOperation::kWrite, .max_chunks = kSlots, .moved = written});
  std::vector<double> fractions, engine_cpu, fio_rates, fio_cpu, fio_ratios;
  for (auto _ : state) {
    const auto by_engine = [&] {
      Engine::Plan plan = {.operation = operation};
      if (operation == IoOperation::kWrite) {
        for (int64_t lane = 0; lane < kLanes; ++lane) engine->Fill(lane);
        std::fill(content.begin(), content.end(), kNone);
        plan.moved = written;
      }
      plan.end = Clock::now() + std::chrono::seconds(kSeconds);
      const Run run = engine->Move(plan);
      check();
      return run;
    };
    const bool engine_first = fractions.size() % 2 == 0;
    Run ours;
    if (engine_first) ours = by_engine();
    GEMINI_ASSIGN_OR_RETURN(const Run fio, RunFio(*engine, name));
    if (!engine_first) ours = by_engine();
    if (!fio_rates.empty()) fio_ratios.push_back(fio.bytes_per_second / fio_rates.back());
    fractions.push_back(ours.bytes_per_second / fio.bytes_per_second);
    engine_cpu.push_back(ours.cpu_seconds_per_gib);
    fio_rates.push_back(fio.bytes_per_second);
    fio_cpu.push_back(fio.cpu_seconds_per_gib);
    state.SetIterationTime(2 * kSeconds);
  }
  state.counters["value"] = Median(fractions);
  state.counters["baseline"] = Median(fio_rates) / static_cast<double>(kGiB);
  state.counters["checked"] = wrong == 0 && !engine->failed() ? 1 : 0;
  const auto [least, most] = std::minmax_element(fractions.begin(), fractions.end());
  state.counters["least"] = *least;
  state.counters["most"] = *most;
  const auto [fio_least, fio_most] = std::minmax_element(fio_ratios.begin(), fio_ratios.end());
  state.counters["fio_to_fio_least"] = *fio_least;
  state.counters["fio_to_fio_most"] = *fio_most;
  state.counters["cpu_s_per_gib"] = Median(engine_cpu);
  state.counters["fio_cpu_s_per_gib"] = Median(fio_cpu);
  return absl::OkStatus();
}

void nvme_read_fraction_of_fio(benchmark::State& state) {
  const absl::Status status = Compare(state, IoOperation::kRead);
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}
BENCHMARK(nvme_read_fraction_of_fio)->UseManualTime()->Iterations(kPairs);

void nvme_write_fraction_of_fio(benchmark::State& state) {
  const absl::Status status = Compare(state, IoOperation::kWrite);
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}
BENCHMARK(nvme_write_fraction_of_fio)->UseManualTime()->Iterations(kPairs);

}  // namespace
}  // namespace gemini::server
