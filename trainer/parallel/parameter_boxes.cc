// SPDX-License-Identifier: Apache-2.0
#include "trainer/parallel/parameter_boxes.h"

#include <algorithm>
#include <utility>

#include "gemini/system/check.h"

namespace gemini::trainer {
namespace {

using policies::TensorAxis;

constexpr TensorAxis kAllAxes[] = {TensorAxis::kI, TensorAxis::kJ, TensorAxis::kK};

// A run of a dimension, and where it begins in the rank's tensor.
struct Run {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t local_begin = 0;
};

}  // namespace

ParameterBoxes::ParameterBoxes(std::vector<int64_t> sizes, std::vector<DimensionSplit> splits,
                               const policies::TensorGrid& grid)
    : sizes_(std::move(sizes)), splits_(std::move(splits)), grid_(grid) {
  GEMINI_CHECK(splits_.size() == sizes_.size());
  for (size_t d = 0; d < sizes_.size(); ++d) {
    std::vector<int64_t>& sections = splits_[d].sections;
    const int64_t parts = PartOf(d, /*place=*/0).num_parts;
    // With one part nothing comes between the elements of two sections.
    if (parts == 1 || sections.empty()) sections = {sizes_[d]};
    for (const int64_t section : sections) {
      GEMINI_CHECK(sections.size() == 1 || section % parts == 0);
    }
    int64_t local = 0;
    for (const int64_t section : sections) local += (section + parts - 1) / parts;
    local_sizes_.push_back(local);
  }
}

ParameterBoxes::Part ParameterBoxes::PartOf(size_t dimension, int64_t place) const {
  const DimensionSplit& split = splits_[dimension];
  int64_t num_ranks = 1;
  int64_t number = 0;
  for (const TensorAxis axis : split.axes) {
    num_ranks *= grid_.size(axis);
    number = number * grid_.size(axis) + grid_.coordinate(place, axis);
  }
  const int64_t parts = split.most_parts == 0 ? num_ranks : std::min(num_ranks, split.most_parts);
  const int64_t copies = num_ranks / parts;
  return {.number = number / copies, .num_parts = parts, .is_copy = number % copies > 0};
}

std::vector<Box> ParameterBoxes::BoxesOf(int64_t place) const {
  std::vector<Box> boxes = {{}};
  for (size_t d = 0; d < sizes_.size(); ++d) {
    const Part part = PartOf(d, place);
    std::vector<Run> runs;
    int64_t section_begin = 0, local_begin = 0;
    for (const int64_t section : splits_[d].sections) {
      const int64_t size = (section + part.num_parts - 1) / part.num_parts;
      const Run run = {section_begin + part.number * size,
                       section_begin + std::min((part.number + 1) * size, section), local_begin};
      if (run.begin < run.end) runs.push_back(run);
      section_begin += section;
      local_begin += size;
    }
    std::vector<Box> longer;
    for (const Box& box : boxes) {
      for (const Run& run : runs) {
        longer.push_back(box);
        longer.back().begin.push_back(run.begin);
        longer.back().end.push_back(run.end);
        longer.back().local_offset = box.local_offset * local_sizes_[d] + run.local_begin;
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

void ParameterBoxes::VisitRuns(const Box& box, size_t dimension, BoxRun at, int64_t BoxRun::*offset,
                               int64_t begin, int64_t end,
                               absl::FunctionRef<void(const BoxRun&)> visit) const {
  int64_t whole_stride = 1, local_stride = 1;
  bool is_run = true;
  for (size_t d = dimension + 1; d < sizes_.size(); ++d) {
    whole_stride *= sizes_[d];
    local_stride *= local_sizes_[d];
    is_run &= sizes_[d] == local_sizes_[d];
  }
  // Of a tensor without dimensions it is one element.
  const int64_t box_begin = sizes_.empty() ? 0 : box.begin[dimension];
  const int64_t box_end = sizes_.empty() ? 1 : box.end[dimension];
  at.whole_offset += box_begin * whole_stride;
  if (is_run) {
    const int64_t skipped = std::max<int64_t>(begin - at.*offset, 0);
    at.count = std::min((box_end - box_begin) * whole_stride, end - at.*offset) - skipped;
    at.whole_offset += skipped;
    at.local_offset += skipped;
    if (at.count > 0) visit(at);
    return;
  }
  const int64_t stride = offset == &BoxRun::whole_offset ? whole_stride : local_stride;
  const int64_t first = std::max<int64_t>((begin - at.*offset) / stride, 0);
  for (int64_t i = first; i < box_end - box_begin && at.*offset + i * stride < end; ++i) {
    VisitRuns(box, dimension + 1,
              {at.whole_offset + i * whole_stride, at.local_offset + i * local_stride}, offset,
              begin, end, visit);
  }
}

void ParameterBoxes::VisitRunsInWhole(int64_t place, int64_t begin, int64_t end,
                                      absl::FunctionRef<void(const BoxRun&)> visit) const {
  for (const Box& box : BoxesOf(place)) {
    VisitRuns(box, 0, {.local_offset = box.local_offset}, &BoxRun::whole_offset, begin, end, visit);
  }
}

void ParameterBoxes::VisitRunsInLocal(int64_t place, int64_t begin, int64_t end,
                                      absl::FunctionRef<void(const BoxRun&)> visit) const {
  for (const Box& box : BoxesOf(place)) {
    VisitRuns(box, 0, {.local_offset = box.local_offset}, &BoxRun::local_offset, begin, end, visit);
  }
}

bool ParameterBoxes::IsFirstOf(int64_t place) const {
  std::vector<TensorAxis> dividing;
  for (size_t d = 0; d < sizes_.size(); ++d) {
    if (PartOf(d, place).is_copy) return false;
    dividing.insert(dividing.end(), splits_[d].axes.begin(), splits_[d].axes.end());
  }
  return std::ranges::all_of(kAllAxes, [&](TensorAxis axis) {
    return std::ranges::find(dividing, axis) != dividing.end() || !grid_.DividesParameters(axis) ||
           grid_.coordinate(place, axis) == 0;
  });
}

}  // namespace gemini::trainer
