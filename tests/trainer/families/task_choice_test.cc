// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/task_choice.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/status_matchers.h"

namespace gemini::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

// Families that have no spec: a choice needs none.
constexpr Family kDecoder = {
    "decoder", {"DecoderForCausalLM", "", "DecoderForSequenceClassification"}, nullptr};
constexpr Family kEncoder = {
    "encoder", {"", "EncoderForMaskedLM", "EncoderForSequenceClassification"}, nullptr};
constexpr Family kCausalAlone = {"simple", {"SimpleForCausalLM", "", ""}, nullptr};

absl::StatusOr<TaskChoice> Choose(const std::string& config, const TaskWish& wish = {},
                                  const Family& family = kDecoder) {
  return ChooseTask(Json::parse(config), "dir/config.json", family, wish);
}
// The config's own labels, as of a model that classifies already.
absl::StatusOr<TaskChoice> ChooseTrained(Json config, const TaskWish& wish = {}) {
  config["architectures"] = {"DecoderForSequenceClassification"};
  return ChooseTask(config, "dir/config.json", kDecoder, wish);
}

TEST(TaskChoiceTest, AutoIsTheTaskOfTheArchitectureOrTheFamilysFirst) {
  struct Case {
    const char* config;
    const Family& family;
    TaskKind kind;
    const char* model_class;
  };
  for (const Case& c : std::vector<Case>{
           {"{}", kDecoder, TaskKind::kCausal, "DecoderForCausalLM"},
           {"{}", kEncoder, TaskKind::kMasked, "EncoderForMaskedLM"},
           {R"({"architectures":["DecoderForSequenceClassification"]})", kDecoder,
            TaskKind::kSequenceClassification, "DecoderForSequenceClassification"},
           {R"({"architectures":["EncoderForSequenceClassification", "EncoderForMaskedLM"]})",
            kEncoder, TaskKind::kSequenceClassification, "EncoderForSequenceClassification"},
           {R"({"architectures":["DecoderModel"]})", kDecoder, TaskKind::kCausal,
            "DecoderForCausalLM"},
           // The names of classes that a family does not have are empty.
           {R"({"architectures":[""]})", kEncoder, TaskKind::kMasked, "EncoderForMaskedLM"}}) {
    SCOPED_TRACE(c.config);
    ASSERT_OK_AND_ASSIGN(const TaskChoice choice, Choose(c.config, {}, c.family));
    EXPECT_EQ(choice.task.kind, c.kind);
    EXPECT_EQ(choice.model_class, c.model_class);
    EXPECT_FALSE(choice.is_new);
  }
}

TEST(TaskChoiceTest, ArchitecturesThatAreNoListOfTextsSayNothing) {
  for (const char* config :
       {R"({"architectures":"DecoderForSequenceClassification"})", R"({"architectures":null})",
        R"({"architectures":[]})", R"({"architectures":[7]})",
        R"({"architectures":{"0":"DecoderForSequenceClassification"}})"}) {
    SCOPED_TRACE(config);
    ASSERT_OK_AND_ASSIGN(const TaskChoice choice, Choose(config));
    EXPECT_EQ(choice.task.kind, TaskKind::kCausal);
    EXPECT_FALSE(choice.is_new);
  }
}

TEST(TaskChoiceTest, TheTaskThatIsAskedForIsChosenAndItsHeadMayBeNew) {
  struct Case {
    const char* config;
    const char* wish;
    TaskKind kind;
    bool is_new;
  };
  constexpr auto kClasses = TaskKind::kSequenceClassification;
  for (const Case& c : std::vector<Case>{
           {R"({"architectures":["DecoderForCausalLM"]})", "causal", TaskKind::kCausal, false},
           {R"({"architectures":["DecoderForCausalLM"]})", "sequence-classification", kClasses,
            true},
           {R"({"architectures":["DecoderForSequenceClassification"]})", "sequence-classification",
            kClasses, false},
           {R"({"architectures":["DecoderForSequenceClassification"]})", "causal",
            TaskKind::kCausal, true},
           {R"({"architectures":["DecoderModel"]})", "sequence-classification", kClasses, true},
           {"{}", "sequence-classification", kClasses, true},
           {"{}", "causal", TaskKind::kCausal, true}}) {
    SCOPED_TRACE(std::string(c.config) + " " + c.wish);
    ASSERT_OK_AND_ASSIGN(const TaskChoice choice, Choose(c.config, {.name = c.wish}));
    EXPECT_EQ(choice.task.kind, c.kind);
    EXPECT_EQ(choice.is_new, c.is_new);
  }
}

