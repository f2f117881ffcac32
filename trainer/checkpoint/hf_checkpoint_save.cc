// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gemini/byte_size.h"
#include "gemini/files/durable_file.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"
#include "nlohmann/json.hpp"
#include "trainer/checkpoint/hf_checkpoint.h"

namespace gemini::trainer {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kSmallFilesBytes = 4 * kMiB;  // Room for config.json and the index.

const std::map<std::string, std::string>& Metadata() {
  // transformers refuses a file that does not say which framework wrote it.
  static const auto& metadata = *new std::map<std::string, std::string>{{"format", "pt"}};
  return metadata;
}

struct Shard {
  std::string file;
  std::vector<SafetensorsWriter::Declaration> tensors;
  int64_t tensor_bytes = 0;
};

SafetensorsDtype SavedDtype(const HfCheckpoint& source, const std::string& name,
                            const SaveOptions& options) {
  if (options.dtype == SaveOptions::Dtype::kFloat32) return SafetensorsDtype::kF32;
  const absl::StatusOr<SafetensorsDtype> dtype = source.DtypeOf(name);
  return dtype.ok() ? *dtype : SafetensorsDtype::kF32;
}

int64_t SavedBytes(const SafetensorsWriter::Declaration& tensor) {
  return ParameterShape{tensor.name, tensor.shape}.num_elements() *
         SafetensorsDtypeBytes(tensor.dtype);
}

// Each parameter is a tensor of one shard. A tied head is written once by this rule, as the
// embedding: it is no parameter of its own (trainer/checkpoint/hf_checkpoint.h), and readers tie it
// again by config.json.
std::vector<Shard> PlanShards(const HfCheckpoint& source,
                              absl::Span<const ParameterShape> parameters,
                              const SaveOptions& options) {
  std::vector<Shard> shards(1);
  for (const ParameterShape& parameter : parameters) {
    SafetensorsWriter::Declaration tensor = {
        parameter.name, SavedDtype(source, parameter.name, options), parameter.shape};
    const int64_t size_bytes = SavedBytes(tensor);
    if (!shards.back().tensors.empty() &&
        shards.back().tensor_bytes + size_bytes > options.max_shard_bytes) {
      shards.emplace_back();
    }
    shards.back().tensor_bytes += size_bytes;
    shards.back().tensors.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1
                         ? "model.safetensors"
                         : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
    // Wide elements first, so that each tensor starts at a multiple of its element size.
    std::stable_sort(shards[i].tensors.begin(), shards[i].tensors.end(),
                     [](const auto& a, const auto& b) {
                       return SafetensorsDtypeBytes(a.dtype) > SafetensorsDtypeBytes(b.dtype);
                     });
  }
  return shards;
}

void DescribeLabels(const TaskSpec& task, OrderedJson& json) {
  // An ordered object looks through all of its keys for each that is assigned.
  OrderedJson::object_t names, numbers;
  absl::flat_hash_set<std::string> known;
  for (int64_t label = 0; label < task.num_labels; ++label) {
    const std::string name =
        task.names.empty() ? absl::StrCat("LABEL_", label) : task.names[static_cast<size_t>(label)];
    names.emplace_back(absl::StrCat(label), name);
    if (known.insert(name).second) numbers.emplace_back(name, label);
  }
  json["num_labels"] = task.num_labels;
  json["id2label"] = std::move(names);
  json["label2id"] = std::move(numbers);
  json["problem_type"] = NameOf(task.problem);
}

std::string ConfigText(const HfCheckpoint& source, const SaveOptions& options) {
  const HfConfig& config = source.config();
  const bool has_another_head =
      config.is_new_task || !source.made_heads().empty() || !source.left_out().empty();
  const bool in_fp32 = options.dtype == SaveOptions::Dtype::kFloat32;
  const TaskSpec& task = config.spec.task;
  OrderedJson json = OrderedJson::parse(config.json, nullptr, /*allow_exceptions=*/false);
  // Where it says nothing of them, the data have said what the labels are.
  const bool lacks_labels =
      task.is_classification() &&
      (!config.names_labels || !json.contains("problem_type") || json["problem_type"].is_null());
  // It names code of the source's repository, which no run reads: all families are transformers'
  // own, and the code is not saved.
  const bool names_code = json.erase("auto_map") > 0;
  if (!in_fp32 && !has_another_head && !lacks_labels && !names_code) return config.json;
  if (has_another_head) json["architectures"] = OrderedJson::array({config.model_class});
  if (task.is_classification() && (has_another_head || lacks_labels)) DescribeLabels(task, json);
  if (!in_fp32) return json.dump(2) + "\n";
  for (const char* key : {"dtype", "torch_dtype"}) {  // The new name and the old one.
    if (json.contains(key)) json[key] = "float32";
  }
  return json.dump(2) + "\n";
}

std::string IndexText(const std::vector<Shard>& shards) {
  OrderedJson json;
  int64_t total_bytes = 0;
  OrderedJson map = OrderedJson::object();
  for (const Shard& shard : shards) {
    total_bytes += shard.tensor_bytes;
    for (const auto& tensor : shard.tensors) map[tensor.name] = shard.file;
  }
  json["metadata"] = {{"total_size", total_bytes}};
  json["weight_map"] = std::move(map);
  return json.dump(2) + "\n";
}

absl::Status WriteShard(const std::string& directory, const Shard& shard, ParameterBytes bytes) {
  GEMINI_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                          SafetensorsWriter::Create(absl::StrCat(directory, "/", shard.file),
                                                    shard.tensors, Metadata()));
  for (const SafetensorsWriter::Declaration& tensor : shard.tensors) {
    const int64_t size_bytes = ParameterShape{tensor.name, tensor.shape}.num_elements() * 4;
    for (int64_t offset = 0; offset < size_bytes;) {
      GEMINI_ASSIGN_OR_RETURN(const absl::Span<const std::byte> piece,
                              bytes(tensor.name, offset, size_bytes - offset));
      const int64_t piece_bytes = static_cast<int64_t>(piece.size());
      if (piece_bytes <= 0 || piece_bytes % 4 != 0 || piece_bytes > size_bytes - offset) {
        return absl::InternalError(absl::StrCat("a piece of ", piece_bytes, " bytes for ",
                                                size_bytes - offset, " of ", tensor.name));
      }
      GEMINI_RETURN_IF_ERROR(writer.AppendFloat32(piece));
      offset += piece_bytes;
    }
  }
  return writer.Finish();
}

