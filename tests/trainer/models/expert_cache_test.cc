// SPDX-License-Identifier: Apache-2.0
#include "trainer/models/expert_cache.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/status_matchers.h"
#include "torch/torch.h"
#include "trainer/families/hf_config.h"
#include "trainer/models/module_tree.h"
#include "trainer/models/plain_layers.h"
#include "trainer/models/staged_model.h"

namespace gemini::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::Tensor;

constexpr int64_t kExperts = 8;
constexpr char kConfig[] = R"({"model_type":"qwen3_moe","vocab_size":101,"hidden_size":32,
    "max_position_embeddings":16,"num_hidden_layers":3,"num_attention_heads":4,"head_dim":8,
    "num_key_value_heads":2,"intermediate_size":48,"moe_intermediate_size":24,"num_experts":8,
    "num_experts_per_tok":2,"mlp_only_layers":[1],"output_router_logits":true})";

class ExpertCacheTest : public ::testing::Test {
 protected:
  ExpertCacheTest() {
    spec_ = ParseHfConfig(kConfig, "config")->spec;
    model_ = *MakeStagedModel(spec_, torch::kFloat32);
    torch::manual_seed(1);
    for (Tensor& parameter : model_->parameters()) parameter.normal_(0, 0.3);
    model_->eval();
    FeedForwardSpec feed = spec_.feed_forward;
    feed.width = spec_.experts->width;
    for (int i = 0; i < 5; ++i) {
      experts_.emplace_back(root_, FeedNames{name(i, "g"), name(i, "i"), name(i, "o")}, feed,
                            spec_.width, spec_.block_matrices, layers_);
    }
    for (Tensor& parameter : root_.parameters()) parameter.normal_();
    for (const Tensor& one : experts_[0].Parameters()) {
      expert_bytes_ += static_cast<int64_t>(one.nbytes());
    }
  }
  static std::string name(int expert, const std::string& matrix) {
    return std::to_string(expert) + "." + matrix;
  }
  std::unique_ptr<ExpertCache> Cache(int64_t capacity) {
    return std::make_unique<ExpertCache>(spec_, layers_, capacity * expert_bytes_, fetch_);
  }
  // Runs the experts of these numbers, and returns which were fetched.
  std::vector<int> Run(ExpertCache& cache, const std::vector<int>& numbers) {
    fetched_.clear();
    std::vector<const FeedForward*> chosen;
    for (const int i : numbers) chosen.push_back(&experts_[i]);
    cache.Choose(chosen);
    for (const int i : numbers) {
      const Tensor rows = torch::randn({3, spec_.width});
      EXPECT_TRUE(torch::equal(cache.Next().Forward(rows), experts_[i].Forward(rows))) << i;
    }
    return fetched_;
  }
  // How many experts the tokens choose, over all blocks: by the router sums.
  int64_t NumChosen(const Tensor& tokens) {
    int64_t count = 0;
    Stream stream = model_->Embed({.inputs = tokens});
    const BatchContext context = model_->ContextOf(stream.hidden);
    Tensor before = torch::zeros({kExperts});
    for (const auto& block : model_->blocks()) {
      stream = block->Forward(stream, context);
      count += (stream.router_sums[0] - before).ne(0).sum().item<int64_t>();
      before = stream.router_sums[0];
    }
    return count;
  }

  const torch::NoGradGuard no_grad_;
  ModelSpec spec_;
  std::unique_ptr<StagedModel> model_;
  PlainLayers layers_{torch::kFloat32};
  ModuleGroup root_;
  std::vector<FeedForward> experts_;
  int64_t expert_bytes_ = 0;
  std::vector<int> fetched_;  // Of experts_.
  int64_t fetched_bytes_ = 0;
  int awaited_ = 0;
  absl::Status failure_;
  const FetchWeights fetch_ = [this](const Tensor& from,
                                     const Tensor& to) -> absl::StatusOr<std::function<void()>> {
    if (!failure_.ok()) return failure_;
    for (size_t i = 0; i < experts_.size(); ++i) {
      if (from.is_same(experts_[i].Parameters()[0])) fetched_.push_back(static_cast<int>(i));
    }
    fetched_bytes_ += static_cast<int64_t>(from.nbytes());
    to.fill_(std::nan(""));  // It is there when it is awaited, and not before.
    return [this, from, to] {
      to.copy_(from);
      ++awaited_;
    };
  };
};

