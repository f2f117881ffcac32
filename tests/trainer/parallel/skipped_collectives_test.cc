// SPDX-License-Identifier: Apache-2.0
// Each collective of a step matters: ranks that skip one, all of them, end with other parameters or
// in an error. So what compares ranks with one process would notice that it is missing.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/kernels/grad_norm.h"
#include "client/torch/model/element_types.h"
#include "gtest/gtest.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/skipping_communicator.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "torch/torch.h"
#include "trainer/families/hf_config.h"
#include "trainer/parallel/gathered_model.h"
#include "trainer/parallel/rank_step_exchange.h"

namespace gemini::trainer {
namespace {

using torch::Tensor;

constexpr int64_t kRanks = 3;
constexpr int64_t kBlock = client::kNormBlockElements;
constexpr double kClip = 0.01;  // Below the norm of each step.
constexpr char kConfig[] =
    R"({"model_type":"llama","vocab_size":301,"max_position_embeddings":16,"hidden_size":64,
        "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,
        "intermediate_size":96})";
// Every rank of that model has a gradient of each tensor, so that it does not show in which.
constexpr char kWhich[] = "which gradients of ";

struct Outcome {
  std::map<std::string, Tensor> parameters;  // By name, which has its piece.
  std::set<std::string> errors;
  std::set<std::string> sites;
};

void FillAlike(GatheredModel& model) {
  const torch::NoGradGuard no_grad;
  for (const auto& unit : model.units()) {
    at::Generator generator = at::detail::createCPUGenerator(9);
    std::vector<Tensor> values;
    for (const UnitTensor& tensor : unit->tensors()) {
      values.push_back(torch::randn(tensor.sizes, generator).flatten() * 0.1);
    }
    for (size_t i = 0; i < unit->pieces().size(); ++i) {
      const ShardPiece& piece = unit->pieces()[i];
      unit->parameters()[i].flatten().copy_(
          values[static_cast<size_t>(piece.tensor)].narrow(0, piece.first, piece.count));
    }
  }
}

// The squares of the model's gradients, as ManagedModel gives them.
client::SquaresByTensor SquaresOf(const GatheredModel& model) {
  client::SquaresByTensor squares;
  for (const Tensor& parameter : model.parameters()) {
    squares.emplace_back();
    const Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    client::AppendBlockSquares(*client::hooks::ElementTypeOf(gradient.scalar_type()),
                               gradient.const_data_ptr(), gradient.numel(), squares.back());
  }
  return squares;
}

// Two steps of two micro-batches with clipping. Throws what the units do.
absl::Status Steps(GatheredModel& model, Communicator& me) {
  std::vector<ShardCut> cuts;
  for (const auto& unit : model.units()) cuts.push_back(unit->cut());
  RankStepExchange exchange(me, cuts);
  for (int64_t step = 0; step < 2; ++step) {
    model.zero_grad();
    for (int64_t i = 0; i < 2; ++i) {
      at::Generator generator =
          at::detail::createCPUGenerator(static_cast<uint64_t>(100 * step + 10 * me.rank() + i));
      const Tensor tokens = torch::randint(0, 301, {1, 6}, generator, torch::dtype(torch::kInt64));
      model.set_last_micro_batch(i == 1);
      model.Losses(tokens, LossFactors()).Backward(LossFactors());
    }
    absl::StatusOr<std::optional<double>> norm = exchange.AgreeOnNorm(SquaresOf(model));
    if (!norm.ok()) return norm.status();
    if (!norm->has_value()) return absl::InternalError("no gradients");
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : model.parameters()) {
      if (parameter.grad().defined()) parameter.sub_(parameter.grad(), kClip / **norm);
    }
    model.NoteUpdate();
  }
  return absl::OkStatus();
}

