// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/tensor_exchange.h"

#include <memory>
#include <utility>

#include "ATen/ops/empty.h"
#include "c10/util/Exception.h"

namespace gemini::trainer {

SumType SumTypeOf(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat64:
      return SumType::kFp64;
    case torch::kFloat32:
      return SumType::kFp32;
    case torch::kBFloat16:
      return SumType::kBf16;
    case torch::kFloat16:
      return SumType::kFp16;
    default:
      TORCH_CHECK(false, "a sum of ", type, " over ranks");
  }
}

void AwaitOrThrow(const Work& work, std::vector<torch::Tensor> memory) {
  const absl::Status status =
      Await(work, std::make_shared<std::vector<torch::Tensor>>(std::move(memory)));
  TORCH_CHECK(status.ok(), std::string(status.message()));
}

void AddOverRanks(const torch::Tensor& x, const RankLine& line, const std::string& site) {
  TORCH_CHECK(x.is_contiguous(), "a sum over ranks of a tensor that is not contiguous");
  AwaitOrThrow(line.communicator->AllReduce(*line.group, SumTypeOf(x.scalar_type()),
                                            x.mutable_data_ptr(), x.numel(), site),
               {x});
}

torch::Tensor GatherOverRanks(const torch::Tensor& x, const RankLine& line,
                              const std::string& site) {
  TORCH_CHECK(x.is_contiguous(), "a gather over ranks of a tensor that is not contiguous");
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.begin(), line.size());
  const torch::Tensor all = at::empty(sizes, x.options());
  AwaitOrThrow(line.communicator->AllGather(*line.group, x.const_data_ptr(), all.mutable_data_ptr(),
                                            static_cast<int64_t>(x.nbytes()), site),
               {x, all});
  return all;
}

torch::Tensor ReduceScatterOverRanks(const torch::Tensor& all, const RankLine& line,
                                     const std::string& site) {
  TORCH_CHECK(all.is_contiguous() && all.size(0) == line.size(), "a sum of parts of another shape");
  const torch::Tensor part = at::empty(all.sizes().slice(1), all.options());
  AwaitOrThrow(line.communicator->ReduceScatter(*line.group, SumTypeOf(all.scalar_type()),
                                                all.const_data_ptr(), part.mutable_data_ptr(),
                                                part.numel(), site),
               {all, part});
  return part;
}

}  // namespace gemini::trainer
