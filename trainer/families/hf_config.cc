// SPDX-License-Identifier: Apache-2.0
#include "trainer/families/hf_config.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "gemini/files/durable_file.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"
#include "nlohmann/json.hpp"
#include "trainer/families/config_keys.h"
#include "trainer/families/families.h"

namespace gemini::trainer {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxConfigBytes = 16 << 20;  // Real ones are below 100 KiB.
constexpr int kMaxDepth = 64;

}  // namespace

absl::StatusOr<HfConfig> ParseHfConfig(absl::string_view json_text, absl::string_view where) {
  // A tree that is too deep is cut while it is parsed, so that nothing recurses into it later.
  bool too_deep = false;
  const auto limit_depth = [&too_deep](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return depth <= kMaxDepth;
  };
  const Json json = Json::parse(json_text.begin(), json_text.end(), limit_depth,
                                /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object() || too_deep) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": not a JSON object"));
  }
  const auto type = json.find("model_type");
  if (type == json.end() || !type->is_string()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": has no model_type"));
  }
  const std::string& name = type->get_ref<const std::string&>();
  const absl::Span<const Family> families = Families();
  const auto family = std::ranges::find(families, name, &Family::model_type);
  if (family == families.end()) {
    return absl::UnimplementedError(absl::StrCat(
        where, ": unsupported model_type '", absl::CHexEscape(name.substr(0, 100)),
        "'; supported are ", absl::StrJoin(families, ", ", [](std::string* out, const Family& one) {
          absl::StrAppend(out, one.model_type);
        })));
  }
  ConfigKeys keys(json, where);
  HfConfig config = {
      .model_type = name, .spec = family->make_spec(keys), .json = std::string(json_text)};
  GEMINI_RETURN_IF_ERROR(keys.status());
  return config;
}

absl::StatusOr<HfConfig> ReadHfConfig(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/config.json");
  struct stat status;
  if (::stat(directory.c_str(), &status) != 0) {
    return ErrnoStatus(errno, absl::StrCat("model directory ", directory));
  }
  if (!S_ISDIR(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("model ", directory, " is no directory"));
  }
  GEMINI_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  return ParseHfConfig(text, path);
}

}  // namespace gemini::trainer
