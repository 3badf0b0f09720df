// SPDX-License-Identifier: MIT
#include "levels.h"

#include "math/ms_deform_attn.h"

namespace detops {

void check_levels(const char* op, const Tensor& spatial_shapes, const Tensor& level_start_index,
                  int64_t count) {
  const auto shapes = spatial_shapes.accessor<int64_t, 2>();
  const auto starts = level_start_index.accessor<int64_t, 1>();
  int64_t covered = 0;
  for (int64_t i = 0; i < shapes.size(0); ++i) {
    const math::Level level{shapes[i][0], shapes[i][1], starts[i]};
    TORCH_CHECK(math::lies_within(level, count), "detops.", op, ": level ", i, " of ", level.height,
                " x ", level.width, " from position ", level.start, " on must lie within value's ",
                count, " positions");
    covered += level.height * level.width;
  }
  TORCH_CHECK(covered == count, "detops.", op,
              ": the levels must have as many positions as value (", count, "), got ", covered);
}

}  // namespace detops
