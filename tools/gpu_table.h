// SPDX-License-Identifier: Apache-2.0
// Has the data-sheet figures of GPUs, and how much of them training reaches.
// Units: bytes, bytes a second (decimal, as data sheets have them), FLOP a second.
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
  // Peak rates: of products of 16-bit matrices, dense, summed in fp32, and of fp32 ones outside the
  // tensor cores, which Torch runs unless TF32 is allowed.
  double half_flops_per_second = 0;
  double fp32_flops_per_second = 0;
  double memory_bytes_per_second = 0;
  int pcie_generation = 0;
  int pcie_lanes = 0;
  bool has_bf16 = true;  // Before Ampere there is fp16 alone.
  // In each direction: of NVLink to the GPUs of its node, if all are joined by it, and of a GPU's
  // part of the way out of the vendor's node of eight. 0: it has none, and PCIe is its link.
  double nvlink_bytes_per_second = 0;
  double network_bytes_per_second = 0;
};

// The share of the tensor cores' or the shaders' peak that a transformer's matrix products reach:
// large products pay for power limits and for the last, half-filled wave of tiles.
inline constexpr double kAchievedFlopsFraction = 0.65;
// The share of the memory's peak that kernels reach which only read and write.
inline constexpr double kAchievedMemoryFraction = 0.80;
// The share of the link's raw rate that copies from pinned memory reach. Headers take 24 bytes of
// each 256, flow control and the DMA engines the rest: 25 GB/s of the 31.5 of 16 lanes of
// generation 4.
inline constexpr double kAchievedPcieFraction = 0.80;
// The shares of NVLink's and of a network's raw rate that collectives reach: rings of NCCL move 230
// to 240 of the 300 GB/s of an A100, and a message's headers take little of a network.
inline constexpr double kAchievedNvlinkFraction = 0.78;
inline constexpr double kAchievedNetworkFraction = 0.90;
// How long a message of nothing takes from one rank to the next.
inline constexpr double kLinkLatencySeconds = 3e-6;
inline constexpr double kNetworkLatencySeconds = 8e-6;
// The memory that the driver, the CUDA context and the libraries' workspaces take.
inline constexpr int64_t kContextBytes = int64_t{768} << 20;
// The overhead of a kernel: launch, and the tail in which few of its blocks run.
inline constexpr int64_t kKernelNs = 4'000;

absl::Span<const GpuModel> AllGpus();

// NOT_FOUND: no such name; the message suggests the nearest and says how to list them.
absl::StatusOr<GpuModel> FindGpu(absl::string_view name);

// Returns the raw rate of the link in one direction, or 0 for a generation that is not 3, 4 or 5.
double PcieBytesPerSecond(int generation, int lanes);

// Returns one line for each GPU, for people.
std::string GpuListText();

}  // namespace gemini::tools
