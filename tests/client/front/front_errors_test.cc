// SPDX-License-Identifier: Apache-2.0
// What the front door refuses, and how soon the text of it can be read.
#include <filesystem>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gemini/system/host_memory.h"
#include "tests/client/front/front_fixture.h"

namespace gemini {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

using FrontErrorsTest = FrontTest;

TEST_F(FrontErrorsTest, AnOptionOfASessionIsRefusedByName) {
  const auto refused = [](const SessionOptions& options) {
    return ThrownBy([&] { Session session(options); });
  };
  EXPECT_THAT(refused({.device_memory = "2GB"}), HasSubstr("device_memory"));
  EXPECT_THAT(refused({.host_memory = "-1"}), HasSubstr("host_memory"));
  EXPECT_THAT(refused({.nvme = "100GiB"}), HasSubstr("DIR:SIZE"));
  EXPECT_THAT(refused({.nvme = "/tmp:1GiB", .daemon = "/tmp/none"}), HasSubstr("nvme"));
  EXPECT_THAT(refused({.chunk_size = "1000"}), HasSubstr("chunk_size"));
  EXPECT_THAT(refused({.device = "tpu"}), HasSubstr("cuda:N"));
  EXPECT_THAT(refused({.daemon = "/tmp/none", .device = "cuda:0"}),
              AllOf(HasSubstr("device_memory"), HasSubstr("say how much")));
  EXPECT_THAT(refused({.policy = "sttaic"}), AllOf(HasSubstr("policy"), HasSubstr("static")));
}

TEST_F(FrontErrorsTest, DeviceIsWhatWasAskedForOrAQuarterOfWhatIsFreeOrWhatHostLeaves) {
  const auto budget_of = [](const SessionOptions& options) {
    FrontNet net = MakeNet();
    Session session(options);
    SGD optimizer(session, *net, SGDOptions(0.1));
    return session.stats().device_budget_bytes;
  };
  EXPECT_EQ(budget_of({.device_memory = "64MiB"}), int64_t{64} << 20);
  const int64_t before_bytes = AvailableHostMemory().value();
  const int64_t budget_bytes = budget_of({});
  const int64_t after_bytes = AvailableHostMemory().value();
  // Others use the machine, too.
  EXPECT_GE(budget_bytes, std::min(before_bytes, after_bytes) / 5);
  EXPECT_LE(budget_bytes, std::max(before_bytes, after_bytes) / 3);
  const int64_t host_bytes = after_bytes / 4 * 3;
  EXPECT_LE(budget_of({.host_memory = absl::StrCat(host_bytes)}),
            std::max(after_bytes / 6, AvailableHostMemory().value() - host_bytes));
}

TEST_F(FrontErrorsTest, TensorsThatOutliveTheirSessionsKeepNoSockets) {
  // A thread stays in /proc for a while when it has ended, and a descriptor does not.
  const auto num_descriptors = [] {
    const std::filesystem::directory_iterator descriptors("/proc/self/fd");
    return std::distance(begin(descriptors), end(descriptors));
  };
  std::vector<torch::Tensor> kept;
  ptrdiff_t first = 0;
  for (int run = 0; run < 5; ++run) {
    {
      FrontNet net = MakeNet();
      Session session(options_);
      SGD optimizer(session, *net, SGDOptions(0.1));
      TrainStep(net, optimizer, run);
      kept.push_back(torch::full({1000}, run));
    }
    if (run == 0) first = num_descriptors();
    EXPECT_EQ(num_descriptors(), first) << run;
  }
  for (int run = 0; run < 5; ++run)
    EXPECT_EQ(kept[static_cast<size_t>(run)].max().item<int>(), run);
}

TEST_F(FrontErrorsTest, ADaemonThatIsNotThereIsNamedAndTheModuleStaysAsItIs) {
  FrontNet net = MakeNet();
  Session session({.daemon = File("geminid.sock")});
  EXPECT_THAT(ThrownBy([&] { AdamW(session, *net, AdamWOptions(1e-3)); }),
              HasSubstr("geminid.sock"));
  EXPECT_NE(net->first->weight.data_ptr<float>(), nullptr);
}

TEST_F(FrontErrorsTest, ThereIsOneSessionAndAnotherBehindIt) {
  {
    Session session;
    EXPECT_THAT(ThrownBy([] { Session second; }), HasSubstr("lives in this process"));
  }
  Session session;
  session.Close();
  Session behind;
}

TEST_F(FrontErrorsTest, AnUnsupportedOptionIsRefusedByNameAndTheModuleStaysAsItIs) {
  FrontNet net = MakeNet();
  Session session(options_);
  EXPECT_THAT(ThrownBy([&] { AdamW(session, *net, AdamWOptions(1e-3).amsgrad(true)); }),
              HasSubstr("amsgrad"));
  EXPECT_THAT(ThrownBy([&] {
                Adam(session, *net, torch::optim::AdamOptions(1e-3).betas(std::make_tuple(1., 0.)));
              }),
              HasSubstr("betas"));
  EXPECT_THAT(ThrownBy([&] { AdamW(session, *net, AdamWOptions(-1)); }), HasSubstr("lr"));
  EXPECT_THAT(ThrownBy([&] { SGD(session, *net, SGDOptions(1e-3).nesterov(true)); }),
              HasSubstr("nesterov"));
  EXPECT_THAT(ThrownBy([&] { SGD(session, *net, SGDOptions(1e-3).momentum(1)); }),
              HasSubstr("momentum"));
  EXPECT_NE(net->first->weight.data_ptr<float>(), nullptr);
  AdamW optimizer(session, *net, AdamWOptions(1e-3));
  Train(net, optimizer, 0, 2);
  static_cast<AdamWOptions&>(optimizer.param_groups()[0].options()).amsgrad(true);
  EXPECT_THAT(ThrownBy([&] { optimizer.step(); }), HasSubstr("amsgrad"));
}

TEST_F(FrontErrorsTest, AGroupThatDoesNotFitTheModuleIsRefused) {
  FrontNet net = MakeNet();
  torch::nn::Linear other(4, 4);
  Session session(options_);
  const auto refused = [&](std::vector<torch::Tensor> first, std::vector<torch::Tensor> second) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::move(first));
    groups.emplace_back(std::move(second));
    return ThrownBy([&] { AdamW(session, *net, groups, AdamWOptions(1e-3)); });
  };
  EXPECT_THAT(refused({net->parameters()[1]}, {}), HasSubstr("first.weight requires a gradient"));
  EXPECT_THAT(refused(net->parameters(), other->parameters()), HasSubstr("no parameter of the"));
  EXPECT_THAT(refused(net->parameters(), {net->last->bias}), HasSubstr("again in group 1"));
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net->parameters(), std::make_unique<SGDOptions>(0.1));
  EXPECT_THAT(ThrownBy([&] { AdamW(session, *net, groups, AdamWOptions(1e-3)); }),
              HasSubstr("another optimizer"));
}

