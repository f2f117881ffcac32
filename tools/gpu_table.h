// SPDX-License-Identifier: Apache-2.0
// What data sheets say of GPUs, and how much of it training gets.
// Units:  bytes, bytes a second (decimal, as data sheets have them), FLOP a second.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gemini::tools {

struct GpuModel {
  absl::string_view name;  // As the user writes it: "rtx3090".
  int64_t memory_bytes = 0;
  // Peaks. Of products of 16-bit matrices, dense, summed in fp32, and of fp32 ones outside the
  // tensor cores, which is what Torch runs unless it is told that TF32 will do.
  double half_flops_per_second = 0;
  double fp32_flops_per_second = 0;
  double memory_bytes_per_second = 0;
  int pcie_generation = 0;
  int pcie_lanes = 0;
  bool has_bf16 = true;  // Before Ampere: fp16 alone.
};

// Of the tensor cores' or the shaders' peak, in the matrix products of a transformer: what large
// products reach once power limits and the last, half-filled wave of tiles are paid for.
inline constexpr double kAchievedFlopsFraction = 0.65;
// Of the memory's peak, by kernels that only read and write.
inline constexpr double kAchievedMemoryFraction = 0.80;
// Of the link's raw rate, by copies from pinned memory: headers take 24 bytes of each 256, flow
// control and the DMA engines the rest. 25 GB/s of the 31.5 of 16 lanes of generation 4.
inline constexpr double kAchievedPcieFraction = 0.80;
// What the driver, the CUDA context and the libraries' workspaces take of the memory.
inline constexpr int64_t kContextBytes = int64_t{768} << 20;
// Of a kernel: launch, and the tail in which few of its blocks run.
inline constexpr int64_t kKernelNs = 4'000;

absl::Span<const GpuModel> AllGpus();

// NOT_FOUND: no such name; suggests the nearest and says how to list them.
absl::StatusOr<GpuModel> FindGpu(absl::string_view name);

// Raw rate of the link in one direction. 0 for a generation that is not 3, 4 or 5.
double PcieBytesPerSecond(int generation, int lanes);

// One line a GPU, for people.
std::string GpuListText();

}  // namespace gemini::tools
