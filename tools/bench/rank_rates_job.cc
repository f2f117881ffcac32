// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/rank_rates_job.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gemini/byte_size.h"
#include "gemini/cost_model.h"
#include "gemini/system/status_macros.h"
#include "server/plans/calibration.h"
#include "tools/bench/adam_job.h"
#include "tools/bench/reference_block.h"
#include "torch/utils.h"
#include "trainer/forecast/compute_rate.h"
#include "trainer/parallel/rank_agreement.h"
#include "trainer/parallel/rank_environment.h"
#include "trainer/run/rank_job.h"

namespace gemini::bench {
namespace {

using trainer::Communicator;
using trainer::Work;

constexpr int kRuns = 5;
// Of all parts of an exchange together: one that latencies decide, and two whose difference tells
// the link's rate without them. The smaller of these is above what MPI sends at once.
constexpr int64_t kFewBytes = 4 * kKiB;
constexpr int64_t kSomeBytes = 2 * kMiB;
constexpr int64_t kManyBytes = 16 * kMiB;
// How often one is timed at a time.
constexpr int kFewTimes = 50;
constexpr int kSomeTimes = 8;

int64_t UsableProcessors() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set)
                                                        : ::sysconf(_SC_NPROCESSORS_ONLN);
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

class RankRatesJob {
 public:
  explicit RankRatesJob(Communicator& ranks)
      : ranks_(ranks), agreement_(ranks), memory_(std::make_shared<Memory>()) {}

  absl::StatusOr<tools::RankRates> Measure() {
    GEMINI_RETURN_IF_ERROR(Meet());
    const trainer::ComputeRate own = trainer::MeasureSharedComputeRate();
    GEMINI_RETURN_IF_ERROR(Meet());
    const double of_block = SecondsOfReferenceBlock();
    tools::RankRates rates;
    rates.num_ranks = ranks_.num_ranks();
    rates.num_processors = UsableProcessors();
    GEMINI_ASSIGN_OR_RETURN(rates.compute.memory_bytes_per_second,
                            MeanOfRanks(own.memory_bytes_per_second));
    GEMINI_ASSIGN_OR_RETURN(rates.compute.attention_flops_per_second,
                            MeanOfRanks(own.attention_flops_per_second));
    GEMINI_ASSIGN_OR_RETURN(const double kernel_ns,
                            MeanOfRanks(static_cast<double>(own.kernel_ns)));
    rates.compute.kernel_ns = static_cast<int64_t>(kernel_ns);
    GEMINI_ASSIGN_OR_RETURN(const double block_seconds, MeanOfRanks(of_block));
    rates.compute.flops_per_second = FlopsByReferenceBlock(block_seconds, rates.compute);
    GEMINI_RETURN_IF_ERROR(MeasureCopies(rates));
    GEMINI_RETURN_IF_ERROR(MeasureExchanges(rates));
    return rates;
  }

 private:
  // Behind a failure other ranks may still read and write it.
  struct Memory {
    std::vector<std::byte> from = std::vector<std::byte>(kManyBytes);
    std::vector<std::byte> to = std::vector<std::byte>(kManyBytes);
  };

  // Begins what follows in all ranks at about the same time.
  absl::Status Meet() { return MeanOfRanks(0).status(); }
  absl::StatusOr<double> MeanOfRanks(double own) {
    GEMINI_ASSIGN_OR_RETURN(const std::vector<double> all,
                            agreement_.Gather(own, "rates of all ranks"));
    return Mean(all);
  }

  // Returns how long an exchange of `bytes` takes, the median of some runs.
  absl::StatusOr<double> SecondsOf(absl::FunctionRef<Work(int64_t bytes)> begin, int64_t bytes,
                                   int times) {
    std::vector<double> seconds;
    for (int run = 0; run <= kRuns; ++run) {
      GEMINI_RETURN_IF_ERROR(Meet());
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < times; ++i) {
        GEMINI_RETURN_IF_ERROR(trainer::Await(begin(bytes), memory_));
      }
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      GEMINI_ASSIGN_OR_RETURN(const double mean, MeanOfRanks(taken.count() / times));
      if (run > 0) seconds.push_back(mean);  // The first one touches memory for the first time.
    }
    std::ranges::nth_element(seconds, seconds.begin() + kRuns / 2);
    return seconds[kRuns / 2];
  }

