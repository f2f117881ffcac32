// SPDX-License-Identifier: Apache-2.0
// A trace as a client hands it to the server, and as the server reads its own files: decoded,
// packed and planned.
// Input: 8 bytes, then the bytes of a trace. The first of the 8 is the policy and the tightness of
// DEVICE, the second the HOST budget, the third to sixth the rates of the cost model, by their
// exponents; DEVICE may be below the floor.
// Holds: what is decoded passes CheckTrace and comes back equal from its encoding; a plan of it
//        passes CheckPlan and needs no more than its budget.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "gemini/plan/plan.h"
#include "gemini/plan/trace_wire.h"
#include "gemini/system/check.h"
#include "policies/planner/planner.h"
#include "policies/trace/range_trace.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/server/traces.h"

namespace gemini::fuzz {
namespace {

constexpr int64_t kChunkBytes = 4096;
// Plans of larger ones take the time of a hundred inputs. The server's own limits are far above.
constexpr int64_t kMaxChunks = 200;
constexpr size_t kMaxUses = 200;

bool IsSmall(const Trace& trace) {
  int64_t chunks = static_cast<int64_t>(trace.tensors.size());
  for (const TracedTensor& tensor : trace.tensors) chunks += tensor.size_bytes / kChunkBytes;
  return chunks <= kMaxChunks &&
         trace.uses.size() + trace.operators.size() + trace.gradient_outs.size() <= kMaxUses;
}

void Plans(const Trace& trace, absl::string_view head) {
  const auto choice = static_cast<uint8_t>(head[0]);
  const auto packed = policies::PackTrace(trace, kChunkBytes);
  if (!packed.ok()) return;
  const int64_t floor_bytes = policies::DeviceFloorBytes(*packed);
  constexpr std::array<PolicyKind, 4> kKinds = {PolicyKind::kAuto, PolicyKind::kStatic,
                                                PolicyKind::kCpu, PolicyKind::kCuda};
  // The floor can be near 2^63, as non-model data say: no client was granted so much.
  const int64_t spare_bytes = kChunkBytes * (choice >> 4);
  const int64_t budget_bytes =
      (choice & 8) != 0 ? spare_bytes : std::min(floor_bytes, int64_t{1} << 60) + spare_bytes;
  const uint8_t host = static_cast<uint8_t>(head[1]);
  const int64_t host_bytes = host == 0 ? std::numeric_limits<int64_t>::max() : kChunkBytes * host;
  // From 10^-6 to 10^19.5, those of machines in the middle; 0 is the default.
  const auto rate = [&](size_t at, double usual) {
    const auto exponent = static_cast<uint8_t>(head[at]);
    return exponent == 0 ? usual : std::pow(10.0, exponent / 10.0 - 6);
  };
  const CostModel usual;
  const CostModel costs = {
      .host_to_device = rate(2, usual.host_to_device),
      .device_to_host = rate(2, usual.device_to_host),
      .nvme_read = rate(3, usual.nvme_read),
      .nvme_write = rate(3, usual.nvme_write),
      .update_elements_per_second = rate(4, usual.update_elements_per_second),
      .device_update_elements_per_second = rate(5, usual.device_update_elements_per_second)};
  const auto plan =
      policies::MakePlan({.trace = *packed,
                          .budget_bytes = {{budget_bytes, host_bytes, int64_t{1} << 40}},
                          .costs = costs,
                          .policy = {kKinds[choice & 3], 0.5, (choice & 4) != 0 ? 0.5 : 0.0}});
  if (!plan.ok()) {
    GEMINI_CHECK(plan.status().code() != absl::StatusCode::kInternal);
    return;
  }
  GEMINI_CHECK(CheckPlan(*plan).ok());
  GEMINI_CHECK(plan->fingerprint == Fingerprint(trace));
  GEMINI_CHECK(plan->num_positions() == trace.num_positions());
  GEMINI_CHECK(plan->device_bytes <= budget_bytes);
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const int32_t num_tensors : {1, 3, 5}) {
    const std::string trace = EncodeTrace(server::StepTrace(num_tensors, 2 * kChunkBytes));
    for (const char choice : {'\x00', '\x24', '\x71'}) {
      seeds.push_back(choice + std::string(7, '\0') + trace);
      // Little HOST, and slow and fast machines.
      seeds.push_back(std::string({choice, '\x08', '\x5a', '\x96', '\x8c', '\x78', '\0', '\0'}) +
                      trace);
    }
  }
  Trace mixed = server::StepTrace(2, 100, "a phase");
  mixed.tensors.push_back({1 << 14, TensorGroup::kFrozen, 1});
  mixed.tensors.push_back({0, TensorGroup::kBuffer, 1});
  mixed.operators.back().num_uses = 0;
  GEMINI_CHECK(CheckTrace(mixed).ok());
  seeds.push_back(std::string(8, '\0') + EncodeTrace(mixed));
  // Non-model data near 2^63 beside tensors of several chunks, with DEVICE below the floor.
  Trace huge = server::StepTrace(2, 2 * kChunkBytes);
  huge.operators[0].non_model_peak_bytes = int64_t{1} << 60;
  seeds.push_back('\x18' + std::string(7, '\0') + EncodeTrace(huge));
  Trace roomy = server::StepTrace(3, 2 * kChunkBytes);
  roomy.room_bytes.assign(roomy.operators.size(), 3 * kChunkBytes);
  seeds.push_back(std::string(8, '\0') + EncodeTrace(roomy));
  return seeds;
}

}  // namespace gemini::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gemini;
  constexpr size_t kHeadBytes = 8;  // The trace begins at a multiple of 8.
  if (size < kHeadBytes) return 0;
  const auto trace = DecodeTrace(fuzz::BytesOf(data, size).substr(kHeadBytes));
  if (!trace.ok()) return 0;
  GEMINI_CHECK(CheckTrace(*trace).ok());
  GEMINI_CHECK(static_cast<int64_t>(trace->phase.size()) <= kMaxPhaseChars);
  const auto again = DecodeTrace(EncodeTrace(*trace));
  GEMINI_CHECK(again.ok() && *again == *trace);
  if (fuzz::IsSmall(*trace)) fuzz::Plans(*trace, fuzz::BytesOf(data, kHeadBytes));
  return 0;
}
