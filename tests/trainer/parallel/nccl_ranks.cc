// SPDX-License-Identifier: Apache-2.0
#include "tests/trainer/parallel/nccl_ranks.h"

#include <dlfcn.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini::trainer {

const NcclLibrary& FakeNcclLibrary() {
  static const NcclLibrary library = *LoadNccl(GEMINI_FAKE_NCCL);
  return library;
}

FakeNccl& TheFakeNccl() {
  void* const library = ::dlopen(GEMINI_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
  return *reinterpret_cast<FakeNccl* (*)()>(::dlsym(library, kFakeNccl))();
}

void RunNcclThreads(int64_t num_ranks, CallersMemory callers,
                    const std::function<void(int64_t rank, const NcclId& id)>& rank_main,
                    const std::function<void(FakeNccl&)>& prepare) {
  FakeNccl& fake = TheFakeNccl();
  fake.Reset();
  fake.SetMayExchange([callers](const void* bytes) { return MayExchange(callers, bytes); });
  fake.SetIsStream(IsStream);
  if (prepare != nullptr) prepare(fake);
  ASSERT_OK_AND_ASSIGN(const NcclId id, MakeNcclId(FakeNcclLibrary()));
  {
    std::vector<std::jthread> threads;
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back([&, rank] { rank_main(rank, id); });
    }
  }
  EXPECT_THAT(fake.violations(), ::testing::IsEmpty());
  EXPECT_EQ(fake.num_live(), 0);
}

void RunNcclRanks(int64_t num_ranks, CallersMemory callers, const NcclOptions& options,
                  const std::function<void(int64_t rank, MadeCommunicator made)>& rank_main,
                  const std::function<void(FakeNccl&)>& prepare) {
  RunNcclThreads(
      num_ranks, callers,
      [&](int64_t rank, const NcclId& id) {
        rank_main(rank, CommunicatorNccl::Make(FakeNcclLibrary(), MakeHostExchange(callers), id,
                                               rank, num_ranks, options));
      },
      prepare);
}

}  // namespace gemini::trainer
