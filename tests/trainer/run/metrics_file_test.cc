// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/metrics_file.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "nlohmann/json.hpp"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using Mode = MetricsFile::Mode;

const std::vector<TaskMetric> kPerplexity = {{"perplexity", 4.48}};

class MetricsFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "metrics_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    path_ = pattern + "/metrics.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string Content() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  static StepMetrics Step(int64_t step) {
    StepMetrics metrics;
    metrics.step = step;
    return metrics;
  }
  std::string directory_;
  std::string path_;
};

TEST_F(MetricsFileTest, AStepHasEveryPromisedKeyAndExactNumbers) {
  StepMetrics metrics = Step(3);
  metrics.loss = 0.1 + 0.2;
  metrics.memory.device_peak_bytes = (int64_t{1} << 60) + 1;
  metrics.memory.stall_seconds_by_cause[static_cast<int>(StallCause::kUpdate)] = 0.25;
  metrics.memory.phases.divergences[static_cast<int>(Divergence::kNonModel)] = 3;
  const auto json = nlohmann::json::parse(ToJson(metrics));
  for (const char* key :
       {"step", "loss", "lr", "grad_norm", "tokens_per_second", "device_peak_bytes",
        "device_budget_bytes", "host_bytes", "registered_host_bytes", "nvme_bytes", "fetch_bytes",
        "evict_bytes", "stall_seconds", "stall_seconds_by_cause", "planned_rounds",
        "divergences"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["loss"].get<double>(), 0.1 + 0.2);
  EXPECT_EQ(json["stall_seconds_by_cause"]["update"].get<double>(), 0.25);
  EXPECT_EQ(json["stall_seconds_by_cause"]["transfer"].get<double>(), 0);
  EXPECT_EQ(json["divergences"]["non-model"].get<int64_t>(), 3);
  EXPECT_EQ(json["device_peak_bytes"].get<int64_t>(), (int64_t{1} << 60) + 1);
}

TEST_F(MetricsFileTest, TheLossOfTheRoutersIsThereWhereThereIsOne) {
  StepMetrics step = Step(3);
  EvalMetrics evaluation = {3, 1.5, kPerplexity};
  EXPECT_FALSE(nlohmann::json::parse(ToJson(step)).contains("router_loss"));
  EXPECT_FALSE(nlohmann::json::parse(ToJson(evaluation)).contains("eval_router_loss"));
  step.router_loss = 2.25;
  evaluation.eval_router_loss = 2.5;
  EXPECT_EQ(nlohmann::json::parse(ToJson(step))["router_loss"].get<double>(), 2.25);
  EXPECT_EQ(nlohmann::json::parse(ToJson(evaluation))["eval_router_loss"].get<double>(), 2.5);
}

TEST_F(MetricsFileTest, WhatATaskTellsIsThereByItsName) {
  const auto json =
      nlohmann::json::parse(ToJson(EvalMetrics{3, 1.5, {{"accuracy", 0.75}, {"top5", 0.875}}}));
  EXPECT_EQ(json["eval_accuracy"].get<double>(), 0.75);
  EXPECT_EQ(json["eval_top5"].get<double>(), 0.875);
  EXPECT_FALSE(json.contains("eval_perplexity"));
}

TEST_F(MetricsFileTest, WhatARankSentIsThereByItsKind) {
  StepMetrics step = Step(3);
  EXPECT_FALSE(nlohmann::json::parse(ToJson(step)).contains("sent"));
  step.sent = {{"all-gather", {4, 1024}}, {"send", {1, 77}}};
  EXPECT_EQ(nlohmann::json::parse(ToJson(step))["sent"],
            (nlohmann::json{{"all-gather", {{"operations", 4}, {"bytes", 1024}}},
                            {"send", {{"operations", 1}, {"bytes", 77}}}}));
}

TEST_F(MetricsFileTest, BytesOfExpertsAreThereWhereTheyWereRouted) {
  EvalMetrics evaluation = {3, 1.5, kPerplexity};
  EXPECT_FALSE(nlohmann::json::parse(ToJson(evaluation)).contains("expert_fetch_bytes"));
  evaluation.expert_fetch_bytes = 77;
  EXPECT_EQ(nlohmann::json::parse(ToJson(evaluation))["expert_fetch_bytes"].get<int64_t>(), 77);
}

TEST_F(MetricsFileTest, NanAndInfinityAreNullAndTheLineStaysJson) {
  StepMetrics metrics = Step(3);
  metrics.loss = std::nan("");
  metrics.update.grad_norm = std::numeric_limits<double>::infinity();
  const auto json = nlohmann::json::parse(ToJson(metrics));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
}

TEST_F(MetricsFileTest, ANewRunDoesNotTouchAFileThatIsThere) {
  std::ofstream(path_) << "precious";
  EXPECT_THAT(MetricsFile::Open(path_, Mode::kNew, {0, 0}),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("--overwrite")));
  EXPECT_EQ(Content(), "precious");
}

