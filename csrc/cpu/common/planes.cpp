// SPDX-License-Identifier: MIT
#include "planes.h"

#define DETOPS_KERNELS "../common/planes.inl"
#include "../simd/variants.h"

namespace detops::cpu {

template <typename T>
void load_lanes(const Planes<const T>& map, int64_t channel, int64_t channels, int64_t row,
                int64_t col, int64_t count, accumulate_t<T>* lanes) {
  const auto load =
      map.channels_last ? DETOPS_IN_USE(rows_to_lanes<T>) : DETOPS_IN_USE(planes_to_lanes<T>);
  load(map.at(channel, row, col), map.stride(), channels, count, lanes);
}

template <typename T>
void store_lanes(const accumulate_t<T>* lanes, const Planes<T>& map, int64_t channel,
                 int64_t channels, int64_t row, int64_t col, int64_t count) {
  const auto store =
      map.channels_last ? DETOPS_IN_USE(lanes_to_rows<T>) : DETOPS_IN_USE(lanes_to_planes<T>);
  store(lanes, map.stride(), channels, count, map.at(channel, row, col));
}

#define DETOPS_LANES(T)                                                                          \
  template void load_lanes(const Planes<const T>&, int64_t, int64_t, int64_t, int64_t, int64_t,  \
                           accumulate_t<T>*);                                                    \
  template void store_lanes(const accumulate_t<T>*, const Planes<T>&, int64_t, int64_t, int64_t, \
                            int64_t, int64_t);
DETOPS_LANES(float)
DETOPS_LANES(double)
DETOPS_LANES(Half)
DETOPS_LANES(BFloat16)
DETOPS_LANES(int32_t)

}  // namespace detops::cpu
