// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/hf_checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <span>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/byte_size.h"
#include "gemini/crc32c.h"
#include "gemini/files/durable_file.h"
#include "gemini/files/safetensors_header.h"
#include "gemini/system/status_macros.h"
#include "nlohmann/json.hpp"
#include "trainer/checkpoint/initial_values.h"

namespace gemini::trainer {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxIndexBytes = 64 << 20;  // Enough for a model of a million tensors.
// What transformers may write beside config.json and the weights.
constexpr std::array<const char*, 13> kCompanions = {"generation_config.json",
                                                     "tokenizer.json",
                                                     "tokenizer_config.json",
                                                     "special_tokens_map.json",
                                                     "added_tokens.json",
                                                     "vocab.json",
                                                     "vocab.txt",
                                                     "merges.txt",
                                                     "tokenizer.model",
                                                     "spiece.model",
                                                     "chat_template.jinja",
                                                     "chat_template.json",
                                                     "preprocessor_config.json"};
constexpr int64_t kMaxCompanionBytes = 256 * kMiB;  // The largest tokenizer.json known is 33 MiB.
constexpr size_t kMaxListed = 5;                    // Names in one message.

bool FileExists(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0;
}

bool IsFloat(SafetensorsDtype dtype) {
  return dtype == SafetensorsDtype::kF32 || dtype == SafetensorsDtype::kF16 ||
         dtype == SafetensorsDtype::kBF16;
}

// "3 missing tensors: a, b, c".
void AppendList(std::string& message, absl::string_view what, std::vector<std::string> names) {
  if (names.empty()) return;
  const size_t count = names.size();
  std::sort(names.begin(), names.end());
  if (count > kMaxListed) names.resize(kMaxListed);
  absl::StrAppend(&message, "; ", count, " ", what,
                  count == 1 ? " tensor: " : " tensors: ", absl::StrJoin(names, ", "),
                  count > kMaxListed ? ", ..." : "");
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace

int64_t ParameterShape::num_elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

absl::StatusOr<HfCheckpoint> HfCheckpoint::Open(const std::string& directory, uint64_t seed,
                                                const TaskWish& task) {
  HfCheckpoint checkpoint;
  checkpoint.directory_ = directory;
  checkpoint.seed_ = seed;
  GEMINI_ASSIGN_OR_RETURN(checkpoint.config_, ReadHfConfig(directory, task));
  const std::string single = "model.safetensors";
  const std::string index_path = absl::StrCat(directory, "/model.safetensors.index.json");
  if (FileExists(absl::StrCat(directory, "/", single))) {
    GEMINI_RETURN_IF_ERROR(checkpoint.AddFile(single));
  } else if (FileExists(index_path)) {
    GEMINI_RETURN_IF_ERROR(checkpoint.AddShards(index_path));
  } else {
    const bool pickled = FileExists(absl::StrCat(directory, "/pytorch_model.bin")) ||
                         FileExists(absl::StrCat(directory, "/pytorch_model.bin.index.json"));
    return absl::NotFoundError(absl::StrCat(
        directory, " has neither model.safetensors nor model.safetensors.index.json",
        pickled ? "; its pytorch_model.bin is a pickle, which we do not read: load it in "
                  "transformers and save_pretrained writes safetensors"
                : ""));
  }
  checkpoint.ResolveTiedHead();
  checkpoint.ResolveMissingHead();
  for (const char* name : kCompanions) {
    const std::string path = absl::StrCat(directory, "/", name);
    if (!FileExists(path)) continue;
    GEMINI_ASSIGN_OR_RETURN(std::string content, ReadTextFile(path, kMaxCompanionBytes));
    checkpoint.companions_.emplace_back(name, std::move(content));
  }
  return checkpoint;
}

absl::Status HfCheckpoint::AddFile(const std::string& name) {
  GEMINI_ASSIGN_OR_RETURN(SafetensorsReader opened,
                          SafetensorsReader::Open(absl::StrCat(directory_, "/", name)));
  readers_.push_back(std::make_unique<SafetensorsReader>(std::move(opened)));
  const SafetensorsReader& reader = *readers_.back();
  for (const SafetensorsTensor& tensor : reader.tensors()) {
    if (config_.spec.files.IsIgnored(tensor.name)) continue;
    const std::string parameter = config_.spec.files.ParameterOf(tensor.name);
    if (config_.spec.files.IsOfAnotherTask(parameter)) {
      left_out_.push_back(PrintableName(tensor.name));
      has_head_in_place_ = has_head_in_place_ || config_.spec.files.IsInPlaceOfHead(parameter);
      continue;
    }
    is_bare_ = is_bare_ && !absl::StartsWith(tensor.name, config_.spec.files.root);
    const auto [place, is_new] = sources_.try_emplace(parameter, Source{&reader, &tensor});
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat(
          reader.path(), ": tensor ", PrintableName(tensor.name), " is there twice, the other is ",
          PrintableName(place->second.tensor->name), " in ", place->second.reader->path()));
    }
  }
  return absl::OkStatus();
}

