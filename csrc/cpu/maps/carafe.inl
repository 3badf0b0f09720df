// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. A row of features is processed together with
// its `scale` rows of output pixels. Output pixels are split by phase, their position within the
// feature pixel. Those of one phase are adjacent, as the features are.

// to[phase * stride + x] = row[scale * x + phase], padded with zeros to a whole row.
template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void split_row(const T* row, const ReassemblyRows& g, int64_t scale, A* to,
                             int64_t stride) {
  constexpr int64_t kWidth = kLanes<A>;
  if (scale == 1) {
    for (int64_t x = 0; x < g.width; x += kWidth) store(to + x, load_first(row + x, g.width - x));
  } else if (scale == 2) {
    for (int64_t x = 0; x < g.width; x += kWidth) {
      Vector<A> even, odd;
      load_unzipped(row + 2 * x, g.width - x, even, odd);
      store(to + x, even);
      store(to + stride + x, odd);
    }
  } else {
    for (int64_t phase = 0; phase < scale; ++phase) {
      A* phase_row = to + phase * stride;
      for (int64_t x = 0; x < g.width; ++x) phase_row[x] = math::to_float(row[scale * x + phase]);
      for (int64_t x = g.width; x < g.aligned_width; ++x) phase_row[x] = 0;
    }
  }
}

// Inverse of split_row.
template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void merge_row(const A* from, int64_t stride, const ReassemblyRows& g, T* row) {
  constexpr int64_t kWidth = kLanes<A>;
  if (g.scale == 1) {
    for (int64_t x = 0; x < g.width; x += kWidth) store_first(row + x, load(from + x), g.width - x);
  } else if (g.scale == 2) {
    for (int64_t x = 0; x < g.width; x += kWidth) {
      store_zipped<T>(row + 2 * x, g.width - x, load(from + x), load(from + stride + x));
    }
  } else {
    for (int64_t phase = 0; phase < g.scale; ++phase) {
      const A* phase_row = from + phase * stride;
      for (int64_t x = 0; x < g.width; ++x)
        math::from_float(phase_row[x], row[g.scale * x + phase]);
    }
  }
}

template <typename A>
DETOPS_INLINE void clear(A* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = 0;
}

// Loads the masks of a group for a row of features into to[tap, phase of both axes, x].
template <typename A>
void load_masks(const ReassemblyRows& g, const A* masks, int64_t row, A* to) {
  for (int64_t tap = 0; tap < g.taps(); ++tap) {
    for (int64_t py = 0; py < g.scale; ++py, to += g.scale * g.aligned_width) {
      split_row(masks + tap * g.output_size() + g.output_row(row, py), g, g.scale, to,
                g.aligned_width);
    }
  }
}

// Loads to[phase, x + radius] from a plane that is `scale` times as large as the features: the rows
// that cover one row of features. A row off the feature map is zero.
template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void load_padded(const ReassemblyRows& g, int64_t scale, const T* plane, int64_t row,
                               A* to) {
  const int64_t radius = g.radius();
  if (row < 0 || row >= g.height) return clear(to, scale * scale * g.padded_width);
  for (int64_t py = 0; py < scale; ++py) {
    split_row(plane + (scale * row + py) * scale * g.width, g, scale, to + radius, g.padded_width);
    for (int64_t px = 0; px < scale; ++px, to += g.padded_width) {
      clear(to, radius);
      clear(to + radius + g.width, g.padded_width - radius - g.width);
    }
  }
}

// Loads the rows under the kernel around a row of features into to[channel, i, x + radius].
template <typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void load_features(const ReassemblyRows& g, const T* features, int64_t channels,
                                 int64_t row, A* to) {
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < g.kernel; ++i, to += g.padded_width) {
      load_padded(g, 1, features + c * g.size(), row + i - g.radius(), to);
    }
  }
}

// Computes kPhases phases of an output row together, so that each vector of features serves all.
template <int kChannels, int kPhases, typename A>
DETOPS_INLINE void sum_weighted_features(const ReassemblyRows& g, const A* masks, const A* features,
                                         A* sums) {
  const int64_t phases = g.phases(), aligned_width = g.aligned_width;
  for (int64_t x = 0; x < aligned_width; x += kLanes<A>) {
    Vector<A> sum[kChannels][kPhases] = {};
    for (int64_t i = 0; i < g.kernel; ++i) {
      for (int64_t j = 0; j < g.kernel; ++j) {
        const A* mask = masks + (i * g.kernel + j) * phases * aligned_width + x;
        Vector<A> weight[kPhases];
        DETOPS_UNROLL for (int p = 0; p < kPhases; ++p) weight[p] = load(mask + p * aligned_width);
        DETOPS_UNROLL for (int c = 0; c < kChannels; ++c) {
          const Vector<A> value = load(features + (c * g.kernel + i) * g.padded_width + x + j);
          DETOPS_UNROLL for (int p = 0; p < kPhases; ++p) {
            sum[c][p] = fused(weight[p], value, sum[c][p]);
          }
        }
      }
    }
    DETOPS_UNROLL for (int c = 0; c < kChannels; ++c) {
      DETOPS_UNROLL for (int p = 0; p < kPhases; ++p)
          store(sums + (c * g.scale + p) * aligned_width + x, sum[c][p]);
    }
  }
}

