// SPDX-License-Identifier: Apache-2.0
// Memory files such as the server's slabs (docs/adr/0016-*), which are registered with CUDA. A
// failed call ends the program.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#include "gemini/system/unique_fd.h"

namespace gemini::probe {

// Of `size_bytes`, sealed, without pages.
UniqueFd NewMemoryFile(int64_t size_bytes);

// Gives a new file all its pages, huge ones as far as the kernel has them. Returns the bytes in
// those.
int64_t AllocateAsASlab(const UniqueFd& file, int64_t size_bytes);

// The file's bytes at a multiple of 2 MiB of addresses. Nothing is touched.
class FileMapping {
 public:
  FileMapping(const UniqueFd& file, int64_t size_bytes, int protection = PROT_READ | PROT_WRITE);
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  ~FileMapping();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const size_t size_;
  void* reserved_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace gemini::probe
