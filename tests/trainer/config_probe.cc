// SPDX-License-Identifier: Apache-2.0
// For config_keys_test.py: opens checkpoints, and says of each what becomes of it.
//   config_probe TOKENS DIRECTORY...
// TOKENS has int64 [2, sequence]. A model of images gets pixels that are made of them. Prints a
// JSON object for each directory: "refused", the message; or what the model computes: "loss" and,
// after a step of gradient descent in training mode, that mode's "next_loss"; "dropped", whether
// two losses in training mode differ; "draws", for each dropout of the first of them its rate, and
// how many elements it had and dropped; "unknown", the keys that are not known. The logits go to
// DIRECTORY/logits.bin, as fp32.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/record_function.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "torch/torch.h"
#include "trainer/checkpoint/hf_checkpoint.h"
#include "trainer/models/counter_dropout.h"
#include "trainer/models/staged_model.h"

namespace gemini::trainer {
namespace {

using Json = nlohmann::json;

constexpr double kLearningRate = 0.1;  // As in config_keys_test.py.

torch::Tensor ReadTokens(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  torch::Tensor tokens = torch::empty({static_cast<int64_t>(bytes.size() / 8)}, torch::kInt64);
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tokens.mutable_data_ptr()));
  return tokens.view({2, -1});
}

// Returns what a model reads, and is to predict of it.
Batch BatchOf(const ModelSpec& spec, const torch::Tensor& tokens) {
  if (spec.task.kind == TaskKind::kCausal)
    return {.inputs = tokens, .labels = Labels::AllOf(tokens)};
  if (!spec.image.has_value()) return {.inputs = tokens, .labels = {tokens, tokens.numel()}};
  const ImageSpec& image = *spec.image;
  const std::vector<int64_t> sizes = {tokens.size(0), image.channels, image.height, image.width};
  const torch::Tensor places = torch::arange(c10::multiply_integers(sizes)) % tokens.numel();
  const torch::Tensor pixels = (tokens.flatten().index({places}) % 17).to(torch::kFloat32) / 8 - 1;
  return {.inputs = pixels.view(sizes), .labels = {torch::arange(tokens.size(0)), tokens.size(0)}};
}

// A model and what it reads.
struct Loaded {
  std::unique_ptr<StagedModel> model;
  Batch batch;

  torch::Tensor Loss() const {
    return model->Losses(batch, LossFactors::OfStep(1, batch.labels.count, 1)).Total();
  }
};

absl::StatusOr<Loaded> Load(const std::string& directory, const torch::Tensor& tokens,
                            Json& result) {
  const absl::StatusOr<HfCheckpoint> checkpoint = HfCheckpoint::Open(directory);
  if (!checkpoint.ok()) return checkpoint.status();
  result["unknown"] = checkpoint->config().unknown_keys;
  absl::StatusOr<std::unique_ptr<StagedModel>> model =
      MakeStagedModel(checkpoint->config().spec, torch::kFloat32);
  if (!model.ok()) return model.status();
  const absl::Status status = LoadModel(*checkpoint, **model);
  if (!status.ok()) return status;
  return Loaded{*std::move(model), BatchOf(checkpoint->config().spec, tokens)};
}

struct Draw {
  double rate = 0;
  torch::Tensor factors;
};
std::vector<Draw>& Draws() {
  thread_local std::vector<Draw> draws;
  return draws;
}
std::unique_ptr<at::ObserverContext> RecordDraw(const at::RecordFunction& function) {
  if (std::string(function.name()) != kDropoutEvent) return nullptr;
  const DropoutMask mask = {function.inputs()[0].toDouble(),
                            static_cast<uint64_t>(function.inputs()[1].toInt())};
  const std::vector<int64_t> at = function.inputs()[2].toIntVector();
  const MaskBox box = {at[0], at[1], at[2], at[3], at[4], at[5]};
  const at::DisableRecordFunctionGuard unseen;
  Draw& draw = Draws().emplace_back(
      Draw{mask.probability, torch::empty({box.planes * box.rows * box.row_size})});
  FillFactors(mask, box, draw.factors);
  return nullptr;
}

// Returns the loss, and says in `draws` what was dropped.
torch::Tensor LossWithDraws(const Loaded& loaded, Json& draws) {
  Draws().clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(RecordDraw).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  torch::Tensor loss = loaded.Loss();
  at::removeCallback(handle);
  draws = Json::array();
  for (const Draw& draw : Draws()) {
    const int64_t elements = draw.factors.numel();
    draws.push_back({draw.rate, elements, elements - draw.factors.count_nonzero().item<int64_t>()});
  }
  return loss;
}

Json Probe(const std::string& directory, const torch::Tensor& tokens) {
  Json result = {{"directory", directory}};
  const absl::StatusOr<Loaded> loaded = Load(directory, tokens, result);
  if (!loaded.ok()) {
    result["refused"] = std::string(loaded.status().message());
    return result;
  }
  StagedModel& model = *loaded->model;
  model.eval();
  {
    const torch::NoGradGuard no_grad;
    const torch::Tensor logits = model.Forward(loaded->batch).contiguous();
    std::ofstream(directory + "/logits.bin", std::ios::binary)
        .write(static_cast<const char*>(logits.const_data_ptr()),
               static_cast<std::streamsize>(logits.nbytes()));
    result["loss"] = loaded->Loss().item<double>();
  }
  model.train();
  const torch::Tensor loss = LossWithDraws(*loaded, result["draws"]);
  loss.backward();
  const torch::NoGradGuard no_grad;
  model.set_dropout_draw({.step = 1});
  result["dropped"] = loss.item<double>() != loaded->Loss().item<double>();
  for (torch::Tensor& parameter : model.parameters()) {
    parameter.sub_(parameter.grad(), kLearningRate);
  }
  result["next_loss"] = loaded->Loss().item<double>();
  return result;
}

}  // namespace
}  // namespace gemini::trainer

int main(int count, char** arguments) {
  torch::set_num_threads(1);
  const torch::Tensor tokens = gemini::trainer::ReadTokens(arguments[1]);
  for (int i = 2; i < count; ++i) {
    std::cout << gemini::trainer::Probe(arguments[i], tokens).dump() << std::endl;
  }
}