TEST_F(FrontErrorsTest, MoreGroupsThanThereMayBeAreRefusedAndTheModuleStaysAsItIs) {
  FrontNet net = MakeNet();
  Session session(options_);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net->parameters());
  for (int i = 0; i < 64; ++i) groups.emplace_back(std::vector<torch::Tensor>());
  EXPECT_THAT(ThrownBy([&] { AdamW(session, *net, groups, AdamWOptions(1e-3)); }),
              HasSubstr("65 parameter groups: at most 64"));
  EXPECT_NE(net->last->weight.data_ptr<float>(), nullptr);
}

TEST_F(FrontErrorsTest, ATensorOfAnotherModuleInAnAddedGroupIsRefusedByTheNextStep) {
  FrontNet net = MakeNet();
  torch::nn::Linear other(4, 4);
  Session session(options_);
  AdamW optimizer(session, *net, AdamWOptions(1e-3));
  TrainStep(net, optimizer, 0);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(other->parameters()));
  EXPECT_THAT(ThrownBy([&] { optimizer.step(); }), HasSubstr("no parameter of the module"));
}

TEST_F(FrontErrorsTest, StatesOfAParameterThatGotAnotherShapeAreRefusedByName) {
  FrontNet net = MakeNet();
  Session session(options_);
  AdamW optimizer(session, *net, AdamWOptions(1e-3));
  TrainStep(net, optimizer, 0);
  const PlainMemory plain(optimizer);
  const torch::Tensor before = net->last->weight.variable_data();
  net->last->weight.set_data(torch::zeros({1, 1}));
  EXPECT_THAT(ThrownBy([&] { torch::save(optimizer, File("optimizer.pt")); }),
              AllOf(HasSubstr("last.weight has the sizes [1, 1] now"), HasSubstr("[4, 128]")));
  net->last->weight.set_data(before);
}

