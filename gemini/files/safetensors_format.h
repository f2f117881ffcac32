// SPDX-License-Identifier: Apache-2.0
// Reads and writes safetensors files: a 64-bit header length, a JSON header, then the tensors'
// bytes. The reader trusts no file: it checks the whole header before any tensor is read.
// Thread: any. Threads may share a reader, but not a writer.
// Units:  bytes, unless a name says elements.
// Blocks: on the disk. Reader and writer hold at most one piece (kPieceBytes) of a tensor.
// Errors: name the file, the tensor and the numbers. INVALID_ARGUMENT: not a valid file. DATA_LOSS:
//         the file ends before the bytes that its header promises. Others as ErrnoStatus.
// Source: github.com/huggingface/safetensors, "Format".
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gemini/system/unique_fd.h"

namespace gemini {

enum class SafetensorsDtype : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
};
// Returns the name in the header, such as "BF16".
absl::string_view SafetensorsDtypeName(SafetensorsDtype dtype);
int64_t SafetensorsDtypeBytes(SafetensorsDtype dtype);

struct SafetensorsTensor {
  std::string name;
  SafetensorsDtype dtype = SafetensorsDtype::kF32;
  std::vector<int64_t> shape;
  int64_t num_elements = 0;
  int64_t offset_bytes = 0;  // From the start of the file.
  int64_t size_bytes = 0;
};

class SafetensorsReader {
 public:
  // The format's own limit for the JSON header.
  static constexpr int64_t kMaxHeaderBytes = 100'000'000;
  static constexpr int64_t kPieceBytes = 1 << 20;

  // Opens the file and checks its header. NOT_FOUND: no such file.
  static absl::StatusOr<SafetensorsReader> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // Returns the tensors in the order of their bytes in the file.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Returns null when there is no such tensor.
  const SafetensorsTensor* Find(absl::string_view name) const;

  // Reads elements [first_element, first_element + destination.size() / 4) as fp32, converting F16
  // and BF16 piece by piece. INVALID_ARGUMENT: another dtype, a range outside the tensor, or a size
  // that is no multiple of 4.
  absl::Status ReadFloat32(const SafetensorsTensor& tensor, int64_t first_element,
                           absl::Span<std::byte> destination) const;
  // Reads bytes [first_byte, first_byte + destination.size()) of the tensor as they are.
  absl::Status ReadRaw(const SafetensorsTensor& tensor, int64_t first_byte,
                       absl::Span<std::byte> destination) const;

 private:
  SafetensorsReader() = default;

  std::string path_;
  UniqueFd fd_;
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, std::string> metadata_;
  absl::flat_hash_map<std::string, int64_t> index_;  // By name, into tensors_.
};

// Writes one file under a temporary name; Finish makes it appear under its own name, complete and
// on the disk. Destroyed before that, it removes the temporary file.
class SafetensorsWriter {
 public:
  struct Declaration {
    std::string name;
    SafetensorsDtype dtype = SafetensorsDtype::kF32;
    std::vector<int64_t> shape;
  };

  // Declares all tensors, in the order in which their bytes will be appended and will lie, checks
  // and reserves the room, and writes the header. The same declarations give the same header, byte
  // by byte. RESOURCE_EXHAUSTED: no room, with both numbers. INVALID_ARGUMENT: two tensors of one
  // name, a negative or overflowing shape, or a tensor that would not start at a multiple of its
  // element size.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, const std::vector<Declaration>& declarations,
      const std::map<std::string, std::string>& metadata);
  // Returns the bytes of the finished file.
  static absl::StatusOr<int64_t> FileBytes(const std::vector<Declaration>& declarations,
                                           const std::map<std::string, std::string>& metadata);

  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&& other) = delete;
  ~SafetensorsWriter();

  // Appends the next bytes as they are; a call may end in the middle of a tensor, or pass its end.
  absl::Status AppendRaw(absl::Span<const std::byte> bytes);
  // Appends the next fp32 values, converted to the declared F32, F16 or BF16 of the tensor that
  // they belong to. INVALID_ARGUMENT: another dtype, past the tensor's end, no multiple
  // of 4, or a finite value that F16 would make infinite.
  absl::Status AppendFloat32(absl::Span<const std::byte> values);
  // Syncs the file, renames it and syncs the directory. FAILED_PRECONDITION: bytes are missing.
  absl::Status Finish();

 private:
  SafetensorsWriter() = default;
  absl::Status WriteAll(absl::Span<const std::byte> bytes);

  std::string path_;
  std::string temporary_path_;  // Empty once renamed.
  UniqueFd fd_;
  std::vector<SafetensorsTensor> tensors_;
  int64_t end_bytes_ = 0;       // The finished file's size.
  int64_t position_bytes_ = 0;  // Where the next byte goes.
  size_t current_ = 0;          // The tensor that position_bytes_ lies in.
};

}  // namespace gemini
