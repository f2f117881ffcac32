// SPDX-License-Identifier: Apache-2.0
// Against transformers: checkpoints made by make_reference_checkpoints.py in GEMINI_REFERENCE_DIR
// give its logits, loss and gradients; what is saved here is loaded by check_saved_checkpoints.py.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gemini/files/safetensors_format.h"
#include "tests/status_matchers.h"
#include "torch/torch.h"
#include "trainer/checkpoint/hf_checkpoint.h"
#include "trainer/models/staged_model.h"

namespace gemini::trainer {
namespace {

// fp32 with another order of sums: some units of 2^-24, grown by the layers.
constexpr double kTolerance = 1e-5;

std::string ReferenceDirectory() {
  const char* directory = std::getenv("GEMINI_REFERENCE_DIR");
  return directory == nullptr ? "" : directory;
}

torch::Tensor ReadTensor(const SafetensorsReader& reader, const std::string& name) {
  const SafetensorsTensor* tensor = reader.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  const bool is_integer = tensor->dtype == SafetensorsDtype::kI64;
  torch::Tensor values = torch::empty(tensor->shape, is_integer ? torch::kInt64 : torch::kFloat32);
  EXPECT_OK(reader.ReadRaw(
      *tensor, 0,
      absl::MakeSpan(static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes())));
  return values;
}

double Largest(const torch::Tensor& x) { return x.abs().max().item<double>(); }

// By the largest value of `theirs`, or by `least` if that is more.
double RelativeError(const torch::Tensor& ours, const torch::Tensor& theirs, double least = 0) {
  EXPECT_EQ(ours.sizes(), theirs.sizes());
  const double largest = std::max(Largest(theirs), least);
  const double difference = (ours - theirs).abs().max().item<double>();
  return largest == 0 ? difference : difference / largest;
}

absl::Span<const std::byte> BytesOf(const torch::Tensor& tensor) {
  return absl::MakeConstSpan(static_cast<const std::byte*>(tensor.const_data_ptr()),
                             tensor.nbytes());
}

class HfParityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ReferenceDirectory();
    if (directory_.empty()) GTEST_SKIP() << "GEMINI_REFERENCE_DIR is not set: run it by ctest";
    torch::set_num_threads(1);
    std::ifstream list(directory_ + "/cases.txt");
    for (std::string name; std::getline(list, name);) cases_.push_back(name);
    ASSERT_GE(cases_.size(), 68u);
  }

  absl::StatusOr<std::unique_ptr<StagedModel>> Load(const HfCheckpoint& checkpoint) {
    auto model = MakeStagedModel(checkpoint.config().spec, torch::kFloat32);
    if (!model.ok()) return model;
    const absl::Status status = LoadModel(checkpoint, **model);
    if (!status.ok()) return status;
    (*model)->eval();
    return model;
  }

  std::string directory_;
  std::vector<std::string> cases_;
};

TEST_F(HfParityTest, LogitsLossAndGradientsAreThoseOfTransformers) {
  double worst_logits = 0;
  double worst_gradient = 0;
  double worst_loss = 0;
  for (const std::string& name : cases_) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const HfCheckpoint checkpoint,
                         HfCheckpoint::Open(absl::StrCat(directory_, "/", name)));
    EXPECT_THAT(checkpoint.config().unknown_keys, ::testing::IsEmpty());
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<StagedModel> model, Load(checkpoint));
    ASSERT_OK_AND_ASSIGN(
        const SafetensorsReader reference,
        SafetensorsReader::Open(absl::StrCat(directory_, "/", name, ".reference.safetensors")));
    const torch::Tensor tokens = ReadTensor(reference, "tokens");
    const torch::Tensor logits = model->Forward(tokens);
    const double logits_error = RelativeError(logits, ReadTensor(reference, "logits"));
    EXPECT_LE(logits_error, kTolerance);
    const torch::Tensor loss = model->Loss(tokens);
    const double loss_error = RelativeError(loss.reshape({1}), ReadTensor(reference, "loss"));
    EXPECT_LE(loss_error, kTolerance);
    loss.backward();
    const auto parameters = model->named_parameters();
    EXPECT_EQ(parameters.size() + 3, reference.tensors().size());
    for (const auto& parameter : parameters) {
      const torch::Tensor expected = ReadTensor(reference, "gradient." + parameter.key());
      // A key's bias adds the same to all scores of a row, which leaves their softmax as it is: its
      // gradient is 0 but for rounding.
      const absl::string_view key_bias = "k_proj.bias";
      double least = 0;
      if (absl::EndsWith(parameter.key(), key_bias)) {
        const std::string layer =
            parameter.key().substr(0, parameter.key().size() - key_bias.size());
        least = Largest(ReadTensor(reference, absl::StrCat("gradient.", layer, "v_proj.bias")));
      }
      const double error = RelativeError(parameter.value().grad(), expected, least);
      EXPECT_LE(error, kTolerance) << parameter.key();
      worst_gradient = std::max(worst_gradient, error);
    }
    worst_logits = std::max(worst_logits, logits_error);
    worst_loss = std::max(worst_loss, loss_error);
  }
  std::cout << cases_.size() << " checkpoints, largest relative error: logits " << worst_logits
            << ", loss " << worst_loss << ", gradients " << worst_gradient << "\n";
}

