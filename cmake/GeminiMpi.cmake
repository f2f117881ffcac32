# SPDX-License-Identifier: Apache-2.0
# GEMINI_WITH_MPI: builds the module by which several ranks exchange bytes. On where Open MPI is found, whose launcher's
# variables the programs read, and off below a sanitizer, whose reports of MPI's own code would hide ours. The programs do
# not need it for one rank.
#   gemini_ranks_test(<name> NUM_RANKS <n> TARGET <test> [BELOW <command>...])  runs a test's program as so many ranks,
#                                        by mpirun, each of them started by that command
set(gemini_mpi_default OFF)
if(GEMINI_SANITIZER STREQUAL "")
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND AND MPIEXEC_EXECUTABLE)
    execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE gemini_mpi_version ERROR_QUIET)
    # Open MPI's mpirun calls itself so, and its mpiexec by the name of its run time.
    if(gemini_mpi_version MATCHES "Open MPI|OpenRTE")
      set(gemini_mpi_default ON)
    endif()
  endif()
endif()
option(GEMINI_WITH_MPI "Build the module with MPI in it, for several ranks" ${gemini_mpi_default})
if(GEMINI_WITH_MPI)
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()

function(gemini_ranks_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "NUM_RANKS;TARGET" "BELOW")
  # More ranks than processors are the rule here: a rank that waits leaves its own to others. Without "pml ob1" Open
  # MPI looks for InfiniBand adapters for 0.2 s.
  add_test(NAME ${name}
           COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca pml ob1
                   -n ${arg_NUM_RANKS} ${arg_BELOW} $<TARGET_FILE:${arg_TARGET}>)
  # A session's folder of its own: sessions side by side share one by default, and one that ends removes it while
  # another starts, which then fails.
  set_tests_properties(${name} PROPERTIES TIMEOUT 120 LABELS ranks PROCESSORS 2
    ENVIRONMENT "OMP_NUM_THREADS=1;OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_orte_tmpdir_base=${PROJECT_BINARY_DIR}/sessions/${name}")
endfunction()
