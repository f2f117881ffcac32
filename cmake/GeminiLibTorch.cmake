# SPDX-License-Identifier: Apache-2.0
# gemini::libtorch: LibTorch from the PyPI wheel, headers as SYSTEM, the CPU libraries; gemini::libtorch_c10_cuda: with
# Torch's streams and allocator of CUDA.
# Torch's own TorchConfig.cmake is not used: on a CUDA wheel it demands a CUDA toolkit, which a
# machine without a GPU does not have.
# GEMINI_TORCH_DIR: the wheel's `torch` folder; found through the project's .venv when not given.
if(NOT GEMINI_TORCH_DIR)
  file(GLOB gemini_torch_candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  list(APPEND gemini_torch_candidates "")
  list(GET gemini_torch_candidates 0 gemini_torch_candidate)
  set(GEMINI_TORCH_DIR ${gemini_torch_candidate} CACHE PATH "The torch folder of the PyPI wheel")
endif()
if(NOT EXISTS ${GEMINI_TORCH_DIR}/include/torch/csrc/api/include/torch/torch.h)
  message(FATAL_ERROR "LibTorch not found in '${GEMINI_TORCH_DIR}': run tools/check, or pass "
          "-DGEMINI_TORCH_DIR=<the torch folder inside site-packages>, or -DGEMINI_WITH_TORCH=OFF")
endif()
file(REAL_PATH "${GEMINI_TORCH_DIR}" GEMINI_TORCH_REAL_DIR)
add_library(gemini_libtorch INTERFACE IMPORTED GLOBAL)
add_library(gemini::libtorch ALIAS gemini_libtorch)
target_include_directories(gemini_libtorch SYSTEM INTERFACE
  ${GEMINI_TORCH_DIR}/include ${GEMINI_TORCH_DIR}/include/torch/csrc/api/include)
# stdc++ comes first: libtorch exports half of std::filesystem from the compiler that built it, and
# where that half is found before libstdc++, std::filesystem::remove_all calls address 0.
target_link_libraries(gemini_libtorch INTERFACE
  stdc++ ${GEMINI_TORCH_DIR}/lib/libtorch_cpu.so ${GEMINI_TORCH_DIR}/lib/libc10.so Threads::Threads)
# Small, and it loads without a driver. libtorch_cuda is loaded when a GPU is asked for (client/torch/device/gpu_device.h).
add_library(gemini_libtorch_c10_cuda INTERFACE IMPORTED GLOBAL)
add_library(gemini::libtorch_c10_cuda ALIAS gemini_libtorch_c10_cuda)
target_link_libraries(gemini_libtorch_c10_cuda INTERFACE gemini_libtorch
                      ${GEMINI_TORCH_DIR}/lib/libc10_cuda.so)
# Our own part of CUDA has a runtime of its own linked in: Torch's libraries must not find its symbols in the program in the
# place of those of theirs.
target_link_options(gemini_libtorch INTERFACE -Wl,--exclude-libs,libcudart_static.a)
# The wheel's libraries find their CUDA companions by their own run path.
target_link_options(gemini_libtorch INTERFACE -Wl,--allow-shlib-undefined
                    -Wl,-rpath,${GEMINI_TORCH_DIR}/lib)
# RecordFunction has a member that exists only without NDEBUG; the wheel is built with it.
target_compile_definitions(gemini_libtorch INTERFACE NDEBUG)
