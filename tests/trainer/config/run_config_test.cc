// SPDX-License-Identifier: Apache-2.0
#include "trainer/config/run_config.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

RunConfig Complete() {
  RunConfig config;
  config.model = "/m";
  config.data = "/d.npy";
  config.output = "/o";
  config.steps = 10;
  return config;
}

absl::Status Set(absl::string_view name, absl::string_view text, RunConfig& config) {
  return RunKeys(config).Set(name, text, "test");
}

absl::StatusOr<std::vector<std::string>> Changes(RunConfig before, RunConfig now) {
  return RunKeys(now).CompareForResume(RunKeys(before));
}

TEST(RunConfig, EveryStoredKeySurvivesBeingWrittenAndReadBack) {
  RunConfig config = Complete();
  config.lr = 0.1 + 0.2;  // Needs 17 digits.
  config.epsilon = 1e-8;
  config.clip = 3;
  config.nvme = {{"/a \"b\"", 1 << 20}, {"/c:d", 4096}};
  config.device_memory = (int64_t{1} << 40) + 1;
  config.recompute = true;
  config.schedule = "cosine";
  config.space = "x";
  config.device_bandwidth = (int64_t{12} << 30) + 1;
  config.policy = "static";
  config.param_fraction = 0.3;
  config.optimizer_fraction = 0.2;
  config.optimizer_tier = "nvme";
  config.experts = "routed";
  config.expert_cache = 12345;
  config.micro_batch_schedule = "vertical";
  config.update_threads = 3;
  config.tensor = "2.5d";
  config.tensor_size = 8;
  config.tensor_depth = 2;
  config.sequence_parallel = "ring";
  config.sequence_size = 2;
  config.sequence_layout = "contiguous";
  config.rank_order = "dp,pp,sp,tp";
  config.transport = "nccl";
  config.exact = true;
  config.share_gpu = true;
  const std::string output = config.output;
  RunConfig back;
  ASSERT_OK(RunKeys(back).ApplyToml(ToToml(config), "run.toml"));
  back.output = output;  // Not stored: a run's directory may be moved.
  EXPECT_EQ(back, config) << ToToml(config);
}

TEST(RunConfig, EvaluationsRouteExpertsWhereMicroBatchesLeaveMoreThanATenthOut) {
  RunConfig config;
  config.batch = 1;
  const auto routes = [&](int64_t sequence, int64_t count, int64_t chosen) {
    config.sequence = sequence;
    return config.routes_experts(count, chosen);
  };
  EXPECT_TRUE(routes(8, 8, 2));     // 0.75^8 = 0.1001.
  EXPECT_FALSE(routes(9, 8, 2));    // 0.75^9 = 0.0751.
  EXPECT_TRUE(routes(35, 128, 8));  // 0.9375^35 = 0.1045.
  EXPECT_FALSE(routes(36, 128, 8));
  EXPECT_FALSE(routes(128, 128, 8));
  EXPECT_FALSE(routes(2, 4, 4));  // Each token goes through all.
  config.batch = 2;               // The micro-batch counts.
  EXPECT_TRUE(routes(4, 8, 2));
  EXPECT_FALSE(routes(5, 8, 2));
  config.experts = "planned";
  EXPECT_FALSE(routes(2, 128, 8));
  config.experts = "routed";
  EXPECT_TRUE(routes(512, 128, 8));
}

TEST(RunConfig, AnUnknownKeyNamesFileLineAndTheNearestKey) {
  RunConfig config;
  EXPECT_THAT(RunKeys(config).ApplyToml("steps = 3\n\nwieght-decay = 0.1\n", "a.toml"),
              StatusIs(kInvalid, AllOf(HasSubstr("a.toml:3:"), HasSubstr("'wieght-decay'"),
                                       HasSubstr("did you mean 'weight-decay'?"))));
  EXPECT_THAT(RunKeys(config).ApplyToml("zzzzqqqq = 1", "a.toml"),
              StatusIs(kInvalid, AllOf(Not(HasSubstr("did you mean")), HasSubstr("--help"))));
}

