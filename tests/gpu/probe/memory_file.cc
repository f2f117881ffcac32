// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/probe/memory_file.h"

#include <fcntl.h>
#include <unistd.h>

#include "server/tiers/huge_pages.h"
#include "tests/gpu/probe/probe.h"

namespace gemini::probe {
namespace {

constexpr size_t kAlignment = size_t{2} << 20;

}  // namespace

UniqueFd NewMemoryFile(int64_t size_bytes) {
  UniqueFd file(::memfd_create("probe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  NeedSystem(file.get() >= 0, "memfd_create");
  NeedSystem(::ftruncate(file.get(), size_bytes) == 0, "ftruncate");
  NeedSystem(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0,
             "seal");
  return file;
}

int64_t AllocateAsASlab(const UniqueFd& file, int64_t size_bytes) {
  const int64_t huge_bytes = server::AllocateHugePages(file.get(), size_bytes);
  // Pages that are there already stay as they are.
  NeedSystem(::fallocate(file.get(), 0, 0, size_bytes) == 0, "fallocate");
  return huge_bytes;
}

FileMapping::FileMapping(const UniqueFd& file, int64_t size_bytes, int protection)
    : size_(static_cast<size_t>(size_bytes)) {
  reserved_ = ::mmap(nullptr, size_ + kAlignment, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  NeedSystem(reserved_ != MAP_FAILED, "mmap");
  const auto start = reinterpret_cast<uintptr_t>(reserved_);
  void* const aligned = reinterpret_cast<void*>((start + kAlignment - 1) / kAlignment * kAlignment);
  NeedSystem(::mmap(aligned, size_, protection, MAP_SHARED | MAP_FIXED, file.get(), 0) == aligned,
             "mmap");
  data_ = static_cast<std::byte*>(aligned);
}

FileMapping::~FileMapping() { ::munmap(reserved_, size_ + kAlignment); }

}  // namespace gemini::probe
