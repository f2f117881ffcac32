// SPDX-License-Identifier: Apache-2.0
// Prints how tensors are packed into chunks: the smallest program that links an installed Gemini.
#include <cstdio>
#include <vector>

#include "gemini/byte_size.h"
#include "gemini/layout.h"

int main() {
  // The first block of a GPT-2 in fp32, in the order of first use.
  const std::vector<gemini::TensorSpec> tensors = {
      {.name = "wte.weight", .size_bytes = 50257 * 768 * 4},
      {.name = "wpe.weight", .size_bytes = 1024 * 768 * 4},
      {.name = "h.0.ln_1.weight", .size_bytes = 768 * 4},
      {.name = "h.0.ln_1.bias", .size_bytes = 768 * 4},
      {.name = "h.0.attn.c_attn.weight", .size_bytes = 768 * 2304 * 4},
      {.name = "h.0.attn.c_attn.bias", .size_bytes = 2304 * 4},
  };
  const auto layout = gemini::Layout::Pack(tensors, 8 * gemini::kMiB);
  if (!layout.ok()) {
    std::fprintf(stderr, "print_layout: %s\n", layout.status().ToString().c_str());
    return 1;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const gemini::TensorPlace& place = layout->place(static_cast<int64_t>(i));
    std::printf("%-24s %10s  chunk %lld + %lld, offset %lld\n", tensors[i].name.c_str(),
                gemini::FormatByteSize(tensors[i].size_bytes).c_str(),
                static_cast<long long>(place.first_bundle.value()),
                static_cast<long long>(place.num_bundles - 1),
                static_cast<long long>(place.offset_bytes));
  }
  std::printf("%lld chunks of 8 MiB, %s of them unused\n",
              static_cast<long long>(layout->num_bundles()),
              gemini::FormatByteSize(layout->padding_bytes()).c_str());
  return 0;
}
