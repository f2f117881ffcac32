# SPDX-License-Identifier: Apache-2.0
# Installs the build into a fresh prefix, builds docs/examples against it as a stranger would, with
# find_package(Gemini), and runs them.
# Run by ctest: cmake -DBUILD_DIR= -DSOURCE_DIR= -DWORK_DIR= -DGENERATOR= -DMAKE_PROGRAM= -P this
set(prefix "${WORK_DIR}/prefix dir")
set(examples "${WORK_DIR}/examples")
file(REMOVE_RECURSE "${WORK_DIR}")

function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output
                  ERROR_VARIABLE output)
  message(STATUS "${what}: exit ${result}")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${what} failed:\n${output}")
  endif()
endfunction()

run("install" ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
run("configure the examples" ${CMAKE_COMMAND} -S ${SOURCE_DIR}/docs/examples -B ${examples}
    -G ${GENERATOR} -DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM} -DCMAKE_PREFIX_PATH=${prefix}
    -DCMAKE_CXX_FLAGS=-O1)
run("build the examples" ${CMAKE_COMMAND} --build ${examples})
run("run the examples" ${CMAKE_CTEST_COMMAND} --test-dir ${examples} --output-on-failure
    --no-tests=error)
if(EXISTS "${BUILD_DIR}/bin/gemini_mpi.so" AND EXISTS "${BUILD_DIR}/bin/gemini-train")
  run("start ranks of the installed program" ${CMAKE_COMMAND} -E env
      OMPI_MCA_orte_tmpdir_base=${WORK_DIR}/sessions mpirun --allow-run-as-root --oversubscribe -n 2
      ${prefix}/bin/gemini-train --version)
endif()
# Units start the program that was installed with them.
foreach(unit IN ITEMS user/geminid.service system/geminid@.service)
  file(READ "${prefix}/lib/systemd/${unit}" text)
  string(FIND "${text}" "\nExecStart=\"${prefix}/bin/geminid\" " place)
  if(place EQUAL -1)
    message(FATAL_ERROR "${unit} starts another program than ${prefix}/bin/geminid:\n${text}")
  endif()
endforeach()
# Programs must find Torch without the build folder's run path.
file(GLOB programs "${prefix}/bin/*")
foreach(program IN LISTS programs)
  execute_process(COMMAND ldd ${program} OUTPUT_VARIABLE libraries ERROR_VARIABLE libraries)
  if(libraries MATCHES "lib(torch|c10)[^\n]*not found")
    message(FATAL_ERROR "${program} does not find Torch after the installation:\n${libraries}")
  endif()
endforeach()
file(REMOVE_RECURSE "${WORK_DIR}")
