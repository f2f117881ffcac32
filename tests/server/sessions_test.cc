// SPDX-License-Identifier: Apache-2.0
// What a session's jobs mean for it: who is told of their ends, and what waits for them.
#include "server/sessions.h"

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SessionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(loop_, EventLoop::Make());
    sessions_.emplace(
        *loop_, [this](PeerSession& session) { events_.push_back("reclaim of " + session.label); });
  }
  PeerSession& Add(const std::string& label) {
    auto session = std::make_unique<PeerSession>();
    session->id = sessions_->NextId();
    session->label = label;
    PeerSession& added = *session;
    sessions_->Add(std::move(session));
    return added;
  }
  // A session whose lease is being reclaimed.
  PeerSession& AddReclaimed(const std::string& label) {
    terms_.reclaiming = true;
    PeerSession& session = Add(label);
    session.lease.emplace(terms_);
    return session;
  }
  // As `done` of a job.
  auto Note(const std::string& what) {
    return [this, what](PeerSession& session) {
      loop_->owner().AssertHere();
      events_.push_back(what + " of " + session.label);
    };
  }
  // Lets the loop run until an empty job behind all others of the tier was done.
  void RunLoop(Tier tier) {
    PeerSession& last = Add("last");
    sessions_->RunSessionJob(
        last, tier, [] {}, [this](PeerSession&) { loop_->Stop(); });
    loop_->Run();
  }

  LeaseTerms terms_;
  std::unique_ptr<EventLoop> loop_;
  std::optional<Sessions> sessions_;
  std::vector<std::string> events_;
};

TEST_F(SessionsTest, AJobRunsOnAnotherThreadAndItsSessionGetsWhatItReturnedOnTheOwners) {
  PeerSession& session = Add("job");
  std::thread::id ran_on;
  sessions_->RunSessionJob(
      session, Tier::kHost,
      [&] {
        ran_on = std::this_thread::get_id();
        return std::string("made");
      },
      [&](PeerSession& found, const std::string& made) {
        EXPECT_EQ(&found, &session);
        EXPECT_EQ(found.worker_jobs, 0);
        Note(made)(found);
      });
  EXPECT_EQ(session.worker_jobs, 1);
  RunLoop(Tier::kHost);
  EXPECT_THAT(events_, ElementsAre("made of job"));
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST_F(SessionsTest, AReclaimGoesOnOnceTheLastJobOfTheSessionHasEnded) {
  PeerSession& session = AddReclaimed("dead");
  absl::Notification first_is_done;
  sessions_->RunSessionJob(
      session, Tier::kDevice, [] {},
      [&, note = Note("first")](PeerSession& found) {
        note(found);
        first_is_done.Notify();
      });
  sessions_->RunSessionJob(
      session, Tier::kHost, [&] { first_is_done.WaitForNotification(); }, Note("second"));
  RunLoop(Tier::kHost);
  EXPECT_THAT(events_, ElementsAre("first of dead", "second of dead", "reclaim of dead"));
}

TEST_F(SessionsTest, ASessionThatTheEndOfItsJobErasedIsNotLookedAtAgain) {
  PeerSession& session = AddReclaimed("gone");
  const uint64_t id = session.id;
  sessions_->RunSessionJob(
      session, Tier::kHost, [] {},
      [&](PeerSession& found) {
        found.lease.reset();
        sessions_->Erase(found);
      });
  RunLoop(Tier::kHost);
  EXPECT_EQ(sessions_->Find(id), nullptr);
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(SessionsTest, JobsThatHaveNotBegunWhenItStopsAreNotDoneAndThoseThatHaveAreWaitedFor) {
  PeerSession& session = Add("job");
  absl::Notification begun, stopped;
  bool has_ended = false, has_run = false;
  sessions_->RunSessionJob(
      session, Tier::kHost,
      [&] {
        begun.Notify();
        stopped.WaitForNotification();
        has_ended = true;
      },
      [](PeerSession&) {});
  sessions_->RunJob(Tier::kHost, [&] { has_run = true; });
  begun.WaitForNotification();
  sessions_->Stop();
  stopped.Notify();
  sessions_.reset();
  EXPECT_TRUE(has_ended);
  EXPECT_FALSE(has_run);
}

}  // namespace
}  // namespace gemini::server
