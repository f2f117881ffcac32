# SPDX-License-Identifier: Apache-2.0
# One target a concept. Every file is listed; nothing is globbed.
include(GNUInstallDirs)

# Four fifths of the time that GNU ld takes for a program with Torch's libraries is saved by LLVM's.
include(CheckLinkerFlag)
check_linker_flag(CXX -fuse-ld=lld GEMINI_HAS_LLD)
if(GEMINI_HAS_LLD)
  add_link_options($<$<LINK_LANGUAGE:CXX>:-fuse-ld=lld>)
endif()

set(GEMINI_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror)
# Makes the target all_verify_interface_header_sets: every header compiles alone. That of a source does in any build,
# for the source includes it first (tests/tools/include_rules.py).
set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)

# Torch's include folder brings a fmt that is newer than the one that spdlog was built with. A target
# that names both libraries finds spdlog's first. No header of Torch's that we use includes fmt.
function(gemini_prefer_fmt_of_spdlog target)
  if("spdlog::spdlog" IN_LIST ARGN AND "gemini::libtorch" IN_LIST ARGN)
    find_path(GEMINI_FMT_INCLUDE_DIR fmt/format.h REQUIRED)
    set(folder ${PROJECT_BINARY_DIR}/generated/fmt_of_spdlog)
    file(MAKE_DIRECTORY ${folder})
    file(CREATE_LINK ${GEMINI_FMT_INCLUDE_DIR}/fmt ${folder}/fmt SYMBOLIC)
    target_include_directories(${target} SYSTEM BEFORE PRIVATE ${folder})
  endif()
endfunction()

