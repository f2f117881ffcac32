// SPDX-License-Identifier: Apache-2.0
// Saving and loading through the front door: a training that goes on elsewhere is the one that was
// not interrupted, to the bit.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "tests/client/front/front_fixture.h"

namespace gemini {
namespace {

using ::testing::HasSubstr;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

constexpr char kFolderVariable[] = "GEMINI_FRONT_TEST_FOLDER";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class FrontFilesTest : public FrontTest {
 protected:
  // The bits of the module after 20 steps in one go.
  template <typename Managed, typename Options>
  std::string Uninterrupted(const Options& options, at::ScalarType type = at::kFloat) {
    FrontNet net = MakeNet();
    if (type != at::kFloat) net->to(type);  // It would make an integer buffer a float.
    Session session(options_);
    Managed optimizer(session, *net, TwoGroups(net, options, Options(1e-3)), options);
    Train(net, optimizer, 0, 20);
    return BitsOf(*net, optimizer);
  }

  // 10 steps, a file, 10 steps in a new session with a module of other values.
  template <typename Managed, typename Options>
  void CheckSaveAndLoad(const Options& options, at::ScalarType type) {
    const std::string expected = Uninterrupted<Managed>(options, type);
    const std::string path = File("model.safetensors");
    {
      FrontNet net = MakeNet();
      if (type != at::kFloat) net->to(type);  // It would make an integer buffer a float.
      Session session(options_);
      Managed optimizer(session, *net, TwoGroups(net, options, Options(1e-3)), options);
      Train(net, optimizer, 0, 10);
      Save(optimizer, path);
    }
    FrontNet net = MakeNet(/*seed=*/99);
    if (type != at::kFloat) net->to(type);  // It would make an integer buffer a float.
    Session session(options_);
    Managed optimizer(session, *net, TwoGroups(net, Options(0.5), Options(0.5)), options);
    Load(optimizer, path);
    Train(net, optimizer, 10, 20);
    EXPECT_EQ(optimizer.num_steps(), 20);
    EXPECT_TRUE(BitsOf(*net, optimizer) == expected);
  }
};

TEST_F(FrontFilesTest, SaveAndLoadGoOnToTheBit) {
  CheckSaveAndLoad<AdamW>(AdamWOptions(3e-3), at::kFloat);
  CheckSaveAndLoad<SGD>(SGDOptions(0.02).momentum(0.9).nesterov(true), at::kFloat);
  CheckSaveAndLoad<Lars>(LarsOptions(1.0), at::kFloat);
}

TEST_F(FrontFilesTest, SaveAndLoadKeepWhat16BitsHaveNot) {
  CheckSaveAndLoad<AdamW>(AdamWOptions(3e-3), at::kBFloat16);
}

TEST_F(FrontFilesTest, SaveAndLoadKeepWhatNoStepChanges) {
  const auto make = [](int64_t first) {
    FrontNet net = MakeNet();
    net->register_parameter("codes", torch::arange(first, first + 5), /*requires_grad=*/false);
    net->register_buffer("cache", torch::empty({0}));
    return net;
  };
  const std::string path = File("model.safetensors");
  {
    FrontNet net = make(7);
    Session session(options_);
    AdamW optimizer(session, *net, AdamWOptions(1e-3));
    Save(optimizer, path);
  }
  FrontNet net = make(0);
  Session session(options_);
  AdamW optimizer(session, *net, AdamWOptions(1e-3));
  Load(optimizer, path);
  EXPECT_TRUE(torch::equal(net->named_parameters()["codes"], torch::arange(7, 12)));
}

// The second half of the next test, in the process that it starts.
TEST_F(FrontFilesTest, GoesOnInANewProcess) {
  const char* const folder = std::getenv(kFolderVariable);
  if (folder == nullptr) GTEST_SKIP() << "runs in the process that the next test starts";
  const std::string from = folder;
  FrontNet net = MakeNet(/*seed=*/99);
  Session session(options_);
  AdamW optimizer(session, *net, TwoGroups(net, AdamWOptions(0.5), AdamWOptions(0.5)),
                  AdamWOptions(0.5));
  {
    const PlainMemory plain(optimizer);
    torch::load(net, from + "/net.pt");
  }
  torch::load(optimizer, from + "/optimizer.pt");
  Train(net, optimizer, 10, 20);
  std::ofstream(from + "/bits", std::ios::binary) << BitsOf(*net, optimizer);
}

TEST_F(FrontFilesTest, TorchSaveANewProcessAndTorchLoadGoOnToTheBit) {
  const std::string expected = Uninterrupted<AdamW>(AdamWOptions(3e-3));
  {
    FrontNet net = MakeNet();
    Session session(options_);
    AdamW optimizer(session, *net, TwoGroups(net, AdamWOptions(3e-3), AdamWOptions(1e-3)),
                    AdamWOptions(3e-3));
    Train(net, optimizer, 0, 10);
    torch::save(optimizer, File("optimizer.pt"));
    const PlainMemory plain(optimizer);
    torch::save(net, File("net.pt"));
  }
  ASSERT_EQ(::setenv(kFolderVariable, folder_.c_str(), /*overwrite=*/1), 0);
  const char* const arguments[] = {"front_files_test",
                                   "--gtest_filter=FrontFilesTest.GoesOnInANewProcess", nullptr};
  pid_t child = 0;
  ASSERT_EQ(::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr,
                          const_cast<char* const*>(arguments), environ),
            0);
  ::unsetenv(kFolderVariable);
  int exit_status = 0;
  ASSERT_EQ(::waitpid(child, &exit_status, 0), child);
  EXPECT_EQ(exit_status, 0);
  EXPECT_TRUE(ReadFile(File("bits")) == expected);
}

// As LibTorch's optimizers do: what the archive has no state of keeps its own.
TEST_F(FrontFilesTest, AnArchiveWithoutStatesLeavesThemAsTheyAre) {
  const auto bits = [this](bool loads) {
    FrontNet net = MakeNet();
    Session session(options_);
    AdamW optimizer(session, *net, AdamWOptions(1e-2));
    torch::save(optimizer, File("untrained.pt"));
    Train(net, optimizer, 0, 5);
    if (loads) torch::load(optimizer, File("untrained.pt"));
    Train(net, optimizer, 5, 8);
    return BitsOf(*net, optimizer);
  };
  const std::string expected = bits(false);
  EXPECT_TRUE(bits(true) == expected);
}

TEST_F(FrontFilesTest, SgdGoesOnToTheBitFromTorchsArchive) {
  const SGDOptions options = SGDOptions(0.05).momentum(0.9).dampening(0.3);
  const std::string expected = Uninterrupted<SGD>(options);
  FrontNet net = MakeNet();
  {
    Session session(options_);
    SGD optimizer(session, *net, TwoGroups(net, options, SGDOptions(1e-3)), options);
    Train(net, optimizer, 0, 10);
    torch::save(optimizer, File("optimizer.pt"));
    const PlainMemory plain(optimizer);
    torch::save(net, File("net.pt"));
  }
  FrontNet other = MakeNet(/*seed=*/99);
  torch::load(other, File("net.pt"));
  Session session(options_);
  SGD optimizer(session, *other, TwoGroups(other, options, SGDOptions(1e-3)), options);
  torch::load(optimizer, File("optimizer.pt"));
  Train(other, optimizer, 10, 20);
  EXPECT_TRUE(BitsOf(*other, optimizer) == expected);
}

TEST_F(FrontFilesTest, LibTorchsOwnOptimizerLoadsTheArchive) {
  FrontNet net = MakeNet(), plain_net = MakeNet();
  torch::optim::AdamW plain(plain_net->parameters(), AdamWOptions(3e-3));
  Train(plain_net, plain, 0, 20);
  {
    Session session(options_);
    AdamW optimizer(session, *net, AdamWOptions(3e-3));
    Train(net, optimizer, 0, 10);
    torch::save(optimizer, File("optimizer.pt"));
    const PlainMemory plain_memory(optimizer);
    torch::save(net, File("net.pt"));
  }
  FrontNet loaded = MakeNet(/*seed=*/99);
  torch::load(loaded, File("net.pt"));
  torch::optim::AdamW goes_on(loaded->parameters(), AdamWOptions(0.5));
  torch::load(goes_on, File("optimizer.pt"));
  Train(loaded, goes_on, 10, 20);
  const torch::Tensor x = BatchOf(77).first;
  EXPECT_LT((loaded->forward(x) - plain_net->forward(x)).abs().max().item<float>(), 1e-4);
}

TEST_F(FrontFilesTest, PlainMemoryBringsEditsBackAndOutlivesTheSession) {
  FrontNet net = MakeNet();
  auto session = std::make_unique<Session>(options_);
  AdamW optimizer(*session, *net, AdamWOptions(1e-3));
  Train(net, optimizer, 0, 2);
  {
    const PlainMemory plain(optimizer);
    net->last->bias.data_ptr<float>()[0] = 7;  // A raw write.
  }
  {
    const torch::NoGradGuard no_gradient;
    EXPECT_EQ(net->last->bias[0].item<float>(), 7);
  }
  Train(net, optimizer, 2, 4);
  const std::string bits = BitsOf(*net, optimizer);
  {
    const PlainMemory plain(optimizer);
    session->Close();
  }
  EXPECT_TRUE(BitsOf(*net) == bits);
}

TEST_F(FrontFilesTest, WhatDoesNotFitIsRefusedByName) {
  FrontNet net = MakeNet();
  Session session(options_);
  AdamW optimizer(session, *net, AdamWOptions(1e-3));
  Train(net, optimizer, 0, 2);
  Save(optimizer, File("adamw"));
  const std::string bits = BitsOf(*net, optimizer);
  EXPECT_THAT(ThrownBy([&] { Load(optimizer, File("none")); }), HasSubstr("none"));

  torch::nn::Linear other(16, 8);
  SGD sgd(session, *other, SGDOptions(0.1));
  EXPECT_THAT(ThrownBy([&] { Load(sgd, File("adamw")); }), HasSubstr("adamw\", not of sgd"));
  Save(sgd, File("sgd"));
  torch::nn::Linear wider(16, 9);
  SGD of_wider(session, *wider, SGDOptions(0.1));
  EXPECT_THAT(ThrownBy([&] { Load(of_wider, File("sgd")); }), HasSubstr("[8, 16]"));
  EXPECT_THAT(ThrownBy([&] { Save(optimizer, File("no folder/file")); }), HasSubstr("no folder"));
  EXPECT_TRUE(BitsOf(*net, optimizer) == bits);
}

}  // namespace
}  // namespace gemini
