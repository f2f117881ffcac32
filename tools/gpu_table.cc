// SPDX-License-Identifier: Apache-2.0
#include "tools/gpu_table.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gemini/byte_size.h"
#include "gemini/nearest_name.h"

namespace gemini::tools {
namespace {

constexpr double kTera = 1e12;
constexpr double kGb = 1e9;

// Sources: NVIDIA's architecture papers (Turing TU102/TU104/TU106, appendix A; Ampere GA102,
// appendix A; Ada, appendix A; RTX Blackwell, appendix A) for GeForce: on these, products of 16-bit
// matrices summed in fp32 run at twice the shaders' fp32 rate (Turing: four times), half of what is
// printed for sums in fp16. NVIDIA's product pages for what those papers leave out (xx60). Data
// sheets of V100, T4, A100, L40S, H100 and H200; dense, so half of what is printed "with sparsity".
// NVLink is half of what they print for both directions. Networks: data sheets of DGX-1 (four
// adapters of 100 Gb/s for eight V100), DGX A100 (eight of 200 Gb/s), DGX H100 and H200 (eight of
// 400 Gb/s).
constexpr GpuModel kGpus[] = {
    {"rtx2060", 6 * kGiB, 25.8 * kTera, 6.45 * kTera, 336 * kGb, 3, 16, false},  // Turing TU106.
    {"rtx2080ti", 11 * kGiB, 53.8 * kTera, 13.4 * kTera, 616 * kGb, 3, 16, false},
    {"rtx3060", 12 * kGiB, 25.5 * kTera, 12.7 * kTera, 360 * kGb, 4, 16},  // Product page.
    {"rtx3070", 8 * kGiB, 40.6 * kTera, 20.3 * kTera, 448 * kGb, 4, 16},   // Ampere GA104.
    {"rtx3080", 10 * kGiB, 59.5 * kTera, 29.8 * kTera, 760 * kGb, 4, 16},  // Ampere GA102.
    {"rtx3090", 24 * kGiB, 71.0 * kTera, 35.6 * kTera, 936 * kGb, 4, 16},
    {"rtx4060", 8 * kGiB, 30.2 * kTera, 15.1 * kTera, 272 * kGb, 4, 8},     // Product page.
    {"rtx4060ti", 16 * kGiB, 44.1 * kTera, 22.1 * kTera, 288 * kGb, 4, 8},  // That of 16 GB.
    {"rtx4070", 12 * kGiB, 58.3 * kTera, 29.1 * kTera, 504 * kGb, 4, 16},   // Ada AD104.
    {"rtx4080", 16 * kGiB, 97.5 * kTera, 48.7 * kTera, 717 * kGb, 4, 16},   // Ada AD103.
    {"rtx4090", 24 * kGiB, 165.2 * kTera, 82.6 * kTera, 1008 * kGb, 4, 16},
    {"rtx5070", 12 * kGiB, 61.7 * kTera, 30.9 * kTera, 672 * kGb, 5, 16},  // Blackwell GB205.
    {"rtx5080", 16 * kGiB, 112.6 * kTera, 56.3 * kTera, 960 * kGb, 5, 16},
    {"rtx5090", 32 * kGiB, 209.5 * kTera, 104.8 * kTera, 1792 * kGb, 5, 16},
    {"t4", 16 * kGiB, 65.0 * kTera, 8.1 * kTera, 320 * kGb, 3, 16, false},
    {"v100", 32 * kGiB, 125.0 * kTera, 15.7 * kTera, 900 * kGb, 3, 16, false, 150 * kGb,
     6.25 * kGb},
    {"a100-40", 40 * kGiB, 312.0 * kTera, 19.5 * kTera, 1555 * kGb, 4, 16, true, 300 * kGb,
     25 * kGb},
    {"a100-80", 80 * kGiB, 312.0 * kTera, 19.5 * kTera, 2039 * kGb, 4, 16, true, 300 * kGb,
     25 * kGb},
    {"l40s", 48 * kGiB, 362.0 * kTera, 91.6 * kTera, 864 * kGb, 4, 16},
    {"h100-pcie", 80 * kGiB, 756.0 * kTera, 51.0 * kTera, 2000 * kGb, 5, 16},
    {"h100", 80 * kGiB, 989.0 * kTera, 67.0 * kTera, 3350 * kGb, 5, 16, true, 450 * kGb, 50 * kGb},
    {"h200", 141 * kGiB, 989.0 * kTera, 67.0 * kTera, 4800 * kGb, 5, 16, true, 450 * kGb, 50 * kGb},
};

}  // namespace

absl::Span<const GpuModel> AllGpus() { return kGpus; }

absl::StatusOr<GpuModel> FindGpu(absl::string_view name) {
  std::vector<absl::string_view> names;
  for (const GpuModel& gpu : kGpus) {
    if (gpu.name == name) return gpu;
    names.push_back(gpu.name);
  }
  return absl::NotFoundError(
      absl::StrCat("no GPU '", name.substr(0, 100), "' in the table", DidYouMean(name, names),
                   "; --gpu list shows all, and --tflops, --memory-bandwidth, "
                   "--pcie and --device describe another"));
}

double PcieBytesPerSecond(int generation, int lanes) {
  // Transfers a second a lane, one bit each, 128 of 130 of them data.
  const double transfers = generation == 3   ? 8e9
                           : generation == 4 ? 16e9
                           : generation == 5 ? 32e9
                                             : 0;
  return transfers * 128 / 130 / 8 * lanes;
}

std::string GpuListText() {
  std::string text = absl::StrFormat("%-10s %8s %12s %12s %12s  %s\n", "GPU", "memory", "16-bit",
                                     "fp32", "memory", "link");
  for (const GpuModel& gpu : kGpus) {
    absl::StrAppendFormat(
        &text, "%-10s %8s %5.1f TFLOP/s %5.1f TFLOP/s %7.0f GB/s  PCIe %d x%d%s\n", gpu.name,
        FormatByteSize(gpu.memory_bytes), gpu.half_flops_per_second / kTera,
        gpu.fp32_flops_per_second / kTera, gpu.memory_bytes_per_second / kGb, gpu.pcie_generation,
        gpu.pcie_lanes, gpu.has_bf16 ? "" : ", fp16 only");
  }
  absl::StrAppendFormat(
      &text,
      "Peaks of the data sheets. Predictions take %.0f%% of the arithmetic, %.0f%% "
      "of the memory's\nand %.0f%% of the link's rate, and leave %s to the driver.\n",
      100 * kAchievedFlopsFraction, 100 * kAchievedMemoryFraction, 100 * kAchievedPcieFraction,
      FormatByteSize(kContextBytes));
  return text;
}

}  // namespace gemini::tools
