// SPDX-License-Identifier: Apache-2.0
// Whether device memory is cleared between tenants. Both take nearly all of it, one after the
// other, so that most of what the second has was the first's.
#include <cstdint>

#include "absl/time/clock.h"
#include "tests/gpu/probe/nvml.h"
#include "tests/gpu/probe/probe.h"
#include "tests/gpu/probe/vmm_peers.h"

namespace gemini::probe {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr uint32_t kPattern = 0xc3a5a55c;

// One tenant, whose processes are killed in the end.
void Tenant(bool fills) {
  const Exporter exporter;
  const Importer importer;
  // Whole GiB are a multiple of every granularity; 2 are left for kernels and page tables.
  const int64_t size_bytes = (FreeDeviceBytes() - 2 * kGiB) / kGiB * kGiB;
  NeedTrue(size_bytes > 0, "3 GiB of the device are free");
  importer.Import(exporter.CreateAndExport(size_bytes), size_bytes);
  if (fills) {
    importer.Fill(kPattern);
    Answer("what the first tenant fills",
           {{"GiB", size_bytes / kGiB}, {"fraction", importer.Fraction(kPattern)}});
  } else {
    Answer("what the next tenant finds in new memory",
           {{"GiB", size_bytes / kGiB},
            {"fraction_of_what_the_first_wrote", importer.Fraction(kPattern)},
            {"fraction_of_zeros", importer.Fraction(0)}});
  }
}

int Main() {
  NeedGpu();
  const int64_t idle = UsedDeviceBytes();
  for (const bool fills : {true, false}) {
    Tenant(fills);
    UntilUsedIsAtMost(absl::Now(), idle);
  }
  return 0;
}

}  // namespace
}  // namespace gemini::probe

int main() { return gemini::probe::Main(); }
