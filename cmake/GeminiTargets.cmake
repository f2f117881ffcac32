# SPDX-License-Identifier: Apache-2.0
# One target a concept. Every file is listed; nothing is globbed.
include(GNUInstallDirs)

set(GEMINI_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror)

# gemini_library(<name> [HEADERS ...] [SOURCES ...] [PUBLIC ...] [PRIVATE ...])
# Makes gemini_<name>, alias gemini::<name>. PUBLIC takes only what a header includes.
function(gemini_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS;SOURCES;PUBLIC;PRIVATE")
  set(target gemini_${name})
  if(arg_SOURCES)
    add_library(${target} STATIC)
    target_sources(${target} PRIVATE ${arg_SOURCES})
    target_compile_options(${target} PRIVATE ${GEMINI_WARNINGS})
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
  target_compile_features(${target} ${scope} cxx_std_20)
  target_link_libraries(${target} ${scope} ${arg_PUBLIC})
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR}
             OUTPUT_VARIABLE folder)
  install(TARGETS ${target} EXPORT GeminiTargets
          FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endfunction()

# gemini_program(<name> SOURCES ... [PRIVATE ...]): a binary in build/bin.
function(gemini_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NO_INSTALL" "" "SOURCES;PRIVATE")
  add_executable(${name} ${arg_SOURCES})
  target_compile_options(${name} PRIVATE ${GEMINI_WARNINGS})
  target_link_libraries(${name} PRIVATE ${arg_PRIVATE})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  if(NOT arg_NO_INSTALL)
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endfunction()

# gemini_test(<name> SOURCES ... [PRIVATE ...] [TIMEOUT seconds])
# A GoogleTest binary, one ctest entry, labelled with the folder that it mirrors.
function(gemini_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "SOURCES;PRIVATE")
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_compile_options(${name} PRIVATE ${GEMINI_WARNINGS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_PRIVATE} GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  cmake_path(RELATIVE_PATH CMAKE_CURRENT_SOURCE_DIR BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/tests
             OUTPUT_VARIABLE label)
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${label}")
endfunction()
