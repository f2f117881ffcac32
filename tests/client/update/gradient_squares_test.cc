// SPDX-License-Identifier: Apache-2.0
#include "client/update/gradient_squares.h"

#include <cmath>
#include <random>
#include <vector>

#include "client/kernels/grad_norm.h"
#include "tests/client/session/session_fixture.h"

namespace gemini::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class GradientSquaresTest : public SessionFixture {
 protected:
  void SetUp() override {
    OpenSession(/*device_slots=*/4, /*host_slots=*/4, /*nvme_slots=*/4);
    if (HasFatalFailure()) return;
    store_ = OpenSpace("store", 2, 4, 4);
    ASSERT_NE(store_, nullptr);
  }
  // Two pieces with a gap: elements 0 to 99 and 128 to 1023.
  static absl::Span<const TensorPiece> Pieces(BundleId) {
    static const std::vector<TensorPiece> pieces = {
        {.tensor = 0, .chunk_offset_bytes = 0, .tensor_offset_bytes = 0, .size_bytes = 400},
        {.tensor = 1, .chunk_offset_bytes = 512, .tensor_offset_bytes = 0, .size_bytes = 3'584}};
    return pieces;
  }
  void Write(float value) {
    ASSERT_OK_AND_ASSIGN(const HostChunk grad,
                         store_->AcquireToOverwrite(ChunkOf(BundleId(1), ChunkKind::kGrad)));
    auto* const floats = reinterpret_cast<float*>(grad.data());
    for (int64_t i = 0; i < kTestChunkBytes / 4; ++i) floats[i] = value;
  }
  static auto AreSquaresOf(float value) {
    const double square = static_cast<double>(value) * value;
    return IsOkAndHolds(ElementsAre(ElementsAre(100 * square), ElementsAre(896 * square)));
  }

  const std::vector<bool> kBoth = {true, true};
  WorkerTeam team_{2};
  ChunkStore* store_ = nullptr;
};

TEST_F(GradientSquaresTest, WhatWasPreparedIsUsedOnce) {
  GradientSquares squares(*store_, &Pieces, team_);
  Write(2);
  squares.Prepare(BundleId(1));
  EXPECT_THAT(squares.Find(BundleId(1), kBoth), AreSquaresOf(2));
  EXPECT_EQ(squares.num_found_ready(), 1);
  EXPECT_THAT(squares.Find(BundleId(1), kBoth), AreSquaresOf(2));
  EXPECT_EQ(squares.num_found_ready(), 1);
}

TEST_F(GradientSquaresTest, AWriteMakesWhatWasPreparedVoid) {
  GradientSquares squares(*store_, &Pieces, team_);
  Write(2);
  squares.Prepare(BundleId(1));
  Write(3);
  EXPECT_THAT(squares.Find(BundleId(1), kBoth), AreSquaresOf(3));
  EXPECT_EQ(squares.num_found_ready(), 0);
}

TEST_F(GradientSquaresTest, NothingIsPreparedWhileSomebodyMayWriteOrBeforeThereAreBytes) {
  GradientSquares squares(*store_, &Pieces, team_);
  squares.Prepare(BundleId(1));
  EXPECT_THAT(squares.Find(BundleId(1), kBoth), StatusIs(absl::StatusCode::kNotFound));
  Write(2);
  {
    ASSERT_OK_AND_ASSIGN(const HostChunk writer,
                         store_->AcquireUncommitted(ChunkOf(BundleId(1), ChunkKind::kGrad)));
    squares.Prepare(BundleId(1));
    reinterpret_cast<float*>(writer.data())[0] = 5;
  }
  EXPECT_THAT(squares.Find(BundleId(1), kBoth),
              IsOkAndHolds(ElementsAre(ElementsAre(99 * 4 + 25.0), ElementsAre(896 * 4.0))));
  EXPECT_EQ(squares.num_found_ready(), 0);
}

TEST_F(GradientSquaresTest, AMoveToNvmeAndBackIsNoWrite) {
  GradientSquares squares(*store_, &Pieces, team_);
  Write(2);
  squares.Prepare(BundleId(1));
  for (int round = 0; round < 4; ++round) {
    ASSERT_OK(CommitTag(*store_, BundleId(0), static_cast<ChunkKind>(round), 0, 1));
  }
  EXPECT_GT(store_->stored_bytes().nvme_written_bytes, 0);
  EXPECT_THAT(squares.Find(BundleId(1), kBoth), AreSquaresOf(2));
  EXPECT_EQ(squares.num_found_ready(), 1);
}

// Sums that no chunk has show what was used.
TEST_F(GradientSquaresTest, WhatIsKeptOfAllGradientsIsUsedOnce) {
  GradientSquares squares(*store_, &Pieces, team_);
  for (const bool in_order : {true, false}) {
    const int64_t first = squares.Expect(BundleId(1), 0);
    Write(2);
    const int64_t second = squares.Expect(BundleId(1), 1);
    Write(2);
    if (in_order) squares.Keep(BundleId(1), 0, first, {7});
    squares.Keep(BundleId(1), 1, second, {8});
    if (!in_order) squares.Keep(BundleId(1), 0, first, {7});
    squares.Prepare(BundleId(1));
    EXPECT_THAT(squares.Find(BundleId(1), kBoth),
                IsOkAndHolds(ElementsAre(ElementsAre(7), ElementsAre(8))));
    EXPECT_THAT(squares.Find(BundleId(1), kBoth), AreSquaresOf(2));
  }
  EXPECT_EQ(squares.num_found_ready(), 2);
}

TEST_F(GradientSquaresTest, WhatWasNotKeptIsPreparedOrComputed) {
  GradientSquares squares(*store_, &Pieces, team_);
  for (const bool prepares : {true, false}) {
    const int64_t second = squares.Expect(BundleId(1), 1);
    Write(2);
    squares.Keep(BundleId(1), 1, second, {8});
    if (prepares) squares.Prepare(BundleId(1));
    EXPECT_THAT(squares.Find(BundleId(1), kBoth),
                IsOkAndHolds(ElementsAre(ElementsAre(400), ElementsAre(8))));
    EXPECT_EQ(squares.num_found_ready(), 1);
  }
  // Only what has a gradient has to be there.
  const int64_t second = squares.Expect(BundleId(1), 1);
  squares.Keep(BundleId(1), 1, second, {8});
  EXPECT_THAT(squares.Find(BundleId(1), {false, true}),
              IsOkAndHolds(ElementsAre(IsEmpty(), ElementsAre(8))));
  EXPECT_EQ(squares.num_found_ready(), 2);
}

TEST_F(GradientSquaresTest, WhatIsKeptIsVoidWhenTheGradientComesAgainOrChangesOnDevice) {
  GradientSquares squares(*store_, &Pieces, team_);
  int64_t first = squares.Expect(BundleId(1), 0);
  Write(2);
  EXPECT_THAT(squares.Find(BundleId(1), kBoth), AreSquaresOf(2));
  squares.Keep(BundleId(1), 0, first, {7});  // Too late.
  EXPECT_THAT(squares.Find(BundleId(1), kBoth), AreSquaresOf(2));

  first = squares.Expect(BundleId(1), 0);
  Write(2);
  const int64_t again = squares.Expect(BundleId(1), 0);
  Write(3);
  squares.Keep(BundleId(1), 0, first, {7});  // Of the gradient before.
  EXPECT_THAT(squares.Find(BundleId(1), kBoth), AreSquaresOf(3));
  squares.Keep(BundleId(1), 0, again, {7});

  first = squares.Expect(BundleId(1), 0);
  Write(2);
  squares.Keep(BundleId(1), 0, first, {7});
  {
    ASSERT_OK_AND_ASSIGN(const HostChunk from_device,
                         store_->AcquireForWriteBack(ChunkOf(BundleId(1), ChunkKind::kGrad)));
    auto* const floats = reinterpret_cast<float*>(from_device.data());
    for (int64_t i = 0; i < kTestChunkBytes / 4; ++i) floats[i] = 5;
  }
  EXPECT_THAT(squares.Find(BundleId(1), kBoth), AreSquaresOf(5));
  EXPECT_EQ(squares.num_found_ready(), 0);
}

// Blocks that begin in one thread's part and end in another's, and pieces of many parts or of none.
TEST(PieceSquaresTest, AreThoseOfWholePiecesWhateverTheNumberOfThreads) {
  std::vector<TensorPiece> pieces;
  std::mt19937_64 random(/*seed=*/5);
  int64_t end = 0;
  for (const int64_t elements : {100, 20'000, 1'000, 1'024, 49'152, 1, 30'000}) {
    pieces.push_back({.tensor = static_cast<int64_t>(pieces.size()),
                      .chunk_offset_bytes = 2 * end,
                      .size_bytes = 2 * elements});
    end += (elements + 127) / 128 * 128;
  }
  std::vector<uint16_t> chunk(static_cast<size_t>(end));
  for (uint16_t& value : chunk) value = static_cast<uint16_t>(random() & 0xbfff);  // Finite bf16.
  const auto* const bytes = reinterpret_cast<const std::byte*>(chunk.data());
  std::vector<std::vector<double>> expected(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    AppendBlockSquares(ElementType::kBf16, bytes + pieces[i].chunk_offset_bytes,
                       pieces[i].size_bytes / 2, expected[i]);
  }
  for (const int threads : {1, 2, 3, 5}) {
    WorkerTeam team(threads);
    EXPECT_EQ(PieceSquares(ElementType::kBf16, pieces, std::vector<bool>(pieces.size(), true),
                           bytes, team),
              expected)
        << threads;
    EXPECT_TRUE(PieceSquares(ElementType::kBf16, {}, {}, bytes, team).empty());
    std::vector<bool> wanted(pieces.size());
    wanted[1] = wanted[4] = true;
    EXPECT_THAT(PieceSquares(ElementType::kBf16, pieces, wanted, bytes, team),
                ElementsAre(IsEmpty(), expected[1], IsEmpty(), IsEmpty(), expected[4], IsEmpty(),
                            IsEmpty()));
  }
}

}  // namespace
}  // namespace gemini::client
