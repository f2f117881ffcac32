// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/token_data.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gemini/byte_size.h"
#include "gemini/crc32c.h"
#include "gemini/system/errno_status.h"
#include "gemini/system/status_macros.h"

namespace gemini::trainer {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
// Tokens a read: large enough for the disk, small enough for the cache.
constexpr int64_t kPieceTokens = 128 * 1024;

absl::Status NotNpy(absl::string_view where, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      where, ": ", why,
      "; wanted: a one-dimensional .npy of uint16 or uint32, or chats as .safetensors"));
}

// Reads as much of [offset, offset + size) as the file has.
absl::StatusOr<int64_t> ReadAt(int fd, char* to, int64_t size_bytes, int64_t offset_bytes,
                               const std::string& path) {
  int64_t done = 0;
  while (done < size_bytes) {
    const ssize_t got =
        ::pread(fd, to + done, static_cast<size_t>(size_bytes - done), offset_bytes + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (got == 0) break;
    done += got;
  }
  return done;
}

// A cursor over the header's Python literal: {'descr': '<u2', 'fortran_order': False, 'shape':
// (9,), }
class Literal {
 public:
  explicit Literal(absl::string_view text) : text_(text) {}
  bool Eat(absl::string_view token) {
    text_ = absl::StripLeadingAsciiWhitespace(text_);
    return absl::ConsumePrefix(&text_, token);
  }
  bool Text(absl::string_view& value) {
    text_ = absl::StripLeadingAsciiWhitespace(text_);
    if (text_.empty() || (text_[0] != '\'' && text_[0] != '"')) return false;
    const size_t end = text_.find(text_[0], 1);
    if (end == absl::string_view::npos) return false;
    value = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return true;
  }
  bool Count(int64_t& value) {
    text_ = absl::StripLeadingAsciiWhitespace(text_);
    const size_t end = std::min(text_.find_first_not_of("0123456789"), text_.size());
    if (!absl::SimpleAtoi(text_.substr(0, end), &value)) return false;
    text_.remove_prefix(end);
    absl::ConsumePrefix(&text_, "L");  // As Python 2 wrote it.
    return true;
  }
  bool AtEnd() { return absl::StripLeadingAsciiWhitespace(text_).empty(); }

 private:
  absl::string_view text_;
};

}  // namespace

absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view head, absl::string_view where) {
  if (!absl::StartsWith(head, kMagic) || head.size() < 12) return NotNpy(where, "no .npy file");
  const auto byte = [&](size_t i) { return static_cast<int64_t>(static_cast<uint8_t>(head[i])); };
  const int64_t major = byte(6);
  if (major < 1 || major > 3) return NotNpy(where, absl::StrCat("npy version ", major));
  const int64_t start = major == 1 ? 10 : 12;
  const int64_t length = major == 1 ? byte(8) | byte(9) << 8
                                    : byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24;
  if (start + length > static_cast<int64_t>(head.size())) {
    return NotNpy(where, absl::StrCat("its header of ", length, " bytes does not end in time"));
  }
  Literal literal(head.substr(static_cast<size_t>(start), static_cast<size_t>(length)));
  NpyHeader header;
  header.data_offset_bytes = start + length;
  absl::string_view descr;
  bool has_shape = false;
  if (!literal.Eat("{")) return NotNpy(where, "its header is no dictionary");
  while (!literal.Eat("}")) {
    absl::string_view name;
    if (!literal.Text(name) || !literal.Eat(":")) return NotNpy(where, "its header is malformed");
    if (name == "descr") {
      if (!literal.Text(descr)) return NotNpy(where, "its elements are records");
    } else if (name == "fortran_order") {
      if (!literal.Eat("False") && !literal.Eat("True")) {
        return NotNpy(where, "its fortran_order is malformed");
      }
    } else if (name == "shape") {
      int64_t dimensions = 0;
      if (!literal.Eat("(")) return NotNpy(where, "its shape is malformed");
      for (bool open = !literal.Eat(")"); open; ++dimensions) {
        if (!literal.Count(header.num_elements)) return NotNpy(where, "its shape is malformed");
        // "(8,)" and "(8)" and "(2, 4)": behind a comma there may be an end.
        const bool comma = literal.Eat(",");
        open = !literal.Eat(")");
        if (open && !comma) return NotNpy(where, "its shape is malformed");
      }
      has_shape = true;
      if (dimensions != 1) return NotNpy(where, absl::StrCat("it has ", dimensions, " dimensions"));
    } else {
      return NotNpy(where, absl::StrCat("its header has a '", absl::CHexEscape(name), "'"));
    }
    literal.Eat(",");
  }
  if (!literal.AtEnd() || !has_shape) return NotNpy(where, "its header is malformed");
  if (descr == "<u2" || descr == "<u4") {
    header.element_bytes = descr == "<u2" ? 2 : 4;
  } else {
    return NotNpy(where, absl::StrCat("its elements are '", absl::CHexEscape(descr), "'"));
  }
  if (header.num_elements >
      (std::numeric_limits<int64_t>::max() - header.data_offset_bytes) / header.element_bytes) {
    return NotNpy(where, absl::StrCat(header.num_elements, " elements are more than a file holds"));
  }
  return header;
}

