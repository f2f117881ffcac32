// SPDX-License-Identifier: Apache-2.0
// What every Communicator does, whatever moves its bytes. Each function is a rank's, and all ranks
// of a job call it with the same arguments.
#pragma once
#include <cstdint>

#include "trainer/parallel/communicator.h"

namespace gemini::trainer {

enum class Addends : uint8_t {
  kOrderShows,  // Of such different sizes that another order of adding has other bits.
  kWhole,       // Whole numbers, which every order adds to the same.
};

// Runs sequences of random exchanges, of random sizes, in random groups, several under way at once,
// and compares what comes with a model that adds and copies as plainly as can be.
void ExpectRandomExchanges(Communicator& me, uint64_t seed, int num_sequences,
                           Addends addends = Addends::kOrderShows);

// Adds more than a slice, of a number of elements that no number of ranks divides.
void ExpectLargeSums(Communicator& me);

// Has two ranks first send and then receive, more than any buffer holds. With `by_tags` they
// receive first, by its tag, what was sent later.
void ExpectCrossedMessages(Communicator& me, bool by_tags);

// Makes each kind of exchange, and compares what was counted.
void ExpectCounts(Communicator& me);

// Has each rank issue other exchanges while it is silent, and expects that nothing comes of them.
void ExpectSilence(Communicator& me);

// Makes calls that no rank can make, and expects a refusal of each.
void ExpectRefusals(Communicator& me);

}  // namespace gemini::trainer
