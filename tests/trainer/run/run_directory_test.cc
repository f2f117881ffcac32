// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/run_directory.h"

#include <stdlib.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <thread>

#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Mode = RunDirectory::Mode;

class RunDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "run_directory_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    path_ = pattern + "/out";
  }
  void TearDown() override { fs::remove_all(root_); }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_)) names.insert(entry.path().filename());
    return names;
  }
  static absl::Status WriteSome(const std::string& directory) {
    fs::create_directory(directory);
    std::ofstream(directory + "/file") << "content";
    return absl::OkStatus();
  }
  std::string root_;
  std::string path_;
};

TEST_F(RunDirectoryTest, LookingMakesNothing) {
  ASSERT_OK(RunDirectory::Open(path_ + "/a/b", Mode::kNew));
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(RunDirectoryTest, AFullDirectoryIsRefusedUnlessAskedFor) {
  fs::create_directory(path_);
  std::ofstream(path_ + "/thesis.txt") << "x";
  EXPECT_THAT(RunDirectory::Open(path_, Mode::kNew),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("thesis.txt")));
  ASSERT_OK(RunDirectory::Open(path_, Mode::kOverwrite));
}

TEST_F(RunDirectoryTest, OverwritingRemovesWhatARunMadeAndNothingElse) {
  fs::create_directories(path_ + "/checkpoint-3");
  fs::create_directories(path_ + "/.saving-4");
  fs::create_directories(path_ + "/.saving-6.partial");
  for (const char* name : {"run.toml", "metrics.jsonl", "thesis.txt"}) {
    std::ofstream(path_ + "/" + name) << "x";
  }
  ASSERT_OK_AND_ASSIGN(RunDirectory run, RunDirectory::Open(path_, Mode::kOverwrite));
  EXPECT_EQ(Names().size(), 6u);  // Not before Prepare.
  ASSERT_OK(run.Prepare());
  EXPECT_THAT(Names(), ElementsAre("thesis.txt"));
}

TEST_F(RunDirectoryTest, AFileAndAMissingParentThatIsAFileAreRefused) {
  std::ofstream(path_) << "x";
  EXPECT_THAT(RunDirectory::Open(path_, Mode::kNew),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("not a directory")));
  EXPECT_FALSE(RunDirectory::Open(path_ + "/below", Mode::kNew).ok());
}

TEST_F(RunDirectoryTest, AnUnwritablePlaceIsRefusedBeforeAnything) {
  // /proc cannot be written even by root.
  EXPECT_THAT(RunDirectory::Open("/proc/gemini_out/below", Mode::kNew), ::testing::Not(IsOk()));
}

