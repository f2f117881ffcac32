// SPDX-License-Identifier: Apache-2.0
#include "server/nvme/nvme_io_pread.h"

#include "tests/conformance/nvme_io_conformance.h"

namespace gemini::server {
namespace {

std::unique_ptr<NvmeIo> MakeTwoThreads() { return MakePreadNvmeIo(2); }

const auto kEngines = ::testing::Values(NvmeIoCase{"Buffered", MakeTwoThreads},
                                        NvmeIoCase{"Direct", MakeTwoThreads, true});
const auto kName = [](const auto& tested) { return tested.param.name; };

INSTANTIATE_TEST_SUITE_P(Pread, NvmeIoConformance, kEngines, kName);
INSTANTIATE_TEST_SUITE_P(Pread, NvmeIoTurnsConformance, kEngines, kName);

}  // namespace
}  // namespace gemini::server
