// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/batch_context.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "torch/torch.h"

namespace gemini::trainer {
namespace {

using Scaling = RotarySpec::Scaling;

struct RotaryCase {
  const char* name;
  RotarySpec rotary;
  // Of position 8,191 and heads of 16, the first half: LlamaRotaryEmbedding of transformers 5.23,
  // and Phi3RotaryEmbedding for LongRope.
  std::vector<double> cosine;
  std::vector<double> sine;
};
const std::vector<double> kShortFactors = {1, 1.1, 1.25, 1.5, 2, 2.5, 3, 3.5};
const std::vector<double> kLongFactors = {1, 1.5, 2.5, 4, 7, 11, 17, 31};
class BatchContextTest : public ::testing::TestWithParam<RotaryCase> {};

INSTANTIATE_TEST_SUITE_P(Rotary, BatchContextTest,
                         ::testing::ValuesIn(std::vector<RotaryCase>{
                             {"Unscaled",
                              {.theta = 10000},
                              {-0.646390498, 0.0214615501, -0.655730963, 0.158535913, 0.973987579,
                               0.718274891, -0.330674648, -0.851807237},
                              {-0.763006806, 0.999769688, 0.754994631, 0.987353206, 0.226601541,
                               0.695759416, 0.943744838, 0.523855329}},
                             {"Linear",
                              {.theta = 10000, .scaling = Scaling::kLinear, .factor = 4},
                              {0.842757821, 0.925919652, -0.841097772, -0.34561789, -0.0571156591,
                               0.981554031, -0.459074974, 0.797560811},
                              {-0.538292885, 0.377720594, -0.540883064, 0.938375354, 0.998367548,
                               0.191184893, 0.888397515, 0.603238523}},
                             {"Llama3",
                              {.theta = 500000,
                               .scaling = Scaling::kLlama3,
                               .factor = 8,
                               .low_turns = 1,
                               .high_turns = 4,
                               .original_positions = 8192},
                              {-0.646390498, 0.339305282, 0.988022983, -0.999033988, -0.401702672,
                               0.960835218, 0.998517811, 0.99994427},
                              {-0.763006806, -0.940676332, 0.154306799, -0.0439440235, -0.915770173,
                               0.277120441, 0.0544257946, 0.010559421}},
                             {"Llama3OfOddNumbers",
                              {.theta = 1234.5,
                               .scaling = Scaling::kLlama3,
                               .factor = 3,
                               .low_turns = 1.3,
                               .high_turns = 3.7,
                               .original_positions = 300},
                              {-0.646390498, -0.955183566, 0.904574394, -0.998117387, 0.987743318,
                               0.876654863, 0.855920553, 0.622790396},
                              {-0.763006806, 0.29601422, -0.426315814, -0.0613323413, -0.156087056,
                               0.481119782, 0.517107308, -0.782388747}},
                             {"Yarn",
                              {.theta = 1e6,
                               .scaling = Scaling::kYarn,
                               .factor = 4,
                               .low_turns = 1,
                               .high_turns = 32,
                               .original_positions = 2048,
                               .amplitude = 1.138629436111989},
                              {-0.735999227, 0.505929112, 0.992556155, -0.576848269, -0.522716284,
                               1.06396711, 1.13624299, 1.13855398},
                              {-0.868781984, -1.02005517, -0.557950914, -0.981693923, 1.01155555,
                               0.405525714, 0.0736810416, 0.0131114209}},
                             {"YarnOfOddNumbers",
                              {.theta = 1234.5,
                               .scaling = Scaling::kYarn,
                               .factor = 3,
                               .low_turns = 2,
                               .high_turns = 20,
                               .original_positions = 300,
                               .amplitude = 0.9423209599636414,
                               .whole_pairs = false},
                              {-0.609107316, -0.792418778, 0.934366763, -0.152154773, -0.635232747,
                               0.826090217, 0.806551397, 0.586868405},
                              {-0.7189973, 0.509942353, 0.122178197, 0.929955721, 0.696023047,
                               0.45336926, 0.487281829, -0.737261295}},
                             {"LongRopeOfALongSequence",
                              {.theta = 10000,
                               .scaling = Scaling::kLongRope,
                               .original_positions = 4096,
                               .short_factors = kShortFactors,
                               .long_factors = kLongFactors,
                               .amplitude = 1.118033988749895},
                              {-0.722686529, 0.544986665, 0.682344079, -0.386412561, 0.72525084,
                               -0.789424121, 0.990747392, 1.11413348},
                              {-0.853067577, -0.976211846, 0.885667324, 1.04913557, -0.850888491,
                               0.791713119, 0.518092334, 0.0933092758}},
                             {"LongRopeOfAShortSequence",
                              {.theta = 10000,
                               .scaling = Scaling::kLongRope,
                               .original_positions = 8192,
                               .short_factors = kShortFactors,
                               .long_factors = kLongFactors,
                               .amplitude = 1.0350983390135313},
                              {-0.669077694, 0.126881421, -0.264002413, -1.02927005, -1.02834499,
                               -0.613735974, -0.948789835, 0.764343381},
                              {-0.789787054, -1.02729237, 1.00086522, 0.10968896, -0.118047625,
                               -0.833520591, 0.413795024, 0.698002636}},
                         }),
                         [](const auto& rotary) { return std::string(rotary.param.name); });

// The last bit of the second frequency is 1e-4 of its angle there.
constexpr double kTolerance = 1e-5;

HeadAngles AnglesOf(const RotarySpec& rotary, const torch::TensorOptions& options) {
  const std::vector<BlockKind> kinds = {{.rotary = rotary}};
  return MakeBatchContext(kinds, /*head_size=*/16, /*sequence=*/8192, /*longest=*/8192, options)
      .angles.at(0);
}

TEST_P(BatchContextTest, LatePositionsHaveTheAnglesOfTransformers) {
  for (const bool interleaved : {false, true}) {
    RotarySpec rotary = GetParam().rotary;
    rotary.interleaved = interleaved;
    const HeadAngles angles = AnglesOf(rotary, torch::kFloat32);
    EXPECT_EQ(angles.interleaved, interleaved);
    ASSERT_EQ(angles.cosine.sizes(), (std::vector<int64_t>{8192, 16}));
    for (int64_t i = 0; i < 16; ++i) {
      const auto at = static_cast<size_t>(interleaved ? i / 2 : i % 8);  // The pair.
      EXPECT_NEAR(angles.cosine[8191][i].item<double>(), GetParam().cosine[at], kTolerance) << i;
      EXPECT_NEAR(angles.sine[8191][i].item<double>(), GetParam().sine[at], kTolerance) << i;
    }
  }
}

TEST_P(BatchContextTest, DocumentsHaveTheAnglesThatTheyHaveAlone) {
  const std::vector<BlockKind> kinds = {{.rotary = GetParam().rotary}};
  const auto documents = std::make_shared<RowDocuments>(RowDocuments{{{4000, 4192}, {8000}}});
  const auto angles_of = [&](int64_t sequence, int64_t longest, SharedDocuments of) {
    return MakeBatchContext(kinds, 16, sequence, longest, torch::kFloat32, std::move(of))
        .angles.at(0);
  };
  const HeadAngles angles = angles_of(8192, 8000, documents);
  ASSERT_EQ(angles.cosine.sizes(), (std::vector<int64_t>{2, 1, 8192, 16}));
  // As in transformers, the longest one says which frequencies LongRope has.
  const HeadAngles alone = angles_of(8000, 8000, nullptr);
  for (const auto& [found, expected] :
       {std::pair(angles.cosine, alone.cosine), std::pair(angles.sine, alone.sine)}) {
    EXPECT_TRUE(torch::equal(found[0][0].slice(0, 0, 4000), expected.slice(0, 0, 4000)));
    EXPECT_TRUE(torch::equal(found[0][0].slice(0, 4000), expected.slice(0, 0, 4192)));
    EXPECT_TRUE(torch::equal(found[1][0].slice(0, 0, 8000), expected));
  }
}

TEST(BatchContextOfTypesTest, IsInTheTypeOfTheHiddenState) {
  const HeadAngles angles = AnglesOf({}, torch::kBFloat16);
  EXPECT_EQ(angles.cosine.scalar_type(), torch::kBFloat16);
  // As it would not be if the position were in 16 bits.
  EXPECT_NEAR(angles.cosine[8191][0].item<double>(), -0.6464, 4e-3);
}

TEST(BatchContextOfTypesTest, OfHeadsInPartTheAnglesAreThoseOfSmallerHeads) {
  const std::vector<BlockKind> quarter = {{.rotary = RotarySpec{.rotated_fraction = 0.25}}};
  const std::vector<BlockKind> whole = {{.rotary = RotarySpec{}}};
  const HeadAngles angles = MakeBatchContext(quarter, 16, 32, 32, torch::kFloat32).angles.at(0);
  const HeadAngles expected = MakeBatchContext(whole, 4, 32, 32, torch::kFloat32).angles.at(0);
  EXPECT_TRUE(torch::equal(angles.cosine, expected.cosine));
  EXPECT_TRUE(torch::equal(angles.sine, expected.sine));
}

TEST(BatchContextOfTypesTest, EachKindOfBlockHasItsAngles) {
  const RotarySpec slow = {.theta = 1e6};
  const RotarySpec fast = {.theta = 100};
  const std::vector<BlockKind> kinds = {
      {.rotary = slow}, {.window = 8, .rotary = fast}, {}, {.window = 8, .rotary = slow}};
  const BatchContext context = MakeBatchContext(kinds, 16, 32, 32, torch::kFloat32);
  ASSERT_EQ(context.angles.size(), 4u);
  EXPECT_FALSE(torch::equal(context.angles[0].cosine, context.angles[1].cosine));
  EXPECT_FALSE(context.angles[2].cosine.defined());
  // Kinds that are rotated alike take memory once.
  EXPECT_TRUE(context.angles[3].cosine.is_same(context.angles[0].cosine));
}

}  // namespace
}  // namespace gemini::trainer
