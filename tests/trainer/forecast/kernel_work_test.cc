// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/kernel_work.h"

#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "gtest/gtest.h"

namespace gemini::trainer {
namespace {

using Values = std::vector<c10::IValue>;

at::Tensor Make(std::vector<int64_t> sizes, at::ScalarType type = at::kFloat) {
  return at::empty(sizes, at::device(at::kMeta).dtype(type));
}

const c10::FunctionSchema& SchemaOf(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).schema();
}

KernelWork WorkOf(const char* name, const char* overload, const Values& inputs,
                  Values outputs = {}) {
  KernelWork work = WorkOfInputs(SchemaOf(name, overload),
                                 c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
  AddOutputs(outputs, work);
  return work;
}

TEST(KernelWorkTest, AProductTakesTwoFlopsAMultiplyAdd) {
  const at::Tensor a = Make({3, 5}), b = Make({5, 7}), sum = Make({3, 7});
  EXPECT_EQ(WorkOf("aten::mm", "", {a, b}).flops, 2 * 3 * 5 * 7);
  EXPECT_EQ(WorkOf("aten::addmm", "", {sum, a, b, 1, 1}).flops, 2 * 3 * 5 * 7);
  const at::Tensor as = Make({4, 3, 5}), bs = Make({4, 5, 7}), sums = Make({4, 3, 7});
  EXPECT_EQ(WorkOf("aten::bmm", "", {as, bs}).flops, 2 * 4 * 3 * 5 * 7);
  EXPECT_EQ(WorkOf("aten::baddbmm", "", {sums, as, bs, 1, 1}).flops, 2 * 4 * 3 * 5 * 7);
}

TEST(KernelWorkTest, AProductReadsItsMatricesAndWritesItsResult) {
  const at::Tensor a = Make({3, 5}), b = Make({5, 7}), sum = Make({3, 7});
  EXPECT_EQ(WorkOf("aten::mm", "", {a, b}, {sum}).bytes, 4 * (15 + 35 + 21));
  EXPECT_EQ(WorkOf("aten::addmm", "", {Make({7}), a, b, 1, 1}, {sum}).bytes,
            4 * (7 + 15 + 35 + 21));
}

TEST(KernelWorkTest, AProductOfNothingIsFree) {
  EXPECT_EQ(WorkOf("aten::mm", "", {Make({3, 0}), Make({0, 7})}).flops, 0);
  EXPECT_EQ(WorkOf("aten::mm", "", {Make({0, 5}), Make({5, 7})}).flops, 0);
}

TEST(KernelWorkTest, AProductIn16BitsSumsInFp32AndPacksItsSecondMatrix) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor a = Make({3, 5}, type), b = Make({5, 7}, type), sum = Make({3, 7}, type);
    const at::Tensor as = Make({2, 3, 5}, type), bs = Make({2, 5, 7}, type);
    for (const KernelWork& work :
         {WorkOf("aten::mm", "", {a, b}), WorkOf("aten::addmm", "", {sum, a, b, 1, 1})}) {
      EXPECT_EQ(work.sum_bytes, 3 * 7 * 4 + 128);
      EXPECT_EQ(work.packed_bytes, 5 * 7 * 2);
    }
    const KernelWork batch = WorkOf("aten::bmm", "", {as, bs});
    EXPECT_EQ(batch.sum_bytes, 2 * 3 * 7 * 4 + 128);
    EXPECT_EQ(batch.packed_bytes, 2 * 5 * 7 * 2);
    EXPECT_EQ(batch.bytes, 2 * (30 + 70));
  }
}

TEST(KernelWorkTest, AProductInFp32TakesNothingBesideItsResult) {
  const KernelWork work = WorkOf("aten::mm", "", {Make({3, 5}), Make({5, 7})});
  EXPECT_EQ(work.sum_bytes, 0);
  EXPECT_EQ(work.packed_bytes, 0);
}

// Two products forward and five backward. Each is of 2 * 4 * 6 * 6 * 8 multiply-adds, of which a
// causal mask hides half; a multiply-add is two flops.
class AttentionWorkTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Causal, AttentionWorkTest, ::testing::Bool());

TEST_P(AttentionWorkTest, AttentionIsHalvedByACausalMaskAlone) {
  const bool is_causal = GetParam();
  const double product = (is_causal ? 1 : 2) * 2 * 4 * 6 * 6 * 8;
  const at::Tensor query = Make({2, 4, 6, 8}), key = Make({2, 2, 6, 8}), sums = Make({2, 4, 6});
  const KernelWork forward =
      WorkOf("aten::_scaled_dot_product_flash_attention_for_cpu", "",
             {query, key, key, 0.0, is_causal, c10::IValue(), c10::IValue()}, {query, sums});
  EXPECT_EQ(forward.flops, 2 * product);
  EXPECT_EQ(forward.bytes, 4 * (384 + 192 + 192 + 384 + 48));
  const KernelWork backward =
      WorkOf("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "",
             {query, query, key, key, query, sums, 0.0, is_causal, c10::IValue(), c10::IValue()},
             {query, key, key});
  EXPECT_EQ(backward.flops, 5 * product);
  EXPECT_EQ(backward.bytes, 4 * (384 * 3 + 192 * 2 + 48 + 384 + 192 * 2));
}

