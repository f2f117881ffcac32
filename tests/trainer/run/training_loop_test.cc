// SPDX-License-Identifier: Apache-2.0
// Steps whose operators find no memory, and are begun again; and runs whose server goes away.
#include "trainer/run/training_loop.h"

#include <stdlib.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c10/core/CPUAllocator.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "tests/status_matchers.h"
#include "tests/trainer/parallel/thread_ranks.h"
#include "tests/trainer/store/forwarding_store.h"
#include "torch/utils.h"
#include "trainer/parallel/rank_verdict.h"
#include "trainer/run/run_checkpoint.h"
#include "trainer/store/parameter_store_reference.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Torch's allocator, which is out of memory for a thread once when that tells it to be.
class FailingAllocator final : public c10::Allocator {
 public:
  static FailingAllocator& Get() {
    static FailingAllocator* const installed = [] {
      auto* allocator = new FailingAllocator;
      allocator->base_ = c10::GetCPUAllocator();
      c10::SetCPUAllocator(allocator, /*priority=*/255);
      return allocator;
    }();
    return *installed;
  }
  c10::DataPtr allocate(size_t size_bytes) override {
    if (left_ > 0 && --left_ == 0) C10_THROW_ERROR(OutOfMemoryError, "as the test wants it");
    return base_->allocate(size_bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return base_->raw_deleter(); }
  void copy_data(void* destination, const void* source, size_t size_bytes) const override {
    base_->copy_data(destination, source, size_bytes);
  }
  // The allocation of that number from now on fails, 1 the next; 0: none.
  void FailAt(int64_t number) { left_ = number; }
  bool has_failed() const { return left_ == 0; }

 private:
  c10::Allocator* base_ = nullptr;
  static thread_local int64_t left_;
};
thread_local int64_t FailingAllocator::left_ = 0;

// Which allocations fail of each attempt, and how often there is more memory then; and when the
// store's server goes away.
struct Attempts {
  std::vector<int64_t> failures = {};
  int gives = 0;
  std::string phase = {};  // In which they fail; empty: in the second step.
  // From that step on the store has this error; 0: never.
  int lost_step = 0;
  absl::Status loss = absl::UnavailableError("the server is gone");
  bool after_update = false;  // The step succeeds, and the error comes after its update.
  bool fails_alone = false;   // Only updates fail, which other ranks do not hear of.
  bool loses_values = false;  // Nothing can be read any more.
};

// A reference store that has more memory a few times, has the allocator fail, and loses its server.
class GivingStore final : public ForwardingStore {
 public:
  GivingStore(std::unique_ptr<ParameterStore> store, const Attempts& attempts)
      : ForwardingStore(std::move(store)), attempts_(attempts) {}

  absl::StatusOr<client::StepResult> Update(const client::StepOptions& options) override {
    FailingAllocator::Get().FailAt(0);
    if (is_lost_) return attempts_.loss;
    absl::StatusOr<client::StepResult> result = ForwardingStore::Update(options);
    is_lost_ = attempts_.lost_step == num_steps;
    return result;
  }
  absl::Status ReadRange(absl::string_view name, ChunkKind kind, ByteRange range,
                         Sink sink) override {
    if (!is_lost_ || !attempts_.loses_values) {
      return ForwardingStore::ReadRange(name, kind, range, sink);
    }
    ++num_failed_reads;
    return attempts_.loss;
  }
  absl::Status status() const override {
    return is_lost_ && !attempts_.fails_alone ? attempts_.loss : ForwardingStore::status();
  }
  client::TrainingStats usage() const override {
    client::TrainingStats usage = ForwardingStore::usage();
    usage.registration_error = registration_error;
    return usage;
  }
  void ResetPeaks() override {
    if (++num_steps == 2 && attempts_.phase.empty()) FailNext();
    is_lost_ = is_lost_ || (num_steps == attempts_.lost_step && !attempts_.after_update);
  }
  void BeginPhase(absl::string_view name) override {
    if (name == attempts_.phase && num_asked == 0) FailNext();
  }
  bool GiveWay() override {
    EXPECT_TRUE(FailingAllocator::Get().has_failed());
    ++num_asked;
    FailNext();
    return num_asked <= attempts_.gives;
  }

  std::string registration_error;
  int num_steps = 0;
  int num_asked = 0;
  int num_failed_reads = 0;

