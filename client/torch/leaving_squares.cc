// SPDX-License-Identifier: Apache-2.0
#include "client/torch/leaving_squares.h"

#include <exception>
#include <utility>

#include "ATen/ops/empty.h"
#include "client/grad_norm.h"

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

void LeavingSquares::Begin(const at::Tensor& gradient, DeviceKernels& kernels, Session& session) {
  if (gradient.numel() < kernels.least_summed_elements()) return;
  const int64_t num_blocks = NumNormBlocks(gradient.numel());
  at::Tensor on_device, in_host;
  try {
    const auto options = at::TensorOptions().dtype(at::kDouble);
    on_device = at::empty({num_blocks}, options.device(gradient.device()));
    in_host = at::empty({num_blocks}, options.pinned_memory(!gradient.device().is_cpu()));
  } catch (const std::exception&) {
    return;
  }
  const GradientRun run = {static_cast<const std::byte*>(gradient.const_data_ptr()),
                           gradient.numel()};
  auto* const sums = static_cast<double*>(on_device.mutable_data_ptr());
  if (absl::Status status = kernels.BeginBlockSquares(element_, run, sums); !status.ok()) {
    session.Latch(status);
    return;
  }
  CopyEngine& copies = session.copies();
  const CopyEvent copied =
      copies.Copy(CopyStream::kEvict, in_host.mutable_data_ptr(), sums,
                  num_blocks * static_cast<int64_t>(sizeof(double)), copies.AfterOperators());
  on_device_ = std::move(on_device);
  in_host_ = std::move(in_host);
  copied_ = PendingWrite(copies, copied, {});
}

void LeavingSquares::Keep(const CopyEngine& copies, GradientSquares& squares) {
  if (!in_host_.defined()) return;
  copied_.Wait();
  if (copies.status().ok()) {
    const auto* at = static_cast<const double*>(in_host_.const_data_ptr());
    for (const Part& part : parts_) {
      squares.Keep(part.bundle, part.piece, part.ticket, {at, at + part.num_blocks});
      at += part.num_blocks;
    }
  }
  on_device_.reset();
  in_host_.reset();
}

}  // namespace gemini::client::hooks