TEST(KernelWorkTest, AnElementwiseKernelReadsItsInputsAndWritesItsResult) {
  const at::Tensor a = Make({10}), b = Make({10}, at::kBFloat16);
  const KernelWork work = WorkOf("aten::add", "Tensor", {a, b, 1}, {a});
  EXPECT_TRUE(work.is_kernel);
  EXPECT_FALSE(work.writes_input);
  EXPECT_EQ(work.flops, 0);
  EXPECT_EQ(work.bytes, 40 + 20 + 40);
}

TEST(KernelWorkTest, AnInPlaceKernelReadsAndWritesItsInput) {
  const at::Tensor a = Make({10}), b = Make({10}, at::kBFloat16);
  const KernelWork work = WorkOf("aten::add_", "Tensor", {a, b, 1}, {a});
  EXPECT_TRUE(work.is_kernel);
  EXPECT_TRUE(work.writes_input);
  EXPECT_EQ(work.bytes, 2 * 40 + 20);
}

TEST(KernelWorkTest, ACopyDoesNotReadWhatItWrites) {
  const at::Tensor to = Make({10}), from = Make({10}, at::kBFloat16);
  EXPECT_EQ(WorkOf("aten::copy_", "", {to, from, false}, {to}).bytes, 40 + 20);
}

TEST(KernelWorkTest, CountsTheTensorsOfAList) {
  const at::Tensor a = Make({10}), b = Make({6});
  EXPECT_EQ(WorkOf("aten::cat", "", {std::vector<at::Tensor>{a, b}, 0}, {Make({16})}).bytes,
            4 * (10 + 6 + 16));
}

TEST(KernelWorkTest, CountsNothingForWhatIsNotGiven) {
  const at::Tensor input = Make({2, 8}), row = Make({2, 1});
  const Values outputs = {input, row, row};
  const std::vector<int64_t> shape = {8};
  for (const c10::IValue& none : {c10::IValue(), c10::IValue(at::Tensor())}) {
    EXPECT_EQ(
        WorkOf("aten::native_layer_norm", "", {input, shape, none, none, 1e-5}, outputs).bytes,
        4 * (16 + 16 + 2 + 2));
  }
}

TEST(KernelWorkTest, ALookupDoesNotReadItsTable) {
  const at::Tensor rows = Make({3}, at::kLong), found = Make({3, 8});
  for (const int64_t table : {10, 100'000}) {
    const KernelWork work = WorkOf("aten::index_select", "", {Make({table, 8}), 0, rows}, {found});
    EXPECT_TRUE(work.is_kernel);
    EXPECT_EQ(work.bytes, 4 * 3 * 8);
  }
}

TEST(KernelWorkTest, TheBackwardOfALookupWritesItsTable) {
  const at::Tensor gradient = Make({3, 8}), rows = Make({3}, at::kLong), table = Make({100, 8});
  const KernelWork work =
      WorkOf("aten::embedding_dense_backward", "", {gradient, rows, 100, -1, false}, {table});
  EXPECT_TRUE(work.is_kernel);
  EXPECT_EQ(work.bytes, 4 * (3 * 8 + 100 * 8));
}

TEST(KernelWorkTest, AllocationsAndChangesOfSizeAreNoKernels) {
  const at::Tensor tensor = Make({10});
  const std::vector<int64_t> sizes = {20};
  const c10::IValue none;
  for (const KernelWork& work :
       {WorkOf("aten::empty", "memory_format", {sizes, none, none, none, none, none}, {tensor}),
        WorkOf("aten::empty_strided", "", {sizes, sizes, none, none, none, none}, {tensor}),
        WorkOf("aten::empty_like", "", {tensor, none, none, none, none, none}, {tensor}),
        WorkOf("aten::new_empty", "", {tensor, sizes, none, none, none, none}, {tensor}),
        WorkOf("aten::resize_", "", {tensor, sizes, none}, {tensor}),
        WorkOf("aten::set_", "source_Tensor", {tensor, tensor}, {tensor})}) {
    EXPECT_FALSE(work.is_kernel);
    EXPECT_EQ(work.flops, 0);
  }
}

TEST(KernelWorkTest, OtherLibrariesOperatorsAreNoKernels) {
  const at::Tensor tensor = Make({10});
  const KernelWork work = WorkOf("profiler::_record_function_enter_new", "", {"name", tensor});
  EXPECT_FALSE(work.is_kernel);
  EXPECT_EQ(work.bytes, 0);
}

TEST(KernelWorkTest, TheInputsMayBeginWithTheirCallers) {
  const at::Tensor a = Make({3, 5}), b = Make({5, 7});
  const KernelWork work = WorkOf("aten::mm", "", {Make({1000}), 5, a, b}, {Make({3, 7})});
  EXPECT_EQ(work.flops, 2 * 3 * 5 * 7);
  EXPECT_EQ(work.bytes, 4 * (15 + 35 + 21));
}

TEST(KernelWorkTest, AKernelOfUnknownInputsIsAKernel) {
  const KernelWork work = WorkOf("aten::mm", "", {});
  EXPECT_TRUE(work.is_kernel);
  EXPECT_EQ(work.flops, 0);
}

}  // namespace
}  // namespace gemini::trainer
