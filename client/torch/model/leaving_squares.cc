// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/leaving_squares.h"

#include <exception>
#include <utility>

#include "ATen/Context.h"
#include "c10/core/DeviceGuard.h"
#include "client/kernels/grad_norm.h"
#include "gemini/system/check.h"

namespace gemini::client::hooks {

LeavingSquares LeavingSquares::Expect(const ModelTensors& tensors, int64_t index,
                                      GradientSquares& squares) {
  LeavingSquares leaving;
  const TensorPlace& place = tensors.tensors()[index].place;
  leaving.element_ = tensors.store().format().element;
  const int64_t width = ElementBytes(leaving.element_);
  for (int64_t i = 0; i < place.num_bundles; ++i) {
    const BundleId bundle(place.first_bundle.value() + i);
    const std::vector<TensorPiece>& pieces = tensors.pieces(bundle);
    for (size_t piece = 0; piece < pieces.size(); ++piece) {
      if (pieces[piece].tensor != index) continue;
      leaving.parts_.push_back({.bundle = bundle,
                                .piece = piece,
                                .ticket = squares.Expect(bundle, piece),
                                .num_blocks = NumNormBlocks(pieces[piece].size_bytes / width)});
    }
  }
  return leaving;
}

bool LeavingSquares::Begin(const at::Tensor& gradient, DeviceKernels& kernels, Session& session) {
  if (gradient.numel() < kernels.least_summed_elements()) return true;
  const int64_t size_bytes = NumNormBlocks(gradient.numel()) * static_cast<int64_t>(sizeof(double));
  const c10::Device device = gradient.device();
  const c10::DeviceGuard guard(device);
  c10::DataPtr on_device, in_host;
  try {
    // Allocated without a tensor, which would be filled where algorithms are deterministic.
    on_device = c10::GetAllocator(device.type())->allocate(static_cast<size_t>(size_bytes));
    c10::Allocator* const host = device.is_cpu()
                                     ? c10::GetAllocator(c10::DeviceType::CPU)
                                     : at::globalContext().getPinnedMemoryAllocator(device.type());
    in_host = host->allocate(static_cast<size_t>(size_bytes));
  } catch (const std::exception&) {
    return false;
  }
  const GradientRun run = {static_cast<const std::byte*>(gradient.const_data_ptr()),
                           gradient.numel()};
  auto* const sums = static_cast<double*>(on_device.get());
  if (absl::Status status = kernels.BeginBlockSquares(element_, run, sums); !status.ok()) {
    session.Latch(status);
    return true;
  }
  CopyEngine& copies = session.copies();
  const CopyEvent copied =
      copies.Copy(CopyStream::kEvict, in_host.get(), sums, size_bytes, copies.AfterOperators());
  on_device_ = std::move(on_device);
  in_host_ = std::move(in_host);
  copied_ = PendingWrite(copies, copied, {});
  return true;
}

void LeavingSquares::Keep(const CopyEngine& copies, GradientSquares& squares) {
  if (in_host_ == nullptr) return;
  GEMINI_CHECK(!copied_.is_under_way());
  if (copies.status().ok()) {
    const auto* at = static_cast<const double*>(in_host_.get());
    for (const Part& part : parts_) {
      squares.Keep(part.bundle, part.piece, part.ticket, {at, at + part.num_blocks});
      at += part.num_blocks;
    }
  }
  on_device_.clear();
  in_host_.clear();
}

}  // namespace gemini::client::hooks
