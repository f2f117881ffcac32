// SPDX-License-Identifier: Apache-2.0
#include "trainer/config/command_line.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class CommandLineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "command_line_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  std::vector<std::string> With(std::vector<std::string> more) const {
    std::vector<std::string> all = {"--model", "m",  "--data",   "d.npy",
                                    "--steps", "10", "--output", directory_};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string directory_;
};

TEST_F(CommandLineTest, FlagsWinOverTheFile) {
  const std::string file = Write("a.toml", "batch = 3\nlr = 0.5\nnvme = [\"/a:1GiB\"]\n");
  ASSERT_OK_AND_ASSIGN(CommandLine line,
                       ParseCommandLine(With({"--config", file, "--batch=4", "--nvme", "/b:2GiB",
                                              "--nvme", "/c:3GiB", "--recompute"})));
  EXPECT_EQ(line.config.batch, 4);
  EXPECT_EQ(line.config.lr, 0.5);
  EXPECT_TRUE(line.config.recompute);
  EXPECT_THAT(line.config.nvme, ElementsAre(NvmeDirectory{"/b", int64_t{2} << 30},
                                            NvmeDirectory{"/c", int64_t{3} << 30}));
}

TEST_F(CommandLineTest, ASwitchMaySayFalseAgainstTheFile) {
  const std::string file = Write("a.toml", "recompute = true\n");
  ASSERT_OK_AND_ASSIGN(CommandLine line,
                       ParseCommandLine(With({"--config", file, "--recompute=false"})));
  EXPECT_FALSE(line.config.recompute);
}

TEST_F(CommandLineTest, AnUnknownFlagSuggestsTheNearest) {
  EXPECT_THAT(ParseCommandLine(With({"--warmup_step", "3"})),
              StatusIs(kInvalid, HasSubstr("did you mean '--warmup-steps'?")));
  EXPECT_THAT(ParseCommandLine(With({"--lrr=3"})),
              StatusIs(kInvalid, HasSubstr("did you mean '--lr'?")));
  EXPECT_THAT(ParseCommandLine(With({"loose"})), StatusIs(kInvalid, HasSubstr("'loose'")));
}

TEST_F(CommandLineTest, AFlagWithoutItsValueIsRefused) {
  EXPECT_THAT(ParseCommandLine(With({"--lr"})), StatusIs(kInvalid, HasSubstr("--lr")));
}

TEST_F(CommandLineTest, ABadValueNamesItsFlagOrItsLine) {
  EXPECT_THAT(ParseCommandLine(With({"--beta1", "2"})), StatusIs(kInvalid, HasSubstr("--beta1: ")));
  const std::string file = Write("a.toml", "\nbeta1 = 2\n");
  EXPECT_THAT(ParseCommandLine(With({"--config", file})),
              StatusIs(kInvalid, HasSubstr("a.toml:2: beta1: ")));
}

TEST_F(CommandLineTest, KeysThatDoNotBelongTogetherNameALineOfTheFile) {
  const std::string file = Write("a.toml", "[parallel]\ntensor = { mode = \"2d\", depth = 2 }\n");
  EXPECT_THAT(ParseCommandLine(With({"--config", file})),
              StatusIs(kInvalid, HasSubstr("a.toml:2: --tensor-depth 2 is of --tensor 2.5d")));
  ASSERT_OK_AND_ASSIGN(const CommandLine line,
                       ParseCommandLine(With({"--config", file, "--tensor", "2.5d"})));
  EXPECT_EQ(line.config.tensor_depth, 2);
  EXPECT_THAT(AtItsLine(absl::InvalidArgumentError("--tensor-size, --tensor-depth: no"), line),
              StatusIs(kInvalid, HasSubstr("a.toml:2: --tensor-size")));
}

TEST_F(CommandLineTest, AMissingConfigFileIsNotFound) {
  EXPECT_THAT(ParseCommandLine(With({"--config", directory_ + "/none.toml"})),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none.toml")));
}

TEST_F(CommandLineTest, ADirectoryIsNoConfigFile) {
  EXPECT_FALSE(ParseCommandLine(With({"--config", directory_})).ok());
}

TEST_F(CommandLineTest, ResumeTakesWhatIsNotGivenFromTheRun) {
  RunConfig before;
  before.model = "/m";
  before.data = "/d.npy";
  before.steps = 10;
  before.lr = 0.25;
  Write("run.toml", ToToml(before));
  ASSERT_OK_AND_ASSIGN(CommandLine line, ParseCommandLine({"--output", directory_, "--resume",
                                                           "--steps", "20", "--threads", "1"}));
  EXPECT_EQ(line.config.model, "/m");
  EXPECT_EQ(line.config.lr, 0.25);
  EXPECT_EQ(line.config.steps, 20);
  EXPECT_EQ(line.config.output, directory_);
  EXPECT_THAT(line.changes, ElementsAre("steps: 10 is now 20", "threads: 0 is now 1"));
  EXPECT_THAT(ParseCommandLine({"--output", directory_, "--resume", "--lr", "1", "--seed", "3"}),
              StatusIs(kInvalid, AllOf(HasSubstr("lr: 0.25 is now 1.0"), HasSubstr("seed: 42"))));
}

TEST_F(CommandLineTest, ResumeForgetsSizesOfWaysThatItDoesNotShareIn) {
  RunConfig before;
  before.model = "/m";
  before.data = "/d.npy";
  before.steps = 10;
  before.tensor = "2.5d";
  before.tensor_size = 8;
  before.tensor_depth = 2;
  Write("run.toml", ToToml(before));
  const std::vector<std::string> resume = {"--output", directory_, "--resume"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = resume;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  ASSERT_OK_AND_ASSIGN(CommandLine line, ParseCommandLine(with({"--tensor", "3d"})));
  EXPECT_EQ(line.config.tensor_size, 8);
  EXPECT_EQ(line.config.tensor_depth, 1);
  ASSERT_OK_AND_ASSIGN(line, ParseCommandLine(with({"--tensor", "none"})));
  EXPECT_EQ(line.config.tensor_size, 0);
  ASSERT_OK_AND_ASSIGN(line, ParseCommandLine(resume));
  EXPECT_EQ(line.config.tensor_depth, 2);
  EXPECT_THAT(ParseCommandLine(with({"--tensor", "3d", "--tensor-depth", "2"})),
              StatusIs(kInvalid, HasSubstr("--tensor-depth 2 is of --tensor 2.5d")));
}

TEST_F(CommandLineTest, ResumeWithoutARunSaysSo) {
  EXPECT_THAT(ParseCommandLine(With({"--resume"})),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no run to go on with")));
}

TEST_F(CommandLineTest, HelpListsEveryKeyAndNeedsNothingElse) {
  ASSERT_OK_AND_ASSIGN(CommandLine line, ParseCommandLine({"--help"}));
  EXPECT_TRUE(line.help);
  for (const absl::string_view toml_line : absl::StrSplit(ToToml({}), '\n', absl::SkipEmpty())) {
    if (toml_line[0] == '#') continue;
    const absl::string_view key = toml_line.substr(0, toml_line.find(' '));
    EXPECT_THAT(HelpText(), HasSubstr(absl::StrCat("--", key, " "))) << key;
  }
  EXPECT_THAT(HelpText(), AllOf(HasSubstr("--output DIR"), HasSubstr("--resume")));
  ASSERT_OK_AND_ASSIGN(line, ParseCommandLine({"--version"}));
  EXPECT_TRUE(line.version);
}

}  // namespace
}  // namespace gemini::trainer
