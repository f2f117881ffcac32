// SPDX-License-Identifier: Apache-2.0
#include "client/copy_engine_host.h"

#include <memory>

#include "tests/conformance/copy_engine_conformance.h"

namespace gemini::client {
namespace {

INSTANTIATE_TEST_SUITE_P(Host, CopyEngineConformance, ::testing::Values(CopyEngineMaker([] {
                           return std::make_unique<CopyEngineHost>();
                         })));

}  // namespace
}  // namespace gemini::client
