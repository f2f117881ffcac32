// SPDX-License-Identifier: Apache-2.0
// What a program in gemini-trace's place can do wrong. memstat_plan_test.py has the real one.
#include "tools/trace_helper.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gemini/system/monotonic_clock.h"
#include "tests/status_matchers.h"

namespace gemini::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

trainer::RanksRequest RanksOf(int64_t num_ranks) {
  trainer::RanksRequest request;
  request.num_ranks = num_ranks;
  return request;
}

constexpr absl::Duration kLimit = absl::Minutes(1);  // For programs that answer.

class TraceHelperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "trace_helper_XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Writes a file of the test's own, and returns its path.
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = absl::StrCat(directory_, "/", name);
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  // A program that runs these commands of the shell.
  std::string Program(const std::string& name, const std::string& commands) const {
    const std::string path = Write(name, absl::StrCat("#!/bin/sh\n", commands, "\n"));
    EXPECT_EQ(::chmod(path.c_str(), 0700), 0);
    return path;
  }
  // Whether each program that was started is over and waited for.
  static bool AllAreOver() { return ::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD; }
  static trainer::TraceReply Reply() {
    trainer::TraceReply reply;
    reply.model = "model";
    reply.request.round.sequence = 16;
    reply.made.trace.phase = "train";
    reply.made.trace.tensors = {{.size_bytes = 64}};
    reply.made.trace.operators = {{0, 1, 7, 0}};
    reply.made.trace.uses = {{0, ChunkKind::kParam, false}};
    reply.made.tensor_names = {"a.weight"};
    reply.made.operator_names = {"forward of a"};
    reply.made.needs = {{}};
    return reply;
  }

  std::string directory_;
};

TEST_F(TraceHelperTest, AsksForARoundOnce) {
  const std::string reply = Write("reply", trainer::EncodeReply(Reply()));
  // Answers one request, and sees that it has the model; a second one would be its end.
  TraceHelper helper(Program("once", absl::StrCat("read line; [ \"$2\" = some/model ] || exit 9; ",
                                                  "cat ", reply, "; read line && exit 4")),
                     "some/model", kLimit);
  ASSERT_OK_AND_ASSIGN(const trainer::NamedTrace first, helper.Trace({}));
  EXPECT_EQ(first.trace, Reply().made.trace);
  ASSERT_OK_AND_ASSIGN(const trainer::NamedTrace again, helper.Trace({}));
  EXPECT_EQ(again.operator_names, first.operator_names);
  trainer::TraceRequest other;
  other.round.batch = 2;
  EXPECT_THAT(helper.Trace(other), StatusIs(absl::StatusCode::kFailedPrecondition,
                                            HasSubstr("once, which foretells a model's steps, "
                                                      "ended with exit status 4")));
}

TEST_F(TraceHelperTest, ARefusalIsPassedOnAndTheNextRequestIsAnswered) {
  const std::string refusal =
      Write("refusal", trainer::EncodeReply(absl::InvalidArgumentError("no such batch")));
  const std::string reply = Write("second", trainer::EncodeReply(Reply()));
  TraceHelper helper(
      Program("twice", absl::StrCat("read a; cat ", refusal, "; read b; cat ", reply)), "model",
      kLimit);
  EXPECT_THAT(helper.Trace({}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no such batch")));
  EXPECT_OK(helper.Trace({}));
}

TEST_F(TraceHelperTest, AsksForTheStepsOfRanksBesideRounds) {
  trainer::RanksForecast forecast;
  forecast.last.end_seconds = 1.5;
  forecast.sent = {{"all-gather", {3, 4096}}};
  const std::string ranks = Write("ranks", trainer::EncodeRanksReply(forecast));
  const std::string refusal =
      Write("no", trainer::EncodeReply(absl::InvalidArgumentError("5 ranks do not divide")));
  const std::string reply = Write("round", trainer::EncodeReply(Reply()));
  TraceHelper helper(
      Program("ranks_and_round", absl::StrCat("read a; cat ", ranks, "; read b; cat ", refusal,
                                              "; read c; cat ", reply)),
      "model", kLimit);
  ASSERT_OK_AND_ASSIGN(const trainer::RanksForecast got, helper.Ranks(RanksOf(2)));
  EXPECT_EQ(got.last.end_seconds, 1.5);
  EXPECT_EQ(got.sent, forecast.sent);
  EXPECT_THAT(helper.Ranks(RanksOf(5)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("5 ranks do not divide")));
  EXPECT_OK(helper.Trace({}));
  TraceHelper ended(Program("over", "exit 3"), "model", kLimit);
  EXPECT_THAT(ended.Ranks({}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("exit status 3")));
}

TEST_F(TraceHelperTest, SaysWhereItLookedForTheProgramAndHowThatEnded) {
  TraceHelper missing("/nonexistent/gemini-trace", "model", kLimit);
  EXPECT_THAT(missing.Trace({}), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("there is no /nonexistent/gemini-trace")));
  TraceHelper ended(Program("ended", "exit 3"), "model", kLimit);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(ended.Trace({}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("exit status 3")));
  }
  TraceHelper killed(Program("killed", "read line; kill -9 $$"), "model", kLimit);
  EXPECT_THAT(killed.Trace({}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("signal 9")));
  TraceHelper no_program(Write("text", "text"), "model", kLimit);
  EXPECT_FALSE(no_program.Trace({}).ok());
}

