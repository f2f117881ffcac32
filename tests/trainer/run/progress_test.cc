// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/progress.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "gemini/system/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

ProgressState Middle() {
  return {.step = 50,
          .num_steps = 100,
          .loss = 3.25,
          .items_per_second = 1234.4,
          .device_used_bytes = int64_t{60} << 20,
          .device_budget_bytes = int64_t{64} << 20,
          .host_bytes = int64_t{2} << 30,
          .left = absl::Seconds(3725)};
}

// Reads what a program wrote so far.
std::string ReadAll(int fd) {
  std::string text(65536, '\0');
  const ssize_t got = ::read(fd, text.data(), text.size());
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

// Reads until `last` has come `times` times: a terminal hands on what is written to it piece by
// piece.
std::string ReadUntil(int fd, const std::string& last, int times) {
  std::string text;
  const auto count = [&] {
    int found = 0;
    for (size_t at = text.find(last); at != std::string::npos; at = text.find(last, at + 1)) {
      ++found;
    }
    return found;
  };
  while (count() < times) {
    const std::string piece = ReadAll(fd);
    if (piece.empty()) break;
    text += piece;
  }
  return text;
}

TEST(Progress, TheLineShowsAllThatIsPromised) {
  EXPECT_EQ(ProgressLine(Middle(), 200),
            "[==========>         ] 50/100 loss 3.2500 1234 tok/s left 1:02:05 DEVICE 60MiB/64MiB "
            "HOST 2GiB");
}

TEST(Progress, AnOrdinaryTerminalShowsAllOfIt) {
  EXPECT_EQ(ProgressLine(Middle(), 79),
            "[==>  ] 50/100 loss 3.2500 1234 tok/s left 1:02:05 DEVICE 60MiB/64MiB HOST 2GiB");
}

TEST(Progress, ImagesAreCountedAsSuch) {
  ProgressState state = Middle();
  state.item_name = "images";
  EXPECT_THAT(ProgressLine(state, 200), HasSubstr(" 1234 img/s "));
}

TEST(Progress, NoLineIsWiderThanTheTerminal) {
  for (int columns = 0; columns < 150; ++columns) {
    EXPECT_LE(static_cast<int>(ProgressLine(Middle(), columns).size()), columns);
  }
}

TEST(Progress, WithoutABudgetNoTierIsShown) {
  ProgressState state = Middle();
  state.device_budget_bytes = 0;
  EXPECT_THAT(ProgressLine(state, 200), Not(HasSubstr("DEVICE")));
}

TEST(Progress, EndsAndOddNumbersAreDrawn) {
  ProgressState state = Middle();
  state.step = 100;
  EXPECT_THAT(ProgressLine(state, 200), StartsWith("[====================] 100/100"));
  state.num_steps = 0;
  EXPECT_THAT(ProgressLine(state, 200), StartsWith("[>   "));
  state.left = absl::InfiniteDuration();
  EXPECT_THAT(ProgressLine(state, 200), HasSubstr("left ?"));
}

TEST(Progress, ElsewhereThanOnATerminalItPrintsPlainLinesNowAndThen) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  {
    Progress progress(writer.get());
    const absl::Duration start = absl::ZeroDuration();
    for (int64_t step = 1; step <= 100; ++step) {
      ProgressState state = Middle();
      state.step = step;
      progress.Show(state, start + absl::Milliseconds(100 * step));
    }
  }
  const std::string text = ReadAll(reader.get());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;  // 1, about 51, 100.
  EXPECT_THAT(text, AllOf(HasSubstr("] 1/100"), HasSubstr("] 51/100"), HasSubstr("] 100/100"),
                          Not(HasSubstr("\r")), Not(HasSubstr("\x1b"))));
}

TEST(Progress, OnATerminalOneLineIsDrawnOver) {
  UniqueFd main_end(::posix_openpt(O_RDWR | O_NOCTTY));
  ASSERT_TRUE(main_end);
  ASSERT_EQ(::grantpt(main_end.get()), 0);
  ASSERT_EQ(::unlockpt(main_end.get()), 0);
  UniqueFd terminal(::open(::ptsname(main_end.get()), O_RDWR | O_NOCTTY));
  ASSERT_TRUE(terminal);
  {
    Progress progress(terminal.get());
    progress.Show(Middle(), absl::ZeroDuration());
    progress.Show(Middle(), absl::Seconds(1));
    const std::string text = ReadUntil(main_end.get(), "\x1b[K", 2);
    EXPECT_THAT(text, AllOf(StartsWith("\r["), HasSubstr("\x1b[K\r["), Not(HasSubstr("\n"))));
    progress.Clear();
    EXPECT_EQ(ReadUntil(main_end.get(), "\x1b[K", 1), "\r\x1b[K");
    progress.Show(Middle(), absl::Seconds(2));
    ReadUntil(main_end.get(), "\x1b[K", 1);
  }
  EXPECT_THAT(ReadUntil(main_end.get(), "\n", 1), HasSubstr("\n"));
}

TEST(Progress, APartSaysWhatItIsAndHowFar) {
  EXPECT_EQ(PartLine({.what = "evaluating", .done = 5, .total = 20}, 200),
            "[=====>              ] evaluating 5/20");
  EXPECT_EQ(
      PartLine(
          {.what = "saving", .done = int64_t{3} << 29, .total = int64_t{4} << 30, .is_bytes = true},
          200),
      "[=======>            ] saving 1.5GiB/4GiB");
  for (int columns = 0; columns < 80; ++columns) {
    EXPECT_LE(
        static_cast<int>(PartLine({.what = "evaluating", .done = 5, .total = 20}, columns).size()),
        columns);
  }
}

TEST(Progress, APartIsShownOnlyWhereItTakesLong) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  absl::Duration now = absl::ZeroDuration();
  {
    Progress progress(writer.get());
    const auto part = [&](const char* what, int64_t total) {
      for (int64_t done = 1; done <= total; ++done) {
        progress.ShowPart({.what = what, .done = done, .total = total}, now);
        now += absl::Seconds(1);
      }
    };
    part("loading", 4);
    for (int i = 0; i < 2; ++i) {  // Short, and a step in between: each begins anew.
      part("evaluating", 4);
      progress.Show(Middle(), now);
    }
    part("evaluating", 12);
    now += absl::Seconds(100);
    part("saving", 3);
  }
  const std::string text = ReadAll(reader.get());
  EXPECT_THAT(text, AllOf(HasSubstr("] evaluating 6/12\n"), HasSubstr("] evaluating 11/12\n"),
                          Not(HasSubstr("loading")), Not(HasSubstr("saving"))));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;  // And the first step.
}

TEST(Progress, DurationsAreWrittenAsClocksDo) {
  EXPECT_EQ(DurationText(absl::Seconds(0)), "0:00");
  EXPECT_EQ(DurationText(absl::Seconds(59.6)), "1:00");
  EXPECT_EQ(DurationText(absl::Seconds(3600)), "1:00:00");
  EXPECT_EQ(DurationText(absl::Seconds(-5)), "0:00");
}

TEST(Progress, TheTimeLeftFollowsTheLatestSteps) {
  StepClock clock;
  EXPECT_EQ(clock.Left(3), absl::InfiniteDuration());
  clock.Add(absl::Seconds(10));
  EXPECT_EQ(clock.Left(3), absl::Seconds(30));
  for (int i = 0; i < 200; ++i) clock.Add(absl::Seconds(1));
  EXPECT_NEAR(absl::ToDoubleSeconds(clock.Left(10)), 10, 1e-3);
}

}  // namespace
}  // namespace gemini::trainer
