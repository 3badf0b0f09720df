// SPDX-License-Identifier: MIT
#include "levels.h"

#include "../math/ms_deform_attn.h"

namespace detops {

void check_levels(const char* op, const Tensor& spatial_shapes, const Tensor& level_start_index,
                  int64_t count) {
  const Tensor shapes = spatial_shapes.contiguous(), starts = level_start_index.contiguous();
  const int64_t *size = shapes.const_data_ptr<int64_t>(), *start = starts.const_data_ptr<int64_t>();
  int64_t covered = 0;
  for (int64_t i = 0; i < shapes.size(0); ++i) {
    const math::Level level{size[2 * i], size[2 * i + 1], start[i]};
    check(math::lies_within(level, count), "detops.", op, ": level ", i, " of ", level.height,
          " x ", level.width, " from position ", level.start, " on must lie within value's ", count,
          " positions");
    covered += level.height * level.width;
  }
  check(covered == count, "detops.", op, ": the levels must have as many positions as value (",
        count, "), got ", covered);
}

}  // namespace detops
