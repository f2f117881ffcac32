// SPDX-License-Identifier: Apache-2.0
#include "client/torch/model/first_use_order.h"

#include <exception>
#include <unordered_map>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/record_function.h"
#include "absl/strings/str_cat.h"
#include "client/torch/hook/tensor_walk.h"
#include "torch/nn/module.h"

namespace gemini::client::hooks {
namespace {

struct Recording {
  std::unordered_map<const c10::StorageImpl*, std::string> unused;  // By storage: views count.
  std::vector<std::string> order;
};
// Callbacks are plain functions: what they fill is found through the thread that they run on.
thread_local Recording* t_recording = nullptr;

std::unique_ptr<at::ObserverContext> RecordUse(const at::RecordFunction& function) {
  if (t_recording == nullptr) return nullptr;
  for (const c10::IValue& input : function.inputs()) {
    ForEachTensor(input, [](c10::TensorImpl* tensor) {
      const auto found = t_recording->unused.find(tensor->unsafe_storage().unsafeGetStorageImpl());
      if (found == t_recording->unused.end()) return;
      t_recording->order.push_back(std::move(found->second));
      t_recording->unused.erase(found);
    });
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FirstUseOrder(const torch::nn::Module& module,
                                                       absl::FunctionRef<void()> forward) {
  Recording recording;
  std::vector<std::pair<const c10::StorageImpl*, std::string>> all;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    if (recording.unused.try_emplace(storage, name).second) all.emplace_back(storage, name);
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) add(item.key(), item.value());

  const at::CallbackHandle callback = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&RecordUse).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  Recording* const outer = std::exchange(t_recording, &recording);
  absl::Status status;
  try {
    const at::NoGradGuard no_grad;
    forward();
  } catch (const std::exception& error) {
    status = absl::InvalidArgumentError(
        absl::StrCat("the forward pass for the first-use order failed: ", error.what()));
  }
  t_recording = outer;
  at::removeCallback(callback);
  if (!status.ok()) return status;
  for (auto& [storage, name] : all) {
    if (recording.unused.contains(storage)) recording.order.push_back(std::move(name));
  }
  return std::move(recording.order);
}

}  // namespace gemini::client::hooks