TEST_F(FrontErrorsTest, AModelThatNoLongerFitsIsRefusedWithBothNumbers) {
  SessionOptions options = options_;
  options.host_memory = "4MiB";
  Session session(options);
  FrontNet net = MakeNet();
  torch::nn::Linear large(512, 512);  // Before DEVICE counts what is made.
  AdamW optimizer(session, *net, AdamWOptions(1e-3));
  const std::string text = ThrownBy([&] { AdamW(session, *large, AdamWOptions(1e-3)); });
  EXPECT_THAT(text, AllOf(HasSubstr("model-2 needs"), HasSubstr("MiB"), HasSubstr("left")));
  EXPECT_NE(large->weight.data_ptr<float>(), nullptr);
  Train(net, optimizer, 0, 2);
}

TEST_F(FrontErrorsTest, ErrorsOfLibTorchsCanBeReadAtOnceWhileASessionLives) {
  FrontNet net = MakeNet();
  {
    Session session(options_);
    AdamW optimizer(session, *net, AdamWOptions(1e-3));
    Train(net, optimizer, 0, 2);
    const auto raw = ThrownBy([&] { net->first->weight.data_ptr<float>(); });
    EXPECT_THAT(raw, AllOf(HasSubstr("first.weight"), HasSubstr("gemini::PlainMemory")));
    EXPECT_THAT(ThrownBy([&] { torch::save(net, File("net.pt")); }),
                AllOf(HasSubstr("first.weight"), HasSubstr("gemini::PlainMemory")));
    EXPECT_THAT(ThrownBy([] {
                  torch::rand({2, 3}).matmul(torch::rand({2, 3}));
                }),
                Not(HasSubstr("frame #")));
    // torch::load gives a parameter other bytes; the next step says so.
    FrontNet other = MakeNet(/*seed=*/99);
    torch::save(other, File("other.pt"));
    torch::load(net, File("other.pt"));
    EXPECT_THAT(ThrownBy([&] { optimizer.step(); }), HasSubstr("gemini::PlainMemory"));
  }
  EXPECT_THAT(ThrownBy([&] {
                Session session(options_);
                SGD(session, *net, SGDOptions(0.1));
                torch::rand({2, 3}).matmul(torch::rand({2, 3}));
              }),
              Not(HasSubstr("frame #")));
}

TEST_F(FrontErrorsTest, AModuleIsInPlainMemoryOnceAndNoStepIsTakenMeanwhile) {
  FrontNet net = MakeNet();
  Session session(options_);
  AdamW optimizer(session, *net, AdamWOptions(1e-3));
  Train(net, optimizer, 0, 2);
  const std::string bits = BitsOf(*net, optimizer);
  {
    const PlainMemory plain(optimizer);
    EXPECT_THAT(ThrownBy([&] { PlainMemory second(optimizer); }), HasSubstr("first.weight"));
    EXPECT_THAT(ThrownBy([&] { optimizer.step(); }), HasSubstr("first.weight"));
    EXPECT_TRUE(BitsOf(*net) == bits);
  }
  EXPECT_TRUE(BitsOf(*net, optimizer) == bits);
  Train(net, optimizer, 2, 4);
}

