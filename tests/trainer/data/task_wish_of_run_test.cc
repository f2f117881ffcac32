// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/task_wish_of_run.h"

#include <cstdint>
#include <string>

#include "tests/status_matchers.h"
#include "tests/trainer/data/row_file_fixture.h"

namespace gemini::trainer {
namespace {

class TaskWishOfRunTest : public RowFileTest {
 protected:
  // Writes a row of four tokens, which has a number for each of five labels if it is of that task.
  void Write(const std::string& task) {
    const std::vector<int32_t> tokens = {7, 8, 9, 10}, documents = {1, 1, 1, 1};
    std::vector<Tensor> tensors = {
        {{"tokens", SafetensorsDtype::kI32, {1, 4}}, Bytes(tokens)},
        {{"documents", SafetensorsDtype::kI32, {1, 4}}, Bytes(documents)}};
    std::map<std::string, std::string> metadata = {{"gemini.format", "1"},
                                                   {"task", task},
                                                   {"rows", "1"},
                                                   {"sequence", "4"},
                                                   {"layout", "pad"}};
    if (task == "sequence-classification") {
      tensors.push_back({{"labels", SafetensorsDtype::kF32, {1, 5}},
                         Bytes<float>({0.5F, 1.5F, 2.5F, 3.5F, 4.5F})});
      metadata.insert({{"problem_type", "regression"}, {"num_labels", "5"}, {"names", ""}});
    } else {
      tensors.push_back({{"answers", SafetensorsDtype::kU8, {1, 4}}, Bytes<uint8_t>({0, 1, 1, 1})});
    }
    WriteTensors(tensors, metadata);
  }
};

TEST_F(TaskWishOfRunTest, ANewHeadGetsTheLabelsOfTheData) {
  Write("sequence-classification");
  ASSERT_OK_AND_ASSIGN(const TaskWish wish, TaskWishOfRun("sequence-classification", path_));
  EXPECT_EQ(wish.name, "sequence-classification");
  ASSERT_TRUE(wish.labels.has_value());
  EXPECT_EQ(wish.labels->num_labels, 5);
  EXPECT_EQ(wish.labels->problem, ProblemType::kRegression);
}

TEST_F(TaskWishOfRunTest, DataWithoutLabelsAndNoDataGiveNone) {
  Write("causal");
  for (const std::string& data : {path_, std::string(), std::string("text.npy")}) {
    ASSERT_OK_AND_ASSIGN(const TaskWish wish, TaskWishOfRun("auto", data));
    EXPECT_EQ(wish.name, "auto");
    EXPECT_FALSE(wish.labels.has_value()) << data;
  }
}

TEST_F(TaskWishOfRunTest, AFileOfRowsThatIsNotThereIsNotFound) {
  EXPECT_THAT(TaskWishOfRun("auto", path_), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace gemini::trainer
