// SPDX-License-Identifier: Apache-2.0
// The CPU as a session's device: each CPU tensor allocation of the process is charged to its budget
// (counting_allocator.h), operator by operator, for an arena's page that nobody touches costs
// nothing.
#pragma once
#include <memory>

#include "client/torch/hook/session_device.h"

namespace gemini::client::hooks {

std::shared_ptr<SessionDevice> MakeCpuDevice();

}  // namespace gemini::client::hooks
