// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/sequence_order.h"

namespace gemini::trainer {
namespace {

// Luby and Rackoff need four rounds for a random-looking permutation; small domains need more.
constexpr uint64_t kRounds = 8;

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

SequenceOrder::SequenceOrder(Kind kind, int64_t num_sequences, uint64_t seed)
    : kind_(kind), num_sequences_(num_sequences), seed_(seed) {
  while (half_bits_ < 31 && (int64_t{1} << (2 * half_bits_)) < num_sequences) ++half_bits_;
}

uint64_t SequenceOrder::Encrypt(uint64_t value, uint64_t key) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t next = left ^ (Mix(Mix(key + round) ^ right) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t SequenceOrder::At(int64_t position) const {
  const int64_t index = position % num_sequences_;
  if (kind_ == Kind::kSequential) return index;
  const auto epoch = static_cast<uint64_t>(position / num_sequences_);
  const uint64_t key = Mix(Mix(seed_) ^ epoch);
  auto value = static_cast<uint64_t>(index);
  // Ends: the walk is along a cycle of a permutation, and it started inside.
  do {
    value = Encrypt(value, key);
  } while (value >= static_cast<uint64_t>(num_sequences_));
  return static_cast<int64_t>(value);
}

}  // namespace gemini::trainer
