# SPDX-License-Identifier: Apache-2.0
# GEMINI_WITH_CUDA: builds what needs a CUDA toolkit, too. On where one is found; no driver and no GPU is needed for
# that. libcuda is never linked: programs ask the CUDA runtime, which they contain, for its functions.
# GEMINI_CUDA_KERNELS: whether that has code of the GPU's own, and the tests that take a GPU: not below a sanitizer, whose
# compiler is another.
find_program(GEMINI_NVCC nvcc HINTS /usr/local/cuda/bin DOC "The CUDA toolkit's compiler, 13.0 or newer")
set(gemini_cuda_default OFF)
# Older CMakes know no C++20 of nvcc's, and older compilers not the newest GPUs.
if(GEMINI_NVCC AND CMAKE_VERSION VERSION_GREATER_EQUAL 4.0)
  execute_process(COMMAND ${GEMINI_NVCC} --version OUTPUT_VARIABLE gemini_nvcc_version ERROR_QUIET)
  if(gemini_nvcc_version MATCHES "release ([0-9]+)" AND CMAKE_MATCH_1 GREATER_EQUAL 13)
    set(gemini_cuda_default ON)
  endif()
endif()
option(GEMINI_WITH_CUDA "Build what needs a CUDA toolkit" ${gemini_cuda_default})
if(NOT GEMINI_WITH_CUDA)
  set(GEMINI_CUDA_KERNELS OFF)
  return()
endif()
if(NOT GEMINI_NVCC)
  message(FATAL_ERROR "nvcc not found: install the CUDA toolkit 13.0, or pass -DGEMINI_NVCC=<path of nvcc>, or "
          "-DGEMINI_WITH_CUDA=OFF")
endif()

# The toolkit of that compiler, and no other that is installed.
get_filename_component(gemini_cuda_bin ${GEMINI_NVCC} DIRECTORY)
get_filename_component(CUDAToolkit_ROOT ${gemini_cuda_bin} DIRECTORY)
find_package(CUDAToolkit 13.0 REQUIRED)
set(GEMINI_CUDA_KERNELS OFF)
if(NOT GEMINI_SANITIZER STREQUAL "")
  return()
endif()
set(GEMINI_CUDA_KERNELS ON)

# From Turing to Blackwell; newer ones compile the last one's PTX when the program starts.
set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90-real 100-real 120)
set(CMAKE_CUDA_COMPILER ${GEMINI_NVCC})
# A kernel for seven generations takes a seventh of the room so, and drivers for CUDA 13 read it.
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} --compress-mode=size")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
enable_language(CUDA)