TEST_F(MetricsFileTest, OverwritingStartsEmpty) {
  std::ofstream(path_) << "old\n";
  ASSERT_OK_AND_ASSIGN(MetricsFile file, MetricsFile::Open(path_, Mode::kOverwrite, {0, 0}));
  EXPECT_EQ(Content(), "");
}

TEST_F(MetricsFileTest, ResumingDropsLaterStepsAndABrokenLastLine) {
  {
    ASSERT_OK_AND_ASSIGN(MetricsFile file, MetricsFile::Open(path_, Mode::kNew, {0, 0}));
    for (int64_t step = 1; step <= 4; ++step) ASSERT_OK(file.Append(Step(step)));
    ASSERT_OK(file.Append(EvalMetrics{2, 1.5, kPerplexity}));
  }
  std::ofstream(path_, std::ios::app) << "{\"step\":2,\"lo";
  ASSERT_OK_AND_ASSIGN(MetricsFile file, MetricsFile::Open(path_, Mode::kResume, {2, 2}));
  ASSERT_OK(file.Append(Step(3)));
  EXPECT_EQ(Content(), ToJson(Step(1)) + "\n" + ToJson(Step(2)) + "\n" +
                           ToJson(EvalMetrics{2, 1.5, kPerplexity}) + "\n" + ToJson(Step(3)) +
                           "\n");
}

TEST_F(MetricsFileTest, ResumingWithoutAFileMakesOne) {
  ASSERT_OK(MetricsFile::Open(path_, Mode::kResume, {2, 2}));
  EXPECT_EQ(Content(), "");
}

TEST_F(MetricsFileTest, LookingMakesNothingAndFindsWhatWouldFail) {
  EXPECT_OK(MetricsFile::Check(path_, Mode::kNew));
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_THAT(MetricsFile::Check(directory_ + "/none/m.jsonl", Mode::kNew),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("cannot be made in")));
  std::ofstream(path_) << ToJson(Step(1)) << "\n";
  EXPECT_THAT(MetricsFile::Check(path_, Mode::kNew), StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_OK(MetricsFile::Check(path_, Mode::kOverwrite));
}

TEST_F(MetricsFileTest, AFileThatNoRunWroteIsNotReplaced) {
  const std::string ours = ToJson(Step(1)) + "\n" + ToJson(EvalMetrics{1, 1.5, {}}) + "\n";
  for (const std::string& foreign :
       {std::string("a note\n"), std::string("{\"step\":1,\"reward\":2}\n"), std::string("[1]"),
        std::string("{\"loss\":1,\"lr\":1}\n"), std::string("\0\0\n", 3),
        "{\"step\":" + std::string(2 << 20, 'x')}) {
    std::ofstream(path_, std::ios::binary) << ours << foreign;
    for (const Mode mode : {Mode::kOverwrite, Mode::kResume}) {
      EXPECT_THAT(MetricsFile::Check(path_, mode), StatusIs(absl::StatusCode::kInvalidArgument,
                                                            HasSubstr("no run wrote its line 3")))
          << foreign.substr(0, 30);
    }
  }
}

TEST_F(MetricsFileTest, AFileThatCannotBeReadIsNotReplaced) {
  std::ofstream(path_) << ToJson(Step(1)) << "\n";
  rlimit descriptors = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &descriptors), 0);
  const rlimit none = {0, descriptors.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status overwritten = MetricsFile::Check(path_, Mode::kOverwrite);
  const absl::Status resumed = MetricsFile::Check(path_, Mode::kResume);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &descriptors), 0);
  for (const absl::Status& status : {overwritten, resumed}) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot be read to see")));
  }
  EXPECT_OK(MetricsFile::Check(path_, Mode::kResume));
}