TEST(RunConfig, BrokenTomlNamesItsLine) {
  RunConfig config;
  EXPECT_THAT(RunKeys(config).ApplyToml("steps = 3\nbatch = = 2\n", "a.toml"),
              StatusIs(kInvalid, HasSubstr("a.toml:2: not TOML")));
}

TEST(RunConfig, AValueOfTheWrongTypeIsRefusedWithItsKey) {
  RunConfig config;
  for (const char* text : {"steps = \"3\"", "steps = 3.5", "model = 3", "recompute = 1",
                           "lr = \"x\"", "nvme = 3", "nvme = [3]", "device-memory = 1.5",
                           "device-bandwidth = 12", "policy = 1", "[steps]\nx = 1"}) {
    EXPECT_THAT(RunKeys(config).ApplyToml(text, "a.toml"), StatusIs(kInvalid, HasSubstr("wants")))
        << text;
  }
}

TEST(RunConfig, EveryValueIsCheckedAgainstItsRange) {
  RunConfig config;
  const std::pair<const char*, const char*> bad[] = {{"steps", "0"},
                                                     {"steps", "-1"},
                                                     {"steps", "1e3"},
                                                     {"batch", "0"},
                                                     {"batch", "9999999"},
                                                     {"lr", "-1"},
                                                     {"lr", "nan"},
                                                     {"lr", "inf"},
                                                     {"beta1", "1"},
                                                     {"beta2", "-0.1"},
                                                     {"epsilon", "0"},
                                                     {"clip", "-1"},
                                                     {"schedule", "square"},
                                                     {"order", "random"},
                                                     {"precision", "int8"},
                                                     {"moments", "8bits"},
                                                     {"moment-rounding", "up"},
                                                     {"optimizer", "adamax"},
                                                     {"momentum", "1"},
                                                     {"trust-coefficient", "0"},
                                                     {"device-memory", "0"},
                                                     {"device-memory", "3 GB"},
                                                     {"host-memory", "-1MiB"},
                                                     {"chunk-size", "5000"},
                                                     {"chunk-size", "70000"},
                                                     {"chunk-size", "0"},
                                                     {"nvme", "/tmp"},
                                                     {"nvme", ":3GiB"},
                                                     {"nvme", "/tmp:0"},
                                                     {"nvme", "/tmp:x"},
                                                     {"space", "a/b"},
                                                     {"seed", "4294967296"},
                                                     {"threads", "-1"},
                                                     {"recompute", "maybe"},
                                                     {"log-level", "loud"},
                                                     {"device-bandwidth", "12GiB"},
                                                     {"device-bandwidth", "12GB/s"},
                                                     {"device-bandwidth", "0B/s"},
                                                     {"device-bandwidth", "-1GiB/s"},
                                                     {"policy", "lru"},
                                                     {"param-fraction", "1.01"},
                                                     {"param-fraction", "-0.1"},
                                                     {"param-fraction", "nan"},
                                                     {"optimizer-fraction", "1.01"},
                                                     {"optimizer-fraction", "nan"},
                                                     {"micro-batch-schedule", "diagonal"},
                                                     {"tensor", "4d"},
                                                     {"tensor-size", "-1"},
                                                     {"tensor-depth", "0"},
                                                     {"sequence-parallel", "both"},
                                                     {"sequence-size", "-1"},
                                                     {"sequence-layout", "striped"},
                                                     {"rank-order", "pp,dp,tp"},
                                                     {"rank-order", "pp,dp,tp,tp"},
                                                     {"steps", "99999999999999999999"}};
  for (const auto& [name, value] : bad) {
    EXPECT_THAT(Set(name, value, config), StatusIs(kInvalid, HasSubstr("test"))) << name << value;
  }
  EXPECT_EQ(config, RunConfig());
}

TEST(RunConfig, BinaryUnitsAndAutoAreUnderstood) {
  RunConfig config;
  ASSERT_OK(Set("device-memory", "64MiB", config));
  ASSERT_OK(Set("host-memory", "1.5 GiB", config));
  ASSERT_OK(Set("nvme", "/mnt/a:b:20GiB", config));
  EXPECT_EQ(config.device_memory, int64_t{64} << 20);
  EXPECT_EQ(config.host_memory, int64_t{3} << 29);
  EXPECT_THAT(config.nvme, ElementsAre(NvmeDirectory{"/mnt/a:b", int64_t{20} << 30}));
  ASSERT_OK(Set("device-memory", "auto", config));
  EXPECT_EQ(config.device_memory, kAutoBytes);
}