absl::Status HfCheckpoint::AddShards(const std::string& index_path) {
  GEMINI_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index_path, kMaxIndexBytes));
  const Json index = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(index_path, ": not a JSON object with a weight_map"));
  }
  std::set<std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    const bool is_name = file.is_string() && !file.get_ref<const std::string&>().empty() &&
                         !absl::StrContains(file.get_ref<const std::string&>(), '/') &&
                         file.get_ref<const std::string&>()[0] != '.';
    if (!is_name) {
      return absl::InvalidArgumentError(absl::StrCat(index_path, ": tensor ", PrintableName(tensor),
                                                     " is in no plain file name"));
    }
    files.insert(file.get<std::string>());
  }
  absl::flat_hash_map<std::string, const SafetensorsReader*> reader_of;
  size_t num_tensors = 0;
  for (const std::string& file : files) {
    GEMINI_RETURN_IF_ERROR(AddFile(file));
    reader_of[file] = readers_.back().get();
    num_tensors += readers_.back()->tensors().size();
  }
  for (const auto& [tensor, file] : map->items()) {
    const SafetensorsReader& reader = *reader_of.at(file.get_ref<const std::string&>());
    if (reader.Find(tensor) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(index_path, ": tensor ", PrintableName(tensor),
                                                     " is not in ", reader.path()));
    }
  }
  if (num_tensors != map->size()) {
    return absl::InvalidArgumentError(absl::StrCat(index_path, ": names ", map->size(),
                                                   " tensors, its ", files.size(), " files hold ",
                                                   num_tensors));
  }
  return absl::OkStatus();
}

void HfCheckpoint::ResolveTiedHead() {
  const WeightNames& names = config_.spec.files;
  const auto head = sources_.find(names.head);
  if (!config_.spec.tied_head || head == sources_.end()) return;
  const Source source = head->second;
  sources_.erase(head);
  // A file may hold the shared tensor under the head's name alone.
  const auto [embedding, is_new] = sources_.try_emplace(names.embedding, source);
  if (!is_new) tied_head_ = source;
}

void HfCheckpoint::ResolveMissingHead() {
  // A file of a whole model of the task without one is damaged.
  if (!is_bare_ && !has_head_in_place_ && !config_.is_new_task) return;
  for (const std::string& head : config_.spec.files.own_heads) {
    const bool is_there = std::ranges::any_of(
        sources_, [&head](const auto& source) { return absl::StartsWith(source.first, head); });
    if (!is_there) made_heads_.push_back(head);
  }
}

bool HfCheckpoint::Makes(absl::string_view name) const {
  return std::ranges::any_of(
      made_heads_, [name](const std::string& head) { return absl::StartsWith(name, head); });
}

absl::Status HfCheckpoint::CheckTiedHead() const {
  if (tied_head_.reader == nullptr) return absl::OkStatus();
  const WeightNames& names = config_.spec.files;
  GEMINI_ASSIGN_OR_RETURN(const Source embedding, Find(names.embedding));
  const std::string differ =
      absl::StrCat(directory_, ": config.json ties ", names.head, " to ", names.embedding,
                   ", but the files hold both and they differ");
  constexpr absl::string_view kAdvice = "; set \"tie_word_embeddings\": false to keep both";
  if (embedding.tensor->shape != tied_head_.tensor->shape) {
    return absl::InvalidArgumentError(absl::StrCat(differ, ": ",
                                                   ShapeText(tied_head_.tensor->shape), " and ",
                                                   ShapeText(embedding.tensor->shape), kAdvice));
  }
  constexpr int64_t kPieceElements = SafetensorsReader::kPieceBytes / 4;
  const int64_t count = embedding.tensor->num_elements;
  std::vector<std::byte> ours;
  std::vector<std::byte> theirs;
  for (int64_t first = 0; first < count; first += kPieceElements) {
    const size_t size = static_cast<size_t>(4 * std::min(kPieceElements, count - first));
    ours.resize(size);
    theirs.resize(size);
    GEMINI_RETURN_IF_ERROR(
        embedding.reader->ReadFloat32(*embedding.tensor, first, absl::MakeSpan(ours)));
    GEMINI_RETURN_IF_ERROR(
        tied_head_.reader->ReadFloat32(*tied_head_.tensor, first, absl::MakeSpan(theirs)));
    if (std::memcmp(ours.data(), theirs.data(), size) == 0) continue;
    const auto at = std::mismatch(ours.begin(), ours.end(), theirs.begin()).first - ours.begin();
    return absl::InvalidArgumentError(
        absl::StrCat(differ, " from element ", first + at / 4, " on", kAdvice));
  }
  return absl::OkStatus();
}

