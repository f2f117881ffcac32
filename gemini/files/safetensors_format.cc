// SPDX-License-Identifier: Apache-2.0
// Reading is by pread and not through a mapping: a file that somebody cuts short while it is read
// is then a Status, and not a SIGBUS.
#include "gemini/files/safetensors_format.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/files/safetensors_header.h"
#include "gemini/half_float.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"

namespace gemini {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// Fills `destination` from `offset` on. DATA_LOSS: the file has ended.
absl::Status ReadAll(int fd, const std::string& path, int64_t offset,
                     absl::Span<std::byte> destination) {
  size_t done = 0;
  while (done < destination.size()) {
    const ssize_t count = ::pread(fd, destination.data() + done, destination.size() - done,
                                  static_cast<off_t>(offset + static_cast<int64_t>(done)));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return ErrnoStatus(errno, absl::StrCat("read ", destination.size(), " bytes of ", path));
    }
    if (count == 0) {
      return absl::DataLossError(absl::StrCat(path, ": ends at byte ",
                                              offset + static_cast<int64_t>(done),
                                              ", was longer when it was opened"));
    }
    done += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const std::string& path) {
  SafetensorsReader reader;
  reader.path_ = path;
  // Non-blocking only for the opening: a FIFO of this name must not stop us.
  reader.fd_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!reader.fd_) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat status;
  if (::fstat(reader.fd_.get(), &status) != 0) {
    return ErrnoStatus(errno, absl::StrCat("stat ", path));
  }
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  const int64_t file_bytes = status.st_size;
  if (file_bytes < 8) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", file_bytes, " bytes, a safetensors file has at least 8"));
  }
  uint64_t length = 0;
  GEMINI_RETURN_IF_ERROR(
      ReadAll(reader.fd_.get(), path, 0,
              absl::MakeSpan(reinterpret_cast<std::byte*>(&length), sizeof(length))));
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": claims a header of ", length,
                                                   " bytes, the format allows ", kMaxHeaderBytes,
                                                   ": not a safetensors file?"));
  }
  const int64_t header_bytes = static_cast<int64_t>(length);
  if (header_bytes > file_bytes - 8) {
    return absl::DataLossError(absl::StrCat(path, ": claims a header of ", header_bytes,
                                            " bytes, but the file has ", file_bytes,
                                            ": it was cut short, or is no safetensors file"));
  }
  std::string json(static_cast<size_t>(header_bytes), '\0');
  GEMINI_RETURN_IF_ERROR(
      ReadAll(reader.fd_.get(), path, 8,
              absl::MakeSpan(reinterpret_cast<std::byte*>(json.data()), json.size())));
  GEMINI_ASSIGN_OR_RETURN(SafetensorsHeader header,
                          ParseSafetensorsHeader(json, file_bytes - 8 - header_bytes, path));
  reader.tensors_ = std::move(header.tensors);
  reader.metadata_ = std::move(header.metadata);
  for (size_t i = 0; i < reader.tensors_.size(); ++i) {
    reader.index_[reader.tensors_[i].name] = static_cast<int64_t>(i);
  }
  return reader;
}

const SafetensorsTensor* SafetensorsReader::Find(absl::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[static_cast<size_t>(found->second)];
}

absl::Status SafetensorsReader::ReadRaw(const SafetensorsTensor& tensor, int64_t first_byte,
                                        absl::Span<std::byte> destination) const {
  const int64_t size = static_cast<int64_t>(destination.size());
  if (first_byte < 0 || size > tensor.size_bytes || first_byte > tensor.size_bytes - size) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": bytes ", first_byte, " to ", first_byte + size, " of tensor ",
                     PrintableName(tensor.name), ", which has ", tensor.size_bytes));
  }
  return ReadAll(fd_.get(), path_, tensor.offset_bytes + first_byte, destination);
}

absl::Status SafetensorsReader::ReadFloat32(const SafetensorsTensor& tensor, int64_t first_element,
                                            absl::Span<std::byte> destination) const {
  if (destination.size() % sizeof(float) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": room of ", destination.size(),
                                                   " bytes for fp32 values of tensor ",
                                                   PrintableName(tensor.name)));
  }
  const int64_t count = static_cast<int64_t>(destination.size() / sizeof(float));
  if (first_element < 0 || count > tensor.num_elements ||
      first_element > tensor.num_elements - count) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", count, " elements from ", first_element, " on of tensor ",
                     PrintableName(tensor.name), ", which has ", tensor.num_elements));
  }
  if (tensor.dtype == SafetensorsDtype::kF32) {
    return ReadRaw(tensor, first_element * 4, destination);
  }
  if (tensor.dtype != SafetensorsDtype::kF16 && tensor.dtype != SafetensorsDtype::kBF16) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor ", PrintableName(tensor.name),
                                                   " is ", SafetensorsDtypeName(tensor.dtype),
                                                   ", expected F32, F16 or BF16"));
  }
  constexpr int64_t kPieceElements = kPieceBytes / static_cast<int64_t>(sizeof(uint16_t));
  const size_t piece_elements = static_cast<size_t>(std::min(count, kPieceElements));
  std::vector<uint16_t> piece(piece_elements);
  std::vector<float> converted(piece_elements);  // The destination may not be aligned for float.
  for (int64_t done = 0; done < count;) {
    const size_t now = static_cast<size_t>(std::min(count - done, kPieceElements));
    const absl::Span<uint16_t> halves = absl::MakeSpan(piece).first(now);
    const absl::Span<float> floats = absl::MakeSpan(converted).first(now);
    GEMINI_RETURN_IF_ERROR(
        ReadRaw(tensor, (first_element + done) * 2,
                absl::MakeSpan(reinterpret_cast<std::byte*>(halves.data()), now * 2)));
    if (tensor.dtype == SafetensorsDtype::kF16) {
      std::ranges::transform(halves, floats.begin(), FloatOfFp16);
    } else {
      std::ranges::transform(halves, floats.begin(), FloatOfBf16);
    }
    std::memcpy(destination.data() + done * 4, floats.data(), now * 4);
    done += static_cast<int64_t>(now);
  }
  return absl::OkStatus();
}

}  // namespace gemini
