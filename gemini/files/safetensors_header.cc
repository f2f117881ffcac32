// SPDX-License-Identifier: Apache-2.0
#include "gemini/files/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gemini/json_text.h"
#include "gemini/system/status_macros.h"
#include "nlohmann/json.hpp"

namespace gemini {
namespace {

constexpr size_t kMaxPrintedName = 120;  // A line of a terminal.
constexpr size_t kMaxRank = 64;          // As many dimensions as a Torch tensor may have.

struct DtypeEntry {
  absl::string_view name;
  SafetensorsDtype dtype;
  int64_t size_bytes;
};
constexpr std::array<DtypeEntry, 15> kDtypes = {{
    {"BOOL", SafetensorsDtype::kBool, 1},
    {"U8", SafetensorsDtype::kU8, 1},
    {"I8", SafetensorsDtype::kI8, 1},
    {"F8_E5M2", SafetensorsDtype::kF8E5M2, 1},
    {"F8_E4M3", SafetensorsDtype::kF8E4M3, 1},
    {"I16", SafetensorsDtype::kI16, 2},
    {"U16", SafetensorsDtype::kU16, 2},
    {"F16", SafetensorsDtype::kF16, 2},
    {"BF16", SafetensorsDtype::kBF16, 2},
    {"I32", SafetensorsDtype::kI32, 4},
    {"U32", SafetensorsDtype::kU32, 4},
    {"F32", SafetensorsDtype::kF32, 4},
    {"F64", SafetensorsDtype::kF64, 8},
    {"I64", SafetensorsDtype::kI64, 8},
    {"U64", SafetensorsDtype::kU64, 8},
}};

const DtypeEntry& EntryOf(SafetensorsDtype dtype) { return kDtypes[static_cast<size_t>(dtype)]; }
static_assert([] {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].dtype != static_cast<SafetensorsDtype>(i)) return false;
  }
  return true;
}());

// Sets num_elements and size_bytes from shape and dtype.
absl::Status SizeTensor(SafetensorsTensor& tensor, absl::string_view path) {
  int64_t elements = 1;
  int64_t bytes = 0;
  bool overflow = tensor.shape.size() > kMaxRank;
  // A zero anywhere makes the product zero, but must not hide an overflow before it.
  for (const int64_t size : tensor.shape) {
    overflow = overflow || size < 0 || __builtin_mul_overflow(elements, size, &elements);
  }
  overflow = overflow ||
             __builtin_mul_overflow(elements, EntryOf(tensor.dtype).size_bytes, &bytes) ||
             bytes > int64_t{1} << 62;
  if (overflow) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": tensor ", PrintableName(tensor.name), " of ", EntryOf(tensor.dtype).name,
        " has the impossible shape [", absl::StrJoin(tensor.shape, ", "), "]"));
  }
  tensor.num_elements = elements;
  tensor.size_bytes = bytes;
  return absl::OkStatus();
}

