// SPDX-License-Identifier: Apache-2.0
// Says which blocks of a model each rank of a pipeline has. A pipeline cuts the blocks into stages,
// one after the other; stage g is chunk g / p of rank g % p, of p ranks. The embeddings are with
// the first stage, and the head with the last one.
// Pure: every rank computes the same and asks nobody.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gemini::trainer {

class ModelStages {
 public:
  struct Blocks {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t count() const { return end - begin; }
  };

  // One rank has all of `num_blocks`.
  explicit ModelStages(int64_t num_blocks) : ModelStages(1, {num_blocks}) {}
  // `num_ranks` >= 1 ranks. `blocks_of_stage`: how many each stage has; as many stages as ranks, or
  // a multiple.
  ModelStages(int64_t num_ranks, const std::vector<int64_t>& blocks_of_stage);

  int64_t num_ranks() const { return num_ranks_; }
  int64_t num_stages() const { return static_cast<int64_t>(stages_.size()); }
  int64_t num_chunks() const { return num_stages() / num_ranks_; }  // Of a rank.
  int64_t StageOf(int64_t rank, int64_t chunk) const { return chunk * num_ranks_ + rank; }
  int64_t RankOf(int64_t stage) const { return stage % num_ranks_; }
  const Blocks& blocks(int64_t stage) const { return stages_[static_cast<size_t>(stage)]; }
  // Returns the rank that has a block, one of the model's.
  int64_t RankOfBlock(int64_t block) const;

 private:
  int64_t num_ranks_ = 1;
  std::vector<Blocks> stages_;
};

}  // namespace gemini::trainer
