# SPDX-License-Identifier: Apache-2.0
# The headers that most code without Torch includes, precompiled: of the tests in every build, where they are two fifths
# of what is compiled, and of everything below a sanitizer. They hide a missing include, which the release build finds in
# libraries and programs, for there these have none.
#   gemini_precompile_common(<target>)   a library or a program
#   gemini_precompile_test(<target>)     a test without Torch; others have GeminiTorchPch.cmake's
function(gemini_precompile_common target)
  if(NOT GEMINI_SANITIZER STREQUAL "" AND NOT GEMINI_WITH_TORCH)
    gemini_precompile_test(${target})
  endif()
endfunction()

function(gemini_precompile_test target)
  target_compile_options(${target} PRIVATE ${gemini_common_pch_options})
  target_precompile_headers(${target} REUSE_FROM gemini_common_pch)
endfunction()

# One precompiled header serves libraries and programs, so all have one kind of code.
set(gemini_common_pch_source ${PROJECT_BINARY_DIR}/generated/common_pch.cc)
file(CONFIGURE OUTPUT ${gemini_common_pch_source} CONTENT "// Nothing: the header is the target.\n")
add_library(gemini_common_pch STATIC EXCLUDE_FROM_ALL ${gemini_common_pch_source})
target_compile_features(gemini_common_pch PRIVATE cxx_std_20)
# What ccache needs: by clang no time stamp, by GCC the header's name in what is preprocessed. The definition is that of
# GTest::gtest.
set(gemini_common_pch_options -fPIC $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
    "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>" -DGTEST_HAS_PTHREAD=1)
target_compile_options(gemini_common_pch PRIVATE ${gemini_common_pch_options})
target_precompile_headers(gemini_common_pch PRIVATE
  <algorithm> <array> <atomic> <chrono> <cmath> <filesystem> <functional> <map> <memory> <mutex>
  <optional> <random> <set> <sstream> <string> <thread> <tuple> <utility> <variant> <vector>
  <gmock/gmock.h> <gtest/gtest.h>
  <absl/container/flat_hash_map.h> <absl/container/flat_hash_set.h> <absl/functional/function_ref.h>
  <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_format.h> <absl/time/time.h>
  <absl/types/span.h>)
