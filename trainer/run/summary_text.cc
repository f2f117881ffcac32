// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/summary_text.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gemini/byte_size.h"
#include "gemini/stall_cause.h"
#include "trainer/run/progress.h"

namespace gemini::trainer {

std::string SummaryText(const RunConfig& config, const TrainingSummary& summary) {
  const client::TrainingStats& memory = summary.memory;
  std::string text;
  const auto print = [&text](const std::string& line) { absl::StrAppend(&text, line, "\n"); };
  print(absl::StrFormat(
      "Steps        %d of %d (%d in this run), %s, %.0f %s a second", summary.step, config.steps,
      summary.step - summary.first_step, DurationText(summary.duration),
      static_cast<double>(summary.items) / std::max(absl::ToDoubleSeconds(summary.duration), 1e-9),
      summary.item_name));
  print(absl::StrFormat("Loss         %.4f at step 1, %.4f at the end", summary.first_loss,
                        summary.last_loss));
  if (summary.eval_loss.has_value()) {
    print(absl::StrFormat("Evaluation   loss %.4f%s", *summary.eval_loss,
                          Describe(summary.eval_metrics)));
  }
  if (memory.device_budget_bytes > 0) {
    print(absl::StrCat("DEVICE       peak ", FormatByteSize(memory.device_peak_bytes),
                       " of a budget of ", FormatByteSize(memory.device_budget_bytes), " (",
                       FormatByteSize(memory.non_model_peak_bytes),
                       " of activations and temporaries; operators pinned at most ",
                       FormatByteSize(memory.pinned_peak_bytes), ")"));
    print(absl::StrCat("HOST, NVME   ", FormatByteSize(memory.host_bytes), ", ",
                       FormatByteSize(memory.nvme_bytes)));
    if (summary.neediest.has_value()) {
      const RankNeeds& most = *summary.neediest;
      print(absl::StrCat("Most a rank  DEVICE peak ", FormatByteSize(most.device_peak_bytes), " (",
                         most.device_peak_bytes, " bytes), HOST ", FormatByteSize(most.host_bytes),
                         " (", most.host_bytes, " bytes)"));
    }
    print(absl::StrCat("Moved        ", FormatByteSize(memory.fetch_bytes), " to DEVICE, ",
                       FormatByteSize(memory.evict_bytes), " from it; operators waited ",
                       absl::StrFormat("%.2f s", memory.stall_seconds)));
    std::string left;
    for (int i = 0; i < kNumDivergences; ++i) {
      if (memory.phases.divergences[i] == 0) continue;
      absl::StrAppend(&left, left.empty() ? " (" : ", ", DivergenceName(static_cast<Divergence>(i)),
                      " ", memory.phases.divergences[i]);
    }
    const int64_t num_left = std::accumulate(memory.phases.divergences.begin(),
                                             memory.phases.divergences.end(), int64_t{0});
    print(absl::StrCat("Plans        followed ", memory.phases.planned_rounds, " times, left ",
                       num_left, left, left.empty() ? "" : ")"));
    if (memory.requests_given_up > 0) {
      print(absl::StrCat("Server       did not answer ", memory.requests_given_up,
                         " requests in time"));
    }
  }
  print(absl::StrCat("Checkpoint   ", summary.checkpoint.empty() ? "none" : summary.checkpoint));
  return text;
}

}  // namespace gemini::trainer