Outcome Train(UnitDivision division, GradientSync sync, const std::string& skipped) {
  Mutex mutex;
  Outcome outcome;
  RunThreadRanks(kRanks, [&](Communicator& inner) {
    torch::set_num_threads(1);
    SkippingCommunicator me(inner, skipped);
    const std::unique_ptr<GatheredModel> model = *GatheredModel::Make(
        ParseHfConfig(kConfig, "config")->spec, torch::kFloat32, me, me.world(),
        {.division = division, .sync = sync, .block_elements = kBlock});
    FillAlike(*model);
    absl::Status status;
    try {
      status = Steps(*model, me);
    } catch (const c10::Error& error) {
      status = absl::InternalError(error.what_without_backtrace());
    }
    MutexLock lock(mutex);
    if (!status.ok()) outcome.errors.insert(std::string(status.message()));
    for (const auto& unit : model->units()) {
      for (size_t i = 0; i < unit->pieces().size(); ++i) {
        const ShardPiece& piece = unit->pieces()[i];
        const std::string& name = unit->tensors()[static_cast<size_t>(piece.tensor)].name;
        outcome.parameters["rank " + std::to_string(me.rank()) + " " + PieceName(name, piece)] =
            unit->parameters()[i].detach();
      }
    }
    for (const SentBytes& one : me.sent()) {
      if (one.site.find(kWhich) != 0) outcome.sites.insert(one.site);
    }
  });
  return outcome;
}

bool Differ(const Outcome& one, const Outcome& other) {
  if (one.errors != other.errors) return true;
  for (const auto& [name, value] : one.parameters) {
    if (!torch::equal(value, other.parameters.at(name))) return true;
  }
  return false;
}

void ExpectThatEachMatters(UnitDivision division, GradientSync sync) {
  const Outcome expected = Train(division, sync, "");
  EXPECT_TRUE(expected.errors.empty()) << *expected.errors.begin();
  EXPECT_FALSE(Differ(expected, Train(division, sync, "")));
  // One or two of each of four units, and the norm.
  EXPECT_EQ(expected.sites.size(), division == UnitDivision::kReplicas ? 5 : 9);
  for (const std::string& site : expected.sites) {
    EXPECT_TRUE(Differ(expected, Train(division, sync, site))) << site;
  }
}

TEST(SkippedCollectivesTest, OfShardsEachOneMatters) {
  ExpectThatEachMatters(UnitDivision::kShards, GradientSync::kEach);
}

TEST(SkippedCollectivesTest, OfShardsAndWholeTensorsEachOneMatters) {
  ExpectThatEachMatters(UnitDivision::kShardsAndWhole, GradientSync::kEach);
  ExpectThatEachMatters(UnitDivision::kShardsAndWhole, GradientSync::kLast);
}

TEST(SkippedCollectivesTest, OfReplicasEachOneMatters) {
  ExpectThatEachMatters(UnitDivision::kReplicas, GradientSync::kEach);
  ExpectThatEachMatters(UnitDivision::kReplicas, GradientSync::kLast);
}

TEST(SkippedCollectivesTest, WhichTensorsHaveGradientsMatters) {
  for (const bool skip : {false, true}) {
    RunThreadRanks(kRanks, [&](Communicator& inner) {
      SkippingCommunicator me(inner, skip ? absl::StrCat(kWhich, "it") : "");
      GatheredUnit unit("it", {{"a", {4 * kBlock}}, {"b", {4 * kBlock}}}, torch::kFloat32, me,
                        me.world(), {.block_elements = kBlock});
      const torch::Tensor used = unit.Views(UnitUse::kToTheEnd)[me.rank() == 0 ? 0 : 1];
      used.sum().backward();
      bool all_defined = true;
      for (const Tensor& parameter : unit.parameters()) all_defined &= parameter.grad().defined();
      // The second one alone has a piece of what it does not use.
      EXPECT_EQ(all_defined, !skip || me.rank() != 1) << me.rank();
    });
  }
}

}  // namespace
}  // namespace gemini::trainer
