// SPDX-License-Identifier: Apache-2.0
// The code of the CUDA kernel, run on the host: what is left to the GPU is its own arithmetic.
#include "client/kernels/update_run_cuda.h"

#include <tuple>
#include <vector>

#include "client/kernels/update_scalars.h"
#include "client/kernels/with_formats.h"
#include "gtest/gtest.h"
#include "tests/client/update/update_memory.h"

namespace gemini::client {
namespace {

class UpdateRunCudaTest : public ::testing::TestWithParam<UpdateFormats> {
 protected:
  UpdateMemory Memory() const {
    std::vector<ElementBits> values = SpecialElements();
    const std::vector<ElementBits> random = RandomElements(1'033, /*seed=*/11);
    values.insert(values.end(), random.begin(), random.end());
    return UpdateMemory(std::get<1>(GetParam()), std::get<2>(GetParam()), values);
  }
  OptimizerKind kind() const { return std::get<0>(GetParam()); }

  // What the kernel's threads do, one after another.
  template <int kCount>
  void Update(const UpdateSettings& settings, const UpdateStreams& streams, int64_t count) const {
    WithRule<LaneCuda>(kind(), [&]<typename Rule>() {
      const Rule rule(ScalarsOf(settings));
      const int64_t runs_end = count / kCount * kCount;
      for (int64_t i = 0; i < runs_end; i += kCount) UpdateRun<kCount>(rule, streams, i);
      for (int64_t i = runs_end; i < count; ++i) UpdateRun<1>(rule, streams, i);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(All, UpdateRunCudaTest,
                         ::testing::Combine(::testing::ValuesIn(kAllOptimizerKinds),
                                            ::testing::ValuesIn(kAllElementTypes),
                                            ::testing::ValuesIn(kAllElementTypes)),
                         NameOfFormats);

TEST_P(UpdateRunCudaTest, ItGivesTheBitsOfThePortableLoop) {
  for (const int64_t step : {1, 7}) {
    const UpdateSettings settings = SettingsOf(kind(), step);
    UpdateMemory expected = Memory();
    UpdateElementsThrough(VectorPath::kPortable, settings, expected.OutOfPlace(), expected.count());
    UpdateMemory runs = Memory();
    Update<4>(settings, runs.OutOfPlace(), runs.count());
    EXPECT_TRUE(runs.WrittenOutOfPlace() == expected.WrittenOutOfPlace());
    UpdateMemory singles = Memory();
    Update<1>(settings, singles.OutOfPlace(), singles.count());
    EXPECT_TRUE(singles.WrittenOutOfPlace() == expected.WrittenOutOfPlace());
  }
}

TEST_P(UpdateRunCudaTest, InPlaceGivesTheBitsOfOutOfPlace) {
  const UpdateSettings settings = SettingsOf(kind());
  UpdateMemory apart = Memory();
  Update<4>(settings, apart.OutOfPlace(), apart.count());
  UpdateMemory in_place = Memory();
  Update<4>(settings, in_place.InPlace(), in_place.count());
  const bool has_second_moment = HasSecondMoment(kind());
  EXPECT_TRUE(in_place.WrittenInPlace(has_second_moment) ==
              apart.WrittenOutOfPlace(has_second_moment));
}

TEST_P(UpdateRunCudaTest, MomentsThatAreNoneAreZeros) {
  const UpdateSettings settings = SettingsOf(kind(), /*step=*/1);
  UpdateMemory expected = Memory();
  UpdateStreams streams = expected.OutOfPlace();
  streams.exp_avg = nullptr;
  streams.exp_avg_sq = nullptr;
  UpdateElementsThrough(VectorPath::kPortable, settings, streams, expected.count());
  UpdateMemory memory = Memory();
  streams = memory.OutOfPlace();
  streams.exp_avg = nullptr;
  streams.exp_avg_sq = nullptr;
  Update<4>(settings, streams, memory.count());
  EXPECT_TRUE(memory.WrittenOutOfPlace() == expected.WrittenOutOfPlace());
}

}  // namespace
}  // namespace gemini::client
