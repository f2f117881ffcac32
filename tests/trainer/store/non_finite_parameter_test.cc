// SPDX-License-Identifier: Apache-2.0
#include "trainer/store/non_finite_parameter.h"

#include <cstring>
#include <limits>

#include "tests/status_matchers.h"
#include "torch/nn/modules/linear.h"
#include "trainer/models/staged_model.h"
#include "trainer/store/parameter_store_reference.h"

namespace gemini::trainer {
namespace {

// Writes `value` at the end of a parameter that is 0 otherwise.
absl::Status Fill(ParameterStore& store, const ParameterShape& parameter, float value) {
  const int64_t last = (parameter.num_elements() - 1) * static_cast<int64_t>(sizeof(float));
  return store.Write(parameter.name, ChunkKind::kParam,
                     [&](int64_t offset_bytes, absl::Span<std::byte> bytes) {
                       std::memset(bytes.data(), 0, bytes.size());
                       if (last >= offset_bytes && last < offset_bytes + std::ssize(bytes)) {
                         std::memcpy(bytes.data() + (last - offset_bytes), &value, sizeof(value));
                       }
                       return absl::OkStatus();
                     });
}

TEST(NonFiniteParameterTest, TheFirstOneThatHoldsANanOrAnInfinityIsNamed) {
  torch::nn::LinearImpl model(33, 17);
  ASSERT_OK_AND_ASSIGN(const auto store, ReferenceParameterStore::Create(model, {}, {}));
  const std::vector<ParameterShape> shapes = ParameterShapesOf(model);
  ASSERT_EQ(shapes.size(), 2);
  for (const ParameterShape& shape : shapes) ASSERT_OK(Fill(*store, shape, 1e38F));
  EXPECT_THAT(FindNonFinite(*store, shapes), IsOkAndHolds(""));
  ASSERT_OK(Fill(*store, shapes[1], std::numeric_limits<float>::quiet_NaN()));
  EXPECT_THAT(FindNonFinite(*store, shapes), IsOkAndHolds(shapes[1].name));
  ASSERT_OK(Fill(*store, shapes[0], std::numeric_limits<float>::infinity()));
  EXPECT_THAT(FindNonFinite(*store, shapes), IsOkAndHolds(shapes[0].name));
}

TEST(NonFiniteParameterTest, AnErrorOfTheStoreIsReturned) {
  torch::nn::LinearImpl model(3, 2);
  ASSERT_OK_AND_ASSIGN(const auto store, ReferenceParameterStore::Create(model, {}, {}));
  EXPECT_THAT(FindNonFinite(*store, {{"nothing", {2}}}).status(),
              StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace gemini::trainer