TEST(RunConfig, ARateIsASizeASecondAndZeroIsNoLimit) {
  RunConfig config;
  ASSERT_OK(Set("device-bandwidth", "1.5GiB/s", config));
  EXPECT_EQ(config.device_bandwidth, int64_t{3} << 29);
  ASSERT_OK(Set("device-bandwidth", "0", config));
  EXPECT_EQ(config.device_bandwidth, 0);
  ASSERT_OK(RunKeys(config).ApplyToml("device-bandwidth = \"64 MiB/s\"", "a.toml"));
  EXPECT_EQ(config.device_bandwidth, int64_t{64} << 20);
}

TEST(RunConfig, AFractionMayBeAllOrNothing) {
  RunConfig config;
  ASSERT_OK(Set("param-fraction", "1", config));
  EXPECT_EQ(config.param_fraction, 1.0);
  ASSERT_OK(Set("param-fraction", "0", config));
  EXPECT_EQ(config.param_fraction, 0.0);
  ASSERT_OK(Set("optimizer-fraction", "1", config));
  EXPECT_EQ(config.optimizer_fraction, 1.0);
}

TEST(RunConfig, TheFormatIsOfPrecisionOptimizerAndMoments) {
  RunConfig config = Complete();
  EXPECT_EQ(config.format(), StateFormat());
  ASSERT_OK(Set("precision", "bf16", config));
  ASSERT_OK(Set("optimizer", "lamb", config));
  ASSERT_OK(Set("moments", "8bit", config));
  EXPECT_EQ(config.format(),
            (StateFormat{ElementType::kBf16, OptimizerKind::kLamb, MomentFormat::k8Bit}));
  EXPECT_EQ(config.rounding_seed(), 0);
  ASSERT_OK(Set("moment-rounding", "stochastic", config));
  ASSERT_OK(CheckRunConfig(config));
  const uint64_t seed = config.rounding_seed();
  EXPECT_NE(seed, 0);
  ASSERT_OK(Set("seed", "43", config));
  EXPECT_GT(config.rounding_seed() - seed, 1 << 20);  // Room for a number a tensor.
  config.reference = true;
  EXPECT_THAT(CheckRunConfig(config), StatusIs(kInvalid, HasSubstr("--reference rounds")));
  config.reference = false;
  config.moments = "fp32";
  EXPECT_THAT(CheckRunConfig(config), StatusIs(kInvalid, HasSubstr("is of --moments 8bit")));
}

TEST(RunConfig, ARunThatSavesNothingHasNoCheckpointsBetween) {
  RunConfig config = Complete();
  ASSERT_OK(Set("no-save", "true", config));
  EXPECT_OK(CheckRunConfig(config));
  config.save_every = 2;
  EXPECT_THAT(CheckRunConfig(config), StatusIs(kInvalid, HasSubstr("--no-save saves nothing")));
}

TEST(RunConfig, AGpuIsNamedAndWhatItCannotHaveIsRefused) {
  RunConfig config = Complete();
  EXPECT_EQ(config.gpu(), std::nullopt);
  ASSERT_OK(Set("device", "cuda:1", config));
  EXPECT_OK(CheckRunConfig(config));
  EXPECT_EQ(config.gpu(), 1);
  const auto refused = [](RunConfig changed, const std::string& key, const std::string& value,
                          const char* why) {
    ASSERT_OK(Set(key, value, changed));
    EXPECT_THAT(CheckRunConfig(changed), StatusIs(kInvalid, HasSubstr(why))) << key;
  };
  refused(config, "device", "gpu", "--device 'gpu'");
  refused(config, "reference", "true", "--reference is of the CPU");
  refused(config, "device-bandwidth", "1GiB/s", "--device-bandwidth is of host memory");
  refused(config, "daemon", "/run/geminid.sock", "--device-memory is missing");
}