// The directory under its temporary name; removed unless it was renamed.
class PartialDirectory {
 public:
  explicit PartialDirectory(std::string path) : path_(std::move(path)) {}
  PartialDirectory(const PartialDirectory&) = delete;
  PartialDirectory& operator=(const PartialDirectory&) = delete;
  ~PartialDirectory() { Remove(); }

  const std::string& path() const { return path_; }

  absl::Status Create() {
    Remove();  // Left over from a process that died.
    if (::mkdir(path_.c_str(), 0777) != 0) return ErrnoStatus(errno, absl::StrCat("make ", path_));
    return absl::OkStatus();
  }
  // The target may be an empty directory; it is replaced.
  absl::Status RenameTo(const std::string& target) {
    GEMINI_RETURN_IF_ERROR(SyncDirectory(path_));
    if (::rename(path_.c_str(), target.c_str()) != 0) {
      return ErrnoStatus(errno, absl::StrCat("rename ", path_, " to ", target));
    }
    return SyncDirectory(DirectoryOf(target));
  }

 private:
  void Remove() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string path_;
};

// NOT_FOUND is no error: the directory may be made.
absl::Status CheckTarget(const std::string& directory) {
  struct stat status;
  if (::stat(directory.c_str(), &status) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return ErrnoStatus(errno, absl::StrCat("save to ", directory));
  }
  std::error_code error;
  if (!S_ISDIR(status.st_mode) || !std::filesystem::is_empty(directory, error) || error) {
    return absl::AlreadyExistsError(
        absl::StrCat("save to ", directory, ": it is there and not an empty directory"));
  }
  return absl::OkStatus();
}

// Returns `path` without a slash at its end: the temporary name is made from it.
std::string WithoutSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

int64_t SavedTensorBytes(const HfCheckpoint& source, absl::Span<const ParameterShape> parameters,
                         const SaveOptions& options) {
  int64_t total_bytes = 0;
  for (const Shard& shard : PlanShards(source, parameters, options)) {
    total_bytes += shard.tensor_bytes;
  }
  return total_bytes;
}

absl::Status SaveHfCheckpoint(const std::string& directory, const HfCheckpoint& source,
                              absl::Span<const ParameterShape> parameters,
                              const SaveOptions& options, ParameterBytes bytes) {
  if (options.max_shard_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("shards of at most ", options.max_shard_bytes, " bytes"));
  }
  const std::string target = WithoutSlash(directory);
  GEMINI_RETURN_IF_ERROR(CheckTarget(target));
  const std::vector<Shard> shards = PlanShards(source, parameters, options);

  int64_t needed_bytes = kSmallFilesBytes;
  for (const Shard& shard : shards) {
    GEMINI_ASSIGN_OR_RETURN(const int64_t file_bytes,
                            SafetensorsWriter::FileBytes(shard.tensors, Metadata()));
    needed_bytes += file_bytes;
  }
  for (const auto& [name, content] : source.companions()) {
    needed_bytes += static_cast<int64_t>(content.size());
  }
  GEMINI_RETURN_IF_ERROR(
      CheckDiskRoom(DirectoryOf(target), absl::StrCat("save to ", target), needed_bytes));

  PartialDirectory partial(absl::StrCat(target, ".partial"));
  GEMINI_RETURN_IF_ERROR(partial.Create());
  const auto inside = [&](const std::string& name) {
    return absl::StrCat(partial.path(), "/", name);
  };
  GEMINI_RETURN_IF_ERROR(WriteTextFile(inside("config.json"), ConfigText(source, options)));
  for (const auto& [name, content] : source.companions()) {
    GEMINI_RETURN_IF_ERROR(WriteTextFile(inside(name), content));
  }
  for (const Shard& shard : shards) {
    GEMINI_RETURN_IF_ERROR(WriteShard(partial.path(), shard, bytes));
  }
  if (shards.size() > 1) {
    GEMINI_RETURN_IF_ERROR(
        WriteTextFile(inside("model.safetensors.index.json"), IndexText(shards)));
  }
  return partial.RenameTo(target);
}

}  // namespace gemini::trainer
