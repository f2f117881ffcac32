// SPDX-License-Identifier: Apache-2.0
#include "gemini/layout.h"

#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gemini/byte_size.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kChunkBytes = 2 * kPageBytes;

TensorSpec Tensor(int64_t size_bytes, TensorGroup group = TensorGroup::kTrainable) {
  return {.name = "t", .size_bytes = size_bytes, .group = group};
}

TEST(LayoutTest, SmallTensorsShareAChunkInTheirOrderAtAlignedOffsets) {
  const std::vector<TensorSpec> tensors = {Tensor(100), Tensor(256), Tensor(257), Tensor(1)};
  ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::Pack(tensors, kChunkBytes));
  EXPECT_EQ(layout.num_bundles(), 1);
  EXPECT_EQ(layout.place(0), (TensorPlace{BundleId(0), 1, 0}));
  EXPECT_EQ(layout.place(1), (TensorPlace{BundleId(0), 1, 256}));
  EXPECT_EQ(layout.place(2), (TensorPlace{BundleId(0), 1, 512}));
  EXPECT_EQ(layout.place(3), (TensorPlace{BundleId(0), 1, 1024}));
  EXPECT_EQ(layout.padding_bytes(), kChunkBytes - 614);
}

TEST(LayoutTest, ATensorOfExactlyOneChunkFillsItAndOneMoreByteSpansTwo) {
  const std::vector<TensorSpec> tensors = {Tensor(kChunkBytes), Tensor(kChunkBytes + 1)};
  ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::Pack(tensors, kChunkBytes));
  EXPECT_EQ(layout.place(0), (TensorPlace{BundleId(0), 1, 0}));
  EXPECT_EQ(layout.place(1), (TensorPlace{BundleId(1), 2, 0}));
  EXPECT_EQ(layout.num_bundles(), 3);
}

TEST(LayoutTest, NothingSharesTheChunksOfASpanningTensor) {
  const std::vector<TensorSpec> tensors = {Tensor(10), Tensor(3 * kChunkBytes + 5), Tensor(20)};
  ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::Pack(tensors, kChunkBytes));
  EXPECT_EQ(layout.place(1), (TensorPlace{BundleId(1), 4, 0}));
  // The chunk that was open before it takes the next small tensor.
  EXPECT_EQ(layout.place(2), (TensorPlace{BundleId(0), 1, 256}));
}

TEST(LayoutTest, TensorsOfDifferentGroupsNeverShareAChunk) {
  const std::vector<TensorSpec> tensors = {Tensor(8), Tensor(8, TensorGroup::kFrozen),
                                           Tensor(8, TensorGroup::kBuffer), Tensor(8)};
  ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::Pack(tensors, kChunkBytes));
  EXPECT_EQ(layout.num_bundles(), 3);
  EXPECT_EQ(layout.group(BundleId(0)), TensorGroup::kTrainable);
  EXPECT_EQ(layout.group(BundleId(1)), TensorGroup::kFrozen);
  EXPECT_EQ(layout.group(BundleId(2)), TensorGroup::kBuffer);
  EXPECT_EQ(layout.place(3).first_bundle, BundleId(0));
}

TEST(LayoutTest, AnEmptyTensorTakesNoRoomAndStartsInsideAChunk) {
  const std::vector<TensorSpec> tensors = {Tensor(0), Tensor(kChunkBytes), Tensor(0)};
  ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::Pack(tensors, kChunkBytes));
  EXPECT_EQ(layout.num_bundles(), 1);
  EXPECT_EQ(layout.place(1), (TensorPlace{BundleId(0), 1, 0}));
  EXPECT_EQ(layout.place(2), (TensorPlace{BundleId(0), 1, 0}));
  EXPECT_EQ(layout.padding_bytes(), 0);
}

TEST(LayoutTest, NoTensorsMakeNoBundles) {
  ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::Pack({}, kChunkBytes));
  EXPECT_EQ(layout.num_bundles(), 0);
  EXPECT_EQ(layout.padding_bytes(), 0);
}

TEST(LayoutTest, AChunkThatIsNoMultipleOfAPageIsRefused) {
  for (const int64_t chunk_bytes : {int64_t{0}, int64_t{-4096}, int64_t{1}, kPageBytes + 256}) {
    EXPECT_THAT(Layout::Pack({}, chunk_bytes),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("multiple of 4096")));
  }
}

TEST(LayoutTest, ANegativeSizeIsRefusedByName) {
  const std::vector<TensorSpec> tensors = {{.name = "wte.weight", .size_bytes = -1}};
  EXPECT_THAT(Layout::Pack(tensors, kChunkBytes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("wte.weight")));
}

// Sizes may come from a checkpoint that lies: no overflow, and no table of bundles for it.
TEST(LayoutTest, MoreBundlesThanACommitWordCanNameAreRefused) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(Layout::Pack(std::vector<TensorSpec>{Tensor(kHuge)}, kChunkBytes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("larger chunks")));
  EXPECT_THAT(Layout::Pack(std::vector<TensorSpec>(40, Tensor(kHuge / 4)), kGiB),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("larger chunks")));
}

constexpr StateFormat kBf16With8Bit = {.element = ElementType::kBf16,
                                       .moments = MomentFormat::k8Bit};
constexpr int64_t kBlockBytes = 2 * kQuantisationBlockElements;