TEST(RunConfig, UpdatesMayBeMadeOnAGpu) {
  RunConfig config = Complete();
  ASSERT_OK(Set("device", "cuda:0", config));
  ASSERT_OK(Set("policy", "cuda", config));
  EXPECT_OK(CheckRunConfig(config));
  ASSERT_OK(Set("policy", "static", config));
  ASSERT_OK(Set("optimizer-fraction", "0.5", config));
  EXPECT_OK(CheckRunConfig(config));
}

TEST(RunConfig, PathsBecomeAbsolute) {
  RunConfig config;
  ASSERT_OK(Set("output", "runs/../a/", config));
  EXPECT_EQ(config.output, (std::filesystem::current_path() / "a").string());
}

TEST(RunConfig, MissingAndContradictingKeysAreNamed) {
  EXPECT_OK(CheckRunConfig(Complete()));
  RunConfig config = Complete();
  config.model.clear();
  EXPECT_THAT(CheckRunConfig(config), StatusIs(kInvalid, HasSubstr("--model is missing")));
  config = Complete();
  config.resume = config.overwrite = true;
  EXPECT_THAT(CheckRunConfig(config), StatusIs(kInvalid, HasSubstr("--overwrite")));
  config = Complete();
  config.warmup_steps = 11;
  EXPECT_THAT(CheckRunConfig(config), StatusIs(kInvalid, HasSubstr("--warmup-steps 11")));
  config = Complete();
  config.eval_every = 1;
  EXPECT_THAT(CheckRunConfig(config), StatusIs(kInvalid, HasSubstr("--eval-data")));
  config = Complete();
  config.param_fraction = 0.5;
  EXPECT_THAT(CheckRunConfig(config), StatusIs(kInvalid, HasSubstr("--policy static")));
  config.policy = "static";
  EXPECT_OK(CheckRunConfig(config));
  config = Complete();
  config.optimizer_fraction = 0.5;
  EXPECT_THAT(CheckRunConfig(config),
              StatusIs(kInvalid, AllOf(HasSubstr("--optimizer-fraction"), HasSubstr("static"))));
  config.policy = "static";
  EXPECT_OK(CheckRunConfig(config));
  config = Complete();
  config.optimizer_tier = "nvme";
  EXPECT_THAT(CheckRunConfig(config),
              StatusIs(kInvalid, AllOf(HasSubstr("--optimizer-tier"), HasSubstr("--nvme"))));
  config.nvme = {{"/a", 1 << 20}};
  EXPECT_OK(CheckRunConfig(config));
  config = Complete();
  config.batch = config.accumulate = 1 << 20;
  EXPECT_THAT(CheckRunConfig(config), StatusIs(kInvalid, HasSubstr("--accumulate")));
}

TEST(RunConfig, ResumingNamesEveryChangedKeyAndRefusesWhatMakesAnotherRun) {
  const RunConfig before = Complete();
  RunConfig now = before;
  EXPECT_THAT(Changes(before, now), IsOkAndHolds(ElementsAre()));
  now.steps = 20;
  now.threads = 1;
  now.policy = "cpu";
  now.device_bandwidth = 1 << 30;
  EXPECT_THAT(
      Changes(before, now),
      IsOkAndHolds(ElementsAre("steps: 10 is now 20", "threads: 0 is now 1",
                               "policy: auto is now cpu", "device-bandwidth: 0 is now 1 GiB/s")));
  now.lr = 1;
  now.order = "sequential";
  EXPECT_THAT(Changes(before, now),
              StatusIs(kInvalid, AllOf(HasSubstr("lr: 5e-05 is now 1.0"),
                                       HasSubstr("order: shuffled is now sequential"),
                                       Not(HasSubstr("threads")))));
  now = before;
  now.steps = 5;
  EXPECT_THAT(Changes(before, now), StatusIs(kInvalid, HasSubstr("may only grow")));
}