 private:
  void FailNext() {
    if (next_ >= attempts_.failures.size()) return;
    FailingAllocator::Get().FailAt(attempts_.failures[next_++]);
  }
  const Attempts attempts_;
  bool is_lost_ = false;
  size_t next_ = 0;
};

class TrainingLoopTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "training_loop_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    std::filesystem::create_directory(root_ + "/source");
    // Dropout, so that a second try draws what the first one drew, or other numbers come out.
    std::ofstream(root_ + "/source/config.json")
        << R"({"model_type": "gpt2", "vocab_size": 64, "n_positions": 16, "n_embd": 16,)"
        << R"( "n_layer": 2, "n_head": 2, "resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0})";
    auto writer = SafetensorsWriter::Create(root_ + "/source/model.safetensors",
                                            {{"any", SafetensorsDtype::kF16, {1}}}, {});
    ASSERT_OK(writer);
    ASSERT_OK(writer->AppendRaw(std::vector<std::byte>(2)));
    ASSERT_OK(writer->Finish());
    std::string header = "{'descr': '<u2', 'fortran_order': False, 'shape': (640,), }\n";
    std::ofstream data(root_ + "/tokens.npy", std::ios::binary);
    data << "\x93NUMPY" << '\x01' << '\x00' << static_cast<char>(header.size()) << '\x00' << header;
    // Equal sequences.
    for (int i = 0; i < 640; ++i) data << static_cast<char>(i % 16 * 37 % 61) << '\x00';
  }
  void TearDown() override {
    FailingAllocator::Get().FailAt(0);
    std::filesystem::remove_all(root_);
  }

  struct Outcome {
    absl::StatusOr<TrainingSummary> summary;
    int num_asked = 0;
    int num_steps = 0;  // Begun.
    int num_logged = 0;
    int num_told = 0;  // That memory is not registered.
    int num_failed_reads = 0;
    std::vector<std::string> saved;  // The names of the checkpoints.
    std::vector<std::string> warnings;
    std::string parameters;
  };
  // Three steps, and an evaluation.
  void Run(const Attempts& attempts, const std::string& schedule, Outcome& outcome) {
    RunRank(attempts, schedule, RankAgreement(), outcome);
  }
  // The same of two ranks, which learn from halves of a step.
  void RunTwoRanks(const std::array<Attempts, 2>& attempts, const std::string& schedule,
                   std::array<Outcome, 2>& outcomes) {
    RunThreadRanks(2, [&](Communicator& me) {
      const auto rank = static_cast<size_t>(me.rank());
      RunRank(attempts[rank], schedule, RankAgreement(me), outcomes[rank]);
    });
  }
  void RunRank(const Attempts& attempts, const std::string& schedule, const RankAgreement& ranks,
               Outcome& outcome) {
    static std::atomic<int> runs = 0;
    RunConfig config;
    config.model = root_ + "/source";
    config.output = root_ + "/run" + std::to_string(++runs);
    config.steps = 3;
    config.batch = 2;
    config.accumulate = 2;
    config.sequence = 16;
    config.micro_batch_schedule = schedule;
    config.no_save = no_save_;
    config.save_every = save_every_;
    config.seed = seed_;
    if (learns_nothing_) config.lr = 0;
    ASSERT_OK_AND_ASSIGN(const HfCheckpoint source, HfCheckpoint::Open(config.model));
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<StagedModel> model,
                         MakeStagedModel(source.config().spec, torch::kFloat));
    ASSERT_OK_AND_ASSIGN(auto reference, ReferenceParameterStore::Create(*model, {}, {}));
    at::Generator generator = at::detail::createCPUGenerator(3);
    for (torch::Tensor& parameter : model->parameters()) {
      const at::NoGradGuard no_grad;
      parameter.normal_(0, 0.1, generator);
    }
    GivingStore store(std::move(reference), attempts);
    store.registration_error = registration_error_;
    ASSERT_OK_AND_ASSIGN(const TrainingData data, TrainingData::Open(root_ + "/tokens.npy", 16));
    ASSERT_OK_AND_ASSIGN(RunDirectory directory,
                         RunDirectory::Open(config.output, RunDirectory::Mode::kNew));
    ActivationsInPlace activations;
    Progress progress(-1);
    const Interrupt interrupt;
    const std::vector<ParameterShape> parameters = ParameterShapesOf(*model);
    outcome.summary = Train(
        {.config = config,
         .device = torch::kCPU,
         .model = *model,
         .store = store,
         .activations = activations,
         .parameters = parameters,
         .data = data,
         .eval_data = &data,
         .source = source,
         .directory = &directory,
         .begin = [&]() -> absl::StatusOr<MetricsFile> {
           if (absl::Status made = directory.Prepare().status(); !made.ok()) return made;
           // The save of step 1 meets somebody's directory in its place.
           if (blocks_first_save_) {
             std::filesystem::create_directories(config.output + "/checkpoint-1/mine");
           }
           return MetricsFile::Open(metrics_.empty() ? config.output + "/metrics.jsonl" : metrics_,
                                    MetricsFile::Mode::kNew, {});
         },
         .progress = progress,
         .interrupt = interrupt,
         .ranks = ranks,
         .rehearses = rehearses_,
         .part = {.index = ranks.rank(), .count = ranks.num_ranks()},
         .log =
             [&](const std::string& line) {
               outcome.num_logged += line.find("is begun again") != std::string::npos ? 1 : 0;
               outcome.num_told +=
                   line.find("copies to the GPU are slower") != std::string::npos ? 1 : 0;
             },
         .warn = [&](const std::string& line) { outcome.warnings.push_back(line); }},
        nullptr, "");
    outcome.num_asked = store.num_asked;
    outcome.num_steps = store.num_steps;
    outcome.num_failed_reads = store.num_failed_reads;
    ASSERT_OK_AND_ASSIGN(const std::vector<SavedCheckpoint> saved, directory.Checkpoints());
    for (const SavedCheckpoint& one : saved) {
      outcome.saved.push_back(std::filesystem::path(one.path).filename().string());
      ASSERT_OK_AND_ASSIGN(const TrainerState state, ReadTrainerState(one.path));
      EXPECT_EQ(state.step, one.step);
    }
    for (const torch::Tensor& parameter : model->parameters()) {
      outcome.parameters.append(static_cast<const char*>(parameter.const_data_ptr()),
                                parameter.nbytes());
    }
  }

  bool rehearses_ = false;
  bool no_save_ = false;
  bool blocks_first_save_ = false;
  int64_t save_every_ = 0;
  int64_t seed_ = 42;
  bool learns_nothing_ = false;
  std::string metrics_;  // Empty: in the output.
  std::string registration_error_;
  std::string root_;
};

