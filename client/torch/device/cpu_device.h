// SPDX-License-Identifier: Apache-2.0
// Makes the CPU a session's device. Each CPU tensor allocation of the process is charged to the
// budget when it is made (counting_allocator.h). No part of the budget is set apart for it, because
// untouched pages of the arena cost nothing.
#pragma once
#include <memory>

#include "client/torch/hook/session_device.h"

namespace gemini::client::hooks {

// Returns the device. Never null.
std::shared_ptr<SessionDevice> MakeCpuDevice();

}  // namespace gemini::client::hooks