  // Copies and updates on DEVICE as the daemons of the ranks measure them at their start, the means
  // of some times; and updates in HOST as the ranks make them, for many of the slices of time in
  // which processes get a processor.
  absl::Status MeasureCopies(tools::RankRates& rates) {
    constexpr int kTimes = 15;
    double of_copy = 0, of_update = 0;  // Seconds of a byte, and of an element.
    for (int i = 0; i < kTimes; ++i) {
      GEMINI_RETURN_IF_ERROR(Meet());
      const CostModel costs = server::Calibrate(
          /*nvme_directories=*/{}, /*gpu_memory_rate=*/std::nullopt, [] { return false; });
      of_copy += 1 / costs.host_to_device / kTimes;
      of_update += 1 / costs.device_update_elements_per_second / kTimes;
    }
    constexpr int64_t kElements = 4 << 20;
    constexpr std::chrono::milliseconds kTime(400);
    AdamJob updates(kElements, /*num_threads=*/0);  // As many as a daemon takes, and a client.
    GEMINI_RETURN_IF_ERROR(Meet());
    int64_t updated = 0;
    std::chrono::duration<double> taken(0);
    for (const auto start = std::chrono::steady_clock::now(); taken < kTime;
         taken = std::chrono::steady_clock::now() - start) {
      updates.Update();
      updated += kElements;
    }
    // In fp32 an element has more bytes.
    const double in_host =
        static_cast<double>(updated) / taken.count() * AdamJob::kBytesPerElement / kBytesAnUpdate;
    GEMINI_ASSIGN_OR_RETURN(rates.copy_bytes_per_second, MeanOfRanks(1 / of_copy));
    GEMINI_ASSIGN_OR_RETURN(rates.device_update_elements_per_second, MeanOfRanks(1 / of_update));
    GEMINI_ASSIGN_OR_RETURN(rates.update_elements_per_second, MeanOfRanks(in_host));
    return absl::OkStatus();
  }

  // Turns the seconds of gathers and of sums around, as policies/mesh/collective_cost.h counts them
  // on one node.
  absl::Status MeasureExchanges(tools::RankRates& rates) {
    const auto gather = [this](int64_t bytes) {
      return ranks_.AllGather(ranks_.world(), memory_->from.data(), memory_->to.data(),
                              bytes / ranks_.num_ranks(), "gathers that are measured");
    };
    const auto scatter = [this](int64_t bytes) {
      return ranks_.ReduceScatter(ranks_.world(), trainer::SumType::kFp32, memory_->from.data(),
                                  memory_->to.data(),
                                  bytes / ranks_.num_ranks() / static_cast<int64_t>(sizeof(float)),
                                  "sums that are measured");
    };
    GEMINI_ASSIGN_OR_RETURN(const double few, SecondsOf(gather, kFewBytes, kFewTimes));
    GEMINI_ASSIGN_OR_RETURN(const double some, SecondsOf(gather, kSomeBytes, kSomeTimes));
    GEMINI_ASSIGN_OR_RETURN(const double many, SecondsOf(gather, kManyBytes, kSomeTimes));
    GEMINI_ASSIGN_OR_RETURN(const double some_added, SecondsOf(scatter, kSomeBytes, kSomeTimes));
    GEMINI_ASSIGN_OR_RETURN(const double many_added, SecondsOf(scatter, kManyBytes, kSomeTimes));
    const auto others = static_cast<double>(ranks_.num_ranks() - 1);
    const double bytes_of_others = static_cast<double>(kManyBytes - kSomeBytes) * others /
                                   static_cast<double>(ranks_.num_ranks());
    // A machine that is busy elsewhere may time more bytes as less.
    const auto rate = [&](double seconds) { return bytes_of_others / std::max(seconds, 1e-9); };
    rates.link = {.latency_seconds = few / others, .bytes_per_second = rate(many - some)};
    rates.sum_bytes_per_second = rate((many_added - some_added) - (many - some));
    return absl::OkStatus();
  }

  Communicator& ranks_;
  const trainer::RankAgreement agreement_;
  const std::shared_ptr<Memory> memory_;
};

absl::StatusOr<tools::RankRates> JoinAndMeasure() {
  torch::set_num_threads(static_cast<int>(tools::kThreadsOfRates));
  GEMINI_ASSIGN_OR_RETURN(const trainer::RankEnvironment where, trainer::ReadRankEnvironment());
  if (where.num_ranks < 2) {
    return absl::InvalidArgumentError("one rank exchanges nothing: start several by mpirun");
  }
  GEMINI_ASSIGN_OR_RETURN(const trainer::RankJob job,
                          trainer::JoinRanks(where, trainer::JoinWish()));
  GEMINI_ASSIGN_OR_RETURN(const tools::RankRates rates, MeasureRankRates(*job.communicator));
  if (where.rank == 0) std::printf("%s\n", tools::ToJson(rates).c_str());
  return rates;
}

}  // namespace

absl::StatusOr<tools::RankRates> MeasureRankRates(Communicator& ranks) {
  return RankRatesJob(ranks).Measure();
}

int RunRankRates() {
  const absl::StatusOr<tools::RankRates> rates = JoinAndMeasure();
  if (rates.ok()) return 0;
  std::fprintf(stderr, "gemini-bench rank-rates: %s\n",
               std::string(rates.status().message()).c_str());
  // Nothing is put in order: other ranks may read and write what this one has.
  std::_Exit(1);
}

}  // namespace gemini::bench