absl::StatusOr<HfCheckpoint::Source> HfCheckpoint::Find(absl::string_view name) const {
  const auto found = sources_.find(name);
  if (found == sources_.end()) {
    return absl::NotFoundError(absl::StrCat(directory_, " has no parameter ", PrintableName(name)));
  }
  return found->second;
}

void HfCheckpoint::FillInitial(absl::string_view name, int64_t first_element,
                               absl::Span<float> values) const {
  const ModelSpec& spec = config_.spec;
  if (absl::EndsWith(name, ".bias")) {
    std::ranges::fill(values, 0.0F);
  } else if (name == absl::StrCat(spec.layers.head_norm, ".weight")) {
    std::ranges::fill(values, 1.0F);
  } else {
    // Matrices of one head differ. A language model's has the seed itself.
    const uint64_t own = name == spec.files.head
                             ? 0
                             : uint64_t{Crc32c(std::as_bytes(std::span(name.data(), name.size())))};
    FillNormal(seed_ + (own << 32), spec.initial_deviation, first_element, values);
  }
}

absl::StatusOr<SafetensorsDtype> HfCheckpoint::DtypeOf(absl::string_view name) const {
  const WeightNames& names = config_.spec.files;
  GEMINI_ASSIGN_OR_RETURN(const Source source, Find(Makes(name) ? names.embedding : name));
  return source.tensor->dtype;
}

absl::Status HfCheckpoint::Check(absl::Span<const ParameterShape> parameters) const {
  std::vector<std::string> missing;
  std::vector<std::string> mismatched;
  std::vector<std::string> unreadable;
  std::vector<std::string> unexpected;
  absl::flat_hash_set<absl::string_view> expected;
  for (const ParameterShape& parameter : parameters) {
    expected.insert(parameter.name);
    const auto found = sources_.find(parameter.name);
    if (found == sources_.end()) {
      if (!Makes(parameter.name)) missing.push_back(parameter.name);
      continue;
    }
    const SafetensorsTensor& tensor = *found->second.tensor;
    if (tensor.shape != parameter.shape) {
      mismatched.push_back(absl::StrCat(parameter.name, " is ", ShapeText(tensor.shape),
                                        ", expected ", ShapeText(parameter.shape)));
    } else if (!IsFloat(tensor.dtype)) {
      unreadable.push_back(
          absl::StrCat(parameter.name, " is ", SafetensorsDtypeName(tensor.dtype)));
    }
  }
  for (const auto& [name, source] : sources_) {
    if (!expected.contains(name)) unexpected.push_back(PrintableName(source.tensor->name));
  }
  std::string problems;
  AppendList(problems, "missing", std::move(missing));
  AppendList(problems, "unexpected", std::move(unexpected));
  AppendList(problems, "misshapen", std::move(mismatched));
  AppendList(problems, "unreadable (F32, F16 and BF16 are read)", std::move(unreadable));
  if (!problems.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory_, ": the tensors are not those of its config.json", problems));
  }
  return CheckTiedHead();
}

absl::Status HfCheckpoint::ReadFloat32(absl::string_view name, int64_t first_element,
                                       absl::Span<std::byte> destination) const {
  if (Makes(name)) {
    FillInitial(name, first_element,
                absl::MakeSpan(reinterpret_cast<float*>(destination.data()),
                               destination.size() / sizeof(float)));
    return absl::OkStatus();
  }
  GEMINI_ASSIGN_OR_RETURN(const Source source, Find(name));
  return source.reader->ReadFloat32(*source.tensor, first_element, destination);
}

absl::Status LoadInto(const HfCheckpoint& checkpoint, absl::Span<const ParameterShape> parameters,
                      ParameterRoom room) {
  GEMINI_RETURN_IF_ERROR(checkpoint.Check(parameters));
  for (const ParameterShape& parameter : parameters) {
    const int64_t size_bytes = parameter.num_elements() * 4;
    for (int64_t offset = 0; offset < size_bytes;) {
      GEMINI_ASSIGN_OR_RETURN(const absl::Span<std::byte> piece,
                              room(parameter.name, offset, size_bytes - offset));
      const int64_t piece_bytes = static_cast<int64_t>(piece.size());
      if (piece_bytes <= 0 || piece_bytes % 4 != 0 || piece_bytes > size_bytes - offset) {
        return absl::InternalError(absl::StrCat("room of ", piece_bytes, " bytes for ",
                                                size_bytes - offset, " of ", parameter.name));
      }
      GEMINI_RETURN_IF_ERROR(checkpoint.ReadFloat32(parameter.name, offset / 4, piece));
      offset += piece_bytes;
    }
  }
  return absl::OkStatus();
}

}  // namespace gemini::trainer