TEST_F(TrainingLoopTest, WhatIsBegunAgainGivesTheSameNumbers) {
  for (const std::string schedule : {"horizontal", "vertical"}) {
    Outcome plain;
    Run({}, schedule, plain);
    ASSERT_OK(plain.summary);
    EXPECT_EQ(plain.num_asked, 0);
    // In the first forward, and in a backward or the second micro-batch; and in an evaluation.
    for (const Attempts& attempts : {Attempts{{30, 250}, 2}, Attempts{{20, 25}, 2, "eval"}}) {
      Outcome again;
      Run(attempts, schedule, again);
      ASSERT_OK(again.summary);
      EXPECT_EQ(again.num_asked, 2);
      EXPECT_EQ(again.num_logged, 2);
      EXPECT_EQ(again.summary->last_loss, plain.summary->last_loss);
      EXPECT_EQ(again.summary->eval_loss, plain.summary->eval_loss);
      EXPECT_TRUE(again.parameters == plain.parameters);
    }
  }
}

// A rank that needs more memory gets it before any other waits for it, and nothing of that is seen.
TEST_F(TrainingLoopTest, ARehearsalIsBegunAgainAndChangesNoNumber) {
  for (const std::string schedule : {"horizontal", "vertical"}) {
    std::array<Outcome, 2> plain, again;
    rehearses_ = false;
    RunTwoRanks({}, schedule, plain);
    rehearses_ = true;
    RunTwoRanks({Attempts{}, Attempts{{30, 250}, 2, "rehearsal"}}, schedule, again);
    for (const size_t rank : {size_t{0}, size_t{1}}) {
      ASSERT_OK(plain[rank].summary);
      ASSERT_OK(again[rank].summary);
      EXPECT_EQ(again[rank].num_asked, rank == 1 ? 2 : 0);
      EXPECT_EQ(again[rank].num_logged, rank == 1 ? 2 : 0);
      EXPECT_EQ(again[rank].summary->last_loss, plain[rank].summary->last_loss);
      EXPECT_EQ(again[rank].summary->eval_loss, plain[rank].summary->eval_loss);
      EXPECT_TRUE(again[rank].parameters == plain[rank].parameters);
    }
    EXPECT_EQ(plain[0].summary->last_loss, plain[1].summary->last_loss);
    EXPECT_FALSE(plain[0].parameters == plain[1].parameters);  // They learned from other halves.
  }
}

