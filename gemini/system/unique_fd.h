// SPDX-License-Identifier: Apache-2.0
// Owns a file descriptor, and closes it when the owner is destroyed.
#pragma once
#include <unistd.h>

#include <utility>

namespace gemini {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { Reset(); }

  // Returns the descriptor, -1 when empty; ownership stays here.
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Passes ownership of the descriptor to the caller.
  int Release() { return std::exchange(fd_, -1); }
  void Reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace gemini
