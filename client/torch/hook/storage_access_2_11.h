// SPDX-License-Identifier: Apache-2.0
// Gives the hook what it needs and Torch 2.11 keeps private. Another Torch version gets another
// such file.
// - A storage's address, changed without touching its deleter and context. These identify a managed
//   storage to other threads, which may read them at any moment.
// - The two bools that make raw reads throw; 2.11 can set them but not clear them.
// - A RecordFunction's schema without the copy that operator_schema() makes.
#pragma once
#include "ATen/core/function_schema.h"
#include "ATen/record_function.h"
#include "c10/core/StorageImpl.h"

namespace gemini::client::hooks {

// Sets the address that the storage's data() returns. The size does not change.
void SetStorageAddress(c10::StorageImpl& storage, void* address);

// With `raise`, each raw read or write of the storage throws c10::Error with the storage's own
// message (StorageExtraMeta::custom_data_ptr_error_msg_).
void SetRawReadsRaise(c10::StorageImpl& storage, bool raise);

// Returns the schema of the operator that is recorded, owned by the dispatcher; null for events
// that only have a name (autograd nodes, user code).
const c10::FunctionSchema* SchemaOf(const at::RecordFunction& function);

}  // namespace gemini::client::hooks