TEST(RunConfig, AFileMaySayInATableHowRanksShareTheWork) {
  RunConfig flat;
  ASSERT_OK(
      RunKeys(flat).ApplyToml("tensor = \"2.5d\"\ntensor-size = 8\ntensor-depth = 2\n"
                              "sequence-parallel = \"ring\"\nsequence-size = 4\n"
                              "sequence-layout = \"contiguous\"\n"
                              "rank-order = \"dp,pp,sp,tp\"\npipeline = 2\n",
                              "a.toml"));
  EXPECT_EQ(flat.tensor_depth, 2);
  const char* const spellings[] = {
      "parallel = { pipeline = 2, tensor = { mode = \"2.5d\", depth = 2, size = 8 }, sequence = { "
      "mode = \"ring\", size = 4, layout = \"contiguous\" }, rank-order = \"dp,pp,sp,tp\" }",
      "[parallel]\nrank-order = \"dp,pp,sp,tp\"\npipeline = 2\n"
      "tensor = { mode = \"2.5d\", depth = 2, size = 8 }\n"
      "[parallel.sequence]\nmode = \"ring\"\nsize = 4\nlayout = \"contiguous\"\n"};
  for (const char* const text : spellings) {
    RunConfig config;
    ASSERT_OK(RunKeys(config).ApplyToml(text, "a.toml")) << text;
    EXPECT_EQ(config, flat) << text;
  }
  EXPECT_THAT(ToToml(flat), Not(HasSubstr("parallel.")));
  const std::pair<const char*, const char*> cases[] = {
      {"[parallel]\npipeline = 0", "a.toml:2: parallel.pipeline: wants a whole number"},
      {"[parallel]\npipeline = \"1\"", "a.toml:2: parallel.pipeline: wants a whole number"},
      {"[parallel]\n\ntensor = { mode = \"4d\" }", "a.toml:3: parallel.tensor.mode: wants one of"},
      {"[parallel.tensor]\nwidth = 3", "a.toml:2: unknown key 'parallel.tensor.width'"},
      {"[parallel]\nrank-order = \"dp\"", "a.toml:2: parallel.rank-order: an order of ranks"}};
  for (const auto& [text, message] : cases) {
    RunConfig config;
    EXPECT_THAT(RunKeys(config).ApplyToml(text, "a.toml"), StatusIs(kInvalid, HasSubstr(message)));
  }
}

TEST(RunConfig, KeysOfSharingThatDoNotBelongTogetherAreRefused) {
  using Keys = std::vector<std::pair<const char*, const char*>>;
  const std::pair<Keys, const char*> refused[] = {
      {{{"pipeline-chunks", "2"}}, "--pipeline-chunks 2 is of --pipeline"},
      {{{"pipeline-split", "1,2"}}, "--pipeline-split 1,2 is of --pipeline"},
      {{{"tensor-size", "2"}}, "--tensor-size 2 is of --tensor: add"},
      {{{"tensor-depth", "2"}}, "--tensor-depth 2 is of --tensor 2.5d, not of none"},
      {{{"tensor", "2d"}, {"tensor-depth", "2"}},
       "--tensor-depth 2 is of --tensor 2.5d, not of 2d"},
      {{{"sequence-parallel", "megatron"}}, "--sequence-parallel megatron is of --tensor 1d"},
      {{{"sequence-parallel", "megatron"}, {"tensor", "3d"}}, "megatron is of --tensor 1d"},
      {{{"sequence-parallel", "ring"}, {"tensor", "2d"}}, "ring with --tensor 2d, which parts"},
      {{{"sequence-parallel", "ulysses"}, {"tensor", "2.5d"}}, "ulysses with --tensor 2.5d"},
      {{{"sequence-parallel", "ring"}, {"tensor", "3d"}}, "ring with --tensor 3d"},
      {{{"sequence-parallel", "ring"}, {"tensor", "1d"}}, "by --tensor-size or --sequence-size"},
      {{{"sequence-size", "2"}},
       "--sequence-size 2 is of --sequence-parallel ulysses or ring, not"},
      {{{"sequence-size", "2"}, {"sequence-parallel", "megatron"}, {"tensor", "1d"}},
       "ulysses or ring, not of megatron"},
      {{{"sequence-layout", "contiguous"}, {"sequence-parallel", "ulysses"}},
       "--sequence-layout contiguous is of --sequence-parallel ring, not of ulysses"}};
  for (const auto& [keys, message] : refused) {
    RunConfig config = Complete();
    for (const auto& [key, value] : keys) ASSERT_OK(Set(key, value, config));
    EXPECT_THAT(CheckRunConfig(config), StatusIs(kInvalid, HasSubstr(message)));
  }
  const Keys accepted[] = {
      {{"tensor", "2.5d"}, {"tensor-depth", "2"}},
      {{"tensor", "3d"}, {"tensor-size", "8"}},
      {{"sequence-parallel", "ring"}, {"sequence-layout", "contiguous"}, {"sequence-size", "2"}},
      {{"sequence-parallel", "ulysses"}, {"tensor", "1d"}, {"tensor-size", "2"}},
      {{"sequence-parallel", "ring"}, {"tensor", "1d"}, {"sequence-size", "2"}},
      {{"rank-order", "tp,sp,dp,pp"}}};
  for (const Keys& keys : accepted) {
    RunConfig config = Complete();
    for (const auto& [key, value] : keys) ASSERT_OK(Set(key, value, config));
    EXPECT_OK(CheckRunConfig(config)) << keys[0].first;
  }
}

