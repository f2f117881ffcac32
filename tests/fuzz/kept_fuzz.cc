// SPDX-License-Identifier: Apache-2.0
// The files that the server reads from its state directory: a kept trace, and the machine's costs.
// Whoever runs as the server's user may have written them.
// Input: 8 bytes, then the bytes of a file. The first of the 8 says which: even a trace, odd costs.
// Holds: what is read passes the checks of what a client sends, and comes back equal from what
//        would be written of it.
#include <string>

#include "gemini/cost_model.h"
#include "gemini/plan/trace_wire.h"
#include "gemini/system/check.h"
#include "server/plans/machine_costs.h"
#include "server/plans/trace_store.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/server/traces.h"

namespace gemini::server {
namespace {

void ReadTrace(absl::string_view bytes) {
  const auto kept = DecodeKeptTrace(bytes);
  if (!kept.ok()) return;
  const auto trace = DecodeTrace(kept->trace);
  GEMINI_CHECK(trace.ok() && CheckTrace(*trace).ok());
  GEMINI_CHECK(kept->key.phase == trace->phase);
  GEMINI_CHECK(kept->key.tensors_hash == TensorsHash(trace->tensors));
  const auto again = DecodeKeptTrace(EncodeKeptTrace(*kept));
  GEMINI_CHECK(again.ok() && again->key == kept->key && again->trace == kept->trace);
}

void ReadCosts(absl::string_view bytes) {
  const auto known = ParseCosts(bytes);
  if (!known.has_value()) return;
  const CostModel& costs = known->costs;
  for (const double rate :
       {costs.host_to_device, costs.device_to_host, costs.nvme_read, costs.nvme_write,
        costs.update_elements_per_second, costs.device_update_elements_per_second}) {
    GEMINI_CHECK(rate >= kLeastRate && rate <= kMostRate);
  }
  for (const double rate : known->calibrated) {
    GEMINI_CHECK(rate == 0 || (rate >= kLeastRate && rate <= kMostRate));
  }
  GEMINI_CHECK(costs.copy_latency_ns >= 0);
  GEMINI_CHECK(ParseCosts(CostsText(*known)) == known);
}

}  // namespace
}  // namespace gemini::server

namespace gemini::fuzz {

std::vector<std::string> Seeds() {
  const std::string trace_head(8, '\0');
  const std::string costs_head = '\1' + std::string(7, '\0');
  server::KnownCosts known;
  const std::string guesses = costs_head + server::CostsText(known);
  known.calibrated = {1e9, 2e9, 3e9, 4e9, 5e9, 6e9};
  std::vector<std::string> seeds = {guesses, costs_head + server::CostsText(known)};
  for (const int32_t num_tensors : {1, 3}) {
    const std::string trace = EncodeTrace(server::StepTrace(num_tensors, 4096));
    seeds.push_back(trace_head +
                    server::EncodeKeptTrace({.key = {.space = "a space"}, .trace = trace}));
  }
  return seeds;
}

}  // namespace gemini::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHeadBytes = 8;  // The file begins at a multiple of 8.
  if (size < kHeadBytes) return 0;
  const absl::string_view file = gemini::fuzz::BytesOf(data, size).substr(kHeadBytes);
  if (data[0] % 2 == 0) {
    gemini::server::ReadTrace(file);
  } else {
    gemini::server::ReadCosts(file);
  }
  return 0;
}
