// SPDX-License-Identifier: Apache-2.0
// main() of the tests in tests/gpu: exit status 77 without a GPU.
#include "gtest/gtest.h"
#include "tests/gpu/probe/probe.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  gemini::probe::NeedGpu();
  return RUN_ALL_TESTS();
}