absl::StatusOr<TokenData> TokenData::Open(const std::string& path, int64_t sequence_tokens) {
  TokenData data;
  data.path_ = path;
  data.sequence_tokens_ = sequence_tokens;
  data.fd_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!data.fd_) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat info = {};
  if (::fstat(data.fd_.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  if (!S_ISREG(info.st_mode)) return NotNpy(path, "not a regular file");
  std::string head(kMaxNpyHeaderBytes, '\0');
  GEMINI_ASSIGN_OR_RETURN(const int64_t got,
                          ReadAt(data.fd_.get(), head.data(), kMaxNpyHeaderBytes, 0, path));
  head.resize(static_cast<size_t>(got));
  GEMINI_ASSIGN_OR_RETURN(data.header_, ParseNpyHeader(head, path));
  const int64_t wanted =
      data.header_.data_offset_bytes + data.header_.num_elements * data.header_.element_bytes;
  if (info.st_size < wanted) {
    return absl::DataLossError(absl::StrCat(path, ": its header promises ",
                                            data.header_.num_elements, " tokens (", wanted,
                                            " bytes), the file has ", info.st_size, " bytes"));
  }
  if (data.num_sequences() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", data.num_tokens(), " tokens are less than one sequence of ",
                     sequence_tokens, ": give more data or a smaller --sequence"));
  }
  return data;
}

absl::Status TokenData::ReadRange(int64_t first, absl::Span<int64_t> tokens) const {
  const int64_t count = static_cast<int64_t>(tokens.size());
  std::vector<char> bytes(static_cast<size_t>(count * header_.element_bytes));
  GEMINI_ASSIGN_OR_RETURN(const int64_t got,
                          ReadAt(fd_.get(), bytes.data(), static_cast<int64_t>(bytes.size()),
                                 header_.data_offset_bytes + first * header_.element_bytes, path_));
  if (got < static_cast<int64_t>(bytes.size())) {
    return absl::DataLossError(
        absl::StrCat(path_, ": was cut short at token ", first + got / header_.element_bytes));
  }
  for (int64_t i = 0; i < count; ++i) {
    if (header_.element_bytes == 2) {
      uint16_t value;
      std::memcpy(&value, bytes.data() + i * 2, 2);
      tokens[static_cast<size_t>(i)] = value;
    } else {
      uint32_t value;
      std::memcpy(&value, bytes.data() + i * 4, 4);
      tokens[static_cast<size_t>(i)] = value;
    }
  }
  return absl::OkStatus();
}

absl::Status TokenData::Read(int64_t index, absl::Span<int64_t> tokens) const {
  if (index < 0 || index >= num_sequences() ||
      static_cast<int64_t>(tokens.size()) != sequence_tokens_) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": no sequence ", index, " of ", tokens.size(), " tokens"));
  }
  return ReadRange(index * sequence_tokens_, tokens);
}

absl::StatusOr<TokenFingerprint> TokenData::Fingerprint() const {
  struct stat info = {};
  if (::fstat(fd_.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path_));
  TokenFingerprint fingerprint = {.num_tokens = num_tokens(), .file_bytes = info.st_size};
  const int64_t end_bytes = std::min<int64_t>(info.st_size, kMiB);
  std::vector<char> ends(static_cast<size_t>(2 * end_bytes));
  for (const auto& [to, offset_bytes] :
       {std::pair(ends.data(), int64_t{0}),
        std::pair(ends.data() + end_bytes, info.st_size - end_bytes)}) {
    GEMINI_ASSIGN_OR_RETURN(const int64_t got,
                            ReadAt(fd_.get(), to, end_bytes, offset_bytes, path_));
    if (got < end_bytes) {
      return absl::DataLossError(absl::StrCat(path_, ": was cut short while it was read"));
    }
  }
  fingerprint.ends_crc32c =
      Crc32c(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(ends.data()), ends.size()));
  return fingerprint;
}

absl::Status TokenData::CheckVocabulary(int64_t vocab_size) const {
  const int64_t used = num_sequences() * sequence_tokens_;
  std::vector<int64_t> piece(static_cast<size_t>(std::min(used, kPieceTokens)));
  for (int64_t first = 0; first < used; first += kPieceTokens) {
    const auto count = static_cast<size_t>(std::min(kPieceTokens, used - first));
    GEMINI_RETURN_IF_ERROR(ReadRange(first, absl::MakeSpan(piece).subspan(0, count)));
    for (size_t i = 0; i < count; ++i) {
      if (piece[i] < vocab_size) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ": token ", piece[i], " at position ",
                       first + static_cast<int64_t>(i), " is past the model's vocabulary of ",
                       vocab_size, ": prepare the data with the tokenizer of this model"));
    }
  }
  return absl::OkStatus();
}

}  // namespace gemini::trainer