TEST_F(TraceHelperTest, AProgramOfAnotherVersionIsRefused) {
  std::string text = trainer::EncodeReply(Reply());
  const size_t at = text.find(GEMINI_VERSION);
  text.replace(at, std::string(GEMINI_VERSION).size(), "0.0.9");
  TraceHelper helper(Program("old", absl::StrCat("read line; cat ", Write("old_reply", text))),
                     "model", kLimit);
  EXPECT_THAT(helper.Trace({}), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         AllOf(HasSubstr("old"), HasSubstr("is of Gemini 0.0.9"))));
}

TEST_F(TraceHelperTest, ARefusedReplyIsTheEndOfTheProgram) {
  const std::string reply = trainer::EncodeReply(Reply());
  std::string wrong = reply;
  wrong.replace(wrong.find("names_bytes\":"), 13, "names_bytes\":-");
  TraceHelper helper(Program("wrong", absl::StrCat("read a; cat ", Write("wrong_reply", wrong),
                                                   "; read b; cat ", Write("right_reply", reply))),
                     "model", kLimit);
  EXPECT_THAT(helper.Trace({}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("wrong")));
  // What it would answer next is not looked at.
  EXPECT_THAT(helper.Trace({}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("wrong")));
}

TEST_F(TraceHelperTest, WhatIsNoReplyIsRefused) {
  TraceHelper garbage(Program("garbage", "read line; echo hello"), "model", kLimit);
  EXPECT_THAT(garbage.Trace({}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("garbage")));
  TraceHelper endless(Program("endless", "read line; tr '\\0' x < /dev/zero"), "model", kLimit);
  EXPECT_THAT(endless.Trace({}), StatusIs(absl::StatusCode::kInternal, HasSubstr("no line")));
  const std::string text = trainer::EncodeReply(Reply());
  TraceHelper half(
      Program("half", absl::StrCat("read line; cat ",
                                   Write("half_reply", text.substr(0, text.size() - 8)))),
      "model", kLimit);
  EXPECT_THAT(half.Trace({}), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(TraceHelperTest, AProgramThatDoesNotAnswerIsEndedInTime) {
  constexpr absl::Duration kShort = absl::Milliseconds(200);
  const std::string reply = trainer::EncodeReply(Reply());
  const std::string header = Write("header", reply.substr(0, reply.find('\n') + 1));
  const std::string silent[] = {
      "exec sleep 600",                                            // It reads nothing.
      "read line; exec sleep 600",                                 // It writes nothing.
      "printf '{'; exec sleep 600",                                // It ends no line,
      absl::StrCat("read line; cat ", header, "; exec sleep 600")  // and no reply.
  };
  for (const std::string& commands : silent) {
    SCOPED_TRACE(commands);
    TraceHelper helper(Program("silent", commands), "model", kShort);
    const absl::Duration begin = MonotonicNow();
    EXPECT_THAT(helper.Trace({}), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                           AllOf(HasSubstr("silent: it did not answer within "
                                                           "200ms"),
                                                 HasSubstr("--trace-limit"))));
    // At once: it is over.
    EXPECT_THAT(helper.Ranks(RanksOf(2)), StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_GE(MonotonicNow() - begin, kShort);
    EXPECT_LT(MonotonicNow() - begin, absl::Seconds(300));
    EXPECT_TRUE(AllAreOver());
  }
}

TEST_F(TraceHelperTest, AProgramThatLivesOnIsNotWaitedFor) {
  const std::string reply = Write("last_reply", trainer::EncodeReply(Reply()));
  {
    TraceHelper answers(
        Program("answers", absl::StrCat("read line; cat ", reply, "; exec sleep 600")), "model",
        kLimit);
    EXPECT_OK(answers.Trace({}));
  }
  EXPECT_TRUE(AllAreOver());
  TraceHelper closes(Program("closes", "exec sleep 600 <&- >&-"), "model", kLimit);
  EXPECT_THAT(closes.Trace({}), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_TRUE(AllAreOver());
}

}  // namespace
}  // namespace gemini::tools
