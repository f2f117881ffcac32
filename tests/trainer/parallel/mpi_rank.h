// SPDX-License-Identifier: Apache-2.0
// A test program that is one rank of several, started by mpirun: all of them run all tests, in one
// order. Without a launcher the job is of one rank.
#pragma once
#include "trainer/parallel/communicator.h"

namespace gemini::trainer {

// Of the whole program, from main on.
Communicator& ThisRank();

}  // namespace gemini::trainer
