// SPDX-License-Identifier: Apache-2.0
// The hook's promises: it never throws, faults latch, writers dirty, stale graphs raise, and pins
// are released whatever happens.
#include "client/torch/hook/operator_hook.h"

#include <cstdlib>
#include <functional>
#include <latch>
#include <limits>
#include <map>
#include <new>
#include <thread>

#include "tests/client/torch/training_fixture.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/library.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/linear.h"

namespace {
// Allocations of this thread from this size on fail.
thread_local size_t t_allocation_limit = std::numeric_limits<size_t>::max();
}  // namespace

void* operator new(size_t size) {
  void* const memory = size < t_allocation_limit ? std::malloc(size) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// For std::stable_sort: a sanitizer's own would not pair with the deletes below.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return size < t_allocation_limit ? std::malloc(size) : nullptr;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace gemini::client::hooks {
namespace {

using ::testing::HasSubstr;

// Reads its argument's raw memory, and so must find it pinned; writes it although its schema does
// not say so.
at::Tensor SneakyAdd(const at::Tensor& tensor) {
  float* const data = tensor.data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) data[i] += 1;
  return at::zeros({1});
}
// Needs the raw memory of its argument again in backward.
struct RawScale : torch::autograd::Function<RawScale> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x * weight;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const float scale = *saved[1].const_data_ptr<float>();
    return {gradients[0] * scale, (gradients[0] * saved[0]).sum_to_size(saved[1].sizes())};
  }
};
at::Tensor RawScaleAutograd(const at::Tensor& x, const at::Tensor& weight) {
  return RawScale::apply(x, weight);
}
at::Tensor RawScaleCpu(const at::Tensor& x, const at::Tensor& weight) { return x * weight; }

at::Tensor ReadRaw(const std::vector<at::Tensor>& tensors) {
  float sum = 0;
  for (const at::Tensor& tensor : tensors) sum += *tensor.const_data_ptr<float>();
  return at::full({1}, sum);
}
// Runs `t_inside` while its arguments are pinned.
thread_local std::function<void()> t_inside;
void RunInside(const std::vector<at::Tensor>&) { t_inside(); }
at::Tensor Throws(const at::Tensor& tensor) {
  tensor.const_data_ptr();
  TORCH_CHECK(false, "this operator always fails");
}

TORCH_LIBRARY(gemini_test, library) {
  library.def("sneaky_add(Tensor x) -> Tensor", &SneakyAdd);
  library.def("read_raw(Tensor[] x) -> Tensor", &ReadRaw);
  library.def("run_inside(Tensor[] x) -> ()", &RunInside);
  library.def("throws(Tensor x) -> Tensor", &Throws);
  library.def("raw_scale(Tensor x, Tensor weight) -> Tensor");
}
TORCH_LIBRARY_IMPL(gemini_test, CPU, library) { library.impl("raw_scale", &RawScaleCpu); }
TORCH_LIBRARY_IMPL(gemini_test, Autograd, library) { library.impl("raw_scale", &RawScaleAutograd); }

at::Tensor Call(const char* name, std::vector<c10::IValue> arguments) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  op.callBoxed(&arguments);
  return arguments[0].toTensor();
}

void CallInside(std::vector<at::Tensor> tensors, std::function<void()> inside) {
  t_inside = std::move(inside);
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("gemini_test::run_inside", "");
  std::vector<c10::IValue> arguments = {std::move(tensors)};
  op.callBoxed(&arguments);
}

class OperatorHookTest : public TrainingTest {
 protected:
  void SetUpLinear(const TrainingOptions& options = SmallOptions()) {
    torch::manual_seed(1);
    linear_ = torch::nn::Linear(32, 16);
    Open(options);
    model_ = Manage(*linear_);
    ASSERT_NE(model_, nullptr);
  }
  // No pin is left exactly if everything can leave DEVICE.
  void ExpectNothingPinned() {
    EvictAll();
    EXPECT_EQ(session_->session().device_budget().used_bytes(),
              session_->session().device_budget().non_model_bytes());
  }
  torch::nn::Linear linear_{nullptr};
  ManagedModel* model_ = nullptr;
};