TEST_F(HfParityTest, AModelThatLacksMemoryOrTypeIsNotLoadedInPlace) {
  ASSERT_OK_AND_ASSIGN(const HfCheckpoint checkpoint, HfCheckpoint::Open(directory_ + "/gpt2"));
  for (const torch::TensorOptions& options :
       {torch::TensorOptions().device(torch::kMeta), torch::dtype(torch::kFloat16)}) {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<StagedModel> model,
                         MakeStagedModel(checkpoint.config().spec, options));
    EXPECT_THAT(LoadModel(checkpoint, *model),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         ::testing::HasSubstr("transformer.wte.weight is not")));
  }
}

struct Form {
  const char* name;
  SaveOptions options;
};

// Values other than those loaded, so that a save of the source's files would be seen.
TEST_F(HfParityTest, SavedCheckpointsAreReadBackAndLeftForTransformers) {
  const std::string saved_directory = directory_ + "/saved";
  std::filesystem::remove_all(saved_directory);
  std::filesystem::create_directory(saved_directory);
  const std::vector<Form> forms = {
      {"source", {}},
      {"fp32", {.dtype = SaveOptions::Dtype::kFloat32}},
      {"shards", {.dtype = SaveOptions::Dtype::kAsSource, .max_shard_bytes = 50'000}},
  };
  for (const std::string& name : cases_) {
    ASSERT_OK_AND_ASSIGN(const HfCheckpoint source,
                         HfCheckpoint::Open(absl::StrCat(directory_, "/", name)));
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<StagedModel> model, Load(source));
    const torch::NoGradGuard no_grad;
    const auto parameters = model->named_parameters();
    // Negated: 16-bit formats hold it exactly, so all forms save the same values.
    for (const auto& parameter : parameters) parameter.value().neg_();
    ASSERT_OK_AND_ASSIGN(
        const SafetensorsReader reference,
        SafetensorsReader::Open(absl::StrCat(directory_, "/", name, ".reference.safetensors")));
    const torch::Tensor tokens = ReadTensor(reference, "tokens");
    const torch::Tensor logits = model->Forward(tokens).contiguous();
    for (const Form& form : forms) {
      const std::string target = absl::StrCat(saved_directory, "/", name, "-", form.name);
      SCOPED_TRACE(target);
      ASSERT_OK(SaveHfCheckpoint(target, source, ParameterShapesOf(*model), form.options,
                                 [&](const std::string& parameter, int64_t offset,
                                     int64_t size) -> absl::StatusOr<absl::Span<const std::byte>> {
                                   return BytesOf(parameters[parameter])
                                       .subspan(static_cast<size_t>(offset),
                                                static_cast<size_t>(std::min<int64_t>(size, 4096)));
                                 }));
      ASSERT_OK_AND_ASSIGN(const HfCheckpoint saved, HfCheckpoint::Open(target));
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<StagedModel> again, Load(saved));
      EXPECT_TRUE(torch::equal(again->Forward(tokens), logits));

      ASSERT_OK_AND_ASSIGN(
          SafetensorsWriter writer,
          SafetensorsWriter::Create(target + ".reference.safetensors",
                                    {{"tokens", SafetensorsDtype::kI64, tokens.sizes().vec()},
                                     {"logits", SafetensorsDtype::kF32, logits.sizes().vec()}},
                                    {}));
      ASSERT_OK(writer.AppendRaw(BytesOf(tokens)));
      ASSERT_OK(writer.AppendFloat32(BytesOf(logits)));
      ASSERT_OK(writer.Finish());
    }
  }
}

}  // namespace
}  // namespace gemini::trainer