// Receives the header as a stream of events; refuses the first that the format does not allow. Its
// method names are nlohmann's.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  struct Entry {
    SafetensorsTensor tensor;
    int64_t begin = 0;
    int64_t end = 0;
  };

  explicit HeaderEvents(absl::string_view path) : path_(path) {}

  absl::Status status() const { return status_; }
  std::vector<Entry>& entries() { return entries_; }
  std::map<std::string, std::string>& metadata() { return metadata_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return Unexpected(absl::StrCat("the negative number ", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(absl::StrCat("the number ", PrintableName(text)));
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (where_ != Where::kShape && where_ != Where::kOffsets) {
      return Unexpected(absl::StrCat("the number ", value));
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Unexpected(absl::StrCat("the number ", value, ", above 2^63,"));
    }
    std::vector<int64_t>& list = where_ == Where::kShape ? shape_ : offsets_;
    if (list.size() >= (where_ == Where::kShape ? kMaxRank : 2)) {
      return Unexpected(absl::StrCat("a number after the ", list.size(), "th"));
    }
    list.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (where_ == Where::kMetadata) {
      metadata_[key_] = value;
      return true;
    }
    if (where_ != Where::kTensor || field_ != "dtype") {
      return Unexpected(absl::StrCat("the text ", PrintableName(value)));
    }
    for (const DtypeEntry& entry : kDtypes) {
      if (entry.name == value) dtype_ = entry.dtype;
    }
    if (dtype_.has_value()) return true;
    return Refuse(
        absl::StrCat("has the unknown dtype ", PrintableName(value), "; known are ",
                     absl::StrJoin(kDtypes, ", ", [](std::string* out, const DtypeEntry& entry) {
                       absl::StrAppend(out, entry.name);
                     })));
  }

  bool start_object(size_t) override {
    if (where_ == Where::kStart) {
      where_ = Where::kTop;
      return true;
    }
    if (where_ != Where::kTop) return Unexpected("an object");
    if (key_ == "__metadata__") {
      where_ = Where::kMetadata;
      return true;
    }
    where_ = Where::kTensor;
    dtype_.reset();
    shape_.clear();
    offsets_.clear();
    has_shape_ = has_offsets_ = false;
    field_.clear();
    return true;
  }

  bool key(string_t& value) override {
    if (where_ == Where::kTensor) {
      field_ = value;
      const bool again = (field_ == "dtype" && dtype_.has_value()) ||
                         (field_ == "shape" && has_shape_) ||
                         (field_ == "data_offsets" && has_offsets_);
      if (again) return Refuse(absl::StrCat("has two fields ", field_));
      if (field_ != "dtype" && field_ != "shape" && field_ != "data_offsets") {
        return Refuse(absl::StrCat("has the unknown field ", PrintableName(field_)));
      }
      return true;
    }
    key_ = value;
    if (where_ == Where::kMetadata) {
      return !metadata_.contains(key_) || Refuse("is in __metadata__ twice");
    }
    return names_.insert(key_).second || Refuse("is there twice");
  }

  bool end_object() override {
    if (where_ == Where::kTensor) {
      where_ = Where::kTop;
      return AddTensor();
    }
    where_ = where_ == Where::kMetadata ? Where::kTop : Where::kEnd;
    return true;
  }

  bool start_array(size_t) override {
    if (where_ == Where::kTensor && field_ == "shape") {
      where_ = Where::kShape;
      has_shape_ = true;
      return true;
    }
    if (where_ == Where::kTensor && field_ == "data_offsets") {
      where_ = Where::kOffsets;
      has_offsets_ = true;
      return true;
    }
    return Unexpected("an array");
  }
  bool end_array() override {
    where_ = Where::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    status_ = absl::InvalidArgumentError(
        absl::StrCat(path_, ": the header is not JSON: error at byte ", position, " of it"));
    return false;
  }

 private:
  enum class Where { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool Refuse(absl::string_view what) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat(path_, ": tensor ", PrintableName(key_), " ", what));
    return false;
  }

  bool Unexpected(absl::string_view what) {
    if (where_ == Where::kStart) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(path_, ": the header is ", what, ", expected a JSON object"));
      return false;
    }
    const bool in_tensor =
        where_ == Where::kTensor || where_ == Where::kShape || where_ == Where::kOffsets;
    return Refuse(
        absl::StrCat("has ", what, in_tensor ? absl::StrCat(" in its ", field_) : " as its value"));
  }

  bool AddTensor() {
    if (!dtype_.has_value()) return Refuse("has no dtype");
    if (!has_shape_) return Refuse("has no shape");
    if (offsets_.size() != 2) return Refuse("has no pair of data_offsets");
    Entry entry;
    entry.tensor.name = key_;
    entry.tensor.dtype = *dtype_;
    entry.tensor.shape = shape_;
    entry.begin = offsets_[0];
    entry.end = offsets_[1];
    status_ = SizeTensor(entry.tensor, path_);
    if (!status_.ok()) return false;
    if (entry.begin > entry.end || entry.end - entry.begin != entry.tensor.size_bytes) {
      return Refuse(absl::StrCat("of ", EntryOf(*dtype_).name, " [", absl::StrJoin(shape_, ", "),
                                 "] needs ", entry.tensor.size_bytes,
                                 " bytes, but its data_offsets are [", entry.begin, ", ", entry.end,
                                 "]"));
    }
    entries_.push_back(std::move(entry));
    return true;
  }

  const absl::string_view path_;
  absl::Status status_;
  Where where_ = Where::kStart;
  std::string key_;    // At the top, or in the metadata.
  std::string field_;  // In a tensor.
  std::optional<SafetensorsDtype> dtype_;
  std::vector<int64_t> shape_;
  std::vector<int64_t> offsets_;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  absl::flat_hash_set<std::string> names_;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