TEST_F(OperatorHookTest, ExceptionInsideAnOperatorReleasesItsPins) {
  SetUpLinear();
  const at::Tensor weight = linear_->weight.detach();
  EXPECT_THROW(Call("gemini_test::throws", {weight}), c10::Error);
  EXPECT_THROW(weight.matmul(at::zeros({3})), c10::Error);
  ExpectNothingPinned();
  EXPECT_THROW(weight.const_data_ptr(), c10::Error);
  EXPECT_OK(session_->status());
  linear_->forward(at::zeros({1, 32})).sum().backward();
  EXPECT_OK(model_->Step({}));
}

TEST_F(OperatorHookTest, TensorsInsideListsArePinned) {
  SetUpLinear();
  const at::Tensor weight = linear_->weight.detach();
  const at::Tensor bias = linear_->bias.detach();
  const float expected = weight[0][0].item<float>() + bias[0].item<float>();
  EXPECT_EQ(Call("gemini_test::read_raw", {std::vector<at::Tensor>{weight, bias}}).item<float>(),
            expected);
  // Tensor?[], with a managed tensor where the index operators take one.
  EXPECT_EQ(weight.index({torch::tensor({0})}).sizes(), at::IntArrayRef({1, 32}));
  EXPECT_TRUE(at::zeros({40}).index({(weight[0] > 100).to(torch::kLong)}).eq(0).all().item<bool>());
}

TEST_F(OperatorHookTest, AViewBringsNothingAndWhatReadsItDoes) {
  SetUpLinear();
  const at::Tensor x = at::randn({4, 32});
  linear_->forward(x).sum().backward();
  const at::Tensor expected = linear_->forward(x);
  EvictAll();
  const int64_t before = session_->stats().fetch_bytes;
  const at::Tensor transposed = linear_->weight.t();
  const at::Tensor part = linear_->weight.detach().view({-1}).slice(0, 0, 16).unsqueeze(0);
  const at::Tensor same = linear_->weight.contiguous().reshape({32, 16});
  linear_->zero_grad();  // Detaches each gradient.
  EXPECT_EQ(session_->stats().fetch_bytes, before);
  EXPECT_TRUE((x.matmul(transposed) + linear_->bias).allclose(expected));
  EXPECT_GT(session_->stats().fetch_bytes, before);
  // One that must copy does so in an operator of its own.
  EvictAll();
  EXPECT_TRUE(transposed.contiguous().t().equal(linear_->weight));
  EXPECT_TRUE(transposed.reshape({-1}).view({32, 16}).equal(transposed));
  EXPECT_TRUE(part.equal(same.view({-1}).slice(0, 0, 16).unsqueeze(0)));
  EXPECT_OK(session_->status());
  ExpectNothingPinned();
}

TEST_F(OperatorHookTest, ForeachOperatorsSeeEveryTensor) {
  SetUpLinear();
  const std::vector<at::Tensor> tensors = {linear_->weight.detach(), linear_->bias.detach()};
  const std::vector<at::Tensor> before = {tensors[0].clone(), tensors[1].clone()};
  at::_foreach_mul_(tensors, 2.0);
  EvictAll();
  EXPECT_TRUE(tensors[0].equal(before[0] * 2));
  EXPECT_TRUE(tensors[1].equal(before[1] * 2));
}