TEST(RunConfig, ASizeThatIsNotGivenIsWhatTheOtherLeaves) {
  RunConfig config;
  const auto sizes = [&config](int64_t num_ranks) {
    return std::pair(config.tensor_ranks(num_ranks), config.sequence_ranks(num_ranks));
  };
  EXPECT_THAT(sizes(8), Pair(1, 1));
  config.tensor = "1d";
  EXPECT_THAT(sizes(8), Pair(8, 1));
  config.tensor_size = 2;
  EXPECT_THAT(sizes(8), Pair(2, 1));
  config.sequence_parallel = "ring";
  EXPECT_THAT(sizes(8), Pair(2, 4));
  EXPECT_THAT(sizes(1), Pair(2, 1));  // They do not divide, which the mesh says.
  config.sequence_size = 2;
  EXPECT_THAT(sizes(8), Pair(2, 2));
  config.tensor_size = 0;
  EXPECT_THAT(sizes(8), Pair(4, 2));
  EXPECT_THAT(sizes(1), Pair(1, 2));
  config.pipeline = 2;
  EXPECT_THAT(sizes(16), Pair(4, 2));
  config.tensor = "none";
  config.sequence_size = 0;
  EXPECT_THAT(sizes(16), Pair(1, 8));
}

TEST(RunConfig, HowRanksExchangeMayBeSaidAndMayChangeWhenARunGoesOn) {
  RunConfig config = Complete();
  EXPECT_EQ(config.transport, "auto");
  EXPECT_FALSE(config.exact || config.share_gpu);
  for (const char* const transport : {"mpi", "nccl", "auto"}) {
    EXPECT_OK(Set("transport", transport, config));
  }
  EXPECT_THAT(Set("transport", "gloo", config),
              StatusIs(kInvalid, HasSubstr("wants one of auto, mpi, nccl")));
  RunConfig now = config;
  ASSERT_OK(RunKeys(now).ApplyToml("transport = \"nccl\"\nexact = true\nshare-gpu = true\n", "f"));
  EXPECT_TRUE(now.exact && now.share_gpu);
  EXPECT_THAT(Changes(config, now),
              IsOkAndHolds(ElementsAre("transport: auto is now nccl", "exact: false is now true",
                                       "share-gpu: false is now true")));
}