TEST_F(MetricsFileTest, AFileThatNoRunWroteIsNotReplacedOnTheWayEither) {
  std::ofstream(path_) << ToJson(Step(1)) << "\n";
  std::ofstream(path_ + ".partial") << "a note\n";
  EXPECT_THAT(MetricsFile::Check(path_, Mode::kResume),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path_ + ".partial")));
  EXPECT_OK(MetricsFile::Check(path_, Mode::kOverwrite));
  // A run that was killed while it rewrote the file.
  std::ofstream(path_ + ".partial") << ToJson(Step(1)) << "\n{\"step\":2,";
  EXPECT_OK(MetricsFile::Check(path_, Mode::kResume));
}

TEST_F(MetricsFileTest, WhatRunsLeaveMayBeReplaced) {
  for (const char* left : {"", "\n", "{", "{\"step\":", "{\"step\":2,\"lo",
                           "{\"step\":2,\"lo\n{\"step\":3,\"eval_loss\":1}\n"}) {
    std::ofstream(path_) << ToJson(Step(1)) << "\n" << left;
    for (const Mode mode : {Mode::kOverwrite, Mode::kResume}) {
      EXPECT_OK(MetricsFile::Check(path_, mode)) << left;
    }
  }
}

TEST_F(MetricsFileTest, AFileThatCannotBeRewrittenIsAppendedTo) {
  std::string before = ToJson(Step(1)) + "\n" + ToJson(Step(2)) + "\n{\"step\":3,\"lo";
  std::ofstream(path_) << before;
  // What it would be written as first; no file can take its place.
  std::filesystem::create_directories(path_ + ".partial/mine");
  ASSERT_OK_AND_ASSIGN(MetricsFile file, MetricsFile::Open(path_, Mode::kResume, {1, 1}));
  EXPECT_FALSE(file.rewritten().ok());
  ASSERT_OK(file.Append(Step(2)));
  EXPECT_EQ(Content(), before + "\n" + ToJson(Step(2)) + "\n");
}

TEST_F(MetricsFileTest, APipeThatIsFullLosesLinesAndKeepsTheOthersWhole) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const UniqueFd reader(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_OK_AND_ASSIGN(MetricsFile file, MetricsFile::Open(path_, Mode::kNew, {}));
  StepMetrics large = Step(1);
  for (int kind = 0; kind < 400; ++kind) large.sent[std::to_string(kind)] = {};
  ASSERT_GT(ToJson(large).size(), 4096U);  // Pipes take parts of what is longer.
  absl::Status status;
  while (status.ok()) status = file.Append(large);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("its reader is slow")));
  std::string read(1 << 20, '\0');
  read.resize(::read(reader.get(), read.data(), read.size()));
  EXPECT_THAT(read, Not(EndsWith("\n")));
  ASSERT_OK(file.Append(Step(2)));
  std::string last(4096, '\0');
  last.resize(::read(reader.get(), last.data(), last.size()));
  EXPECT_EQ(last, "\n" + ToJson(Step(2)) + "\n");
}

TEST_F(MetricsFileTest, AFullDiskIsAnError) {
  ASSERT_OK_AND_ASSIGN(MetricsFile file, MetricsFile::Open("/dev/full", Mode::kOverwrite, {0, 0}));
  EXPECT_THAT(file.Append(Step(1)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("/dev/full")));
}

TEST_F(MetricsFileTest, ALineThatWasCutShortSpoilsNoneBehindIt) {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {ToJson(Step(1)).size() + 20, before.rlim_max};
  {
    ASSERT_OK_AND_ASSIGN(MetricsFile file, MetricsFile::Open(path_, Mode::kNew, {}));
    ASSERT_OK(file.Append(Step(1)));
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    EXPECT_FALSE(file.Append(Step(2)).ok());
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_THAT(Content(), Not(EndsWith("\n")));
    ASSERT_OK(file.Append(Step(3)));
  }
  ASSERT_OK(MetricsFile::Open(path_, Mode::kResume, {9, 9}).status());
  EXPECT_EQ(Content(), ToJson(Step(1)) + "\n" + ToJson(Step(3)) + "\n");
}

TEST_F(MetricsFileTest, ADirectoryIsRefusedBeforeTheRun) {
  EXPECT_THAT(MetricsFile::Check(directory_, Mode::kOverwrite),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("name a file")));
}

