# SPDX-License-Identifier: Apache-2.0
# The headers that most code without Torch includes, precompiled: of the tests in every build, where they are two fifths
# of what is compiled, and of everything below a sanitizer. They hide a missing include, which the release build finds in
# libraries and programs, for there these have none.
#   gemini_precompile_common(<target>)   a library or a program
#   gemini_precompile_test(<target>)     a test without Torch; others have GeminiTorchPch.cmake's
# Below ASAN the code of tests without Torch, and what they inline, is not optimised: clang takes a third of the time
# then, and it runs once. Optimised are those whose own loops take longer than that saves.
set(GEMINI_TESTS_WITH_LOOPS communicator_host_test copy_engine_host_test host_plan_test planner_test)
function(gemini_precompile_common target)
  if(NOT GEMINI_SANITIZER STREQUAL "" AND NOT GEMINI_WITH_TORCH)
    gemini_precompile_by(gemini_common_pch ${target})
  endif()
endfunction()

function(gemini_precompile_test target)
  if(target IN_LIST GEMINI_TESTS_WITH_LOOPS)
    gemini_precompile_by(gemini_common_pch ${target})
  else()
    gemini_precompile_by(${gemini_tests_pch} ${target})
  endif()
endfunction()

# A precompiled header is of one kind of code: position-independent, and optimised as it was.
function(gemini_precompile_by pch target)
  target_compile_options(${target} PRIVATE ${${pch}_options})
  target_precompile_headers(${target} REUSE_FROM ${pch})
endfunction()

# What ccache needs: by clang no time stamp, by GCC the header's name in what is preprocessed. The definition is that of
# GTest::gtest.
set(gemini_common_pch_options -fPIC $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
    "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>" -DGTEST_HAS_PTHREAD=1)
if(GEMINI_SANITIZER STREQUAL "address" AND NOT GEMINI_WITH_TORCH)
  set(gemini_tests_pch gemini_unoptimised_pch)
  set(gemini_unoptimised_pch_options ${gemini_common_pch_options} -O0)
else()
  set(gemini_tests_pch gemini_common_pch)
endif()
set(gemini_common_pch_source ${PROJECT_BINARY_DIR}/generated/common_pch.cc)
file(CONFIGURE OUTPUT ${gemini_common_pch_source} CONTENT "// Nothing: the header is the target.\n")
set(gemini_pchs gemini_common_pch ${gemini_tests_pch})
list(REMOVE_DUPLICATES gemini_pchs)
foreach(pch IN LISTS gemini_pchs)
  add_library(${pch} STATIC EXCLUDE_FROM_ALL ${gemini_common_pch_source})
  target_compile_features(${pch} PRIVATE cxx_std_20)
  target_compile_options(${pch} PRIVATE ${${pch}_options})
  target_precompile_headers(${pch} PRIVATE
    <algorithm> <array> <atomic> <chrono> <cmath> <filesystem> <functional> <map> <memory> <mutex>
    <optional> <random> <set> <sstream> <string> <thread> <tuple> <utility> <variant> <vector>
    <gmock/gmock.h> <gtest/gtest.h>
    <absl/container/flat_hash_map.h> <absl/container/flat_hash_set.h> <absl/functional/function_ref.h>
    <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_format.h> <absl/time/time.h>
    <absl/types/span.h>)
endforeach()
