// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/families.h"

#include <string>

#include "nlohmann/json.hpp"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

TEST(FamiliesTest, NamesOfParametersAreThoseOfTheLayers) {
  const nlohmann::json no_keys = nlohmann::json::object();
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.model_type);
    ConfigKeys keys(no_keys, "config.json");
    const ModelSpec spec = family.make_spec(keys);
    ASSERT_OK(keys.status());
    EXPECT_EQ(spec.files.embedding, spec.layers.token_embedding + ".weight");
    EXPECT_EQ(spec.files.head, spec.layers.head + ".weight");
    if (spec.positions.has_value()) {
      EXPECT_THAT(spec.layers.position_embedding, ::testing::StartsWith(spec.files.root));
    }
    for (const std::string& name :
         {spec.layers.token_embedding, spec.layers.blocks, spec.layers.final_norm}) {
      EXPECT_THAT(name, ::testing::StartsWith(spec.files.root));
    }
  }
}

}  // namespace
}  // namespace gemini::trainer
