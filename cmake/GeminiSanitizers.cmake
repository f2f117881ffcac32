# SPDX-License-Identifier: Apache-2.0
# Builds below a sanitizer, by clang: GEMINI_SANITIZER is `address` (with UBSan), `thread`, `fuzzer` (address, and
# coverage for libFuzzer), or empty. The flags are global, the one exception to the rule: a sanitizer that misses a
# library misses its bugs. LibTorch itself stays as it is.
#   gemini_skip_below_sanitizer(<test> <folder>)  sets `skipped` where the test is not to be built
#   gemini_sanitize_test(<test> [timeout])    the sanitizer's options, its patience, and what it does not run
#   GEMINI_ON_DEMAND                          EXCLUDE_FROM_ALL below a sanitizer: what no test links is not built
set(GEMINI_SANITIZER "" CACHE STRING "Sanitizer of the whole build: address, thread, fuzzer or none")
set_property(CACHE GEMINI_SANITIZER PROPERTY STRINGS "" address thread fuzzer)
if(GEMINI_SANITIZER STREQUAL "")
  macro(gemini_skip_below_sanitizer test folder)
  string(REGEX REPLACE "/.*" "" top_folder "${folder}")
  endmacro()
  function(gemini_sanitize_test test)
  endfunction()
  set(GEMINI_ON_DEMAND "")
  return()
elseif(GEMINI_SANITIZER STREQUAL "address")
  set(flags -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(GEMINI_SANITIZER STREQUAL "thread")
  set(flags -fsanitize=thread)
elseif(GEMINI_SANITIZER STREQUAL "fuzzer")
  set(flags -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
else()
  message(FATAL_ERROR "GEMINI_SANITIZER is '${GEMINI_SANITIZER}': it must be address, thread, fuzzer or empty")
endif()
# With Torch by the release build's compiler: its headers are compiled by no other here.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND NOT GEMINI_WITH_TORCH)
  message(FATAL_ERROR "GEMINI_SANITIZER needs clang (packages clang and libclang-rt-dev), and this is ${CMAKE_CXX_COMPILER}: "
                      "use the presets asan, tsan and fuzz")
endif()

# -O1 and line tables: what reports need. No NDEBUG: asserts count. Below ASAN tests have -O0 (GeminiPrecompiled.cmake).
add_compile_options(${flags} -O1 -g1 -fno-omit-frame-pointer)
# GCC takes what its own instrumentation of Abseil's containers reads for uninitialised.
add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
add_link_options(${flags})
set(GEMINI_ON_DEMAND EXCLUDE_FROM_ALL)

# What is not run below a sanitizer: tests, or cases of one behind a colon, each with its reason. A report of a
# sanitizer is none.
set(GEMINI_NOT_SANITIZED
    # Python, sources or the installed release build: nothing of what they run is built here.
    include_rules include_rules_self_test install_test draw_timeline_test prepare_data_test prepare_chats_test
    prepare_labels_test prepare_masked_test prepare_images_test measure_data_test
    demo_test setup_test check_test units_test class_members
    # A bar on processor time, which is another's here.
    memstat_plan_test ranks_plan_test
    # A bar on the time in which the kernel frees 8 GiB, of which the shadow below TSAN would be 32 GiB.
    server_lease_death_test:*ALeaseOf8GiBIsFreeWithin100MsAnd200MsAGiB
    # Dies of a fault as it should, and a sanitizer makes a report of that.
    mapped_memory_test:MappedMemoryDeathTest.AReservationThatWasNotFilledFaults
    # Forbids the thread all system calls and replaces operator new: a run time needs both.
    residency_fast_path_test)
set(GEMINI_NOT_BELOW_thread
    # Bars on the speed of copies, which are instrumented here.
    copy_engine_host_test:CopyEngineHostRate.ManyCopiesTakeTheirBytesByTheRate:CopyEngineHostRate.BothDirectionsRunAtOnce
    server_plans_test:*WhatClientsMeasureRefreshesTheCosts*
    # A fault stops an atomic store, with a lock of the run time held that the handler's loads wait for.
    timeline_shm_test:TimelineShmTest.AnEntryThatIsHalfWrittenIsNone
    # At its end the run time writes to the stderr that nobody reads, and waits for ever.
    server_daemon_test:*AStderrThatNobodyReadsHoldsNobodyUp)

# Folders and tests in which no second thread is ever started, which TSAN neither builds nor runs.
set(GEMINI_ONE_THREAD policies tools trainer
    element_values_test grad_norm_test moment_quantisation_test quantised_update_test trust_ratio_test
    update_kernel_test update_numerics_test)
# Tests of those folders that start threads all the same.
set(GEMINI_SOME_THREADS communicator_host_test end_deadline_test nccl_comms_test
    nccl_conformance_test nccl_failures_test nccl_library_test nccl_paths_test rank_bell_test)

macro(gemini_skip_below_sanitizer test folder)
  string(REGEX REPLACE "/.*" "" top_folder "${folder}")
  if("${test}" IN_LIST GEMINI_NOT_SANITIZED)
    set(skipped TRUE)
  elseif(GEMINI_SANITIZER STREQUAL "thread" AND NOT "${test}" IN_LIST GEMINI_SOME_THREADS AND
         ("${test}" IN_LIST GEMINI_ONE_THREAD OR "${top_folder}" IN_LIST GEMINI_ONE_THREAD))
    set(skipped TRUE)
  endif()
endmacro()

if(GEMINI_SANITIZER STREQUAL "thread")
  # The first report ends the program, a daemon too: no test passes over it. Without ASLR, as tools/check starts
  # them, because clang 14's run time cannot find its shadow where the kernel spreads mappings over 32 bits.
  set(gemini_sanitizer_environment
      "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions='${PROJECT_SOURCE_DIR}/cmake/tsan.supp'")
  set(gemini_sanitizer_patience 5)
  set(gemini_sanitizer_kind thread)
else()
  set(gemini_sanitizer_kind address)
  set(gemini_sanitizer_environment ASAN_OPTIONS=detect_stack_use_after_return=1
                                   UBSAN_OPTIONS=print_stacktrace=1)
  if(GEMINI_WITH_TORCH)
    # LibTorch defines some variables in two of its libraries, and keeps what it made until the process ends.
    set(gemini_sanitizer_environment
        ASAN_OPTIONS=detect_stack_use_after_return=1:detect_odr_violation=0:detect_leaks=0
        UBSAN_OPTIONS=print_stacktrace=1)
  endif()
  set(gemini_sanitizer_patience 3)
endif()

function(gemini_sanitize_test test)
  if(test IN_LIST GEMINI_NOT_SANITIZED)
    set_tests_properties(${test} PROPERTIES DISABLED ON)
    return()
  endif()
  set(environment ${gemini_sanitizer_environment})
  foreach(excluded IN LISTS GEMINI_NOT_SANITIZED GEMINI_NOT_BELOW_${gemini_sanitizer_kind})
    if(excluded MATCHES "^${test}:(.*)$")
      list(APPEND cases ${CMAKE_MATCH_1})
    endif()
  endforeach()
  if(cases)
    list(JOIN cases ":" filter)
    list(APPEND environment "GTEST_FILTER=-${filter}")
  endif()
  set_tests_properties(${test} PROPERTIES ENVIRONMENT "${environment}")
  if(ARGC GREATER 1)
    math(EXPR seconds "${ARGV1} * ${gemini_sanitizer_patience}")
    set_tests_properties(${test} PROPERTIES TIMEOUT ${seconds})
  endif()
endfunction()
