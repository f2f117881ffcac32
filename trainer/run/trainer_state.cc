// SPDX-License-Identifier: Apache-2.0
#include "trainer/run/trainer_state.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace gemini::trainer {
namespace {

using Json = nlohmann::ordered_json;
// Raised with every change that an older program would misread.
constexpr int64_t kFormat = 1;

// A whole number that is not negative; nullptr-safe. Returns whether it is there.
bool Count(const Json& object, const char* key, int64_t& value) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) return false;
  value = found->get<int64_t>();
  return value >= 0;
}

}  // namespace

std::string ToJson(const TrainerState& state) {
  Json json;
  json["format"] = kFormat;
  json["step"] = state.step;
  json["sequences_taken"] = state.sequences_taken;
  json["first_loss"] = state.first_loss;
  json["last_loss"] = state.last_loss;
  json["evaluated_step"] = state.evaluated_step;
  json["tensor_steps"] = state.tensor_steps;
  json["loss_scale"] = state.loss_scale.value;
  json["loss_scale_steps"] = state.loss_scale.steps_since;
  if (state.data.has_value()) {
    json["data"] = {{"num_tokens", state.data->num_tokens},
                    {"file_bytes", state.data->file_bytes},
                    {"ends_crc32c", state.data->ends_crc32c}};
  }
  return json.dump(1) + "\n";
}

absl::StatusOr<TrainerState> ParseTrainerState(absl::string_view text, absl::string_view where) {
  const auto bad = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
  };
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return bad("not a JSON object");
  int64_t format = 0;
  if (!Count(json, "format", format)) return bad("no state of a run");
  if (format != kFormat) {
    return bad(absl::StrCat("format ", format, " of another version; this one reads ", kFormat));
  }
  TrainerState state;
  if (!Count(json, "step", state.step)) return bad("no step");
  if (!Count(json, "sequences_taken", state.sequences_taken)) return bad("no sequences_taken");
  const auto loss = json.find("first_loss");
  if (loss == json.end() || !(loss->is_number() || loss->is_null())) return bad("no first_loss");
  state.first_loss = loss->is_null() ? std::nan("") : loss->get<double>();
  // Absent in files of before they were kept, by runs that had evaluated what was due.
  state.last_loss = state.first_loss;
  if (const auto last = json.find("last_loss"); last != json.end()) {
    if (!(last->is_number() || last->is_null())) return bad("a last_loss that is none");
    state.last_loss = last->is_null() ? std::nan("") : last->get<double>();
  }
  state.evaluated_step = state.step;
  if (json.contains("evaluated_step") && !Count(json, "evaluated_step", state.evaluated_step)) {
    return bad("an evaluated_step that is none");
  }
  const auto steps = json.find("tensor_steps");
  if (steps == json.end() || !steps->is_object()) return bad("no tensor_steps");
  for (const auto& [name, step] : steps->items()) {
    if (!step.is_number_unsigned()) return bad(absl::StrCat("the step of ", name, " is no count"));
    state.tensor_steps[name] = step.get<int64_t>();
  }
  // Absent in files of before fp16.
  if (const auto scale = json.find("loss_scale"); scale != json.end()) {
    if (!scale->is_number() || !(scale->get<double>() >= 1) ||
        !Count(json, "loss_scale_steps", state.loss_scale.steps_since)) {
      return bad("a loss_scale that is none");
    }
    state.loss_scale.value = scale->get<double>();
  }
  // Absent in files of before it was kept.
  if (const auto data = json.find("data"); data != json.end()) {
    int64_t crc32c = 0;
    TokenFingerprint& fingerprint = state.data.emplace();
    if (!data->is_object() || !Count(*data, "num_tokens", fingerprint.num_tokens) ||
        !Count(*data, "file_bytes", fingerprint.file_bytes) ||
        !Count(*data, "ends_crc32c", crc32c) || crc32c > std::numeric_limits<uint32_t>::max()) {
      return bad("data that says not which");
    }
    fingerprint.ends_crc32c = static_cast<uint32_t>(crc32c);
  }
  return state;
}

}  // namespace gemini::trainer
