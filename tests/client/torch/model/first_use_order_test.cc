// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/first_use_order.h"

#include "client/torch/model/build_scope.h"
#include "tests/status_matchers.h"
#include "torch/nn/modules/linear.h"
#include "torch/types.h"

namespace gemini::client::hooks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Net : torch::nn::Module {
  Net() {
    last = register_module("last", torch::nn::Linear(4, 4));
    unused = register_parameter("unused", torch::empty({3}));
    first = register_module("first", torch::nn::Linear(4, 4));
    scale = register_buffer("scale", torch::empty({4}));
  }
  at::Tensor Forward(const at::Tensor& x) {
    const at::Tensor inner = first->forward(x);
    return last->forward(inner * scale.view({1, 4}));
  }
  torch::nn::Linear last{nullptr}, first{nullptr};
  at::Tensor unused, scale;
};

TEST(FirstUseOrderTest, FollowsTheForwardPassOnTheMetaDevice) {
  std::unique_ptr<Net> net;
  {
    const BuildScope scope;
    net = std::make_unique<Net>();
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> order, FirstUseOrder(*net, [&] {
                         net->Forward(torch::empty({2, 4}, torch::kMeta));
                       }));
  EXPECT_THAT(order, ElementsAre("first.weight", "first.bias", "scale", "last.weight", "last.bias",
                                 "unused"));
  EXPECT_TRUE(net->first->weight.is_meta());
}

TEST(FirstUseOrderTest, AForwardThatThrowsIsReported) {
  Net net;
  EXPECT_THAT(FirstUseOrder(net,
                            [&] {
                              net.Forward(torch::empty({2, 7}));
                            }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("mat1 and mat2")));
}

}  // namespace
}  // namespace gemini::client::hooks