TEST_F(MetricsFileTest, ResumingDropsEvaluationsThatAreMadeAgain) {
  {
    ASSERT_OK_AND_ASSIGN(MetricsFile file, MetricsFile::Open(path_, Mode::kNew, {}));
    ASSERT_OK(file.Append(Step(1)));
    ASSERT_OK(file.Append(EvalMetrics{1, 1.5, kPerplexity}));
    ASSERT_OK(file.Append(Step(2)));
    ASSERT_OK(file.Append(EvalMetrics{2, 1.5, kPerplexity}));
  }
  ASSERT_OK(MetricsFile::Open(path_, Mode::kResume, {.step = 2, .evaluated_step = 1}));
  EXPECT_EQ(Content(), ToJson(Step(1)) + "\n" + ToJson(EvalMetrics{1, 1.5, kPerplexity}) + "\n" +
                           ToJson(Step(2)) + "\n");
}

TEST_F(MetricsFileTest, TheLastEvaluationUpToAStepIsFound) {
  EXPECT_EQ(MetricsFile::LastEvaluatedStep(path_, 9), 0);
  {
    ASSERT_OK_AND_ASSIGN(MetricsFile file, MetricsFile::Open(path_, Mode::kNew, {0, 0}));
    for (int64_t step = 1; step <= 6; ++step) {
      ASSERT_OK(file.Append(Step(step)));
      if (step % 2 == 0) {
        ASSERT_OK(file.Append(EvalMetrics{step, 1.5, kPerplexity}));
      }
    }
  }
  EXPECT_EQ(MetricsFile::LastEvaluatedStep(path_, 1), 0);
  EXPECT_EQ(MetricsFile::LastEvaluatedStep(path_, 5), 4);
  EXPECT_EQ(MetricsFile::LastEvaluatedStep(path_, 9), 6);
}

TEST_F(MetricsFileTest, WhatIsNoRegularFileIsAppendedToAndStaysWhatItIs) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  for (const Mode mode : {Mode::kNew, Mode::kOverwrite, Mode::kResume}) {
    EXPECT_OK(MetricsFile::Check(path_, mode));
    // Nobody reads: an error at once, and no wait.
    EXPECT_THAT(MetricsFile::Open(path_, mode, {2, 2}),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("start its reader first")));
    const UniqueFd reader(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    ASSERT_OK_AND_ASSIGN(MetricsFile file, MetricsFile::Open(path_, mode, {2, 2}));
    ASSERT_OK(file.Append(Step(3)));
    std::string read(4096, '\0');
    read.resize(::read(reader.get(), read.data(), read.size()));
    EXPECT_EQ(read, ToJson(Step(3)) + "\n");
    EXPECT_TRUE(std::filesystem::is_fifo(path_));
    EXPECT_OK(MetricsFile::Open("/dev/null", mode, {2, 2}));
  }
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(MetricsFileTest, AFileThatSomebodyHasOpenIsAppendedToAndNotReplaced) {
  const std::string before = "a line of another program\n" + ToJson(Step(3)) + "\n";
  std::ofstream(path_) << before;
  const UniqueFd open(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  const std::string name = "/proc/self/fd/" + std::to_string(open.get());
  std::string written = before;
  for (const Mode mode : {Mode::kNew, Mode::kOverwrite, Mode::kResume}) {
    EXPECT_OK(MetricsFile::Check(name, mode));
    ASSERT_OK_AND_ASSIGN(MetricsFile file, MetricsFile::Open(name, mode, {2, 2}));
    ASSERT_OK(file.Append(Step(3)));
    written += ToJson(Step(3)) + "\n";
    EXPECT_EQ(Content(), written);
  }
  struct stat of_name = {}, of_descriptor = {};
  ASSERT_EQ(::stat(path_.c_str(), &of_name), 0);
  ASSERT_EQ(::fstat(open.get(), &of_descriptor), 0);
  EXPECT_EQ(of_name.st_ino, of_descriptor.st_ino);
}

TEST_F(MetricsFileTest, ALinkIsFollowedAndNotReplaced) {
  const std::string target = directory_ + "/target.jsonl";
  std::ofstream(target) << ToJson(Step(1)) << "\n" << ToJson(Step(2)) << "\n";
  std::filesystem::create_symlink("target.jsonl", path_);
  ASSERT_OK_AND_ASSIGN(MetricsFile file, MetricsFile::Open(path_, Mode::kResume, {1, 1}));
  ASSERT_OK(file.Append(Step(2)));
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
  EXPECT_EQ(Content(), ToJson(Step(1)) + "\n" + ToJson(Step(2)) + "\n");
}

}  // namespace
}  // namespace gemini::trainer
