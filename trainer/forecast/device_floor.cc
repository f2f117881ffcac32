// SPDX-License-Identifier: Apache-2.0
#include "trainer/forecast/device_floor.h"

namespace gemini::trainer {

DeviceNeed FindDeviceFloor(const policies::RangeTrace& trace, const NamedTrace& step) {
  DeviceNeed most;
  for (int32_t position = 0; position < trace.num_positions(); ++position) {
    int64_t chunks = 0;
    for (const policies::RangeUse& use : trace.uses_of(position)) {
      chunks += trace.ranges[use.range].num_bundles;
    }
    const DeviceNeed pinned = {.who = step.operator_names[position],
                               .chunk_bytes = chunks * trace.chunk_bytes,
                               .non_model_bytes = step.needs[position].pinned_bytes};
    const DeviceNeed behind = {.who = pinned.who, .non_model_bytes = step.needs[position].bytes};
    for (const DeviceNeed& need : {pinned, behind}) {
      if (need.bytes() > most.bytes()) most = need;
    }
  }
  return most;
}

}  // namespace gemini::trainer
