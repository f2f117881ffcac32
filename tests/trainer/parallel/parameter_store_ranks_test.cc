// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads, each with a part of a small model in plain memory.
#include "trainer/parallel/parameter_store_ranks.h"

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/system/status_macros.h"
#include "gmock/gmock.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "tests/trainer/store/forwarding_store.h"
#include "trainer/families/hf_config.h"
#include "trainer/models/staged_model.h"
#include "trainer/parallel/model_of_ranks.h"
#include "trainer/parallel/rank_verdict.h"
#include "trainer/store/parameter_store_reference.h"

namespace gemini::trainer {
namespace {

using ::testing::HasSubstr;

// Its tables have parts in several ranks, its vectors in one.
constexpr char kConfig[] =
    R"({"model_type":"gpt2","vocab_size":301,"n_positions":16,"n_embd":64,"n_layer":2,"n_head":4})";
constexpr char kTable[] = "transformer.wte.weight";
constexpr char kLast[] = "transformer.ln_f.bias";

// Gives what another store has, until it is told to fail.
class FailingStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::Status ReadRange(absl::string_view name, ChunkKind kind, ByteRange range,
                         Sink sink) override {
    return failure.ok() ? ForwardingStore::ReadRange(name, kind, range, sink) : failure;
  }
  absl::StatusOr<int64_t> TensorStep(absl::string_view name) const override {
    if (!failure.ok()) return failure;
    return ForwardingStore::TensorStep(name);
  }
  absl::Status status() const override { return failure; }
  bool GiveWay() override { return ++num_given <= 1; }
  void ForgetGradients() override { ++num_forgotten; }