# Sources of `target` that include Torch compile in 5 s instead of 16 with Torch's headers
# precompiled. Asked for by TORCH, or by naming gemini::libtorch.
function(gemini_precompile_torch target wanted)
  list(FIND ARGN gemini::libtorch position)
  if(TARGET gemini_torch_pch AND (wanted OR position GREATER_EQUAL 0))
    # One precompiled header serves libraries and programs alike, so all have one kind of code;
    # -fpch-preprocess is what ccache needs. A target whose definitions do not fit it parses the
    # headers as text, without a warning: slower, and right.
    target_compile_options(${target} PRIVATE -fPIC $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
    target_precompile_headers(${target} REUSE_FROM gemini_torch_pch)
    set_target_properties(${target} PROPERTIES PCH_WARN_INVALID OFF)
  endif()
endfunction()

# Sets `skipped` where the target needs Torch and this build has none. So what needs no Torch is built, and tested,
# wherever it stands in a list.
macro(gemini_skip_without_torch)
  set(skipped FALSE)
  if(NOT GEMINI_WITH_TORCH AND (arg_TORCH OR "gemini::libtorch" IN_LIST arg_PUBLIC OR
                                "gemini::libtorch" IN_LIST arg_PRIVATE))
    set(skipped TRUE)
  endif()
endmacro()

# gemini_library(<name> [TORCH] [HEADERS ...] [SOURCES ...] [PUBLIC ...] [PRIVATE ...])
# Makes gemini_<name>, alias gemini::<name>. PUBLIC takes only what a header includes.
# TORCH: its sources include Torch's headers (implied by gemini::libtorch in PUBLIC or PRIVATE).
function(gemini_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "" "HEADERS;SOURCES;PUBLIC;PRIVATE")
  gemini_skip_without_torch()
  if(skipped)
    return()
  endif()
  set(target gemini_${name})
  if(arg_SOURCES)
    add_library(${target} STATIC)
    target_sources(${target} PRIVATE ${arg_SOURCES})
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${GEMINI_WARNINGS}>")
    set(scope PUBLIC)
    target_link_libraries(${target} PRIVATE ${arg_PRIVATE})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(gemini::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  target_sources(${target} ${scope} FILE_SET HEADERS
                 BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${arg_HEADERS})
  set(unproven ${arg_HEADERS})
  # Not by nvcc, which includes headers of its own first.
  set(proving ${arg_SOURCES})
  list(FILTER proving INCLUDE REGEX "\\.cc$")
  foreach(source IN LISTS proving)
    cmake_path(REPLACE_EXTENSION source .h OUTPUT_VARIABLE proven)
    list(REMOVE_ITEM unproven ${proven})
  endforeach()
  if(NOT unproven)
    set_target_properties(${target} PROPERTIES VERIFY_INTERFACE_HEADER_SETS OFF)
  endif()
  target_compile_features(${target} ${scope} cxx_std_20)
  target_link_libraries(${target} ${scope} ${arg_PUBLIC})
  if(arg_SOURCES)
    gemini_precompile_common(${target})
    gemini_precompile_torch(${target} "${arg_TORCH}" ${arg_PUBLIC} ${arg_PRIVATE})
    gemini_prefer_fmt_of_spdlog(${target} ${arg_PUBLIC} ${arg_PRIVATE})
  endif()
  if(arg_TORCH OR "gemini::libtorch" IN_LIST arg_PUBLIC OR "gemini::libtorch" IN_LIST arg_PRIVATE)
    # Verified by gemini_verify_torch_headers, which does not need 16 s for each.
    set_target_properties(${target} PROPERTIES VERIFY_INTERFACE_HEADER_SETS OFF)
    set_property(GLOBAL APPEND PROPERTY GEMINI_TORCH_TARGETS ${target})
    list(TRANSFORM unproven PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
    set_property(GLOBAL APPEND PROPERTY GEMINI_TORCH_HEADERS ${unproven})
  endif()
  # What somebody's trainer links. Their own header folder: `server/` is no name for /usr/include.
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR}
             OUTPUT_VARIABLE folder)
  if(folder MATCHES "^(gemini|policies|server|client)(/|$)")
    install(TARGETS ${target} EXPORT GeminiTargets
            FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/Gemini)
  endif()
endfunction()

# gemini_program(<name> [TORCH] [NO_INSTALL] SOURCES ... [PRIVATE ...]): a binary in build/bin.
function(gemini_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;NO_INSTALL" "" "SOURCES;PRIVATE")
  add_executable(${name} ${arg_SOURCES})
  target_compile_options(${name} PRIVATE ${GEMINI_WARNINGS})
  target_link_libraries(${name} PRIVATE ${arg_PRIVATE})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  gemini_precompile_common(${name})
  gemini_precompile_torch(${name} "${arg_TORCH}" ${arg_PRIVATE})
  gemini_prefer_fmt_of_spdlog(${name} ${arg_PRIVATE})
  if(NOT arg_NO_INSTALL)
    # Torch stays where it is: the installed program finds it without the clone's .venv link.
    file(REAL_PATH "${GEMINI_TORCH_DIR}/lib" torch_libraries)
    if(GEMINI_WITH_TORCH)
      set_target_properties(${name} PROPERTIES INSTALL_RPATH "${torch_libraries}")
    endif()
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endfunction()

# gemini_run_alone(<test> ...): nothing else runs beside them, because they measure time or memory. Below a sanitizer
# there are no such bars.
function(gemini_run_alone)
  if(GEMINI_SANITIZER STREQUAL "")
    set_tests_properties(${ARGV} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

# gemini_test(<name> [TORCH] [ALONE] SOURCES ... [PRIVATE ...] [TIMEOUT seconds])
# A GoogleTest binary, one ctest entry, labelled with the folder that it mirrors.
# ALONE: it has bars on time or memory, so nothing else runs beside it.
function(gemini_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;ALONE" "TIMEOUT" "SOURCES;PRIVATE")
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/tests
             OUTPUT_VARIABLE label)
  gemini_skip_without_torch()
  gemini_skip_below_sanitizer(${name} ${label})
  if(skipped)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_compile_options(${name} PRIVATE ${GEMINI_WARNINGS})
  # What is tested is optimised; the test's own code runs once, and takes a fifth longer to compile with -O2.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_PRIVATE} GTest::gmock GTest::gtest_main)
  if(arg_TORCH OR "gemini::libtorch" IN_LIST arg_PRIVATE)
    gemini_precompile_torch(${name} "${arg_TORCH}" ${arg_PRIVATE})
  else()
    gemini_precompile_test(${name})
  endif()
  gemini_prefer_fmt_of_spdlog(${name} ${arg_PRIVATE})
  add_test(NAME ${name} COMMAND ${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${label}")
  if(NOT arg_ALONE)
    # As many tests as cores run at once. LibTorch's threads would spin while they wait for work, on
    # the core of another test, and take up to six times as long.
    set_tests_properties(${name} PROPERTIES
                         ENVIRONMENT_MODIFICATION OMP_WAIT_POLICY=set:passive)
  endif()
  if(arg_ALONE)
    gemini_run_alone(${name})
  endif()
  gemini_sanitize_test(${name} ${arg_TIMEOUT})
endfunction()

# Makes the target verify_torch_headers: compiles each header of a TORCH library alone, behind the
# precompiled Torch headers. What those would hide, a missing include of Torch itself, is left to
# tests/tools/include_rules.py. Call it after all libraries.
function(gemini_verify_torch_headers)
  get_property(headers GLOBAL PROPERTY GEMINI_TORCH_HEADERS)
  get_property(targets GLOBAL PROPERTY GEMINI_TORCH_TARGETS)
  set(sources "")
  foreach(header IN LISTS headers)
    cmake_path(RELATIVE_PATH header BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
    set(source ${PROJECT_BINARY_DIR}/verify_torch_headers/${name}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${name}\"\n#include \"${name}\"\n")
    list(APPEND sources ${source})
  endforeach()
  if(sources)
    add_library(verify_torch_headers OBJECT EXCLUDE_FROM_ALL ${sources})
    target_link_libraries(verify_torch_headers PRIVATE ${targets})
    target_compile_options(verify_torch_headers PRIVATE ${GEMINI_WARNINGS})
    gemini_precompile_torch(verify_torch_headers TRUE)
  else()
    add_custom_target(verify_torch_headers)
  endif()
endfunction()