TEST_F(ExpertCacheTest, TheLeastRecentlyUsedGivesWay) {
  const auto cache = Cache(3);
  EXPECT_EQ(cache->capacity(), 3);
  EXPECT_THAT(Run(*cache, {0, 1, 2}), ElementsAre(0, 1, 2));
  EXPECT_THAT(Run(*cache, {1}), ElementsAre());
  EXPECT_THAT(Run(*cache, {3}), ElementsAre(3));  // In the place of 0.
  EXPECT_THAT(Run(*cache, {1, 2, 3}), ElementsAre());
  EXPECT_THAT(Run(*cache, {0}), ElementsAre(0));  // In the place of 1.
  // What a choice finds does not give way to what it lacks.
  EXPECT_THAT(Run(*cache, {1, 2, 3}), ElementsAre(1));
  EXPECT_EQ(cache->hits(), 6);
  EXPECT_EQ(cache->fetched_bytes(), 6 * expert_bytes_);
}

TEST_F(ExpertCacheTest, AChoiceMayBeLargerThanTheCache) {
  for (const int64_t capacity : {0, 1, 2}) {
    const auto cache = Cache(capacity);
    EXPECT_THAT(Run(*cache, {0, 1, 2, 3, 4}), ElementsAre(0, 1, 2, 3, 4)) << capacity;
  }
}

TEST_F(ExpertCacheTest, HoldsNoMoreThanThereAre) {
  EXPECT_EQ(Cache(1000)->capacity(), 2 * kExperts);  // Of two blocks.
}

TEST_F(ExpertCacheTest, TwoAreFetchedAheadOfTheOneThatRuns) {
  const auto cache = Cache(5);
  cache->Choose({&experts_[0], &experts_[1], &experts_[2], &experts_[3]});
  EXPECT_THAT(fetched_, ElementsAre(0, 1));
  EXPECT_EQ(awaited_, 0);
  cache->Next();
  EXPECT_THAT(fetched_, ElementsAre(0, 1, 2));
  EXPECT_EQ(awaited_, 3);  // The matrices of the first.
}

TEST_F(ExpertCacheTest, AFetchThatFailsIsThrownAndTriedAgain) {
  const auto cache = Cache(2);
  EXPECT_THAT(Run(*cache, {0}), ElementsAre(0));
  failure_ = absl::DataLossError("gone");
  try {
    cache->Choose({&experts_[1]});
    FAIL() << "not thrown";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("gone"));
  }
  failure_ = absl::OkStatus();
  EXPECT_THAT(Run(*cache, {1}), ElementsAre(1));
}

TEST_F(ExpertCacheTest, RoutedForwardsHaveTheBitsOfPlannedOnes) {
  for (const int64_t length : {1, 8, 16}) {
    const Tensor tokens = torch::randint(0, 101, {1, length}, torch::kInt64);
    model_->set_routing({});
    const Tensor planned = model_->Forward(tokens);
    const int64_t chosen = NumChosen(tokens);
    if (length < 16) {
      ASSERT_LT(chosen, 2 * kExperts);  // There are some that nobody chose.
    }
    model_->set_routing({.routed = true});
    EXPECT_TRUE(torch::equal(model_->Forward(tokens), planned));
    for (const int64_t capacity : {1, 3, 100}) {
      const auto cache = Cache(capacity);
      model_->set_routing({.routed = true, .cache = cache.get()});
      fetched_bytes_ = 0;
      EXPECT_TRUE(torch::equal(model_->Forward(tokens), planned));
      EXPECT_EQ(fetched_bytes_, chosen * expert_bytes_) << length;
      EXPECT_EQ(cache->fetched_bytes(), fetched_bytes_);
      if (capacity < 100) continue;
      EXPECT_TRUE(torch::equal(model_->Forward(tokens), planned));
      EXPECT_EQ(cache->fetched_bytes(), fetched_bytes_);  // All are hits.
      EXPECT_EQ(cache->hits(), chosen);
    }
  }
}

}  // namespace
}  // namespace gemini::trainer
