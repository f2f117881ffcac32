// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/sequence_check.h"

#include "gmock/gmock.h"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using policies::Mesh;
using policies::TensorGrid;
using policies::TensorMode;
using ::testing::HasSubstr;

// `ranks` share each sequence, and each of them is `tensor` ranks of 1d. For megatron these are the
// same.
RankLayout Layout(SequenceSharing sharing, int64_t ranks, int64_t tensor = 1, bool zigzag = false) {
  const bool megatron = sharing == SequenceSharing::kMegatron;
  return {*Mesh::Make(ranks * tensor,
                      {.sequence = megatron ? 1 : ranks, .tensor = megatron ? ranks : tensor}),
          *TensorGrid::Make(TensorMode::k1d, megatron ? ranks : tensor),
          {.sharing = sharing, .zigzag = zigzag}};
}

ModelSpec Model(int64_t heads, int64_t kv_heads) {
  ModelSpec spec;
  spec.attention.num_heads = heads;
  spec.attention.num_kv_heads = kv_heads;
  return spec;
}

void ExpectRefused(const ModelSpec& spec, const RankLayout& layout, int64_t sequence,
                   const char* message) {
  EXPECT_THAT(CheckSequenceSharing(spec, layout, sequence),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
}

TEST(SequenceCheckTest, ASequenceHasPartsOfEqualLength) {
  const ModelSpec spec = Model(8, 8);
  EXPECT_OK(CheckSequenceSharing(spec, RankLayout(4), 31));
  const RankLayout zigzag = Layout(SequenceSharing::kRing, 4, 1, /*zigzag=*/true);
  EXPECT_OK(CheckSequenceSharing(spec, zigzag, 32));
  ExpectRefused(spec, zigzag, 28,
                "--sequence-parallel ring of 4 ranks: --sequence 28 does not divide by 8, two "
                "parts a rank: use 24 or 32");
  EXPECT_OK(CheckSequenceSharing(spec, Layout(SequenceSharing::kRing, 4), 28));
  ExpectRefused(spec, Layout(SequenceSharing::kRing, 4), 3, "does not divide by 4: use 4");
  EXPECT_OK(CheckSequenceSharing(spec, Layout(SequenceSharing::kUlysses, 4), 28));
  ExpectRefused(spec, Layout(SequenceSharing::kUlysses, 4), 30,
                "--sequence-parallel ulysses of 4 ranks: --sequence 30 does not divide by 4: use "
                "28 or 32");
  EXPECT_OK(CheckSequenceSharing(spec, Layout(SequenceSharing::kMegatron, 4), 28));
  ExpectRefused(spec, Layout(SequenceSharing::kMegatron, 4), 30,
                "--sequence-parallel megatron of 4 ranks: --sequence 30 does not divide by 4: use "
                "28 or 32");
}

TEST(SequenceCheckTest, HeadsDivideByTheRanksOfUlyssesAlone) {
  EXPECT_OK(CheckSequenceSharing(Model(5, 5), Layout(SequenceSharing::kRing, 2), 8));
  EXPECT_OK(CheckSequenceSharing(Model(8, 2), Layout(SequenceSharing::kUlysses, 4), 8));
  EXPECT_OK(CheckSequenceSharing(Model(8, 4), Layout(SequenceSharing::kUlysses, 2), 8));
  ExpectRefused(Model(8, 8), Layout(SequenceSharing::kUlysses, 3), 24,
                "--sequence-parallel ulysses of 3 ranks: the attention heads, 8, do not divide by "
                "3: use --sequence-size 2 or 4");
  // Four divide the heads, but not the sequence, and then two do not either.
  ExpectRefused(Model(8, 8), Layout(SequenceSharing::kUlysses, 3), 6, "use --sequence-size 2");
  ExpectRefused(Model(8, 8), Layout(SequenceSharing::kUlysses, 3), 9, "use --sequence-size 1");
  ExpectRefused(Model(12, 6), Layout(SequenceSharing::kUlysses, 4), 24,
                "the key and value heads, 6, do not divide by 4, nor 4 by them: use "
                "--sequence-size 3 or 6");
}

TEST(SequenceCheckTest, RanksOfALineHaveItsHeadsToDivide) {
  // Each of two ranks has 4 heads, and one of them for keys and values.
  EXPECT_OK(CheckSequenceSharing(Model(8, 2), Layout(SequenceSharing::kUlysses, 4, 2), 8));
  ExpectRefused(Model(8, 2), Layout(SequenceSharing::kUlysses, 8, 2), 8,
                "the attention heads of a rank of --tensor 1d, 4, do not divide by 8: use "
                "--sequence-size 4");
  ExpectRefused(Model(24, 12), Layout(SequenceSharing::kUlysses, 4, 2), 24,
                "the key and value heads of a rank of --tensor 1d, 6, do not divide by 4");
}

}  // namespace
}  // namespace gemini::trainer
