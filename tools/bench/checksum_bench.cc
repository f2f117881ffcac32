// SPDX-License-Identifier: Apache-2.0
// What the checksums of chunks on NVMe cost, with them and without in turns: in the time of one
// chunk's way out and another's back, and in the rate of many chunks under way. Both go all the
// way: the client takes the checksum and posts the write, the server's engine moves the chunk past
// the page cache, the client reads it back and compares.
// Reads: GEMINI_NVME_DIRECTORY, as nvme_folder.h.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/session/session.h"
#include "gemini/byte_size.h"
#include "gemini/system/status_macros.h"
#include "server/embedded_server.h"
#include "tools/bench/nvme_folder.h"

namespace gemini::client {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kChunkBytes = 4 * kMiB;
constexpr int64_t kWords = kChunkBytes / 8;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double ProcessSeconds() {
  timespec used = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// A server with two spaces of gradient chunks, of which few fit HOST: one space with checksums, one
// without.
class TwoSpaces {
 public:
  static absl::StatusOr<std::unique_ptr<TwoSpaces>> Make(int64_t num_chunks, int64_t host_slots) {
    std::unique_ptr<TwoSpaces> two(new TwoSpaces);
    GEMINI_ASSIGN_OR_RETURN(two->folder_, NvmeFolder::Make());
    server::ServerOptions server_options;
    server_options.capacity_bytes[Tier::kHost] = 2 * host_slots * kChunkBytes;
    server_options.nvme_directories = {
        {.path = two->folder_->path(), .capacity_bytes = 2 * num_chunks * kChunkBytes}};
    GEMINI_ASSIGN_OR_RETURN(two->server_, server::EmbeddedServer::Start(server_options));
    for (const bool checksums : {false, true}) {
      SessionOptions options;
      options.chunk_bytes = kChunkBytes;
      options.label = "gemini-bench";
      options.want_bytes[Tier::kHost] = host_slots * kChunkBytes;
      options.want_bytes[Tier::kNvme] = num_chunks * kChunkBytes;
      options.floor_bytes = options.want_bytes;
      options.nvme_checksums = checksums;
      GEMINI_ASSIGN_OR_RETURN(UniqueFd socket, two->server_->Connect());
      GEMINI_ASSIGN_OR_RETURN(two->sessions_[checksums], Session::Open(std::move(socket), options));
      GEMINI_ASSIGN_OR_RETURN(two->stores_[checksums], two->sessions_[checksums]->OpenSpace(
                                                           {.name = checksums ? "summed" : "plain",
                                                            .num_bundles = num_chunks,
                                                            .host_slots = host_slots,
                                                            .nvme_slots = num_chunks}));
    }
    return two;
  }

  // Brings the chunk into HOST, for which another leaves it.
  absl::StatusOr<HostChunk> Acquire(bool checksums, int64_t chunk) {
    return stores_[checksums]->AcquireUncommitted(ChunkOf(BundleId(chunk), ChunkKind::kGrad));
  }
  int64_t read_bytes(bool checksums) const {
    return stores_[checksums]->stored_bytes().nvme_read_bytes;
  }
  int64_t moved_bytes(bool checksums) const {
    return read_bytes(checksums) + stores_[checksums]->stored_bytes().nvme_written_bytes;
  }

 private:
  TwoSpaces() = default;
  std::unique_ptr<NvmeFolder> folder_;
  std::unique_ptr<server::EmbeddedServer> server_;
  std::array<std::unique_ptr<Session>, 2> sessions_;
  std::array<ChunkStore*, 2> stores_ = {};
};

// Three chunks in two HOST slots: to use the next one, another is written to NVMe and it is read
// back.
absl::Status MeasureOneByOne(benchmark::State& state) {
  constexpr int64_t kChunks = 3;
  GEMINI_ASSIGN_OR_RETURN(const std::unique_ptr<TwoSpaces> spaces,
                          TwoSpaces::Make(kChunks, /*host_slots=*/2));
  bool checked = true;
  const auto use = [&](bool checksums, int64_t chunk) {
    const auto start = Clock::now();
    const absl::StatusOr<HostChunk> held = spaces->Acquire(checksums, chunk);
    const double used_us = SecondsSince(start) * 1e6;
    checked &= held.ok() && held->data()[kChunkBytes / 2] == held->data()[0];
    if (held.ok()) std::memset(held->data(), static_cast<int>(chunk + 1), kChunkBytes);
    return used_us;
  };
  for (const bool checksums : {false, true}) {
    for (int64_t i = 0; i < 2 * kChunks; ++i) use(checksums, i % kChunks);
  }
  std::vector<double> summed, plain;
  for (auto _ : state) {
    const int64_t chunk = static_cast<int64_t>(summed.size()) % kChunks;
    plain.push_back(use(false, chunk));
    summed.push_back(use(true, chunk));
    state.SetIterationTime(summed.back() * 1e-6);
  }
  for (const bool checksums : {false, true}) {
    checked &= spaces->read_bytes(checksums) >= static_cast<int64_t>(summed.size()) * kChunkBytes;
  }
  state.counters["value"] = Median(summed);
  state.counters["baseline"] = Median(plain);
  state.counters["checked"] = checked ? 1 : 0;
  return absl::OkStatus();
}

void nvme_checksum_us(benchmark::State& state) {
  const absl::Status status = MeasureOneByOne(state);
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}
BENCHMARK(nvme_checksum_us)->UseManualTime()->MinTime(1);

// Threads that each use their own chunks in turn, so that each has a chunk on its way out or back
// at any time.
class ManyAtATime {
 public:
  static constexpr int64_t kThreads = 8;  // As chunks in flight in nvme_bench.cc.
  static constexpr int64_t kChunksOfOne = 32;
  static constexpr int64_t kChunks = kThreads * kChunksOfOne;  // 1 GiB in each space.
  // One chunk that is used, and one on its way, of each thread; the rest lets a spill begin before.
  static constexpr int64_t kHostSlots = 4 * kThreads;

  static absl::StatusOr<std::unique_ptr<ManyAtATime>> Make() {
    std::unique_ptr<ManyAtATime> many(new ManyAtATime);
    GEMINI_ASSIGN_OR_RETURN(many->spaces_, TwoSpaces::Make(kChunks, kHostSlots));
    for (const bool checksums : {false, true}) {
      for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
        GEMINI_ASSIGN_OR_RETURN(const HostChunk held, many->spaces_->Acquire(checksums, chunk));
        auto* const words = reinterpret_cast<uint64_t*>(held.data());
        // No two are alike: a disk may store those once.
        for (int64_t i = 0; i < kWords; ++i) words[i] = (chunk << 32 | i) * 0x9e3779b97f4a7c15;
        Stamp(words, 0);
      }
    }
    return many;
  }

  struct Run {
    double bytes_per_second = 0;  // Read and written.
    double cpu_seconds_per_gib = 0;
  };
  Run Move(bool checksums, std::chrono::seconds duration) {
    const int64_t before = spaces_->moved_bytes(checksums);
    const double used = ProcessSeconds();
    const Clock::time_point start = Clock::now();
    std::vector<std::thread> threads;
    for (int64_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([this, checksums, thread, end = start + duration] {
        do {
          Use(checksums, thread);
        } while (Clock::now() < end);
      });
    }
    for (std::thread& thread : threads) thread.join();
    const double seconds = SecondsSince(start);
    const auto moved = static_cast<double>(spaces_->moved_bytes(checksums) - before);
    return {.bytes_per_second = moved / seconds,
            .cpu_seconds_per_gib = (ProcessSeconds() - used) / (moved / static_cast<double>(kGiB))};
  }
  bool failed() const { return failed_; }

 private:
  ManyAtATime() = default;
  // How often the chunk was used, in the first, the middle and the last page.
  static constexpr std::array<int64_t, 3> kStamped = {0, kWords / 2, kWords - 1};
  static void Stamp(uint64_t* words, uint64_t uses) {
    for (const int64_t word : kStamped) words[word] = uses;
  }

  void Use(bool checksums, int64_t thread) {
    int64_t& uses = uses_[checksums][thread];
    const int64_t chunk = thread * kChunksOfOne + uses % kChunksOfOne;
    const int64_t round = uses++ / kChunksOfOne;
    const absl::StatusOr<HostChunk> held = spaces_->Acquire(checksums, chunk);
    if (!held.ok()) {
      failed_ = true;
      return;
    }
    auto* const words = reinterpret_cast<uint64_t*>(held->data());
    for (const int64_t word : kStamped) {
      if (words[word] != static_cast<uint64_t>(round)) failed_ = true;
    }
    Stamp(words, round + 1);
  }

  std::unique_ptr<TwoSpaces> spaces_;
  std::array<std::array<int64_t, kThreads>, 2> uses_ = {};
  std::atomic<bool> failed_ = false;
};

absl::Status MeasureManyAtATime(benchmark::State& state) {
  constexpr std::chrono::seconds kRun(3);
  GEMINI_ASSIGN_OR_RETURN(const std::unique_ptr<ManyAtATime> chunks, ManyAtATime::Make());
  // The first write of a block costs the file system more.
  for (const bool checksums : {false, true}) chunks->Move(checksums, kRun);
  std::array<std::vector<double>, 2> rates, cpu;
  std::vector<double> costs;
  for (auto _ : state) {
    // Each goes first in turn.
    const bool first = costs.size() % 2 == 0;
    for (const bool checksums : {first, !first}) {
      const ManyAtATime::Run run = chunks->Move(checksums, kRun);
      rates[checksums].push_back(run.bytes_per_second);
      cpu[checksums].push_back(run.cpu_seconds_per_gib);
    }
    costs.push_back(1 - rates[true].back() / rates[false].back());
    state.SetIterationTime(2 * static_cast<double>(kRun.count()));
  }
  state.counters["value"] = 1 - Median(rates[true]) / Median(rates[false]);
  state.counters["baseline"] = Median(rates[false]) / static_cast<double>(kGiB);
  state.counters["checked"] = chunks->failed() ? 0 : 1;
  const auto [least, most] = std::minmax_element(costs.begin(), costs.end());
  state.counters["least"] = *least;
  state.counters["most"] = *most;
  state.counters["cpu_s_per_gib"] = Median(cpu[true]);
  state.counters["plain_cpu_s_per_gib"] = Median(cpu[false]);
  return absl::OkStatus();
}

void nvme_checksum_cost(benchmark::State& state) {
  const absl::Status status = MeasureManyAtATime(state);
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}
BENCHMARK(nvme_checksum_cost)->UseManualTime()->Iterations(9);

}  // namespace
}  // namespace gemini::client
