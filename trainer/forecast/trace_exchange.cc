// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/trace_exchange.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gemini/device_shortage.h"
#include "gemini/json_text.h"
#include "gemini/plan/trace_wire.h"
#include "gemini/system/status_macros.h"
#include "nlohmann/json.hpp"

namespace gemini::trainer {
namespace {

using Json = nlohmann::json;

// Of a refusal, because DEVICE is too small: what would do.
constexpr char kLeastDeviceKey[] = "least_device_bytes";
constexpr int64_t kMaxNeedBytes = int64_t{1} << 60;
constexpr int64_t kMaxCount = int64_t{1} << 20;  // Of the three that tokens are a product of.

Json ToJson(const TraceRequest& request) {
  const RoundShape& round = request.round;
  const ComputeRate& rate = request.rate;
  Json json = {{"task", request.task.name},
               {"train", round.train},
               {"batch", round.batch},
               {"sequence", round.sequence},
               {"accumulate", round.micro_batches},
               {"recompute", round.recompute},
               {"precision", ElementTypeName(round.element)},
               {"optimizer", OptimizerKindName(round.optimizer)},
               {"moments", kMomentFormatNames[static_cast<size_t>(round.moments)]},
               {"states_on_nvme", round.states_on_nvme},
               {"has_documents", round.has_documents},
               {"vocabulary_blocks", round.vocabulary_blocks},
               {"on_cpu", round.on_cpu},
               {"flops_per_second", rate.flops_per_second},
               {"attention_flops_per_second", rate.attention_flops_per_second},
               {"memory_bytes_per_second", rate.memory_bytes_per_second},
               {"kernel_ns", rate.kernel_ns}};
  if (const std::optional<TaskSpec>& labels = request.task.labels; labels.has_value()) {
    json["num_labels"] = labels->num_labels;
    json["problem_type"] = std::string(NameOf(labels->problem));
  }
  return json;
}

std::optional<ProblemType> ProblemTypeOf(absl::string_view name) {
  const auto found = std::ranges::find(kProblemNames, name);
  if (found == std::end(kProblemNames)) return std::nullopt;
  return static_cast<ProblemType>(found - std::begin(kProblemNames));
}

std::optional<ElementType> ElementTypeOfName(absl::string_view name) {
  for (const ElementType type : kAllElementTypes) {
    if (ElementTypeName(type) == name) return type;
  }
  return std::nullopt;
}

// Takes a value out of `json`, if it is there.
template <typename Value>
void Take(Json& json, const char* key, Value& value) {
  const auto found = json.find(key);
  if (found == json.end()) return;
  if (std::is_same_v<Value, int64_t> && !found->is_number_integer()) {
    throw Json::other_error::create(501, absl::StrCat(key, " is no whole number"), nullptr);
  }
  value = found->get<Value>();
  json.erase(found);
}

// The same for a name that `parse` gives a value for.
template <typename Value, typename Parse>
absl::Status TakeName(Json& json, const char* key, Parse parse, Value& value) {
  std::string name;
  Take(json, key, name);
  if (name.empty()) return absl::OkStatus();
  const std::optional<Value> parsed = parse(name);
  if (!parsed.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(key, ": '", name, "' is none that is known"));
  }
  value = *parsed;
  return absl::OkStatus();
}

// Takes the labels of a new head out of `json`, if they are there.
absl::Status TakeLabels(Json& json, std::optional<TaskSpec>& labels) {
  TaskSpec taken;
  Take(json, "num_labels", taken.num_labels);
  GEMINI_RETURN_IF_ERROR(TakeName(json, "problem_type", ProblemTypeOf, taken.problem));
  if (taken == TaskSpec()) return absl::OkStatus();
  if (taken.num_labels < 1 || taken.num_labels > kMostLabels) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_labels is ", taken.num_labels, ", expected 1 to ", kMostLabels));
  }
  labels = std::move(taken);
  return absl::OkStatus();
}

