// SPDX-License-Identifier: Apache-2.0
// Reads a Hugging Face checkpoint directory, and saves one: config.json and model.safetensors, or
// its shards with an index.
// Names:  parameters have the names of the whole model ("transformer.h.0.ln_1.weight",
//         "model.decoder.layers.0.fc1.weight"), whatever prefix the files use.
// Tied:   where config.json ties the embeddings, "lm_head.weight" is no parameter. A file that is
//         read may hold either name, or both if both are equal; one that is written holds the
//         embedding alone, under its own name, as transformers writes it.
// Head:   a file of the bare model, or of another task, lacks that of the task, or a part of it,
//         which is then made from a seed: matrices are drawn, biases are 0, and norms are 1.
// Units:  values are fp32 outside, whatever the files hold. Sizes and offsets are bytes of fp32.
// Blocks: on the disk, holding one piece of one tensor at a time, never a second copy of the model.
// Owner: any thread; an open checkpoint may be shared.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gemini/files/safetensors_format.h"
#include "trainer/families/hf_config.h"

namespace gemini::trainer {

struct ParameterShape {
  std::string name;
  std::vector<int64_t> shape;
  int64_t num_elements() const;
};

class HfCheckpoint {
 public:
  // Reads and checks config.json, the index and every file's header, and reads the companions, but
  // no tensor. `seed` is that of a head that is made. NOT_FOUND: no such directory, or no
  // safetensors in it. INVALID_ARGUMENT, DATA_LOSS: as safetensors_format.h; an index and files
  // that disagree. Others: of the config.
  static absl::StatusOr<HfCheckpoint> Open(const std::string& directory, uint64_t seed = 0,
                                           const TaskWish& task = {});

  const std::string& directory() const { return directory_; }
  const HfConfig& config() const { return config_; }
  // Returns the tokenizer's files and generation_config.json, name and content, as they were at
  // Open. A later save writes them, whatever has become of the directory.
  const std::vector<std::pair<std::string, std::string>>& companions() const { return companions_; }
  // Returns the parts of the task's head that are in no file, and are made, as names of
  // WeightNames::own_heads.
  const std::vector<std::string>& made_heads() const { return made_heads_; }
  // Returns the names of the tensors that are not read as they are of another task's head.
  const std::vector<std::string>& left_out() const { return left_out_; }
  // Returns the type in which the files hold a parameter, or would hold one that is made.
  // NOT_FOUND: no such parameter.
  absl::StatusOr<SafetensorsDtype> DtypeOf(absl::string_view name) const;

  // Checks that the files hold exactly these parameters, as F32, F16 or BF16. INVALID_ARGUMENT:
  // names what is missing, unexpected or of another shape, with the numbers; or a tied head that
  // differs from the embedding. Reads the head and the embedding if the files hold both, else no
  // tensor.
  absl::Status Check(absl::Span<const ParameterShape> parameters) const;

  // Reads fp32 values from element `first_element` of a parameter on. NOT_FOUND: no such parameter.
  absl::Status ReadFloat32(absl::string_view name, int64_t first_element,
                           absl::Span<std::byte> destination) const;

 private:
  struct Source {
    const SafetensorsReader* reader = nullptr;
    const SafetensorsTensor* tensor = nullptr;
  };
  HfCheckpoint() = default;
  absl::StatusOr<Source> Find(absl::string_view name) const;
  // Opens a file of the directory and adds its tensors to sources_.
  absl::Status AddFile(const std::string& name);
  absl::Status AddShards(const std::string& index_path);
  void ResolveTiedHead();
  void ResolveMissingHead();
  // Whether the parameter is in no file, and is made.
  bool Makes(absl::string_view name) const;
  // Makes elements of such a parameter, from `first_element` on.
  void FillInitial(absl::string_view name, int64_t first_element, absl::Span<float> values) const;
  absl::Status CheckTiedHead() const;

  std::string directory_;
  HfConfig config_;
  std::vector<std::pair<std::string, std::string>> companions_;
  std::vector<std::unique_ptr<SafetensorsReader>> readers_;
  absl::flat_hash_map<std::string, Source> sources_;  // By parameter name.
  Source tied_head_;  // A head in the files beside the embedding that it is tied to.
  std::vector<std::string> left_out_;
  bool is_bare_ = true;             // No name in the files begins with the root.
  bool has_head_in_place_ = false;  // As WeightNames::IsInPlaceOfHead.
  std::vector<std::string> made_heads_;
  uint64_t seed_ = 0;
};

// Returns where bytes [offset, offset + size) of a parameter go: room for at most `size` bytes, a
// positive multiple of 4. It is called again for the rest. The room is filled when the next call is
// made, or when LoadInto returns OK.
using ParameterRoom = absl::FunctionRef<absl::StatusOr<absl::Span<std::byte>>(
    const std::string& name, int64_t offset_bytes, int64_t size_bytes)>;

// Checks the checkpoint against `parameters`, then streams each, in order, into the room given.
absl::Status LoadInto(const HfCheckpoint& checkpoint, absl::Span<const ParameterShape> parameters,
                      ParameterRoom room);

struct SaveOptions {
  enum class Dtype : uint8_t { kAsSource, kFloat32 };
  Dtype dtype = Dtype::kAsSource;
  // A model above this is written as shards with an index. A tensor larger than it has its own
  // shard.
  int64_t max_shard_bytes = int64_t{5} << 30;
};

// Returns the next bytes of a parameter, from `offset` on: at most `size`, a positive multiple of
// 4; valid until the next call.
using ParameterBytes = absl::FunctionRef<absl::StatusOr<absl::Span<const std::byte>>(
    const std::string& name, int64_t offset_bytes, int64_t size_bytes)>;

// Writes a checkpoint that transformers loads: config.json with all fields of the source (but its
// dtype, the class of a source with another head, and labels that the source does not name or tell
// the type of), the tensors in the order of `parameters`,
// and the tokenizer files and generation_config.json of the source. All of it appears at once:
// written to "<directory>.partial", synced, renamed. ALREADY_EXISTS: `directory` is there and not
// empty. RESOURCE_EXHAUSTED: no room, found before the first byte of a tensor is asked for. On an
// error nothing is left behind.
absl::Status SaveHfCheckpoint(const std::string& directory, const HfCheckpoint& source,
                              absl::Span<const ParameterShape> parameters,
                              const SaveOptions& options, ParameterBytes bytes);

// Returns the bytes that SaveHfCheckpoint would write for tensors, so that a run can check for room
// before its first step.
int64_t SavedTensorBytes(const HfCheckpoint& source, absl::Span<const ParameterShape> parameters,
                         const SaveOptions& options);

}  // namespace gemini::trainer
