// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file, and the whole file through its reader.
// Input: one byte, which of the two; two bytes, how much data follows the header; the header's
//        JSON, or the whole file.
// Holds: tensors that were accepted fill the data without a hole or an overlap, each with the bytes
//        that its shape and dtype need; and what the writer makes of them is accepted again.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "gemini/files/safetensors_format.h"
#include "gemini/files/safetensors_header.h"
#include "gemini/system/check.h"
#include "gemini/system/unique_fd.h"
#include "tests/fuzz/fuzz_target.h"

namespace gemini {
namespace {

constexpr size_t kHeadBytes = 3;

void CheckFilled(const std::vector<SafetensorsTensor>& tensors, int64_t begin_bytes,
                 int64_t end_bytes) {
  int64_t at_bytes = begin_bytes;
  for (const SafetensorsTensor& tensor : tensors) {
    // Only the product of a shape without a zero is known to fit.
    const bool is_empty = absl::c_linear_search(tensor.shape, 0);
    int64_t num_elements = is_empty ? 0 : 1;
    for (const int64_t extent : tensor.shape) {
      GEMINI_CHECK(extent >= 0);
      if (!is_empty) num_elements *= extent;
    }
    GEMINI_CHECK(tensor.num_elements == num_elements);
    GEMINI_CHECK(tensor.size_bytes == num_elements * SafetensorsDtypeBytes(tensor.dtype));
    GEMINI_CHECK(tensor.offset_bytes == at_bytes);
    at_bytes += tensor.size_bytes;
  }
  GEMINI_CHECK(at_bytes == end_bytes);
}

void RunHeader(absl::string_view json, int64_t data_bytes) {
  const auto header = ParseSafetensorsHeader(json, data_bytes, "fuzzed");
  if (!header.ok()) return;
  const int64_t begin_bytes = 8 + static_cast<int64_t>(json.size());
  CheckFilled(header->tensors, begin_bytes, begin_bytes + data_bytes);
  std::vector<SafetensorsWriter::Declaration> declarations;
  for (const SafetensorsTensor& tensor : header->tensors) {
    declarations.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  const auto again = MakeSafetensorsBeginning(declarations, header->metadata, "written");
  if (!again.ok()) return;  // Other programs may write narrow types first; we do not.
  const auto reread =
      ParseSafetensorsHeader(absl::string_view(again->bytes).substr(8), data_bytes, "written");
  GEMINI_CHECK(reread.ok());
  GEMINI_CHECK(reread->metadata == header->metadata);
  GEMINI_CHECK(reread->tensors.size() == header->tensors.size());
  for (size_t i = 0; i < reread->tensors.size(); ++i) {
    GEMINI_CHECK(reread->tensors[i].name == header->tensors[i].name);
    GEMINI_CHECK(reread->tensors[i].shape == header->tensors[i].shape);
  }
}

void RunFile(absl::string_view bytes) {
  const UniqueFd file(::memfd_create("fuzzed", MFD_CLOEXEC));
  GEMINI_CHECK(file && ::write(file.get(), bytes.data(), bytes.size()) ==
                           static_cast<ssize_t>(bytes.size()));
  const auto reader = SafetensorsReader::Open(absl::StrCat("/proc/self/fd/", file.get()));
  if (!reader.ok()) return;
  std::vector<std::byte> room;
  for (const SafetensorsTensor& tensor : reader->tensors()) {
    GEMINI_CHECK(tensor.offset_bytes + tensor.size_bytes <= static_cast<int64_t>(bytes.size()));
    GEMINI_CHECK(reader->Find(tensor.name) == &tensor);
    room.resize(tensor.size_bytes);
    GEMINI_CHECK(reader->ReadRaw(tensor, 0, absl::MakeSpan(room)).ok());
  }
}

std::string SeedOf(const std::vector<SafetensorsWriter::Declaration>& declarations,
                   const std::map<std::string, std::string>& metadata, bool whole) {
  const auto beginning = MakeSafetensorsBeginning(declarations, metadata, "seed");
  GEMINI_CHECK(beginning.ok());
  const auto data_bytes = beginning->file_bytes - static_cast<int64_t>(beginning->bytes.size());
  std::string seed = {static_cast<char>(whole), static_cast<char>(data_bytes & 0xff),
                      static_cast<char>(data_bytes >> 8)};
  if (whole) return seed + beginning->bytes + std::string(data_bytes, '\1');
  return seed + beginning->bytes.substr(8);
}

}  // namespace
}  // namespace gemini

namespace gemini::fuzz {

std::vector<std::string> Seeds() {
  const std::vector<SafetensorsWriter::Declaration> three = {
      {"wide", SafetensorsDtype::kF32, {2, 3}},
      {"half", SafetensorsDtype::kBF16, {4}},
      {"empty", SafetensorsDtype::kU8, {0, 7}}};
  std::vector<std::string> seeds;
  for (const bool whole : {false, true}) {
    seeds.push_back(SeedOf(three, {{"format", "pt"}}, whole));
    seeds.push_back(SeedOf({}, {}, whole));
    seeds.push_back(SeedOf({{"scalar \n\xc3\xa9", SafetensorsDtype::kI64, {}}}, {}, whole));
  }
  return seeds;
}

}  // namespace gemini::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gemini;
  if (size < kHeadBytes) return 0;
  const absl::string_view rest = fuzz::BytesOf(data, size).substr(kHeadBytes);
  if ((data[0] & 1) != 0) {
    RunFile(rest);
  } else {
    RunHeader(rest, data[1] | data[2] << 8);
  }
  return 0;
}