absl::StatusOr<TraceRequest> FromJson(Json json) {
  TraceRequest request;
  RoundShape& round = request.round;
  Take(json, "task", request.task.name);
  GEMINI_RETURN_IF_ERROR(TakeLabels(json, request.task.labels));
  Take(json, "train", round.train);
  Take(json, "batch", round.batch);
  Take(json, "sequence", round.sequence);
  Take(json, "accumulate", round.micro_batches);
  Take(json, "recompute", round.recompute);
  GEMINI_RETURN_IF_ERROR(TakeName(json, "precision", ElementTypeOfName, round.element));
  GEMINI_RETURN_IF_ERROR(TakeName(json, "optimizer", OptimizerKindOf, round.optimizer));
  GEMINI_RETURN_IF_ERROR(TakeName(json, "moments", MomentFormatOf, round.moments));
  Take(json, "states_on_nvme", round.states_on_nvme);
  Take(json, "has_documents", round.has_documents);
  Take(json, "vocabulary_blocks", round.vocabulary_blocks);
  Take(json, "on_cpu", round.on_cpu);
  Take(json, "flops_per_second", request.rate.flops_per_second);
  Take(json, "attention_flops_per_second", request.rate.attention_flops_per_second);
  Take(json, "memory_bytes_per_second", request.rate.memory_bytes_per_second);
  Take(json, "kernel_ns", request.rate.kernel_ns);
  if (!json.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("unknown key '", json.begin().key(), "'"));
  }
  return request;
}

}  // namespace

std::string EncodeRequest(const TraceRequest& request) {
  return JsonText(ToJson(request), /*indent=*/-1);
}

absl::StatusOr<TraceRequest> ParseRequest(absl::string_view line) {
  return ReadJsonObject(line, [](Json json) { return FromJson(std::move(json)); });
}

std::string EncodeReply(const TraceReply& reply) {
  const NamedTrace& made = reply.made;
  const std::string trace = EncodeTrace(made.trace);
  if (static_cast<int64_t>(trace.size()) > kMaxTraceBytes) {
    return EncodeReply(absl::ResourceExhaustedError(
        absl::StrCat("a trace of ", trace.size(), " bytes, of at most ", kMaxTraceBytes,
                     ": take fewer micro-batches")));
  }
  std::string names;
  for (const std::string& name : made.tensor_names) absl::StrAppend(&names, name, "\n");
  for (size_t i = 0; i < made.operator_names.size(); ++i) {
    absl::StrAppend(&names, made.needs[i].pinned_bytes, " ", made.needs[i].bytes, " ",
                    made.operator_names[i], "\n");
  }
  const Json header = {{kTraceVersionKey, GEMINI_VERSION},
                       {"model", reply.model},
                       {"round", ToJson(reply.request)},
                       {"trace_bytes", trace.size()},
                       {"names_bytes", names.size()}};
  return absl::StrCat(JsonText(header, /*indent=*/-1), "\n", trace, names);
}

std::string EncodeReply(const absl::Status& refused) {
  Json header = {{kTraceVersionKey, GEMINI_VERSION},
                 {"code", static_cast<int>(refused.code())},
                 {"error", std::string(refused.message())}};
  if (const std::optional<int64_t> bytes = LeastDeviceBytes(refused); bytes.has_value()) {
    header[kLeastDeviceKey] = *bytes;
  }
  return JsonText(header, /*indent=*/-1) + "\n";
}

