# SPDX-License-Identifier: Apache-2.0
# gemini_torch_pch: the Torch headers that most of our Torch code includes, precompiled once
# (28 s, 650 MB). Used through gemini_precompile_torch in GeminiTargets.cmake. Not torch/torch.h: it is
# 900 MB, and loading it costs each source 2 s more (measured with g++ 12).
# ccache serves such sources only with CCACHE_SLOPPINESS=pch_defines,time_macros, which tools/setup.sh
# sets; without it they are compiled anew each time, and rightly.
set(gemini_torch_pch_source ${PROJECT_BINARY_DIR}/generated/torch_pch.cc)
file(CONFIGURE OUTPUT ${gemini_torch_pch_source} CONTENT "// Nothing: the header is the target.\n")
add_library(gemini_torch_pch STATIC ${gemini_torch_pch_source})
target_compile_features(gemini_torch_pch PRIVATE cxx_std_20)
target_compile_options(gemini_torch_pch PRIVATE -fPIC $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
target_link_libraries(gemini_torch_pch PRIVATE gemini::libtorch)
target_precompile_headers(gemini_torch_pch PRIVATE
  <torch/nn/module.h> <torch/types.h> <ATen/record_function.h>)
