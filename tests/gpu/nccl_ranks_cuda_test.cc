// SPDX-License-Identifier: Apache-2.0
// Two ranks exchange by NCCL on one GPU, each calling itself a machine of its own, over loopback
// sockets (docs/cuda.md). LD_LIBRARY_PATH must lead to NCCL.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gemini/half_float.h"
#include "gtest/gtest.h"
#include "tests/gpu/probe/probe_process.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/communicator_conformance.h"
#include "trainer/parallel/communicator_nccl.h"
#include "trainer/parallel/exact_sum.h"
#include "trainer/parallel/exchange_gpu.h"
#include "trainer/parallel/nccl_library.h"

namespace gemini::trainer {
namespace {

using probe::Channel;
using probe::Process;

// nccl_library.h declares NCCL's interface anew, for builds without a CUDA toolkit.
static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
static_assert(static_cast<int>(NcclResult::kInProgress) == ncclInProgress);
static_assert(static_cast<int>(NcclResult::kRemoteError) == ncclRemoteError);
static_assert(static_cast<int>(NcclResult::kInvalidUsage) == ncclInvalidUsage);
static_assert(static_cast<int>(NcclType::kByte) == ncclInt8);
static_assert(static_cast<int>(NcclType::kFp16) == ncclFloat16);
static_assert(static_cast<int>(NcclType::kFp32) == ncclFloat32);
static_assert(static_cast<int>(NcclType::kFp64) == ncclFloat64);
static_assert(static_cast<int>(NcclType::kBf16) == ncclBfloat16);
static_assert(NcclLibrary::kSum == ncclSum && NcclLibrary::kNoColor == NCCL_SPLIT_NOCOLOR);
static_assert(NcclLibrary::kLeastVersion == NCCL_VERSION(2, 18, 0));
static_assert(offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(NcclConfig, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(NcclConfig, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(NcclConfig, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(NcclConfig::kUndefined == NCCL_CONFIG_UNDEF_INT);

constexpr char kNoNccl[] = "no NCCL";

// Says an id that it makes, or hears one; and at its end whether all went well.
void RunRank(int64_t rank, Channel& parent, const NcclOptions& options,
             const std::function<void(CommunicatorNccl&)>& rank_main) {
  SetNcclEnvironment({.rank = rank, .shares_gpu = true});
  const absl::StatusOr<NcclLibrary> nccl = LoadNccl();
  if (!nccl.ok()) return parent.Say(kNoNccl);
  NcclId id;
  if (rank == 0) {
    const absl::StatusOr<NcclId> made = MakeNcclId(*nccl);
    EXPECT_OK(made);
    if (made.ok()) id = *made;
    parent.Say({id.bytes, sizeof(id.bytes)});
  } else {
    parent.Say("ready");
    const std::string bytes = parent.Hear().bytes;
    std::memcpy(id.bytes, bytes.data(), sizeof(id.bytes));
  }
  absl::StatusOr<std::unique_ptr<ExchangeDevice>> device = MakeGpuExchange(0);
  EXPECT_OK(device);
  if (device.ok()) {
    const auto made = CommunicatorNccl::Make(*nccl, *std::move(device), id, rank, 2, options);
    EXPECT_OK(made);
    if (made.ok()) rank_main(**made);
  }
  parent.Say(::testing::Test::HasFailure() ? "failed" : "passed");
}

void RunTwoRanks(const NcclOptions& options,
                 const std::function<void(CommunicatorNccl&)>& rank_main) {
  const Process first([&](Channel& parent) { RunRank(0, parent, options, rank_main); });
  const Process second([&](Channel& parent) { RunRank(1, parent, options, rank_main); });
  const std::string id = first.channel().Hear().bytes;
  const std::string ready = second.channel().Hear().bytes;
  if (id == kNoNccl || ready == kNoNccl) {
    GTEST_SKIP() << kNcclName << " is not found, set LD_LIBRARY_PATH";
  }
  second.channel().Say(id);
  EXPECT_EQ(first.channel().HearOrWhyNot(), "passed");
  EXPECT_EQ(second.channel().HearOrWhyNot(), "passed");
}

NcclOptions Options(bool exact) {
  return {.exact = exact, .slice_bytes = 4096, .world_messages = MessagePaths::kAll};
}

TEST(NcclRanksCudaTest, Conformance) {
  for (const bool exact : {false, true}) {
    RunTwoRanks(Options(exact), [exact](CommunicatorNccl& me) {
      ExpectRefusals(me);
      ExpectRandomExchanges(me, /*seed=*/2, 40, exact ? Addends::kOrderShows : Addends::kWhole);
      ExpectLargeSums(me);
      ExpectCrossedMessages(me, /*by_tags=*/false);
    });
  }
}

// What is in memory of the GPU is not staged, and its sums are added by a kernel.
TEST(NcclRanksCudaTest, ExactSumsOnTheGpuHaveTheHostsBits) {
  constexpr int64_t kElements = 100'003;
  RunTwoRanks(Options(/*exact=*/true), [](CommunicatorNccl& me) {
    std::vector<uint16_t> parts;  // Of both ranks, one behind the other.
    std::mt19937 random(7);
    for (int64_t i = 0; i < 2 * kElements; ++i) {
      parts.push_back(Bf16Of(std::normal_distribution<float>(0, 100)(random)));
    }
    std::vector<uint16_t> expected(kElements), found(kElements);
    FoldSum(SumType::kBf16, reinterpret_cast<const std::byte*>(parts.data()), 2, kElements,
            reinterpret_cast<std::byte*>(expected.data()));
    void* values = nullptr;
    constexpr size_t kBytes = kElements * sizeof(uint16_t);
    ASSERT_EQ(::cudaMalloc(&values, kBytes), cudaSuccess);
    ASSERT_EQ(
        ::cudaMemcpy(values, parts.data() + me.rank() * kElements, kBytes, cudaMemcpyHostToDevice),
        cudaSuccess);
    const Work sum = me.AllReduce(me.world(), SumType::kBf16, values, kElements, "on the GPU");
    EXPECT_OK(sum->Wait());  // The stream on which the copy runs waits.
    ASSERT_EQ(::cudaMemcpy(found.data(), values, kBytes, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(found, expected);
    ::cudaFree(values);
  });
}

}  // namespace
}  // namespace gemini::trainer