TEST(TaskChoiceTest, ATaskThatTheFamilyHasNotIsUnimplementedAndThoseItHasAreListed) {
  EXPECT_THAT(Choose("{}", {.name = "masked"}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("--task masked: dir/config.json is of decoder, which has "
                                       "causal, sequence-classification"))));
  EXPECT_THAT(Choose("{}", {.name = "causal"}, kEncoder),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("encoder, which has masked, sequence-classification")));
  EXPECT_THAT(Choose("{}", {.name = "sequence-classification"}, kCausalAlone),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("simple, which has causal")));
}

TEST(TaskChoiceTest, LabelsAreThoseOfTheConfig) {
  ASSERT_OK_AND_ASSIGN(const TaskChoice none, ChooseTrained(Json::object()));
  EXPECT_EQ(none.task.num_labels, 2);
  EXPECT_EQ(none.task.problem, ProblemType::kSingleLabel);
  EXPECT_THAT(none.task.names, IsEmpty());
  ASSERT_OK_AND_ASSIGN(const TaskChoice number, ChooseTrained({{"num_labels", 1}}));
  EXPECT_EQ(number.task.num_labels, 1);
  EXPECT_EQ(number.task.problem, ProblemType::kRegression);
  ASSERT_OK_AND_ASSIGN(const TaskChoice named,
                       ChooseTrained({{"id2label", {{"1", "cat"}, {"0", "dog"}, {"2", "LABEL_2"}}},
                                      {"num_labels", 7},
                                      {"problem_type", "multi_label_classification"}}));
  EXPECT_EQ(named.task.num_labels, 3);
  EXPECT_EQ(named.task.problem, ProblemType::kMultiLabel);
  EXPECT_THAT(named.task.names, ElementsAre("dog", "cat", "LABEL_2"));
  ASSERT_OK_AND_ASSIGN(
      const TaskChoice nulls,
      ChooseTrained({{"id2label", nullptr}, {"num_labels", nullptr}, {"problem_type", nullptr}}));
  EXPECT_EQ(nulls.task, none.task);
}

TEST(TaskChoiceTest, TwelveNamesAreInTheOrderOfTheirNumbers) {
  Json names;
  for (int i = 0; i < 12; ++i) names[std::to_string(i)] = "name " + std::to_string(i);
  ASSERT_OK_AND_ASSIGN(const TaskChoice choice, ChooseTrained({{"id2label", names}}));
  ASSERT_EQ(choice.task.names.size(), 12u);
  EXPECT_EQ(choice.task.names[2], "name 2");
  EXPECT_EQ(choice.task.names[11], "name 11");
}

TEST(TaskChoiceTest, NamesThatTransformersMadeUpCountAsNone) {
  ASSERT_OK_AND_ASSIGN(const TaskChoice choice,
                       ChooseTrained({{"id2label", {{"0", "LABEL_0"}, {"1", "LABEL_1"}}}}));
  EXPECT_EQ(choice.task.num_labels, 2);
  EXPECT_THAT(choice.task.names, IsEmpty());
  ASSERT_OK_AND_ASSIGN(const TaskChoice swapped,
                       ChooseTrained({{"id2label", {{"0", "LABEL_1"}, {"1", "LABEL_0"}}}}));
  EXPECT_THAT(swapped.task.names, ElementsAre("LABEL_1", "LABEL_0"));
}

