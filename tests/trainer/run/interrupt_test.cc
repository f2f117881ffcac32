// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

TEST(Interrupt, TheFirstSignalIsRememberedAndEndsNothing) {
  const Interrupt interrupt;
  EXPECT_EQ(interrupt.signal(), 0);
  ::raise(SIGINT);
  EXPECT_EQ(interrupt.signal(), SIGINT);
}

TEST(Interrupt, TheSecondSignalEndsTheProcessAtOnceWith130) {
  EXPECT_EXIT(
      {
        const Interrupt interrupt;
        ::raise(SIGINT);
        ::raise(SIGINT);
        ::_exit(7);
      },
      ::testing::ExitedWithCode(130), "Stopping: finishing this step");
}

TEST(Interrupt, TerminationIsTreatedLikeCtrlC) {
  EXPECT_EXIT(
      {
        const Interrupt interrupt;
        ::raise(SIGTERM);
        ::_exit(Interrupt::ExitStatus(interrupt.signal()));
      },
      ::testing::ExitedWithCode(143), "Stopping");
}

TEST(Interrupt, WhatMpirunPassesOnIsTreatedLikeCtrlCAndToldByOneRank) {
  for (const Interrupt::Tells tells : {Interrupt::Tells::kYes, Interrupt::Tells::kNo}) {
    EXPECT_EXIT(
        {
          const Interrupt interrupt(tells);
          ::raise(SIGUSR1);
          ::_exit(Interrupt::ExitStatus(interrupt.signal()));
        },
        ::testing::ExitedWithCode(128 + SIGUSR1),
        tells == Interrupt::Tells::kYes ? "Stopping" : "^$");
  }
}

TEST(Interrupt, AfterItsEndSignalsDoWhatTheyDidBefore) {
  { const Interrupt interrupt; }
  EXPECT_EXIT(::raise(SIGINT), ::testing::KilledBySignal(SIGINT), "");
}

TEST(Interrupt, AClosedTerminalIsTreatedLikeCtrlC) {
  EXPECT_EXIT(
      {
        const Interrupt interrupt;
        ::raise(SIGHUP);
        ::_exit(Interrupt::ExitStatus(interrupt.signal()));
      },
      ::testing::ExitedWithCode(129), "Stopping");
}

// A shell that goes with its terminal sends one, and the kernel another.
TEST(Interrupt, AHangupBehindTheFirstSignalEndsNothing) {
  for (const int first : {SIGHUP, SIGINT, SIGTERM}) {
    EXPECT_EXIT(
        {
          const Interrupt interrupt;
          ::raise(first);
          ::raise(SIGHUP);
          ::raise(SIGHUP);
          ::_exit(interrupt.signal() == first ? 7 : 8);
        },
        ::testing::ExitedWithCode(7), "Stopping");
  }
}

TEST(Interrupt, CtrlCBehindAHangupEndsTheProcessAtOnce) {
  EXPECT_EXIT(
      {
        const Interrupt interrupt;
        ::raise(SIGHUP);
        ::raise(SIGINT);
        ::_exit(7);
      },
      ::testing::ExitedWithCode(130), "Stopping");
}

TEST(Interrupt, WhatNohupIgnoresStaysIgnored) {
  ::signal(SIGHUP, SIG_IGN);
  {
    const Interrupt interrupt;
    ::raise(SIGHUP);
    EXPECT_EQ(interrupt.signal(), 0);
  }
  ::signal(SIGHUP, SIG_DFL);
}

TEST(Interrupt, AReaderThatGoesAwayEndsNothing) {
  const Interrupt interrupt;
  int ends[2] = {};
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  EXPECT_EQ(::write(ends[1], "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  ::close(ends[1]);
  EXPECT_EQ(interrupt.signal(), 0);
}

}  // namespace
}  // namespace gemini::trainer
