// SPDX-License-Identifier: Apache-2.0
// While it lives, floating tensors that this thread makes without naming a device are meta tensors:
// a module built inside takes no memory, and no initialisation runs. Explicit devices, integer and
// bool tensors stay as they are; arange and full of integers make such. Give the module to
// TrainingSession::Manage, then Write its values.
// Thread: the constructing one; scopes may nest.
// Limits: a tensor computed from such a tensor is a meta tensor too: its values must be written.
#pragma once

namespace gemini::client::hooks {

class BuildScope {
 public:
  BuildScope();
  ~BuildScope();
  BuildScope(const BuildScope&) = delete;
  BuildScope& operator=(const BuildScope&) = delete;

 private:
  bool was_included_;
};

}  // namespace gemini::client::hooks
