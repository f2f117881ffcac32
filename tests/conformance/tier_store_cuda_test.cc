// SPDX-License-Identifier: Apache-2.0
// On a driver whose allocations are memory files.
#include "server/tiers/tier_store_cuda.h"

#include "tests/conformance/tier_store_conformance.h"
#include "tests/fake_cuda_driver.h"

namespace gemini::server {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, TierStoreConformance,
                         ::testing::Values(TierStoreCase{
                             .name = "FakeDriver",
                             .make =
                                 [](int64_t capacity_bytes) {
                                   static const FakeCudaDriver fake(64 * kMiB, 64 * kKiB);
                                   return *MakeCudaTierStore(fake.driver(), 0, capacity_bytes,
                                                             64 * kKiB);
                                 },
                             .freed_while_held = false}),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace gemini::server
