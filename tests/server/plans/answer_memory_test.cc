// SPDX-License-Identifier: Apache-2.0
#include "server/plans/answer_memory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/status_matchers.h"

namespace gemini::server {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMaxBytes = 100;

// What is left of each answer, though this test has its descriptor.
std::vector<int64_t> SizesOf(const std::vector<UniqueFd>& answers) {
  std::vector<int64_t> sizes;
  for (const UniqueFd& answer : answers) {
    struct stat info;
    EXPECT_EQ(::fstat(answer.get(), &info), 0);
    sizes.push_back(info.st_size);
  }
  return sizes;
}

class AnswerMemoryTest : public ::testing::Test {
 protected:
  void Make(uint64_t session, size_t size_bytes) {
    ASSERT_OK_AND_ASSIGN(UniqueFd made,
                         memory_.Make(session, "answer", std::string(size_bytes, 'a')));
    answers_.push_back(std::move(made));
  }

  AnswerMemory memory_{kMaxBytes};
  std::vector<UniqueFd> answers_;
};

TEST_F(AnswerMemoryTest, WhoeverHasTheDescriptorReadsTheBytes) {
  Make(1, 3);
  std::string bytes(4, '-');
  EXPECT_EQ(::pread(answers_[0].get(), bytes.data(), bytes.size(), 0), 3);
  EXPECT_EQ(bytes, "aaa-");
  EXPECT_EQ(::pwrite(answers_[0].get(), "b", 1, 0), -1);
}

TEST_F(AnswerMemoryTest, ASessionHasOneAnswer) {
  Make(1, 10);
  Make(2, 20);
  Make(1, 30);
  EXPECT_THAT(SizesOf(answers_), ElementsAre(0, 20, 30));
  AnswerMemory::Cut(memory_.Remove(1));
  EXPECT_THAT(SizesOf(answers_), ElementsAre(0, 20, 0));
}

TEST_F(AnswerMemoryTest, TheOldestGiveWayWhereAllTogetherAreLarge) {
  Make(1, 60);
  Make(2, 40);
  Make(3, 1000);  // The newest is not cut, however large.
  EXPECT_THAT(SizesOf(answers_), ElementsAre(60, 40, 1000));
  Make(4, 1);
  EXPECT_THAT(SizesOf(answers_), ElementsAre(0, 0, 0, 1));
  AnswerMemory::Cut(memory_.Remove(4));
  Make(5, 60);
  Make(6, 41);
  Make(7, 59);
  EXPECT_THAT(SizesOf(answers_), ElementsAre(0, 0, 0, 0, 0, 41, 59));
}

}  // namespace
}  // namespace gemini::server
