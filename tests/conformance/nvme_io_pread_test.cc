// SPDX-License-Identifier: Apache-2.0
#include "server/nvme_io_pread.h"

#include "tests/conformance/nvme_io_conformance.h"

namespace gemini::server {
namespace {

INSTANTIATE_TEST_SUITE_P(Pread, NvmeIoConformance,
                         ::testing::Values([] { return MakePreadNvmeIo(2); }));

}  // namespace
}  // namespace gemini::server
