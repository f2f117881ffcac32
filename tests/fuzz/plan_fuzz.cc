// SPDX-License-Identifier: Apache-2.0
// A plan as a client gets it from its server: decoded and checked, before anything follows it.
// Holds: what is decoded passes CheckPlan and comes back equal from its encoding; and one of the
//        seeds' round that passes can be played to its end.
#include "gemini/plan/plan.h"
#include "gemini/plan/plan_wire.h"
#include "gemini/system/check.h"
#include "policies/planner/planner.h"
#include "policies/simulator/simulator.h"
#include "policies/trace/range_trace.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/server/traces.h"

namespace gemini::fuzz {
namespace {

constexpr int64_t kChunkBytes = 4096;

const policies::RangeTrace& Packed() {
  static const policies::RangeTrace packed = [] {
    auto made = policies::PackTrace(server::StepTrace(4, 2 * kChunkBytes), kChunkBytes);
    GEMINI_CHECK(made.ok());
    return *std::move(made);
  }();
  return packed;
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  const int64_t floor_bytes = policies::DeviceFloorBytes(Packed());
  for (const int64_t spare_chunks : {0, 2, 6, 40}) {
    for (const int64_t host_chunks : {1 << 10, 24}) {
      for (const PolicyKind kind : {PolicyKind::kAuto, PolicyKind::kStatic}) {
        const auto plan =
            policies::MakePlan({.trace = Packed(),
                                .budget_bytes = {{floor_bytes + spare_chunks * kChunkBytes,
                                                  host_chunks * kChunkBytes, int64_t{1} << 30}},
                                .costs = {},
                                .policy = {kind, 0.5, 0.5}});
        if (plan.ok()) seeds.push_back(EncodePlan(*plan));
      }
    }
  }
  GEMINI_CHECK(!seeds.empty());
  return seeds;
}

}  // namespace gemini::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gemini;
  const auto plan = DecodePlan(fuzz::BytesOf(data, size));
  if (!plan.ok()) return 0;
  GEMINI_CHECK(CheckPlan(*plan).ok());
  const std::string encoded = EncodePlan(*plan);
  const auto again = DecodePlan(encoded);
  // By bytes: a fraction may be no number, which equals nothing.
  GEMINI_CHECK(again.ok() && EncodePlan(*again) == encoded);
  (void)policies::Simulate(fuzz::Packed(), *plan, {}, /*with_events=*/true);
  return 0;
}