TEST_F(TrainingLoopTest, ARehearsalWithoutMoreMemoryEndsAllRanksBeforeAStep) {
  rehearses_ = true;
  std::array<Outcome, 2> outcomes;
  RunTwoRanks({Attempts{}, Attempts{{30, 30}, 1, "rehearsal"}}, "horizontal", outcomes);
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.summary.status(),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("rank 1"), HasSubstr("as the test wants it"))));
    EXPECT_EQ(outcome.num_steps, 0);
  }
  EXPECT_EQ(outcomes[1].num_asked, 2);
}

// With equal data and parameters that stay, losses differ by what is dropped alone.
TEST_F(TrainingLoopTest, EachStepAndEachSeedDropsOtherElements) {
  learns_nothing_ = true;
  std::vector<double> losses;
  for (const int64_t seed : {42, 42, 43}) {
    seed_ = seed;
    Outcome outcome;
    Run({}, "horizontal", outcome);
    ASSERT_OK(outcome.summary);
    losses.insert(losses.end(), {outcome.summary->first_loss, outcome.summary->last_loss});
  }
  EXPECT_NE(losses[0], losses[1]);
  EXPECT_EQ(losses[2], losses[0]);
  EXPECT_EQ(losses[3], losses[1]);
  EXPECT_NE(losses[4], losses[0]);
}

TEST_F(TrainingLoopTest, WithoutMoreMemoryTheStepFailsAndSaysWhy) {
  Outcome outcome;
  Run({{30, 30, 30}, 1}, "horizontal", outcome);
  EXPECT_THAT(outcome.summary.status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("as the test wants it")));
  EXPECT_EQ(outcome.num_asked, 2);
  EXPECT_EQ(outcome.num_logged, 1);
}

// However early: parameters take a while to be loaded.
TEST_F(TrainingLoopTest, MemoryThatIsNotRegisteredIsToldOfOnce) {
  Outcome registered, refused;
  Run({}, "horizontal", registered);
  EXPECT_EQ(registered.num_told, 0);
  registration_error_ = "no more can be locked";
  Run({}, "horizontal", refused);
  EXPECT_EQ(refused.num_told, 1);
}

TEST_F(TrainingLoopTest, ARunThatSavesNothingLeavesNoCheckpoint) {
  Outcome saved, unsaved;
  Run({}, "horizontal", saved);
  no_save_ = true;
  Run({}, "horizontal", unsaved);
  ASSERT_OK(saved.summary);
  ASSERT_OK(unsaved.summary);
  EXPECT_NE(saved.summary->checkpoint, "");
  EXPECT_EQ(unsaved.summary->checkpoint, "");
  EXPECT_EQ(unsaved.summary->last_loss, saved.summary->last_loss);
}

TEST_F(TrainingLoopTest, APeriodicSaveThatFailsIsTriedAgainAtTheNext) {
  save_every_ = 1;
  blocks_first_save_ = true;
  Outcome outcome;
  Run({}, "horizontal", outcome);
  ASSERT_OK(outcome.summary);
  EXPECT_THAT(outcome.warnings,
              ElementsAre(AllOf(HasSubstr("saving step 1"), HasSubstr("next save is at step 2"))));
  EXPECT_THAT(outcome.summary->checkpoint, HasSubstr("checkpoint-3"));
}

TEST_F(TrainingLoopTest, MetricsThatCannotBeWrittenAreToldOfOnceAndEndNothing) {
  Outcome plain, full;
  Run({}, "horizontal", plain);
  metrics_ = "/dev/full";
  Run({}, "horizontal", full);
  ASSERT_OK(full.summary);
  EXPECT_EQ(full.summary->step, 3);
  EXPECT_EQ(full.summary->last_loss, plain.summary->last_loss);
  EXPECT_THAT(full.warnings, ElementsAre(AllOf(HasSubstr("metrics have gaps from step 1"),
                                               HasSubstr("training goes on"))));
  EXPECT_THAT(plain.warnings, IsEmpty());
}