TEST_F(OperatorHookTest, ThreadsMayUseTheSameParametersAtOnce) {
  SetUpLinear();
  const at::Tensor x = at::ones({8, 32});
  const at::Tensor expected = linear_->forward(x).detach().clone();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const at::NoGradGuard no_grad;
      for (int n = 0; n < 300; ++n) {
        if (i == 0 && n % 10 == 0) EvictAll();
        if (!linear_->forward(x).equal(expected)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  ExpectNothingPinned();
}

// TSan sees what they share: the gradients of one chunk.
TEST_F(OperatorHookTest, BackwardPassesMayRunOnSeveralThreads) {
  constexpr int kParameters = 16, kRounds = 300;
  struct Net : torch::nn::Module {
    Net() {
      for (int i = 0; i < kParameters; ++i) {
        weights.push_back(register_parameter("w" + std::to_string(i), at::full({32}, 1.0 + i)));
      }
    }
    std::vector<at::Tensor> weights;
  } net;
  Open(SmallOptions());
  ASSERT_NE(Manage(net), nullptr);
  std::vector<at::Tensor> held;  // So that each round's have storages of their own.
  for (int round = 0; round < kRounds; ++round) {
    held.clear();
    for (const at::Tensor& weight : net.weights) held.push_back(weight.grad());
    net.zero_grad();
    std::latch start(2);
    const auto backward = [&](int first) {
      start.arrive_and_wait();
      for (int i = first; i < kParameters; i += 2) net.weights[i].square().sum().backward();
    };
    std::thread other([&] { backward(1); });
    backward(0);
    other.join();
    for (int i = 0; i < kParameters; ++i) {
      EXPECT_TRUE(net.weights[i].grad().eq(2.0 + 2 * i).all().item<bool>()) << i;
    }
  }
  EXPECT_OK(session_->status());
  ExpectNothingPinned();
}

TEST_F(OperatorHookTest, BackwardOfACustomOperatorFindsItsSavedParameters) {
  torch::nn::Module module;
  at::Tensor weight = module.register_parameter("weight", at::full({1}, 3.0));
  Open(SmallOptions());
  ASSERT_NE(Manage(module), nullptr);
  at::Tensor x = at::ones({4}).requires_grad_();
  Call("gemini_test::raw_scale", {x, weight}).sum().backward();
  EXPECT_TRUE(x.grad().eq(3).all().item<bool>());
  EXPECT_EQ(weight.grad().item<float>(), 4);
  ExpectNothingPinned();
}

TEST_F(OperatorHookTest, ACustomOperatorWithoutANodeLeavesTheNextOperatorsBackwardAlone) {
  SetUpLinear();
  at::Tensor x = at::ones({4}).requires_grad_();
  const at::Tensor weight = linear_->weight.detach();
  Call("gemini_test::read_raw", {std::vector<at::Tensor>{weight}});  // Nothing requires a gradient.
  const at::Tensor loss = x.mul(2).sum();  // Its first node gets the number that was free.
  const int64_t before = session_->stats().operators_with_chunks;
  loss.backward();
  EXPECT_EQ(session_->stats().operators_with_chunks, before);
}

TEST_F(OperatorHookTest, ABoxedCallPinsItsArgumentsAndNotItsCallersStack) {
  SetUpLinear();
  const auto relu = c10::Dispatcher::singleton().findSchemaOrThrow("aten::relu", "");
  std::vector<c10::IValue> stack = {linear_->weight.detach(), at::ones({4})};
  int64_t before = session_->stats().operators_with_chunks;
  relu.callBoxed(&stack);
  EXPECT_EQ(session_->stats().operators_with_chunks, before);
  EXPECT_EQ(stack.size(), 2);
  const at::Tensor weight = linear_->weight.detach();
  stack = {at::ones({4}), weight};
  before = session_->stats().operators_with_chunks;
  relu.callBoxed(&stack);
  EXPECT_GT(session_->stats().operators_with_chunks, before);
  EXPECT_OK(session_->status());
}

TEST_F(OperatorHookTest, OutOfMemoryInACallbackLatchesAndLeavesNoPin) {
  SetUpLinear();
  std::vector<c10::IValue> arguments = {std::vector<at::Tensor>(5000, linear_->weight.detach())};
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("gemini_test::read_raw", "");
  t_allocation_limit = 48 << 10;  // The 5000 tensors take 40,000 bytes, their pins more.
  EXPECT_THROW(op.callBoxed(&arguments), c10::Error);
  t_allocation_limit = std::numeric_limits<size_t>::max();
  EXPECT_THAT(session_->status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("gemini_test::read_raw")));
  ExpectNothingPinned();
  EXPECT_TRUE(linear_->weight.isfinite().all().item<bool>());
  ExpectNothingPinned();
}

TEST_F(OperatorHookTest, AStorageRetiredWhileItIsPinnedHasNoAddressAfterwards) {
  struct : StorageOwner {
    absl::Status Prepare(ManagedStorage&) override { return absl::OkStatus(); }
  } owner;
  std::array<std::byte, 64> memory;
  const auto storage =
      ManagedStorage::Make({RangeId(0), 0, 64}, {"gradient of x"}, owner, at::kCPU);
  ManagedStorage& managed = *ManagedStorage::Of(storage.get());
  managed.Retire("it is over");
  managed.Attach(memory.data());  // By an operator that saw it before.
  managed.AttachScratch(memory.data());
  EXPECT_THROW(storage->data(), c10::Error);
  managed.DetachScratch();
  managed.Detach();
  EXPECT_THROW(storage->data(), c10::Error);
  EXPECT_FALSE(managed.pinned());
}

TEST_F(OperatorHookTest, ScopedFetchGivesARawPointerAndKeepsWrites) {
  SetUpLinear();
  {
    ASSERT_OK_AND_ASSIGN(ScopedFetch fetched,
                         model_->Fetch(linear_->weight[1], FetchAccess::kReadWrite));
    EvictAll();
    EXPECT_EQ(fetched.data(), linear_->weight[1].data_ptr());
    static_cast<float*>(fetched.data())[0] = 42;
  }
  ExpectNothingPinned();
  EXPECT_EQ(linear_->weight[1][0].item<float>(), 42);
  EXPECT_THROW(linear_->weight.data_ptr(), c10::Error);
}

// Every way to write to a managed tensor survives an eviction.
using WriterDirties = OperatorHookTest;

TEST_F(WriterDirties, SchemaDataEditOutVariantCustomOperatorAndView) {
  SetUpLinear();
  at::Tensor weight = linear_->weight;
  at::Tensor shadow = weight.detach().clone();
  const auto expect_equal = [&](const char* what) {
    EvictAll();
    EXPECT_TRUE(weight.equal(shadow)) << what;
  };
  const at::NoGradGuard no_grad;
  weight.add_(1);
  shadow.add_(1);
  expect_equal("in-place operator");
  weight.data().mul_(2);
  shadow.mul_(2);
  expect_equal(".data edit");
  weight.variable_data().sub_(0.5);
  shadow.sub_(0.5);
  expect_equal("variable_data edit");
  at::Tensor out = weight.detach();
  at::add_out(out, shadow, shadow);
  shadow = shadow + shadow;
  expect_equal("out variant");
  Call("gemini_test::sneaky_add", {weight});
  shadow.add_(1);
  expect_equal("custom operator");
  weight.view({-1}).narrow(0, 5, 7).fill_(9);
  shadow.view({-1}).narrow(0, 5, 7).fill_(9);
  expect_equal("view");
  linear_->forward(at::zeros({1, 32}));
  expect_equal("a reader");
}

TEST_F(WriterDirties, BatchNormsRunningStatistics) {
  torch::nn::BatchNorm1d norm(8);
  torch::nn::BatchNorm1d reference(8);
  Open(SmallOptions());
  ASSERT_NE(Manage(*norm), nullptr);
  for (int i = 0; i < 3; ++i) {
    const at::Tensor x = at::randn({16, 8});
    norm->forward(x);
    EvictAll();
    reference->forward(x);
    EXPECT_TRUE(norm->running_mean.equal(reference->running_mean));
    EXPECT_TRUE(norm->running_var.equal(reference->running_var));
  }
}

TEST_F(WriterDirties, WrittenParameterIsWhatTheStepUpdates) {
  SetUpLinear();
  {
    const at::NoGradGuard no_grad;
    linear_->weight.fill_(1);
  }
  linear_->forward(at::zeros({1, 32})).sum().backward();  // Zero gradient for the weight.
  StepOptions options;
  options.learning_rate = 0;
  ASSERT_OK(model_->Step(options));
  EXPECT_TRUE(linear_->weight.eq(1).all().item<bool>());
}

TEST_F(OperatorHookTest, StaleGraphRaises) {
  SetUpLinear();
  at::Tensor x = at::ones({2, 32}).requires_grad_();
  const at::Tensor stale = linear_->forward(x).sum();
  linear_->forward(at::ones({2, 32})).sum().backward();
  ASSERT_OK(model_->Step({}));
  try {
    stale.backward();
    ADD_FAILURE() << "backward went through a graph from before the step";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("modified by an inplace operation"));
  }
}

