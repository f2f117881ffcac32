// SPDX-License-Identifier: Apache-2.0
#include "client/torch/hook/scoped_fetch.h"

#include "client/torch/hook/managed_storage.h"
#include "client/torch/hook/operator_hook.h"

namespace gemini::client::hooks {

void ScopedFetch::Release() {
  if (!storage_) return;
  // After the session's end there is nothing left to unpin; the range ids of a later one mean
  // others.
  OperatorHook* const hook = OperatorHook::Active();
  if (hook != nullptr && hook->generation() == hook_generation_) {
    hook->Unpin(*ManagedStorage::Of(storage_.get()), access_ == FetchAccess::kReadWrite);
  }
  storage_.reset();
  data_ = nullptr;
}

}  // namespace gemini::client::hooks