TEST(RunConfig, WhatAPipelineCannotDoIsRefusedByName) {
  RunConfig config;
  EXPECT_EQ(config.zero_stage(), 3);
  config.pipeline = 2;
  EXPECT_EQ(config.zero_stage(), 1);
  EXPECT_OK(CheckRunOfRanks(config, 2));
  config.micro_batch_schedule = "vertical";
  EXPECT_THAT(CheckRunOfRanks(config, 2),
              StatusIs(kInvalid, HasSubstr("--pipeline 2: --micro-batch-schedule vertical")));
  config.micro_batch_schedule = "horizontal";
  config.pipeline_schedule = "zb-h1";
  EXPECT_OK(CheckRunOfRanks(config, 2));
  EXPECT_THAT(CheckScheduleRuns(config), StatusIs(kInvalid, HasSubstr("zb-h1 is only foretold")));
  config.pipeline_schedule = "interleaved";
  config.pipeline_chunks = 2;
  config.accumulate = 3;
  EXPECT_THAT(CheckRunOfRanks(config, 2),
              StatusIs(kInvalid, HasSubstr("--pipeline-chunks 2, --accumulate 3: ")));
  config.accumulate = 4;
  EXPECT_OK(CheckRunOfRanks(config, 2));
  // Lists of so many tasks would have no room.
  config.pipeline = config.pipeline_chunks = config.accumulate = int64_t{1} << 20;
  EXPECT_OK(CheckRunOfRanks(config, 1));
  config.pipeline = config.pipeline_chunks = 2;
  config.pipeline_schedule = "1f1b";
  EXPECT_THAT(CheckRunOfRanks(config, 2), StatusIs(kInvalid, HasSubstr("--pipeline-chunks 2")));
}

TEST(RunConfig, WhatRanksCannotDoIsRefusedByName) {
  const RunConfig plain;
  EXPECT_OK(CheckRunOfRanks(plain, 4));
  RunConfig config;
  config.reference = true;
  EXPECT_OK(CheckRunOfRanks(config, 1));
  EXPECT_THAT(CheckRunOfRanks(config, 2),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("--reference with 2 ranks")));
  config = plain;
  config.moments = "8bit";
  EXPECT_OK(CheckRunOfRanks(config, 2));
  config.moment_rounding = "stochastic";
  EXPECT_THAT(CheckRunOfRanks(config, 2), StatusIs(absl::StatusCode::kUnimplemented,
                                                   HasSubstr("--moment-rounding stochastic")));
  config = plain;
  config.device = "cuda";
  EXPECT_OK(CheckRunOfRanks(config, 2));
  config.transport = "nccl";
  EXPECT_OK(CheckRunOfRanks(config, 2));
  config.transport = "mpi";
  EXPECT_OK(CheckRunOfRanks(config, 1));
  EXPECT_THAT(CheckRunOfRanks(config, 2),
              StatusIs(kInvalid, HasSubstr("--transport mpi with --device cuda: MPI exchanges")));
  config.transport = "auto";
  config.daemon = "/run/geminid";
  EXPECT_THAT(CheckRunOfRanks(config, 2),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("a geminid has one GPU")));
  config.share_gpu = true;
  EXPECT_OK(CheckRunOfRanks(config, 2));
  config = plain;
  config.accumulate = 2;
  for (const char* const stage : {"0", "1", "2", "3"}) {
    SCOPED_TRACE(stage);
    const bool has_room = *stage < '2';
    config.zero = stage;
    config.gradient_sync = "auto";
    EXPECT_EQ(config.adds_gradients_once(), has_room);
    config.gradient_sync = "each";
    EXPECT_FALSE(config.adds_gradients_once());
    EXPECT_OK(CheckRunOfRanks(config, 2));
    config.gradient_sync = "last";
    EXPECT_OK(CheckRunOfRanks(config, 1));
    if (has_room) {
      EXPECT_OK(CheckRunOfRanks(config, 2));
      EXPECT_TRUE(config.adds_gradients_once());
    } else {
      EXPECT_THAT(CheckRunOfRanks(config, 2),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--zero 1 has")));
    }
  }
  config.gather_ahead = 1;
  for (const char* const stage : {"0", "1", "2"}) {
    config.zero = stage;
    config.gradient_sync = "auto";
    EXPECT_THAT(CheckRunOfRanks(config, 2),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--gather-ahead")));
    EXPECT_OK(CheckRunOfRanks(config, 1));
  }
  config.zero = "3";
  EXPECT_OK(CheckRunOfRanks(config, 2));
  config.accumulate = 1;  // It comes to the same, and needs no room.
  config.zero = "1";
  EXPECT_FALSE(config.adds_gradients_once());
  config = plain;
  config.vocabulary_blocks = 1;
  EXPECT_OK(CheckRunOfRanks(config, 2));
  config.vocabulary_blocks = 4;
  EXPECT_THAT(CheckRunOfRanks(config, 2),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("--vocabulary-blocks")));
}

}  // namespace
}  // namespace gemini::trainer
