// SPDX-License-Identifier: Apache-2.0
// The front door of two programs that share a geminid.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/client/front/front_fixture.h"
#include "tests/server/daemon_process.h"
#include "tests/status_matchers.h"

namespace gemini {
namespace {

using server::ChildProcess;
using server::DaemonProcess;
using torch::optim::AdamWOptions;

constexpr char kSocketVariable[] = "GEMINI_FRONT_TEST_SOCKET";
constexpr char kTrained[] = "this program has trained";

class FrontDaemonTest : public FrontTest {
 protected:
  std::vector<float> TrainAt(const std::string& socket, int steps, const auto& then) {
    SessionOptions options = options_;
    options.daemon = socket;
    FrontNet net = MakeNet(), other = MakeNet(/*seed=*/5);
    Session session(options);
    AdamW optimizer(session, *net, AdamWOptions(3e-3));
    AdamW of_other(session, *other, AdamWOptions(3e-3));
    std::vector<float> losses = Train(net, optimizer, 0, steps);
    Train(other, of_other, 0, steps);
    then();
    return losses;
  }
};

// What the next test starts.
TEST_F(FrontDaemonTest, TrainsAndStaysUntilItIsKilled) {
  const char* const socket = std::getenv(kSocketVariable);
  if (socket == nullptr) GTEST_SKIP() << "runs in the process that the next test starts";
  TrainAt(socket, 3, [] {
    std::printf("\n%s\n", kTrained);
    std::fflush(stdout);
    while (true) ::pause();
  });
}

TEST_F(FrontDaemonTest, TwoProgramsTrainTheirModelsBesideEachOther) {
  ASSERT_OK_AND_ASSIGN(
      const DaemonProcess daemon,
      DaemonProcess::Start(GEMINI_GEMINID_PATH, {"--device-memory=8MiB", "--host-memory=64MiB"}));
  const std::string socket = daemon.socket_path();
  ASSERT_OK_AND_ASSIGN(
      ChildProcess first,
      ChildProcess::Start({"/proc/self/exe", "--gtest_filter=*TrainsAndStaysUntilItIsKilled"},
                          {absl::StrCat(kSocketVariable, "=", socket)}));
  for (std::string line; line != kTrained;) {
    ASSERT_OK_AND_ASSIGN(line, first.ReadLine(absl::Seconds(60)));
  }
  const std::vector<float> losses = TrainAt(socket, 10, [] {});
  FrontNet net = MakeNet();
  torch::optim::AdamW alone(net->parameters(), AdamWOptions(3e-3));
  const std::vector<float> expected = Train(net, alone, 0, 10);
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-5) << i;
}

}  // namespace
}  // namespace gemini
