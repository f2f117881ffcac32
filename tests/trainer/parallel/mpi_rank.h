// SPDX-License-Identifier: Apache-2.0
// A test program that is one rank of several, started by mpirun: all of them run all tests, in one
// order. Without a launcher the job is of one rank.
#pragma once
#include "trainer/parallel/communicator.h"

namespace gemini::trainer {

// Returns the communicator of this process, which main makes before any test runs.
Communicator& ThisRank();

}  // namespace gemini::trainer
