// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/tensor_exchange.h"

#include <memory>
#include <utility>

#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
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

TensorShift::TensorShift(const torch::Tensor& x, const RankLine& line, const std::string& site)
    : from_(x), to_(at::empty_like(x)) {
  TORCH_CHECK(x.is_contiguous(), "a shift of a tensor that is not contiguous");
  work_ = line.communicator->Shift(*line.group, x.const_data_ptr(), to_.mutable_data_ptr(),
                                   static_cast<int64_t>(x.nbytes()), site);
}

TensorShift::~TensorShift() {
  // Others may still read and write it, unless it was done, as in silence.
  if (work_ == nullptr || (work_->Done() && work_->Wait().ok())) return;
  KeepForEver(std::make_shared<std::vector<torch::Tensor>>(std::vector{from_, to_}));
}

torch::Tensor TensorShift::Await() {
  AwaitOrThrow(std::exchange(work_, nullptr), {from_, to_});
  from_.reset();
  return std::move(to_);
}

torch::Tensor ExchangeParts(const torch::Tensor& x, const RankLine& line, const std::string& site) {
  TORCH_CHECK(x.is_contiguous() && x.size(0) == line.size(),
              "an exchange of parts of another shape");
  const torch::Tensor parts = at::empty_like(x);
  AwaitOrThrow(
      line.communicator->AllToAll(*line.group, x.const_data_ptr(), parts.mutable_data_ptr(),
                                  static_cast<int64_t>(x.nbytes()) / line.size(), site),
      {x, parts});
  return parts;
}

void AddOverRanks(const torch::Tensor& x, const RankLine& line, const std::string& site) {
  TORCH_CHECK(x.is_contiguous(), "a sum over ranks of a tensor that is not contiguous");
  AwaitOrThrow(line.communicator->AllReduce(*line.group, SumTypeOf(x.scalar_type()),
                                            x.mutable_data_ptr(), x.numel(), site),
               {x});
}

torch::Tensor GatherOverRanks(const torch::Tensor& x, const RankLine& line,
                              const std::string& site) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.begin(), line.size());
  const torch::Tensor all = at::empty(sizes, x.options());
  // By an operator: a managed parameter has bytes here only while one runs.
  const torch::Tensor own = all.select(0, line.place()).copy_(x);
  AwaitOrThrow(
      line.communicator->AllGather(*line.group, own.const_data_ptr(), all.mutable_data_ptr(),
                                   static_cast<int64_t>(own.nbytes()), site),
      {all});
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