TEST_F(RunDirectoryTest, ASecondRunInTheSameDirectoryIsRefused) {
  ASSERT_OK_AND_ASSIGN(RunDirectory run, RunDirectory::Open(path_, Mode::kNew));
  ASSERT_OK(run.Prepare());
  EXPECT_THAT(RunDirectory::Open(path_, Mode::kOverwrite),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another gemini-train")));
}

TEST_F(RunDirectoryTest, SavesAppearWholeTheNewestStayAndLatestPointsToTheLast) {
  ASSERT_OK_AND_ASSIGN(RunDirectory run, RunDirectory::Open(path_, Mode::kNew));
  ASSERT_OK(run.Prepare());
  for (int64_t step : {5, 10, 100}) {
    ASSERT_OK_AND_ASSIGN(const SaveResult saved, run.Save(step, /*keep=*/2, [&](const auto& at) {
      EXPECT_FALSE(fs::exists(at));
      return WriteSome(at);
    }));
    EXPECT_TRUE(fs::exists(saved.path + "/file"));
  }
  EXPECT_THAT(Names(), ElementsAre("checkpoint-10", "checkpoint-100", "latest"));
  EXPECT_EQ(fs::read_symlink(path_ + "/latest"), "checkpoint-100");
}

TEST_F(RunDirectoryTest, KeepZeroKeepsAll) {
  ASSERT_OK_AND_ASSIGN(RunDirectory run, RunDirectory::Open(path_, Mode::kNew));
  ASSERT_OK(run.Prepare());
  for (int64_t step : {1, 2, 3}) ASSERT_OK(run.Save(step, 0, &WriteSome));
  ASSERT_OK_AND_ASSIGN(const auto saved, run.Checkpoints());
  EXPECT_EQ(saved.size(), 3u);
}

TEST_F(RunDirectoryTest, AFailedSaveLeavesTheFormerOnesAndNothingHalf) {
  ASSERT_OK_AND_ASSIGN(RunDirectory run, RunDirectory::Open(path_, Mode::kNew));
  ASSERT_OK(run.Prepare());
  ASSERT_OK(run.Save(5, 1, &WriteSome));
  EXPECT_THAT(run.Save(6, 1,
                       [](const std::string& at) {
                         WriteSome(at).IgnoreError();
                         return absl::ResourceExhaustedError("disk full");
                       }),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(Names(), ElementsAre("checkpoint-5", "latest"));
}

TEST_F(RunDirectoryTest, ResumingNeedsACheckpoint) {
  EXPECT_THAT(RunDirectory::Open(path_, Mode::kResume), StatusIs(absl::StatusCode::kNotFound));
  fs::create_directories(path_ + "/.saving-3");
  fs::create_directories(path_ + "/checkpoint-old");
  EXPECT_THAT(RunDirectory::Open(path_, Mode::kResume),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no checkpoint")));
  fs::create_directories(path_ + "/checkpoint-20");
  fs::create_directories(path_ + "/checkpoint-3");
  ASSERT_OK_AND_ASSIGN(RunDirectory run, RunDirectory::Open(path_, Mode::kResume));
  ASSERT_OK_AND_ASSIGN(const auto saved, run.Checkpoints());
  ASSERT_EQ(saved.size(), 2u);
  EXPECT_EQ(saved.back().step, 20);
  ASSERT_OK(run.Prepare());
  EXPECT_THAT(Names(), ElementsAre("checkpoint-20", "checkpoint-3", "checkpoint-old"));
}

TEST_F(RunDirectoryTest, RoomIsCheckedWhereTheDirectoryWillBe) {
  ASSERT_OK_AND_ASSIGN(RunDirectory run, RunDirectory::Open(path_ + "/deep/er", Mode::kNew));
  EXPECT_OK(run.CheckRoom(1));
  EXPECT_THAT(run.CheckRoom(int64_t{1} << 60),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--keep")));
}

TEST_F(RunDirectoryTest, OverwritingLeavesNamesThatNoRunGives) {
  for (const char* name : {"checkpoint-best", "checkpoint-012", "checkpoint-", "checkpoint-+3",
                           "checkpoint--1", ".saving-notes", ".saving-6.partial.partial",
                           "checkpoint-12.partial", "checkpoint-12", ".deleting-7"}) {
    fs::create_directories(path_ + "/" + name);
  }
  ASSERT_OK_AND_ASSIGN(RunDirectory run, RunDirectory::Open(path_, Mode::kOverwrite));
  ASSERT_OK(run.Prepare());
  EXPECT_THAT(Names(), ElementsAre(".saving-6.partial.partial", ".saving-notes", "checkpoint-",
                                   "checkpoint-+3", "checkpoint--1", "checkpoint-012",
                                   "checkpoint-12.partial", "checkpoint-best"));
}

// What a dead run left goes before the first save, so it is no reason to refuse the next run.
TEST_F(RunDirectoryTest, WhatPrepareRemovesCountsAsRoom) {
  fs::create_directories(path_ + "/checkpoint-4");
  constexpr int64_t kLeftBytes = 8 << 20;
  // A save writes under the second name first.
  for (const char* name : {"/.saving-6/below", "/.saving-6.partial/below"}) {
    fs::create_directories(path_ + name);
    std::ofstream(path_ + name + "/file") << std::string(kLeftBytes / 2, 'x');
  }
  ASSERT_OK_AND_ASSIGN(RunDirectory run, RunDirectory::Open(path_, Mode::kResume));
  // Others write to the disk meanwhile, but not in every try.
  bool fits = false;
  for (int i = 0; i < 20 && !fits; ++i) {
    const auto free = static_cast<int64_t>(fs::space(path_).available);
    fits = run.CheckRoom(free + kLeftBytes / 4 * 3).ok();
    EXPECT_THAT(run.CheckRoom(free + 64 * kLeftBytes),
                StatusIs(absl::StatusCode::kResourceExhausted));
  }
  EXPECT_TRUE(fits);
}

TEST_F(RunDirectoryTest, OfTwoNewRunsTheSecondIsRefusedBeforeItsFirstStep) {
  {
    ASSERT_OK_AND_ASSIGN(RunDirectory first, RunDirectory::Open(path_ + "/a", Mode::kNew));
    EXPECT_THAT(RunDirectory::Open(path_ + "/a", Mode::kNew),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another gemini-train")));
  }
  EXPECT_FALSE(fs::exists(path_));
  {
    ASSERT_OK_AND_ASSIGN(RunDirectory first, RunDirectory::Open(path_ + "/a", Mode::kNew));
    ASSERT_OK(first.Prepare());
  }
  EXPECT_TRUE(fs::exists(path_ + "/a"));
}

// Whoever makes the directory need not be the one who locks it first.
TEST_F(RunDirectoryTest, OfTwoNewRunsAtOnceOneGoesOnInADirectoryThatStays) {
  constexpr int kRounds = 500;
  std::barrier together(2);
  int both_refused = 0;
  int lost_directory = 0;
  bool got[2] = {};
  const auto run = [&](int own) {
    for (int round = 0; round < kRounds; ++round) {
      together.arrive_and_wait();
      const absl::StatusOr<RunDirectory> opened = RunDirectory::Open(path_ + "/a", Mode::kNew);
      got[own] = opened.ok();
      if (!opened.ok()) {
        EXPECT_THAT(opened, StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("another gemini-train")));
      }
      together.arrive_and_wait();
      if (opened.ok() && !std::ofstream(path_ + "/a/mine")) ++lost_directory;
      if (own == 0 && !got[0] && !got[1]) ++both_refused;
      together.arrive_and_wait();
      std::error_code ignored;
      if (own == 0) fs::remove_all(path_, ignored);
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  EXPECT_EQ(both_refused, 0);
  EXPECT_EQ(lost_directory, 0);
}

// One who only looks makes the directory, and removes it while another opens it.
TEST_F(RunDirectoryTest, ADirectoryThatAnotherGivesUpIsMadeAgain) {
  constexpr int kRounds = 2'000;
  std::atomic<bool> ends = false;
  std::thread looker([&] {
    while (!ends) RunDirectory::Open(path_ + "/a", Mode::kNew).status().IgnoreError();
  });
  int lost_directory = 0;
  for (int round = 0; round < kRounds; ++round) {
    const absl::StatusOr<RunDirectory> opened = RunDirectory::Open(path_ + "/a", Mode::kNew);
    if (!opened.ok()) {
      EXPECT_THAT(opened, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("another gemini-train")));
      continue;
    }
    if (!std::ofstream(path_ + "/a/mine")) ++lost_directory;
    fs::remove(path_ + "/a/mine");
  }
  ends = true;
  looker.join();
  EXPECT_EQ(lost_directory, 0);
}

TEST_F(RunDirectoryTest, ASaveIsThereThoughItsLinkOrAnOldCheckpointFail) {
  ASSERT_OK_AND_ASSIGN(RunDirectory run, RunDirectory::Open(path_, Mode::kNew));
  ASSERT_OK(run.Prepare());
  ASSERT_OK(run.Save(1, 1, &WriteSome));
  // Names that cannot be renamed over: a full directory in each place.
  fs::remove(path_ + "/latest");
  fs::create_directories(path_ + "/latest/mine");
  fs::create_directories(path_ + "/.deleting-1/mine");
  ASSERT_OK_AND_ASSIGN(const SaveResult saved, run.Save(2, 1, &WriteSome));
  EXPECT_TRUE(fs::exists(saved.path + "/file"));
  EXPECT_THAT(saved.housekeeping.message(), HasSubstr("link "));
  EXPECT_TRUE(fs::exists(path_ + "/checkpoint-1"));
  fs::remove_all(path_ + "/latest");
  ASSERT_OK_AND_ASSIGN(const SaveResult next, run.Save(3, 2, &WriteSome));
  EXPECT_THAT(next.housekeeping.message(), HasSubstr("rename "));
  fs::remove_all(path_ + "/.deleting-1");
  ASSERT_OK_AND_ASSIGN(const SaveResult last, run.Save(4, 1, &WriteSome));
  EXPECT_OK(last.housekeeping);
  EXPECT_THAT(Names(), ElementsAre("checkpoint-4", "latest"));
}

}  // namespace
}  // namespace gemini::trainer