// Checks that the entries, sorted, fill [0, data_bytes) without hole or overlap.
absl::Status CheckPlaces(const std::vector<HeaderEvents::Entry>& entries, int64_t data_bytes,
                         absl::string_view path) {
  int64_t filled = 0;
  for (const HeaderEvents::Entry& entry : entries) {
    const std::string name = PrintableName(entry.tensor.name);
    if (entry.end > data_bytes) {
      return absl::DataLossError(absl::StrCat(
          path, ": tensor ", name, " ends at byte ", entry.end, " of the data, but the file holds ",
          data_bytes, " bytes of data: it was cut short, or its header lies; get it again"));
    }
    if (entry.begin != filled) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", name, " starts at byte ", entry.begin, " of the data, ",
                       entry.begin < filled ? "inside the tensor before it, which ends at "
                                            : "leaving a hole after byte ",
                       filled));
    }
    filled = entry.end;
  }
  if (filled != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the tensors end at byte ", filled,
                                                   " of the data, but the file holds ", data_bytes,
                                                   " bytes of data"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view SafetensorsDtypeName(SafetensorsDtype dtype) { return EntryOf(dtype).name; }
int64_t SafetensorsDtypeBytes(SafetensorsDtype dtype) { return EntryOf(dtype).size_bytes; }

std::string PrintableName(absl::string_view name) {
  const bool cut = name.size() > kMaxPrintedName;
  return absl::StrCat("'", absl::CHexEscape(name.substr(0, kMaxPrintedName)), cut ? "..." : "",
                      "'");
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json, int64_t data_bytes,
                                                         absl::string_view path) {
  HeaderEvents events(path);
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &events);
  GEMINI_RETURN_IF_ERROR(events.status());
  if (!parsed) return absl::InvalidArgumentError(absl::StrCat(path, ": the header is not JSON"));
  std::vector<HeaderEvents::Entry>& entries = events.entries();
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.tensor.name) < std::tie(b.begin, b.end, b.tensor.name);
  });
  GEMINI_RETURN_IF_ERROR(CheckPlaces(entries, data_bytes, path));
  SafetensorsHeader header;
  header.metadata = std::move(events.metadata());
  header.tensors.reserve(entries.size());
  for (HeaderEvents::Entry& entry : entries) {
    entry.tensor.offset_bytes = 8 + static_cast<int64_t>(json.size()) + entry.begin;
    header.tensors.push_back(std::move(entry.tensor));
  }
  return header;
}

absl::StatusOr<SafetensorsBeginning> MakeSafetensorsBeginning(
    const std::vector<SafetensorsWriter::Declaration>& declarations,
    const std::map<std::string, std::string>& metadata, absl::string_view path) {
  SafetensorsBeginning beginning;
  absl::flat_hash_set<absl::string_view> names;
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  int64_t data_bytes = 0;
  for (const SafetensorsWriter::Declaration& declaration : declarations) {
    SafetensorsTensor tensor;
    tensor.name = declaration.name;
    tensor.dtype = declaration.dtype;
    tensor.shape = declaration.shape;
    GEMINI_RETURN_IF_ERROR(SizeTensor(tensor, path));
    if (!names.insert(declaration.name).second || declaration.name == "__metadata__") {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", PrintableName(tensor.name), " is declared twice"));
    }
    const int64_t element_bytes = SafetensorsDtypeBytes(tensor.dtype);
    if (data_bytes % element_bytes != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": tensor ", PrintableName(tensor.name), " would start at byte ", data_bytes,
          ", no multiple of its ", element_bytes, "-byte elements: declare wide types first"));
    }
    tensor.offset_bytes = data_bytes;
    if (__builtin_add_overflow(data_bytes, tensor.size_bytes, &data_bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": the tensors exceed 2^63 bytes"));
    }
    json[tensor.name] = {{"dtype", std::string(SafetensorsDtypeName(tensor.dtype))},
                         {"shape", tensor.shape},
                         {"data_offsets", {tensor.offset_bytes, data_bytes}}};
    beginning.tensors.push_back(std::move(tensor));
  }
  std::string text = JsonText(json, /*indent=*/-1);
  text.append((8 - text.size() % 8) % 8, ' ');
  const int64_t header_bytes = static_cast<int64_t>(text.size());
  if (header_bytes > SafetensorsReader::kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a header of ", header_bytes, " bytes, the format allows ",
                     SafetensorsReader::kMaxHeaderBytes, ": write more shards"));
  }
  uint64_t length = static_cast<uint64_t>(header_bytes);
  beginning.bytes.resize(8);
  std::memcpy(beginning.bytes.data(), &length, 8);
  beginning.bytes += text;
  for (SafetensorsTensor& tensor : beginning.tensors) tensor.offset_bytes += 8 + header_bytes;
  beginning.file_bytes = 8 + header_bytes + data_bytes;
  return beginning;
}

}  // namespace gemini
