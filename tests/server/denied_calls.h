// SPDX-License-Identifier: Apache-2.0
// System calls that the kernel denies a thread, as in a container or under a service manager's
// filter.
// Thread: a denial holds for the calling thread and those that it starts from then on, for ever.
#pragma once
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "gtest/gtest.h"

namespace gemini::server {

// Installs `filter`, which begins with the number of the call loaded.
template <size_t kSize>
void InstallFilter(std::array<sock_filter, kSize> filter) {
  const sock_fprog program = {.len = kSize, .filter = filter.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

inline constexpr uint16_t kLoadWord = BPF_LD | BPF_W | BPF_ABS;
inline constexpr uint16_t kJumpIfEqual = BPF_JMP | BPF_JEQ | BPF_K;
inline constexpr uint16_t kJumpIfAnySet = BPF_JMP | BPF_JSET | BPF_K;
inline constexpr uint16_t kReturn = BPF_RET | BPF_K;

// io_uring_setup is EPERM.
inline void DenyUring() {
  InstallFilter<4>({{{kLoadWord, 0, 0, offsetof(seccomp_data, nr)},
                     {kJumpIfEqual, 0, 1, SYS_io_uring_setup},
                     {kReturn, 0, 0, SECCOMP_RET_ERRNO | EPERM},
                     {kReturn, 0, 0, SECCOMP_RET_ALLOW}}});
}

// io_uring_enter is EAGAIN where it submits one request alone, as where the kernel has no memory
// for it.
inline void DenyLoneSubmissions() {
  InstallFilter<6>({{{kLoadWord, 0, 0, offsetof(seccomp_data, nr)},
                     {kJumpIfEqual, 0, 3, SYS_io_uring_enter},
                     {kLoadWord, 0, 0, offsetof(seccomp_data, args[1])},
                     {kJumpIfEqual, 0, 1, 1},
                     {kReturn, 0, 0, SECCOMP_RET_ERRNO | EAGAIN},
                     {kReturn, 0, 0, SECCOMP_RET_ALLOW}}});
}

// openat with O_DIRECT is EINVAL, as on a file system that has no such thing.
inline void DenyDirect() {
  InstallFilter<6>({{{kLoadWord, 0, 0, offsetof(seccomp_data, nr)},
                     {kJumpIfEqual, 0, 3, SYS_openat},
                     {kLoadWord, 0, 0, offsetof(seccomp_data, args[2])},
                     {kJumpIfAnySet, 0, 1, O_DIRECT},
                     {kReturn, 0, 0, SECCOMP_RET_ERRNO | EINVAL},
                     {kReturn, 0, 0, SECCOMP_RET_ALLOW}}});
}

// fallocate of blocks is EOPNOTSUPP, as on a file system that has no such thing.
inline void DenyAllocation() {
  InstallFilter<6>({{{kLoadWord, 0, 0, offsetof(seccomp_data, nr)},
                     {kJumpIfEqual, 0, 3, SYS_fallocate},
                     {kLoadWord, 0, 0, offsetof(seccomp_data, args[1])},
                     {kJumpIfEqual, 0, 1, 0},
                     {kReturn, 0, 0, SECCOMP_RET_ERRNO | EOPNOTSUPP},
                     {kReturn, 0, 0, SECCOMP_RET_ALLOW}}});
}

// memfd_create with MFD_NOEXEC_SEAL is EINVAL, as before Linux 6.3.
inline void DenyMemfdsWithoutExec() {
  constexpr uint32_t kNoExecSeal = 8;  // Headers before Linux 6.3 have no name for it.
  InstallFilter<6>({{{kLoadWord, 0, 0, offsetof(seccomp_data, nr)},
                     {kJumpIfEqual, 0, 3, SYS_memfd_create},
                     {kLoadWord, 0, 0, offsetof(seccomp_data, args[1])},
                     {kJumpIfAnySet, 0, 1, kNoExecSeal},
                     {kReturn, 0, 0, SECCOMP_RET_ERRNO | EINVAL},
                     {kReturn, 0, 0, SECCOMP_RET_ALLOW}}});
}

// memfd_create without MFD_NOEXEC_SEAL is EACCES, as where vm.memfd_noexec is 2.
inline void DenyMemfdsWithExec() {
  constexpr uint32_t kNoExecSeal = 8;
  InstallFilter<6>({{{kLoadWord, 0, 0, offsetof(seccomp_data, nr)},
                     {kJumpIfEqual, 0, 3, SYS_memfd_create},
                     {kLoadWord, 0, 0, offsetof(seccomp_data, args[1])},
                     {kJumpIfAnySet, 1, 0, kNoExecSeal},
                     {kReturn, 0, 0, SECCOMP_RET_ERRNO | EACCES},
                     {kReturn, 0, 0, SECCOMP_RET_ALLOW}}});
}

// madvise with MADV_COLLAPSE is EINVAL, as on a kernel without huge pages.
inline void DenyHugePages() {
  constexpr uint32_t kCollapse = 25;  // Headers before Linux 6.1 have no name for it.
  InstallFilter<6>({{{kLoadWord, 0, 0, offsetof(seccomp_data, nr)},
                     {kJumpIfEqual, 0, 3, SYS_madvise},
                     {kLoadWord, 0, 0, offsetof(seccomp_data, args[2])},
                     {kJumpIfEqual, 0, 1, kCollapse},
                     {kReturn, 0, 0, SECCOMP_RET_ERRNO | EINVAL},
                     {kReturn, 0, 0, SECCOMP_RET_ALLOW}}});
}

// set_mempolicy is EPERM, as in a container without CAP_SYS_NICE.
inline void DenyMemoryPolicies() {
  InstallFilter<4>({{{kLoadWord, 0, 0, offsetof(seccomp_data, nr)},
                     {kJumpIfEqual, 0, 1, SYS_set_mempolicy},
                     {kReturn, 0, 0, SECCOMP_RET_ERRNO | EPERM},
                     {kReturn, 0, 0, SECCOMP_RET_ALLOW}}});
}

// setsockopt of SO_PASSRIGHTS is ENOPROTOOPT, as before Linux 6.16: descriptors cannot be refused.
inline void DenyRefusalOfDescriptors() {
  constexpr uint32_t kPassRights = 83;  // Headers before Linux 6.16 have no name for it.
  InstallFilter<8>({{{kLoadWord, 0, 0, offsetof(seccomp_data, nr)},
                     {kJumpIfEqual, 0, 5, SYS_setsockopt},
                     {kLoadWord, 0, 0, offsetof(seccomp_data, args[1])},
                     {kJumpIfEqual, 0, 3, SOL_SOCKET},
                     {kLoadWord, 0, 0, offsetof(seccomp_data, args[2])},
                     {kJumpIfEqual, 0, 1, kPassRights},
                     {kReturn, 0, 0, SECCOMP_RET_ERRNO | ENOPROTOOPT},
                     {kReturn, 0, 0, SECCOMP_RET_ALLOW}}});
}

}  // namespace gemini::server
