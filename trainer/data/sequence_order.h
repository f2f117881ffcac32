// SPDX-License-Identifier: Apache-2.0
// Chooses the sequence that a run takes next. It is a pure function of the position, so that a
// resumed run needs no state but the count of sequences that were taken.
// Sequential: position p takes sequence p modulo the number of sequences.
// Shuffled:   each epoch takes every sequence once, in an order drawn from (seed, epoch).
// Source: a Feistel network on the smallest domain of an even number of bits that holds the
// sequences, walked until it lands inside ("cycle walking"): Black and Rogaway, "Ciphers with
// Arbitrary Finite Domains", CT-RSA 2002, sections 3 and 4. Round function: the finalizer of
// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014); it need be well mixed, not secret.
#pragma once
#include <cstdint>

namespace gemini::trainer {

class SequenceOrder {
 public:
  enum class Kind : uint8_t { kSequential, kShuffled };

  // num_sequences > 0.
  SequenceOrder(Kind kind, int64_t num_sequences, uint64_t seed);

  // Returns the sequence at `position` (>= 0), counted over all epochs. O(1) expected: at most four
  // walks on average.
  int64_t At(int64_t position) const;

 private:
  uint64_t Encrypt(uint64_t value, uint64_t key) const;

  Kind kind_;
  int64_t num_sequences_;
  uint64_t seed_;
  int half_bits_ = 1;  // The domain has 2^(2 * half_bits_) values.
};

}  // namespace gemini::trainer