// DEVICE holds four chunks of 16 KiB; the weight takes sixteen.
class BelowTheFloor : public OperatorHookTest {
 protected:
  void SetUp() override {
    large_ = torch::nn::Linear(256, 256);
    x_ = at::ones({1, 256});
    TrainingOptions options = SmallOptions();
    options.chunk_bytes = 16 * kKiB;
    options.device_memory = 64 * kKiB;
    Open(options);
    model_ = Manage(*large_);
    ASSERT_NE(model_, nullptr);
  }
  torch::nn::Linear large_{nullptr};
  at::Tensor x_;
};

TEST_F(BelowTheFloor, HookNeverThrows) {
  // An operator that allocates nothing gets scratch, full of NaN, and nothing is thrown.
  float value = 0;
  at::Tensor out = at::zeros({1});
  ASSERT_NO_THROW(value =
                      large_->weight.detach().view({-1}).narrow(0, 0, 1).equal(out) ? 1.0f : 0.0f);
  EXPECT_EQ(value, 0);
  EXPECT_THAT(session_->status(), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(BelowTheFloor, AnOperatorThatFailsKeepsTheBytesThatAnotherHasPinned) {
  const float expected = ReadAll(*model_, "bias")[0];
  std::latch is_pinned(1);
  std::latch may_end(1);
  const at::Tensor bias = large_->bias.detach();
  std::thread other([&] {
    CallInside({bias}, [&] {
      is_pinned.count_down();
      may_end.wait();
    });
  });
  is_pinned.wait();
  CallInside({bias, large_->weight.detach()}, [&] {
    const float* const bytes = bias.const_data_ptr<float>();
    EXPECT_EQ(*bytes, expected);
    may_end.count_down();
    other.join();
    EvictAll();
    EXPECT_EQ(bias.const_data_ptr<float>(), bytes);
    EXPECT_EQ(*bytes, expected);
  });
  EXPECT_THAT(session_->status(), StatusIs(absl::StatusCode::kResourceExhausted));
  ExpectNothingPinned();
}

TEST_F(BelowTheFloor, FaultLatches) {
  const std::vector<float> before = ReadAll(*model_, "bias");
  try {
    large_->forward(x_);
    ADD_FAILURE() << "an operator went on without its parameter";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr("aten::"));
  }
  EXPECT_THAT(session_->status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("aten::")));
  {
    const at::NoGradGuard no_grad;
    large_->bias.mutable_grad() = at::ones({256});
  }
  EXPECT_THAT(model_->Step({}), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(model_->step(), 0);
  EXPECT_EQ(ReadAll(*model_, "bias"), before);
  // Also after the cause is gone: an earlier operator's result may be in use.
  EXPECT_THAT(model_->Step({}), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(BelowTheFloor, AnActivationThatDoesNotFitNamesItsOperator) {
  EXPECT_THROW(at::ones({64 * 1024}).sum(), c10::OutOfMemoryError);
  EXPECT_THAT(session_->status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("aten::")));
  EXPECT_EQ(GetAllocationStats().refused, 1);
}

// A stack whose statistics come last, in a HOST that does not hold it.
class FailedFetch : public TrainingTest {
 protected:
  static constexpr int kLayers = 24;
  struct Net : torch::nn::Module {
    Net() {
      for (int i = 0; i < kLayers; ++i) {
        layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(128, 128)));
      }
      norm = register_module("norm", torch::nn::BatchNorm1d(128));
      average = register_buffer("average", torch::zeros({128}));
      edited = register_parameter("edited", torch::zeros({128}));
    }
    at::Tensor forward(at::Tensor x) {
      for (torch::nn::Linear& layer : layers) x = layer->forward(x).tanh();
      x = norm->forward(x);
      const at::NoGradGuard no_grad;
      average.lerp_(x.mean(0), 0.1);
      edited.add_(x.mean(0));
      return x;
    }
    std::vector<torch::nn::Linear> layers;
    torch::nn::BatchNorm1d norm{nullptr};
    at::Tensor average, edited;
  };
  ~FailedFetch() override {
    session_.reset();
    server_.reset();  // Before the faults.
  }
  server::NvmeFaults faults_;
};

