// SPDX-License-Identifier: Apache-2.0
// The CPU as a session's device. Each CPU tensor allocation of the process is charged to the budget
// (counting_allocator.h), operator by operator, because untouched pages of an arena cost nothing.
#pragma once
#include <memory>

#include "client/torch/hook/session_device.h"

namespace gemini::client::hooks {

std::shared_ptr<SessionDevice> MakeCpuDevice();

}  // namespace gemini::client::hooks