TEST_F(TrainingLoopTest, AServerThatIsGoneCostsNoStepThatWasComplete) {
  Outcome outcome;
  Run({.lost_step = 3}, "horizontal", outcome);
  EXPECT_THAT(outcome.summary.status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("step 3: the server is gone")));
  EXPECT_THAT(outcome.saved, ElementsAre("checkpoint-2"));
  EXPECT_THAT(outcome.warnings, IsEmpty());
}

TEST_F(TrainingLoopTest, AServerThatIsGoneBeforeAStepIsCompleteLeavesNothingToSave) {
  Outcome outcome;
  Run({.lost_step = 1}, "horizontal", outcome);
  EXPECT_THAT(outcome.summary.status(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(outcome.saved, IsEmpty());
  EXPECT_THAT(outcome.warnings, IsEmpty());
}

TEST_F(TrainingLoopTest, ValuesThatWentWithTheServerAreToldOfInALine) {
  Outcome outcome;
  Run({.lost_step = 3, .loses_values = true}, "horizontal", outcome);
  EXPECT_THAT(outcome.summary.status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("step 3: the server is gone")));
  EXPECT_EQ(outcome.num_failed_reads, 1);
  EXPECT_THAT(outcome.warnings,
              ElementsAre(AllOf(HasSubstr("since the last save is lost"),
                                HasSubstr("saving step 2"), HasSubstr("the server is gone"))));
}

TEST_F(TrainingLoopTest, WithoutItsServerAStepIsTriedToBeSavedOnce) {
  save_every_ = 1;
  Outcome outcome;
  Run({.lost_step = 2, .after_update = true, .loses_values = true}, "horizontal", outcome);
  EXPECT_THAT(outcome.summary.status(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(outcome.saved, ElementsAre("checkpoint-1"));
  EXPECT_EQ(outcome.num_failed_reads, 1);
}

TEST_F(TrainingLoopTest, AServerThatIsGoneMakesNoRunSaveThatSavesNothing) {
  no_save_ = true;
  Outcome outcome;
  Run({.lost_step = 3}, "horizontal", outcome);
  EXPECT_THAT(outcome.summary.status(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(outcome.saved, IsEmpty());
}

TEST_F(TrainingLoopTest, NothingIsSavedBeforeAnotherErrorThanThatTheServerIsGone) {
  Outcome outcome;
  Run({.lost_step = 3, .loss = absl::DataLossError("a chunk is lost"), .fails_alone = true},
      "horizontal", outcome);
  EXPECT_THAT(outcome.summary.status(), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(outcome.saved, IsEmpty());
}

TEST_F(TrainingLoopTest, AllRanksSaveBeforeTheyEndForTheServerOfOne) {
  std::array<Outcome, 2> outcomes;
  RunTwoRanks({Attempts{}, Attempts{.lost_step = 3}}, "horizontal", outcomes);
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.summary.status(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1: the server is gone")));
    EXPECT_TRUE(IsAgreed(outcome.summary.status()));
    EXPECT_THAT(outcome.saved, ElementsAre("checkpoint-2"));
  }
}

TEST_F(TrainingLoopTest, NoRanksSaveWhereOneHasLostValues) {
  std::array<Outcome, 2> outcomes;
  RunTwoRanks(
      {Attempts{.lost_step = 3}, Attempts{.lost_step = 3, .loss = absl::DataLossError("a chunk")}},
      "horizontal", outcomes);
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.summary.status(), StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_THAT(outcome.saved, IsEmpty());
    EXPECT_THAT(outcome.warnings, ElementsAre(HasSubstr("rank 1: a chunk")));
  }
}

// The others do not know of its error, and would not come to save with it.
TEST_F(TrainingLoopTest, NoRanksSaveWhereTheServerIsGoneForOneAlone) {
  std::array<Outcome, 2> outcomes;
  RunTwoRanks({Attempts{}, Attempts{.lost_step = 2, .fails_alone = true}}, "horizontal", outcomes);
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.summary.status(), StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_FALSE(IsAgreed(outcome.summary.status()));
    EXPECT_THAT(outcome.saved, IsEmpty());
  }
  EXPECT_EQ(outcomes[1].summary.status().message(), "step 2: the server is gone");
}

}  // namespace
}  // namespace gemini::trainer