absl::StatusOr<TraceReplyHeader> ParseReplyHeader(absl::string_view line) {
  return ReadJsonObject(line, [](const Json& json) -> absl::StatusOr<TraceReplyHeader> {
    TraceReplyHeader header;
    if (json.contains("error")) {
      const auto code = static_cast<absl::StatusCode>(json.at("code").get<int>());
      const std::string message = json.at("error");
      header.refused = absl::Status(code, message);
      if (header.refused.ok()) return absl::InvalidArgumentError(message);
      if (json.contains(kLeastDeviceKey)) {
        const int64_t bytes = json.at(kLeastDeviceKey);
        if (bytes <= 0) {
          return absl::InvalidArgumentError(absl::StrCat("DEVICE of ", bytes, " bytes at least"));
        }
        SetLeastDeviceBytes(bytes, header.refused);
      }
      return header;
    }
    header.version = json.at(kTraceVersionKey);
    header.model = json.at("model");
    GEMINI_ASSIGN_OR_RETURN(header.request, FromJson(json.at("round")));
    json.at("trace_bytes").get_to(header.trace_bytes);
    json.at("names_bytes").get_to(header.names_bytes);
    if (header.trace_bytes < 0 || header.trace_bytes > kMaxTraceBytes || header.names_bytes < 0 ||
        header.names_bytes > kMaxNamesBytes) {
      return absl::InvalidArgumentError(absl::StrCat("a trace of ", header.trace_bytes,
                                                     " bytes with ", header.names_bytes,
                                                     " bytes of names"));
    }
    return header;
  });
}

absl::StatusOr<TraceReply> ParseReply(const TraceReplyHeader& header, absl::string_view rest) {
  GEMINI_RETURN_IF_ERROR(header.refused);
  if (static_cast<int64_t>(rest.size()) != header.trace_bytes + header.names_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(rest.size(), " bytes behind the first line, ",
                                                   header.trace_bytes + header.names_bytes,
                                                   " are named there"));
  }
  const RoundShape& round = header.request.round;
  for (const int64_t count : {round.batch, round.sequence, round.micro_batches}) {
    if (count < 1 || count > kMaxCount) {
      return absl::InvalidArgumentError(
          absl::StrCat("a round of ", count, ", of 1 to ", kMaxCount));
    }
  }
  TraceReply reply = {header.model, header.request, {}};
  NamedTrace& made = reply.made;
  // A copy begins at a multiple of 8.
  GEMINI_ASSIGN_OR_RETURN(
      made.trace,
      DecodeTrace(std::string(rest.substr(0, static_cast<size_t>(header.trace_bytes)))));
  absl::string_view names = rest.substr(static_cast<size_t>(header.trace_bytes));
  const auto take_line = [&] {
    const size_t end = std::min(names.find('\n'), names.size());
    const absl::string_view line = names.substr(0, end);
    names.remove_prefix(std::min(end + 1, names.size()));
    return line;
  };
  for (size_t i = 0; i < made.trace.tensors.size(); ++i) {
    made.tensor_names.emplace_back(take_line());
  }
  for (int32_t i = 0; i < made.trace.num_positions(); ++i) {
    const std::vector<absl::string_view> parts =
        absl::StrSplit(take_line(), absl::MaxSplits(' ', 2));
    OperatorNeed need;
    if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &need.pinned_bytes) ||
        !absl::SimpleAtoi(parts[1], &need.bytes) || need.pinned_bytes < 0 || need.bytes < 0 ||
        need.pinned_bytes > kMaxNeedBytes || need.bytes > kMaxNeedBytes) {
      return absl::InvalidArgumentError(absl::StrCat("the name of operator ", i, " is missing"));
    }
    made.needs.push_back(need);
    made.operator_names.emplace_back(parts[2]);
  }
  if (!names.empty()) return absl::InvalidArgumentError("more names than operators");
  return reply;
}

absl::StatusOr<TraceReply> ParseReply(absl::string_view text) {
  const size_t end = text.find('\n');
  if (end == absl::string_view::npos) return absl::InvalidArgumentError("no line of JSON");
  GEMINI_ASSIGN_OR_RETURN(const TraceReplyHeader header, ParseReplyHeader(text.substr(0, end)));
  return ParseReply(header, text.substr(end + 1));
}

}  // namespace gemini::trainer