// The warnings of LibTorch's while it lives. Each is thrown, too, as a handler may.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    text_ += warning.msg();
    throw std::runtime_error("warnings are errors here");
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  const c10::WarningUtils::WarningHandlerGuard guard_{this};
};

// A destructor cannot throw: it warns, and the session keeps the error for whoever asks next.
TEST_F(FrontErrorsTest, APlainMemoryThatCannotBringValuesBackEndsAllTheSameAndTheSessionSaysSo) {
  FrontNet net = MakeNet();
  Session session(options_);
  AdamW optimizer(session, *net, AdamWOptions(1e-3));
  Train(net, optimizer, 0, 2);
  const std::string bits = BitsOf(*net, optimizer);
  const Warnings warnings;
  {
    const PlainMemory plain(optimizer);
    net->last->weight.set_data(torch::zeros({1, 1}));
  }
  const auto names_it = AllOf(HasSubstr("last.weight has the sizes [4, 128]"), HasSubstr("[1, 1]"));
  EXPECT_THAT(warnings.text(), names_it);
  EXPECT_THAT(ThrownBy([&] { session.Check(); }), names_it);
  EXPECT_THAT(ThrownBy([&] { optimizer.step(); }), names_it);
  EXPECT_EQ(optimizer.num_steps(), 2);
  // The session has the values from before, and they can be saved.
  EXPECT_TRUE(BitsOf(*net, optimizer) == bits);
  Save(optimizer, File("saved"));
}

TEST_F(FrontErrorsTest, AnExceptionOfTorchsInTheEndOfAPlainMemoryIsKeptByTheSession) {
  FrontNet net = MakeNet();
  Session session(options_);
  AdamW optimizer(session, *net, AdamWOptions(1e-3));
  TrainStep(net, optimizer, 0);
  const torch::Tensor overwritten = net->last->weight.grad();
  TrainStep(net, optimizer, 1);
  {
    const PlainMemory plain(optimizer);
    net->last->weight.set_data(overwritten.detach());
  }
  EXPECT_THAT(ThrownBy([&] { session.Check(); }),
              AllOf(HasSubstr("values of plain memory are lost"), HasSubstr("overwrote it")));
}

TEST_F(FrontErrorsTest, AGradientThatIsNoNumberIsNamedAndNothingIsUpdated) {
  FrontNet net = MakeNet();
  Session session(options_);
  AdamW optimizer(session, *net, AdamWOptions(1e-3));
  Train(net, optimizer, 0, 2);
  const std::string bits = BitsOf(*net, optimizer);
  optimizer.zero_grad();
  (net->last->bias.sum() * std::numeric_limits<float>::quiet_NaN()).backward();
  EXPECT_THAT(ThrownBy([&] { optimizer.step(); }), HasSubstr("last.bias"));
  EXPECT_TRUE(BitsOf(*net, optimizer) == bits);
  EXPECT_EQ(optimizer.num_steps(), 2);
  session.Check();
}

TEST_F(FrontErrorsTest, AnOptimizerThatOutlivesItsSessionSaysSo) {
  FrontNet net = MakeNet();
  auto session = std::make_unique<Session>(options_);
  AdamW optimizer(*session, *net, AdamWOptions(1e-3));
  Train(net, optimizer, 0, 2);
  session.reset();
  EXPECT_THROW(optimizer.step(), c10::Error);
  EXPECT_THROW(Save(optimizer, File("model")), c10::Error);
  Session next;
}

TEST_F(FrontErrorsTest, BacktracesAreBackBehindASession) {
  { Session session; }
  try {
    TORCH_CHECK(false, "with a backtrace");
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("frame #0"));
  }
}

}  // namespace
}  // namespace gemini
