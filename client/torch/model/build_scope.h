// SPDX-License-Identifier: Apache-2.0
// Opens a scope in which a module can be built without memory for its parameters: floating tensors
// that this thread makes without naming a device are meta tensors, and no initialisation runs.
// Tensors on an explicit device, and integer and bool tensors, are made as usual; arange and full
// of integers make such. Pass the module to TrainingSession::Manage, then write its values by
// ManagedModel::Write.
// Thread: the constructing one; scopes may nest.
// Limits: a tensor computed from a meta tensor is a meta tensor too, and its values must be
// written.
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