  absl::Status failure;
  int num_given = 0;
  int num_forgotten = 0;
};

// So many ranks, of which so many share each layer.
struct Ranks {
  int64_t count = 1;
  int64_t tensor = 1;
  policies::TensorMode mode = policies::TensorMode::k1d;
  int64_t depth = 1;
  int64_t pipeline = 1;
};

// One rank of a test.
struct Rank {
  explicit Rank(Communicator& me, const Ranks& ranks = {}) {
    const ModelSpec spec = ParseHfConfig(kConfig, "config")->spec;
    const RankLayout layout(
        *policies::Mesh::Make(me.num_ranks(), {.pipeline = ranks.pipeline, .tensor = ranks.tensor}),
        *policies::TensorGrid::Make(ranks.mode, ranks.tensor, ranks.depth));
    const std::vector<int64_t> split(static_cast<size_t>(ranks.pipeline),
                                     spec.num_blocks / ranks.pipeline);
    model = *MakeModelOfRank(spec, torch::kFloat32, me, layout,
                             {.block_elements = ShardBlockElements(MomentFormat::kFp32)},
                             ModelStages(ranks.pipeline, split));
    auto own = std::make_unique<FailingStore>(*ReferenceParameterStore::Create(*model, {}, {}));
    failing = own.get();
    store = std::make_unique<RanksParameterStore>(std::move(own), *model, me, layout);
  }
  // Values that count up, from `first` on.
  absl::Status Write(absl::string_view name, ChunkKind kind, int64_t first) {
    return store->Write(name, kind, [&](int64_t offset_bytes, absl::Span<std::byte> bytes) {
      auto* const values = reinterpret_cast<float*>(bytes.data());
      for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
        values[i] = static_cast<float>(first + offset_bytes / 4 + static_cast<int64_t>(i));
      }
      return absl::OkStatus();
    });
  }
  absl::StatusOr<std::vector<float>> Read(absl::string_view name, ChunkKind kind,
                                          ByteRange range = {}) {
    std::vector<float> values;
    const absl::Status status = store->ReadRange(
        name, kind, range, [&](int64_t offset_bytes, absl::Span<const std::byte> bytes) {
          EXPECT_EQ(offset_bytes, range.offset_bytes + std::ssize(values) * 4);
          const auto* const part = reinterpret_cast<const float*>(bytes.data());
          values.insert(values.end(), part, part + bytes.size() / sizeof(float));
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
    return values;
  }

  std::unique_ptr<GatheredModel> model;
  FailingStore* failing = nullptr;
  std::unique_ptr<RanksParameterStore> store;
};

std::vector<float> Count(int64_t first, int64_t size) {
  std::vector<float> values;
  for (int64_t i = 0; i < size; ++i) values.push_back(static_cast<float>(first + i));
  return values;
}

class RanksParameterStoreTest : public ::testing::TestWithParam<Ranks> {};

TEST_P(RanksParameterStoreTest, TheFirstRankReadsWhatAllHaveWritten) {
  RunThreadRanks(GetParam().count, [](Communicator& me) {
    Rank rank(me, GetParam());
    constexpr int64_t kElements = 301 * 64;
    ASSERT_OK(rank.Write(kTable, ChunkKind::kParam, 0));
    ASSERT_OK(rank.Write(kTable, ChunkKind::kExpAvg, 5));
    ASSERT_OK(rank.Write(kLast, ChunkKind::kParam, 9));
    ASSERT_OK(rank.store->SetTensorStep(kLast, 7));
    int num_works = 0;
    EXPECT_OK(rank.store->OnFirstRank([&] {
      ++num_works;
      EXPECT_THAT(rank.Read(kTable, ChunkKind::kParam), IsOkAndHolds(Count(0, kElements)));
      EXPECT_THAT(rank.Read(kTable, ChunkKind::kExpAvg), IsOkAndHolds(Count(5, kElements)));
      EXPECT_THAT(rank.Read(kLast, ChunkKind::kParam), IsOkAndHolds(Count(9, 64)));
      // Nobody has written it.
      EXPECT_THAT(rank.Read(kLast, ChunkKind::kExpAvgSq), IsOkAndHolds(std::vector<float>(64)));
      for (const auto& [first, size] :
           {std::pair{0, 1}, {3000, 12'000}, {kElements - 2, 2}, {5, 0}}) {
        EXPECT_THAT(rank.Read(kTable, ChunkKind::kParam, {first * 4, size * 4}),
                    IsOkAndHolds(Count(first, size)));
      }
      EXPECT_THAT(rank.store->TensorStep(kLast), IsOkAndHolds(7));
      EXPECT_THAT(rank.store->TensorStep(kTable), IsOkAndHolds(0));
      EXPECT_THAT(rank.Read("transformer.nothing", ChunkKind::kParam).status(),
                  StatusIs(absl::StatusCode::kNotFound, HasSubstr("nothing")));
      return absl::OkStatus();
    }));
    EXPECT_EQ(num_works, me.rank() == 0 ? 1 : 0);
  });
}

// What four ranks have in shards, those of GetParam() get and give back.
TEST_P(RanksParameterStoreTest, OtherRanksGiveBackTheSameBits) {
  constexpr ChunkKind kKinds[] = {ChunkKind::kParam, ChunkKind::kExpAvg, ChunkKind::kExpAvgSq};
  using Files = std::map<std::pair<std::string, ChunkKind>, std::vector<float>>;
  const auto read = [&](Rank& rank, Files& files) {
    return rank.store->OnFirstRank([&]() -> absl::Status {
      for (auto& [key, values] : files) {
        GEMINI_ASSIGN_OR_RETURN(values, rank.Read(key.first, key.second));
      }
      return absl::OkStatus();
    });
  };
  Files of_four;
  const ModelSpec spec = ParseHfConfig(kConfig, "config")->spec;
  for (const auto& parameter :
       (*MakeStagedModel(spec, torch::dtype(torch::kFloat32).device(torch::kMeta)))
           ->named_parameters()) {
    for (const ChunkKind kind : kKinds) of_four[{parameter.key(), kind}] = {};
  }
  Files of_others = of_four;
  RunThreadRanks(4, [&](Communicator& me) {
    Rank rank(me);
    int64_t number = 0;
    for (const auto& [key, values] : of_others) {
      ASSERT_OK(rank.Write(key.first, key.second, number));
      number += 1000;
    }
    ASSERT_OK(read(rank, of_four));
  });
  RunThreadRanks(GetParam().count, [&](Communicator& me) {
    Rank rank(me, GetParam());
    for (const auto& [key, values] : of_four) {
      ASSERT_OK(rank.store->Write(
          key.first, key.second, [&](int64_t offset_bytes, absl::Span<std::byte> bytes) {
            std::memcpy(bytes.data(), values.data() + offset_bytes / 4, bytes.size());
            return absl::OkStatus();
          }));
    }
    ASSERT_OK(read(rank, of_others));
  });
  EXPECT_TRUE(of_others == of_four);
  EXPECT_THAT((of_four[{kLast, ChunkKind::kParam}]), ::testing::SizeIs(64));
}

// It is this rank's operators that lack memory, and its own chunks that give way.
TEST(RanksParameterStoreMemoryTest, EachRankGivesWayByItself) {
  RunThreadRanks(2, [](Communicator& me) {
    Rank rank(me);
    if (me.rank() == 0) return;
    EXPECT_TRUE(rank.store->GiveWay());
    EXPECT_FALSE(rank.store->GiveWay());
    rank.store->ForgetGradients();
    EXPECT_EQ(rank.failing->num_forgotten, 1);
  });
}

TEST_P(RanksParameterStoreTest, ErrorsReachTheFirstRankAndItsOwnReachAll) {
  RunThreadRanks(GetParam().count, [](Communicator& me) {
    Rank rank(me, GetParam());
    const int64_t last = me.num_ranks() - 1;
    // The first rank of a pipeline has nothing of what is behind the blocks.
    const bool is_pipeline = GetParam().pipeline > 1;
    if (me.rank() == last || (is_pipeline && me.rank() > 0)) {
      rank.failing->failure = absl::DataLossError("a disk is gone");
    }
    const absl::Status status = rank.store->OnFirstRank([&] {
      const absl::Status read = rank.Read(is_pipeline ? kLast : kTable, ChunkKind::kParam).status();
      EXPECT_THAT(read, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a disk is gone")));
      if (last > 0) {
        EXPECT_THAT(std::string(read.message()),
                    HasSubstr(is_pipeline ? "rank " : absl::StrCat("rank ", last)));
      }
      // Ranks go on answering behind an error.
      EXPECT_EQ(rank.store->TensorStep(kTable).ok(), last > 0);
      return absl::ResourceExhaustedError("no room for a checkpoint");
    });
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, "no room for a checkpoint"));
    EXPECT_TRUE(IsAgreed(status));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, RanksParameterStoreTest,
                         ::testing::Values(Ranks{1}, Ranks{2}, Ranks{4}, Ranks{2, 2}, Ranks{4, 2},
                                           Ranks{4, 4}, Ranks{8, 2},
                                           Ranks{4, 4, policies::TensorMode::k2d},
                                           Ranks{8, 8, policies::TensorMode::k2Point5d, 2},
                                           Ranks{8, 8, policies::TensorMode::k3d},
                                           Ranks{.count = 2, .pipeline = 2},
                                           Ranks{.count = 4, .pipeline = 2},
                                           Ranks{.count = 8, .tensor = 2, .pipeline = 2}),
                         [](const auto& one) {
                           return absl::StrCat(one.param.count, "_of_", one.param.tensor,
                                               one.param.mode == policies::TensorMode::k1d
                                                   ? ""
                                                   : absl::StrCat("_in_grid_", one.param.depth),
                                               one.param.pipeline > 1 ? "_in_pipelines" : "");
                         });

}  // namespace
}  // namespace gemini::trainer