TEST(TaskChoiceTest, ANewHeadGetsTheLabelsOfTheWishAndATrainedOneKeepsItsOwn) {
  const TaskWish wish = {.name = "sequence-classification",
                         .labels = TaskSpec{.kind = TaskKind::kSequenceClassification,
                                            .problem = ProblemType::kMultiLabel,
                                            .num_labels = 3,
                                            .names = {"x", "y", "z"}}};
  // The keys of a model of another task are not read, whatever they are.
  ASSERT_OK_AND_ASSIGN(
      const TaskChoice made,
      Choose(R"({"architectures":["DecoderForCausalLM"], "num_labels":-1})", wish));
  EXPECT_TRUE(made.is_new);
  EXPECT_EQ(made.task, *wish.labels);

  Json config = {{"id2label", {{"0", "dog"}, {"1", "cat"}}}};
  ASSERT_OK_AND_ASSIGN(const TaskChoice unsaid, ChooseTrained(config, wish));
  EXPECT_FALSE(unsaid.is_new);
  EXPECT_THAT(unsaid.task.names, ElementsAre("dog", "cat"));
  EXPECT_EQ(unsaid.task.problem, ProblemType::kMultiLabel);  // The data say it.
  config["problem_type"] = "single_label_classification";
  ASSERT_OK_AND_ASSIGN(const TaskChoice said, ChooseTrained(config, wish));
  EXPECT_EQ(said.task.problem, ProblemType::kSingleLabel);

  // What transformers made up is named by the data, if there are as many.
  ASSERT_OK_AND_ASSIGN(const TaskChoice named, ChooseTrained({{"num_labels", 3}}, wish));
  EXPECT_THAT(named.task.names, ElementsAre("x", "y", "z"));
  EXPECT_FALSE(named.names_labels);
  EXPECT_TRUE(said.names_labels);
  ASSERT_OK_AND_ASSIGN(const TaskChoice fewer, ChooseTrained({{"num_labels", 4}}, wish));
  EXPECT_THAT(fewer.task.names, IsEmpty());
  // A config that names no class, and says what its labels are, is believed.
  ASSERT_OK_AND_ASSIGN(const TaskChoice classless,
                       Choose(R"({"id2label":{"0":"dog", "1":"cat"}})", wish));
  EXPECT_TRUE(classless.is_new);
  EXPECT_THAT(classless.task.names, ElementsAre("dog", "cat"));

  // Without labels of the wish, those of the config are the new head's.
  ASSERT_OK_AND_ASSIGN(
      const TaskChoice of_config,
      Choose(R"({"num_labels":5, "architectures":["DecoderForCausalLM"]})", {.name = wish.name}));
  EXPECT_TRUE(of_config.is_new);
  EXPECT_EQ(of_config.task.num_labels, 5);
}

// A decoder's config may say anything of labels that it does not have.
TEST(TaskChoiceTest, LabelsOfATaskThatPredictsTokensAreNotRead) {
  ASSERT_OK_AND_ASSIGN(const TaskChoice choice,
                       Choose(R"({"num_labels":-1, "id2label":[], "problem_type":7})"));
  EXPECT_EQ(choice.task, TaskSpec());
}

TEST(TaskChoiceTest, WrongKeysAreRefusedByTheirNames) {
  const std::string long_name(1'000, 'x');
  const std::vector<std::pair<Json, std::string>> cases = {
      {{{"num_labels", -1}}, "num_labels is -1, expected 1 to 65536"},
      {{{"num_labels", 0}}, "num_labels is 0, expected"},
      {{{"num_labels", 65537}}, "num_labels is 65537, expected"},
      {{{"num_labels", 18446744073709551615u}}, "num_labels is 18446744073709551615, expected"},
      {{{"num_labels", 2.5}}, "num_labels is 2.5, expected"},
      {{{"num_labels", "2"}}, "num_labels is \\\"2\\\", expected"},
      {{{"id2label", Json::array({"a", "b"})}}, "id2label is [\\\"a\\\",\\\"b\\\"], expected an"},
      {{{"id2label", Json::object()}}, "id2label is {}, expected an object"},
      {{{"id2label", {{"0", "a"}, {"2", "b"}}}}, "id2label.1 is null, expected the label's name"},
      {{{"id2label", {{"00", "a"}}}}, "id2label.0 is null, expected the label's name"},
      {{{"id2label", {{"0", 7}}}}, "id2label.0 is 7, expected the label's name"},
      {{{"problem_type", 7}}, "problem_type is 7, expected single_label_classification, multi"},
      {{{"problem_type", "cooking\n"}}, "problem_type is \\\"cooking\\\\n\\\", expected"},
      {{{"problem_type", long_name}}, "problem_type is \\\"" + std::string(99, 'x') + ", expected"},
  };
  for (const auto& [config, message] : cases) {
    EXPECT_THAT(ChooseTrained(config),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("dir/config.json: "), HasSubstr(message))));
  }
}

}  // namespace
}  // namespace gemini::trainer
