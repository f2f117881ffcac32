// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/task_choice.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/system/status_macros.h"
#include "nlohmann/json.hpp"

namespace gemini::trainer {
namespace {

using Json = nlohmann::json;

constexpr int64_t kDefaultLabels = 2;  // As in transformers.

// Returns the config's first architecture, or nothing.
std::string ArchitectureOf(const Json& config) {
  const auto found = config.find("architectures");
  const bool has_one =
      found != config.end() && found->is_array() && !found->empty() && found->front().is_string();
  return has_one ? found->front().get<std::string>() : "";
}

std::vector<TaskKind> TasksOf(const Family& family) {
  std::vector<TaskKind> tasks;
  for (size_t i = 0; i < std::size(kTaskNames); ++i) {
    if (!family.classes[i].empty()) tasks.push_back(static_cast<TaskKind>(i));
  }
  return tasks;
}

absl::StatusOr<TaskKind> KindOf(const Json& config, absl::string_view where, const Family& family,
                                const std::string& wish) {
  const std::vector<TaskKind> tasks = TasksOf(family);
  if (wish == "auto") {
    const auto same = std::ranges::find(family.classes, absl::string_view(ArchitectureOf(config)));
    const bool is_known = same != std::end(family.classes) && !same->empty();
    return is_known ? static_cast<TaskKind>(same - std::begin(family.classes)) : tasks.front();
  }
  const auto kind =
      std::ranges::find(tasks, absl::string_view(wish), [](TaskKind task) { return NameOf(task); });
  if (kind != tasks.end()) return *kind;
  return absl::UnimplementedError(absl::StrCat(
      "--task ", wish, ": ", where, " is of ", family.model_type, ", which has ",
      absl::StrJoin(tasks, ", ",
                    [](std::string* out, TaskKind task) { absl::StrAppend(out, NameOf(task)); })));
}

absl::Status WrongKey(absl::string_view where, absl::string_view key, const Json& value,
                      absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", key, " is ",
                                                 absl::CHexEscape(value.dump().substr(0, 100)),
                                                 ", expected ", expected));
}

// Reads the labels that the config describes into `task`.
absl::Status ReadLabels(const Json& config, absl::string_view where, TaskSpec& task) {
  task.num_labels = kDefaultLabels;
  const auto number = config.find("num_labels");
  if (number != config.end() && !number->is_null()) {
    if (!number->is_number_integer() || *number < 1 || *number > kMostLabels) {
      return WrongKey(where, "num_labels", *number, absl::StrCat("1 to ", kMostLabels));
    }
    task.num_labels = number->get<int64_t>();
  }
  const auto names = config.find("id2label");
  if (names != config.end() && !names->is_null()) {
    if (!names->is_object() || names->empty() || names->size() > static_cast<size_t>(kMostLabels)) {
      return WrongKey(where, "id2label", *names, "an object with a name for each label");
    }
    task.num_labels = static_cast<int64_t>(names->size());
    bool are_given = false;
    for (int64_t i = 0; i < task.num_labels; ++i) {
      const auto name = names->find(std::to_string(i));
      if (name == names->end() || !name->is_string()) {
        return WrongKey(where, absl::StrCat("id2label.", i), name == names->end() ? Json() : *name,
                        "the label's name");
      }
      task.names.push_back(name->get<std::string>());
      are_given = are_given || task.names.back() != absl::StrCat("LABEL_", i);
    }
    if (!are_given) task.names.clear();  // transformers made these up.
  }
  task.problem = task.num_labels == 1 ? ProblemType::kRegression : ProblemType::kSingleLabel;
  const auto problem = config.find("problem_type");
  if (problem == config.end() || problem->is_null()) return absl::OkStatus();
  const auto same = problem->is_string()
                        ? std::ranges::find(kProblemNames, problem->get<std::string>())
                        : std::end(kProblemNames);
  if (same == std::end(kProblemNames)) {
    return WrongKey(where, "problem_type", *problem, absl::StrJoin(kProblemNames, ", "));
  }
  task.problem = static_cast<ProblemType>(same - std::begin(kProblemNames));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TaskChoice> ChooseTask(const Json& config, absl::string_view where,
                                      const Family& family, const TaskWish& wish) {
  TaskChoice choice;
  GEMINI_ASSIGN_OR_RETURN(choice.task.kind, KindOf(config, where, family, wish.name));
  choice.model_class = std::string(family.classes[static_cast<size_t>(choice.task.kind)]);
  const std::string architecture = ArchitectureOf(config);
  const bool is_known = std::ranges::count(family.classes, absl::string_view(architecture)) > 0;
  choice.is_new = architecture != choice.model_class &&
                  ((is_known && !architecture.empty()) || wish.name != "auto");
  if (!choice.task.is_classification()) return choice;
  const bool says_labels = config.contains("id2label") || config.contains("num_labels");
  const bool is_of_another = !architecture.empty();
  if (choice.is_new && wish.labels.has_value() && (is_of_another || !says_labels)) {
    const TaskKind kind = choice.task.kind;
    choice.task = *wish.labels;
    choice.task.kind = kind;
    return choice;
  }
  GEMINI_RETURN_IF_ERROR(ReadLabels(config, where, choice.task));
  // A config that does not say what its labels are leaves it to the data, as transformers does.
  const bool is_said = config.contains("problem_type") && !config["problem_type"].is_null();
  if (!is_said && wish.labels.has_value()) choice.task.problem = wish.labels->problem;
  choice.names_labels = !choice.task.names.empty();
  // Those that are made up are replaced by the data's.
  if (choice.task.names.empty() && wish.labels.has_value() &&
      wish.labels->num_labels == choice.task.num_labels) {
    choice.task.names = wish.labels->names;
  }
  if (choice.task.names.empty()) choice.names_labels = true;  // There is nothing to name.
  return choice;
}

}  // namespace gemini::trainer