TEST_F(FailedFetch, LeavesNoNaNInWhatIsReadAfterwards) {
  const std::vector<std::string> written = {"norm.running_mean", "norm.running_var", "average",
                                            "edited"};
  TrainingOptions options = SmallOptions();
  options.device_memory = 1 * kMiB;
  options.host_memory = 5 * kMiB / 2;
  options.nvme_memory = 32 * kMiB;
  torch::manual_seed(3);
  Net net;
  Open(options, &faults_);
  ManagedModel* const model = Manage(net);
  ASSERT_NE(model, nullptr);
  net.forward(torch::randn({16, 128})).square().mean().backward();
  ASSERT_OK(model->Step({.overlap_update = false}));
  // From the second on, HOST makes room by dropping what NVMe has already: it reads alone.
  for (int i = 0; i < 3; ++i) net.forward(torch::randn({16, 128}));
  std::map<std::string, std::vector<float>> good;
  for (const std::string& name : written) good[name] = ReadAll(*model, name);
  EvictAll();
  faults_.Arm(server::NvmeFault::kFlipsBit, /*nth=*/3);
  const at::Tensor output = net.forward(torch::randn({16, 128}));
  ASSERT_TRUE(faults_.fired());
  EXPECT_THAT(session_->status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("layer")));
  EXPECT_TRUE(output.isnan().any().item<bool>());
  for (const std::string& name : written) {
    EXPECT_EQ(ReadAll(*model, name), good[name]) << name;
  }
}

