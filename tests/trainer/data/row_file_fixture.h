// SPDX-License-Identifier: Apache-2.0
// A file of rows that a test writes tensor by tensor, in a folder of its own.
#pragma once
#include <stdlib.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "gemini/files/safetensors_format.h"
#include "tests/status_matchers.h"

namespace gemini::trainer {

template <typename T>
std::vector<std::byte> Bytes(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

class RowFileTest : public ::testing::Test {
 protected:
  struct Tensor {
    SafetensorsWriter::Declaration declaration;
    std::vector<std::byte> bytes;
  };

  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "row_file_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern + "/rows.safetensors";
  }
  void TearDown() override {
    std::filesystem::remove_all(std::filesystem::path(path_).parent_path());
  }

  void WriteTensors(const std::vector<Tensor>& tensors,
                    const std::map<std::string, std::string>& metadata) {
    std::vector<SafetensorsWriter::Declaration> declarations;
    for (const Tensor& tensor : tensors) declarations.push_back(tensor.declaration);
    auto writer = SafetensorsWriter::Create(path_, declarations, metadata);
    ASSERT_OK(writer);
    for (const Tensor& tensor : tensors) ASSERT_OK(writer->AppendRaw(tensor.bytes));
    ASSERT_OK(writer->Finish());
  }

  std::string path_;
};

}  // namespace gemini::trainer
