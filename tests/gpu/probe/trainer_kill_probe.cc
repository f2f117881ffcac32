// SPDX-License-Identifier: Apache-2.0
// How soon a trainer's device memory is free, and its process gone, when it is killed: at rest,
// while its kernel runs, with host memory registered. The daemon has dropped its own reference.
#include <cstdint>
#include <functional>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gemini/system/unique_fd.h"
#include "tests/gpu/probe/memory_file.h"
#include "tests/gpu/probe/nvml.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/vmm_peers.h"

namespace gemini::probe {
namespace {

constexpr int64_t kSharedBytes = int64_t{1} << 30;
constexpr int64_t kRegisteredBytes = int64_t{4} << 30;
constexpr int64_t kKernelSeconds = 10;  // More than a death may take.

void AskOf(absl::string_view question, const std::function<void(const Importer&)>& begin) {
  const Exporter exporter;
  const int64_t without = UsedDeviceBytes();
  Importer importer;
  importer.Import(exporter.CreateAndExport(kSharedBytes), kSharedBytes);
  exporter.Release();
  importer.Fill(1);
  begin(importer);
  const absl::Time start = absl::Now();
  importer.process().Signal();
  nlohmann::json answer = UntilUsedIsAtMost(start, without);
  importer.process().Wait();
  answer["ms_until_it_is_gone_too"] = absl::ToDoubleMilliseconds(absl::Now() - start);
  Answer(question, answer);
}

int Main() {
  NeedGpu();
  const UniqueFd file = NewMemoryFile(kRegisteredBytes);
  AllocateAsASlab(file, kRegisteredBytes);
  const auto register_file = [&file](const Importer& importer) {
    importer.Register(file, kRegisteredBytes);
  };
  const auto spin = [](const Importer& importer) { importer.Spin(kKernelSeconds); };
  AskOf("from killing a trainer at rest", [](const Importer&) {});
  AskOf("from killing a trainer whose kernel has 10 s to go", spin);
  AskOf("from killing a trainer with 4 GiB of host memory registered", register_file);
  AskOf("from killing a trainer with both", [&](const Importer& importer) {
    register_file(importer);
    spin(importer);
  });
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
