// SPDX-License-Identifier: Apache-2.0
#include "server/loop/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <thread>

#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

class EventLoopTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK_AND_ASSIGN(loop_, EventLoop::Make()); }
  std::unique_ptr<EventLoop> loop_;
};

TEST_F(EventLoopTest, MessagesOfOneThreadRunInOrderOnTheLoopsThread) {
  std::vector<int> seen;
  std::thread sender([&] {
    for (int i = 0; i < 1000; ++i) {
      loop_->Post([&, i] {
        loop_->owner().AssertHere();
        seen.push_back(i);
      });
    }
    loop_->Stop();
  });
  loop_->Run();
  sender.join();
  ASSERT_EQ(seen.size(), 1000);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

TEST_F(EventLoopTest, TimersRunInTheOrderOfTheirTimesAndACancelledOneDoesNot) {
  std::string seen;
  loop_->After(absl::Milliseconds(20), [&] {
    seen += "c";
    loop_->Stop();
  });
  loop_->After(absl::Milliseconds(10), [&] { seen += "b"; });
  const EventLoop::TimerId cancelled = loop_->After(absl::Milliseconds(5), [&] { seen += "x"; });
  loop_->After(absl::ZeroDuration(), [&] { seen += "a"; });
  loop_->Cancel(cancelled);
  loop_->Run();
  EXPECT_EQ(seen, "abc");
}

TEST_F(EventLoopTest, AWatchThatEndsItselfIsCalledNoMoreThoughItsDescriptorStaysReadable) {
  const UniqueFd event(::eventfd(1, EFD_CLOEXEC));
  int calls = 0;
  EventLoop::WatchId id = 0;
  ASSERT_OK_AND_ASSIGN(id, loop_->Watch(event.get(), EPOLLIN, [&](uint32_t) {
    ++calls;
    loop_->Unwatch(id);
    loop_->After(absl::Milliseconds(5), [&] { loop_->Stop(); });
  }));
  loop_->Run();
  EXPECT_EQ(calls, 1);
}

TEST_F(EventLoopTest, AMessageThatComesAfterTheEndIsDestroyedUnrun) {
  loop_->Stop();
  loop_->Run();
  auto payload = std::make_shared<int>(1);
  std::weak_ptr<int> watch = payload;
  loop_->Post([payload = std::move(payload)] { FAIL(); });
  loop_.reset();
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace gemini::server
