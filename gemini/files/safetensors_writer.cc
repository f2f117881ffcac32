// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gemini/byte_size.h"
#include "gemini/files/durable_file.h"
#include "gemini/files/safetensors_format.h"
#include "gemini/files/safetensors_header.h"
#include "gemini/half_float.h"
#include "gemini/system/check.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"

namespace gemini {
absl::StatusOr<int64_t> SafetensorsWriter::FileBytes(
    const std::vector<Declaration>& declarations,
    const std::map<std::string, std::string>& metadata) {
  GEMINI_ASSIGN_OR_RETURN(const SafetensorsBeginning beginning,
                          MakeSafetensorsBeginning(declarations, metadata, "safetensors"));
  return beginning.file_bytes;
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& path, const std::vector<Declaration>& declarations,
    const std::map<std::string, std::string>& metadata) {
  GEMINI_ASSIGN_OR_RETURN(SafetensorsBeginning beginning,
                          MakeSafetensorsBeginning(declarations, metadata, path));
  GEMINI_RETURN_IF_ERROR(CheckDiskRoom(DirectoryOf(path), path, beginning.file_bytes));
  SafetensorsWriter writer;
  writer.path_ = path;
  writer.tensors_ = std::move(beginning.tensors);
  writer.end_bytes_ = beginning.file_bytes;
  const std::string temporary = absl::StrCat(path, ".partial.", ::getpid());
  // A file of this name is left over from a process that died: it cannot be in use.
  if (::unlink(temporary.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, absl::StrCat("remove ", temporary));
  }
  writer.fd_ = UniqueFd(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!writer.fd_) return ErrnoStatus(errno, absl::StrCat("create ", temporary));
  writer.temporary_path_ = temporary;
  int result;
  do {
    result = ::fallocate(writer.fd_.get(), 0, 0, static_cast<off_t>(writer.end_bytes_));
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EOPNOTSUPP) {  // A file system may have no such call.
    return ErrnoStatus(errno,
                       absl::StrCat("reserve ", FormatByteSize(writer.end_bytes_), " for ", path));
  }
  GEMINI_RETURN_IF_ERROR(writer.WriteAll(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(beginning.bytes.data()), beginning.bytes.size())));
  return writer;
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_path_(std::exchange(other.temporary_path_, std::string())),
      fd_(std::move(other.fd_)),
      tensors_(std::move(other.tensors_)),
      end_bytes_(other.end_bytes_),
      position_bytes_(other.position_bytes_),
      current_(other.current_) {}

SafetensorsWriter::~SafetensorsWriter() {
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
}

absl::Status SafetensorsWriter::WriteAll(absl::Span<const std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::write(fd_.get(), bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return ErrnoStatus(
          errno, absl::StrCat("write ", path_, " at byte ", position_bytes_, " of ", end_bytes_));
    }
    done += static_cast<size_t>(count);
    position_bytes_ += count;
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::AppendRaw(absl::Span<const std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) > end_bytes_ - position_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", bytes.size(), " bytes at byte ",
                                                   position_bytes_, ", the file ends at ",
                                                   end_bytes_));
  }
  return WriteAll(bytes);
}

absl::Status SafetensorsWriter::AppendFloat32(absl::Span<const std::byte> values) {
  if (values.empty()) return absl::OkStatus();
  while (current_ < tensors_.size() &&
         position_bytes_ >= tensors_[current_].offset_bytes + tensors_[current_].size_bytes) {
    ++current_;
  }
  if (current_ == tensors_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, ": ", values.size(), " bytes more than its ", tensors_.size(), " tensors hold"));
  }
  const SafetensorsTensor& tensor = tensors_[current_];
  const bool half =
      tensor.dtype == SafetensorsDtype::kF16 || tensor.dtype == SafetensorsDtype::kBF16;
  if (!half && tensor.dtype != SafetensorsDtype::kF32) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": fp32 values for tensor ",
                                                   PrintableName(tensor.name), " of ",
                                                   SafetensorsDtypeName(tensor.dtype)));
  }
  const int64_t left_bytes = tensor.offset_bytes + tensor.size_bytes - position_bytes_;
  const int64_t left_elements = left_bytes / SafetensorsDtypeBytes(tensor.dtype);
  if (values.size() % sizeof(float) != 0 ||
      static_cast<int64_t>(values.size() / sizeof(float)) > left_elements) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, ": ", values.size(), " bytes of fp32 values for tensor ", PrintableName(tensor.name),
        ", which has room for ", left_elements, " more values"));
  }
  if (!half) return WriteAll(values);
  constexpr size_t kPieceElements = SafetensorsReader::kPieceBytes / sizeof(uint16_t);
  const size_t count = values.size() / sizeof(float);
  const size_t piece_elements = std::min(count, kPieceElements);
  std::vector<float> floats(piece_elements);  // The values may not be aligned for float.
  std::vector<uint16_t> halves(piece_elements);
  for (size_t done = 0; done < count;) {
    const size_t now = std::min(count - done, kPieceElements);
    std::memcpy(floats.data(), values.data() + done * 4, now * 4);
    const absl::Span<uint16_t> piece = absl::MakeSpan(halves).first(now);
    if (tensor.dtype == SafetensorsDtype::kF16) {
      std::ranges::transform(absl::MakeConstSpan(floats).first(now), piece.begin(), Fp16Of);
      for (size_t i = 0; i < now; ++i) {
        if ((piece[i] & 0x7fffu) != 0x7c00u || std::isinf(floats[i])) continue;
        return absl::InvalidArgumentError(
            absl::StrCat(path_, ": tensor ", PrintableName(tensor.name), " holds ", floats[i],
                         ", which F16 cannot (65504 at most): save as fp32"));
      }
    } else {
      std::ranges::transform(absl::MakeConstSpan(floats).first(now), piece.begin(), Bf16Of);
    }
    GEMINI_RETURN_IF_ERROR(
        WriteAll(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(piece.data()), now * 2)));
    done += now;
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  GEMINI_CHECK(!temporary_path_.empty());
  if (position_bytes_ != end_bytes_) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": ", position_bytes_, " of ", end_bytes_, " bytes were written"));
  }
  if (::fsync(fd_.get()) != 0) return ErrnoStatus(errno, absl::StrCat("fsync ", path_));
  fd_.Reset();
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("rename ", temporary_path_, " to ", path_));
  }
  temporary_path_.clear();
  return SyncDirectory(DirectoryOf(path_));
}

}  // namespace gemini