TEST_F(OperatorHookTest, AnEarlierStepsGradientRaisesInsteadOfShowingTheNext) {
  SetUpLinear();
  linear_->forward(at::ones({1, 32})).sum().backward();
  const at::Tensor kept = linear_->weight.grad();
  EXPECT_TRUE(kept.eq(1).all().item<bool>());
  linear_->zero_grad();
  EXPECT_TRUE(kept.eq(1).all().item<bool>());
  linear_->forward(at::full({1, 32}, 2.0)).sum().backward();
  EXPECT_TRUE(linear_->weight.grad().eq(2).all().item<bool>());
  EXPECT_THROW(kept.sum(), c10::Error);
}

TEST_F(OperatorHookTest, GradientsOfTheUserAreTakenAtTheStep) {
  SetUpLinear();
  at::Tensor shadow = linear_->bias.detach().clone();
  linear_->bias.mutable_grad() = at::ones({16});
  ReferenceAdamW reference({shadow}, {});
  shadow.mutable_grad() = at::ones({16});
  ASSERT_OK(model_->Step({}));
  reference.Step();
  EXPECT_TRUE(linear_->bias.equal(shadow));
  ASSERT_OK_AND_ASSIGN(const int64_t bias_steps, model_->TensorStep("bias"));
  ASSERT_OK_AND_ASSIGN(const int64_t weight_steps, model_->TensorStep("weight"));
  EXPECT_EQ(bias_steps, 1);
  EXPECT_EQ(weight_steps, 0);
}

}  // namespace
}  // namespace gemini::client::hooks
