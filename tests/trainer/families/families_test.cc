// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/families.h"

#include <string>
#include <utility>
#include <vector>

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
    const bool reads_images = spec.image.has_value();
    const bool reads_alignments = spec.pair_trunk.has_value();
    const bool reads_tokens = !reads_images && !reads_alignments;
    const std::string table =
        reads_alignments ? spec.pair_trunk->embedding.residues : spec.layers.token_embedding;
    EXPECT_EQ(spec.files.embedding, reads_images ? std::string() : table + ".weight");
    // A tied head with a bias has no tensor of the table's under its own name.
    if (reads_tokens && !spec.head_bias) {
      EXPECT_EQ(spec.files.head, spec.layers.head + ".weight");
    }
    // A layer has a name where it is there.
    const LayerNames& names = spec.layers;
    for (const auto& [is_there, name] : std::vector<std::pair<bool, std::string>>{
             {reads_tokens, names.token_embedding},
             {reads_images, names.image_tokens},
             {reads_images, names.patches},
             {spec.positions.has_value(), names.position_embedding},
             {spec.num_token_types > 0, names.type_embedding},
             {spec.embedding_norm, names.embedding_norm},
             {true, names.blocks},
             {spec.final_norm, names.final_norm}}) {
      EXPECT_EQ(!name.empty(), is_there) << name;
      EXPECT_THAT(name, ::testing::StartsWith(is_there ? spec.files.root : ""));
    }
    EXPECT_EQ(!names.head_transform.empty(), spec.head_transform.has_value());
    EXPECT_EQ(!names.head_norm.empty(), spec.head_transform.has_value());
    const bool pools =
        spec.classifier.has_value() && spec.classifier->input == ClassifierInput::kPooledFirstToken;
    EXPECT_EQ(!names.pooler.empty(), pools);
    EXPECT_EQ(!names.classifier.empty(), spec.classifier.has_value());
  }
}

}  // namespace
}  // namespace gemini::trainer
