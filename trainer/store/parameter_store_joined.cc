// SPDX-License-Identifier: Apache-2.0
#include "trainer/store/parameter_store_joined.h"

#include <algorithm>
#include <utility>

#include "gemini/system/status_macros.h"
#include "trainer/families/vocabulary_cut.h"

namespace gemini::trainer {

std::vector<ParameterShape> ShapesInFiles(absl::Span<const ParameterShape> parameters) {
  std::vector<ParameterShape> shapes;
  for (const ParameterShape& parameter : parameters) {
    const absl::string_view name = NameInFiles(parameter.name);
    if (name != parameter.name && !shapes.empty() && shapes.back().name == name) {
      shapes.back().shape[0] += parameter.shape[0];
    } else {
      shapes.push_back({std::string(name), parameter.shape});
    }
  }
  return shapes;
}

JoinedParameterStore::JoinedParameterStore(std::unique_ptr<ParameterStore> store,
                                           absl::Span<const ParameterShape> parameters)
    : store_(std::move(store)) {
  int64_t offset_bytes = 0;
  for (const ParameterShape& parameter : parameters) {
    const absl::string_view name = NameInFiles(parameter.name);
    if (name == parameter.name) continue;
    std::vector<Block>& blocks = tables_[std::string(name)];
    if (blocks.empty()) offset_bytes = 0;
    blocks.push_back({parameter.name, offset_bytes});
    offset_bytes += parameter.num_elements() * static_cast<int64_t>(sizeof(float));
  }
}

std::vector<JoinedParameterStore::Block> JoinedParameterStore::BlocksOf(
    absl::string_view name) const {
  const auto found = tables_.find(name);
  return found == tables_.end() ? std::vector<Block>{{std::string(name)}} : found->second;
}

absl::Status JoinedParameterStore::ReadRange(absl::string_view name, ChunkKind kind,
                                             ByteRange range, Sink sink) {
  for (const Block& block : BlocksOf(name)) {
    const int64_t first = std::max(range.offset_bytes - block.offset_bytes, int64_t{0});
    const int64_t end = range.end_bytes() - block.offset_bytes;
    if (end <= first) break;
    GEMINI_RETURN_IF_ERROR(
        store_->ReadRange(block.name, kind, {first, end - first},
                          [&](int64_t offset_bytes, absl::Span<const std::byte> bytes) {
                            return sink(block.offset_bytes + offset_bytes, bytes);
                          }));
  }
  return absl::OkStatus();
}

absl::Status JoinedParameterStore::Write(absl::string_view name, ChunkKind kind, Source source) {
  for (const Block& block : BlocksOf(name)) {
    GEMINI_RETURN_IF_ERROR(
        store_->Write(block.name, kind, [&](int64_t offset_bytes, absl::Span<std::byte> bytes) {
          return source(block.offset_bytes + offset_bytes, bytes);
        }));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> JoinedParameterStore::TensorStep(absl::string_view name) const {
  return store_->TensorStep(BlocksOf(name).front().name);
}

absl::Status JoinedParameterStore::SetTensorStep(absl::string_view name, int64_t step) {
  for (const Block& block : BlocksOf(name)) {
    GEMINI_RETURN_IF_ERROR(store_->SetTensorStep(block.name, step));
  }
  return absl::OkStatus();
}

}  // namespace gemini::trainer