// Codes and scales of the moments of all elements must fit one chunk.
TEST(LayoutTest, Moments8BitLeaveRoomForTheirScales) {
  constexpr int64_t kBytes = 64 << 10;
  const QuantisedMomentsChunk moments = QuantisedMomentsOf(kBf16With8Bit, kBytes);
  EXPECT_EQ(moments.elements, 15 * kQuantisationBlockElements);
  EXPECT_LE(moments.size_bytes(), kBytes);
  EXPECT_EQ(moments.codes_offset(ChunkKind::kExpAvgSq), moments.elements);
  EXPECT_EQ(moments.scales_offset(ChunkKind::kExpAvg), 2 * moments.elements);
  EXPECT_EQ(moments.scales_offset(ChunkKind::kExpAvgSq), 2 * moments.elements + 15 * 4);
  EXPECT_EQ(PayloadBytes(kBf16With8Bit, kBytes), 15 * kBlockBytes);
  // One of 513 bytes in the limit; nothing where codes and scales fit beside the parameters anyway.
  EXPECT_GT(PayloadBytes(kBf16With8Bit, 32 << 20), (32 << 20) - (32 << 20) / 500);
  EXPECT_EQ(PayloadBytes({.moments = MomentFormat::k8Bit}, kBytes), kBytes);
  EXPECT_EQ(PayloadBytes({.element = ElementType::kBf16,
                          .optimizer = OptimizerKind::kSgd,
                          .moments = MomentFormat::k8Bit},
                         kBytes),
            kBytes);
}

TEST(LayoutTest, With8BitMomentsTrainableTensorsBeginAtBlocksAndFillPayloads) {
  constexpr int64_t kBytes = 64 << 10, kPayload = 15 * kBlockBytes;
  const std::vector<TensorSpec> tensors = {
      Tensor(100),
      Tensor(kBlockBytes + 2),
      Tensor(8),
      Tensor(kPayload + 2),
      Tensor(kPayload),
      Tensor(10, TensorGroup::kFrozen),
      Tensor(10, TensorGroup::kFrozen),
  };
  ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::Pack(tensors, kBytes, kBf16With8Bit));
  EXPECT_EQ(layout.payload_bytes(), kPayload);
  EXPECT_EQ(layout.place(0), (TensorPlace{BundleId(0), 1, 0}));
  EXPECT_EQ(layout.place(1), (TensorPlace{BundleId(0), 1, kBlockBytes}));
  EXPECT_EQ(layout.place(2), (TensorPlace{BundleId(0), 1, 3 * kBlockBytes}));
  EXPECT_EQ(layout.place(3), (TensorPlace{BundleId(1), 2, 0}));
  EXPECT_EQ(layout.place(4), (TensorPlace{BundleId(3), 1, 0}));
  EXPECT_EQ(layout.place(6), (TensorPlace{BundleId(4), 1, kTensorAlignmentBytes}));
  for (const int64_t odd : {kPageBytes, 3 * kPageBytes}) {
    EXPECT_THAT(Layout::Pack(tensors, odd, kBf16With8Bit),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a multiple of 8192")));
  }
}

// Property: against a model that marks every byte, on random tensors of all groups.
TEST(LayoutTest, RandomTensorsNeitherOverlapNorMixGroupsNorLoseAlignment) {
  std::mt19937_64 random(/*seed=*/3);
  for (int round = 0; round < 200; ++round) {
    const int64_t chunk_bytes = kPageBytes * static_cast<int64_t>(1 + random() % 4);
    std::vector<TensorSpec> tensors(random() % 60);
    int64_t total_bytes = 0;
    for (TensorSpec& tensor : tensors) {
      const int64_t largest = random() % 5 == 0 ? 4 * chunk_bytes : chunk_bytes / 3;
      tensor = Tensor(static_cast<int64_t>(random() % (largest + 1)),
                      static_cast<TensorGroup>(random() % 3));
      total_bytes += tensor.size_bytes;
    }
    ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::Pack(tensors, chunk_bytes));

    // Byte (bundle, offset) to the tensor that has it, at the granularity of alignment.
    std::map<std::pair<int64_t, int64_t>, size_t> owner_of_line;
    std::map<int64_t, size_t> spanner_of_bundle;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const TensorPlace& place = layout.place(static_cast<int64_t>(i));
      ASSERT_GE(place.first_bundle.value(), 0);
      ASSERT_LE(place.first_bundle.value() + place.num_bundles, layout.num_bundles());
      ASSERT_EQ(place.offset_bytes % kTensorAlignmentBytes, 0);
      ASSERT_LT(place.offset_bytes, chunk_bytes);
      ASSERT_LE(place.offset_bytes + tensors[i].size_bytes, place.num_bundles * chunk_bytes);
      for (int64_t bundle = 0; bundle < place.num_bundles; ++bundle) {
        ASSERT_EQ(layout.group(BundleId(place.first_bundle.value() + bundle)), tensors[i].group);
        if (place.num_bundles > 1) {
          ASSERT_EQ(place.offset_bytes, 0);
          ASSERT_GT(tensors[i].size_bytes, (place.num_bundles - 1) * chunk_bytes);
          ASSERT_TRUE(spanner_of_bundle.emplace(place.first_bundle.value() + bundle, i).second);
        }
      }
      for (int64_t byte = 0; byte < tensors[i].size_bytes; byte += kTensorAlignmentBytes) {
        const int64_t at = place.offset_bytes + byte;
        const auto [line, is_new] = owner_of_line.emplace(
            std::pair(place.first_bundle.value() + at / chunk_bytes, at % chunk_bytes), i);
        ASSERT_TRUE(is_new) << "tensors " << i << " and " << line->second << " in round " << round;
      }
    }
    for (const auto& [line, tensor] : owner_of_line) {
      const auto spanner = spanner_of_bundle.find(line.first);
      if (spanner != spanner_of_bundle.end()) {
        ASSERT_EQ(spanner->second, tensor);
      }
    }
    ASSERT_EQ(layout.padding_bytes(), layout.num_bundles() * chunk_bytes - total_bytes);
  }
}

}  // namespace
}  // namespace gemini