// Computes output rows of kChannels channels of a group.
// Scratch: rows[channel, i, x], sums[channel, phase, x].
template <int kChannels, typename T, typename A = accumulate_t<T>>
void reassemble_row(const ReassemblyRows& g, const A* masks, const T* features, int64_t row,
                    A* rows, A* sums, T* output) {
  const int64_t aligned_width = g.aligned_width;
  load_features(g, features, kChannels, row, rows);
  for (int64_t py = 0; py < g.scale; ++py, masks += g.scale * aligned_width) {
    int64_t px = 0;
    for (; px + 2 <= g.scale; px += 2) {
      sum_weighted_features<kChannels, 2>(g, masks + px * aligned_width, rows,
                                          sums + px * aligned_width);
    }
    if (px < g.scale) {
      sum_weighted_features<kChannels, 1>(g, masks + px * aligned_width, rows,
                                          sums + px * aligned_width);
    }
    for (int c = 0; c < kChannels; ++c) {
      merge_row(sums + c * g.scale * aligned_width, aligned_width, g,
                output + c * g.output_size() + g.output_row(row, py));
    }
  }
}

// Adds the part of kChannels channels to the gradient of masks, in the layout of load_masks.
template <int kChannels, typename A>
void add_mask_gradients(const ReassemblyRows& g, const A* grad, const A* features, int64_t row,
                        A* rows, A* split, A* to_masks) {
  const int64_t phases = g.phases(), aligned_width = g.aligned_width;
  load_features(g, features, kChannels, row, rows);
  for (int c = 0; c < kChannels; ++c) {
    for (int64_t py = 0; py < g.scale; ++py) {
      split_row(grad + c * g.output_size() + g.output_row(row, py), g, g.scale,
                split + (c * g.scale + py) * g.scale * aligned_width, aligned_width);
    }
  }
  for (int64_t x = 0; x < aligned_width; x += kLanes<A>) {
    for (int64_t phase = 0; phase < phases; ++phase) {
      Vector<A> grads[kChannels];
      DETOPS_UNROLL for (int c = 0; c < kChannels; ++c) {
        grads[c] = load(split + (c * phases + phase) * aligned_width + x);
      }
      A* to = to_masks + phase * aligned_width + x;
      for (int64_t i = 0; i < g.kernel; ++i) {
        for (int64_t j = 0; j < g.kernel; ++j, to += phases * aligned_width) {
          Vector<A> sum = load(to);
          DETOPS_UNROLL for (int c = 0; c < kChannels; ++c) {
            sum = fused(grads[c], load(rows + (c * g.kernel + i) * g.padded_width + x + j), sum);
          }
          store(to, sum);
        }
      }
    }
  }
}

template <typename A>
void store_masks(const ReassemblyRows& g, const A* from, int64_t row, A* masks) {
  for (int64_t tap = 0; tap < g.taps(); ++tap) {
    for (int64_t py = 0; py < g.scale; ++py, from += g.scale * g.aligned_width) {
      merge_row(from, g.aligned_width, g, masks + tap * g.output_size() + g.output_row(row, py));
    }
  }
}

// Loads the masks of the output pixels that a row of features reaches by tap (i, j) into to[i, j,
// phase, x + radius].
template <typename A>
void load_reached_masks(const ReassemblyRows& g, const A* masks, int64_t row, A* to) {
  const int64_t size = g.phases() * g.padded_width;
  for (int64_t tap = 0; tap < g.taps(); ++tap, to += size) {
    load_padded(g, g.scale, masks + tap * g.output_size(), row - tap / g.kernel + g.radius(), to);
  }
}

// Computes the gradient of a row of features in kChannels channels.
// Scratch: split[channel, i, phase, x].
template <int kChannels, typename A>
void gather_feature_gradients(const ReassemblyRows& g, const A* masks, const A* grad, int64_t row,
                              A* split, A* to_features) {
  const int64_t size = g.phases() * g.padded_width;
  for (int c = 0; c < kChannels; ++c) {
    for (int64_t i = 0; i < g.kernel; ++i) {
      load_padded(g, g.scale, grad + c * g.output_size(), row - i + g.radius(),
                  split + (c * g.kernel + i) * size);
    }
  }
  for (int64_t x = 0; x < g.width; x += kLanes<A>) {
    Vector<A> sum[kChannels] = {};
    for (int64_t i = 0; i < g.kernel; ++i) {
      for (int64_t j = 0; j < g.kernel; ++j) {
        const int64_t at = x + 2 * g.radius() - j;
        const A* mask = masks + (i * g.kernel + j) * size + at;
        const A* upstream = split + i * size + at;
        for (int64_t p = 0; p < size; p += g.padded_width) {
          const Vector<A> weight = load(mask + p);
          DETOPS_UNROLL for (int c = 0; c < kChannels; ++c) {
            sum[c] = fused(weight, load(upstream + c * g.kernel * size + p), sum[c]);
          }
        }
      }
    }
    DETOPS_UNROLL for (int c = 0; c < kChannels; ++c) {
      store_first(to_features + c * g.size() + row * g.width + x, sum[c], g.width - x);
    }
  }
}
