// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. One call works on one RoI, whose samples are
// taken from the map one by one, or added to it, or whose channels are switched. Maps have at least
// two rows and two columns.

#include "bin_pool.inl"
//
#include "../common/neighbours.inl"

template <typename M, typename P>
using RotatedTask = PoolTask<RotatedTaps<accumulate_t<std::remove_const_t<M>>>, M, P>;

// Room for the samples of some bins, and for the rest of the last vector.
template <typename A>
constexpr int64_t kSampleRoom = kMostSamples + kLanes<A>;

template <typename A>
using BinSamples = Neighbours<A, kSampleRoom<A>>;

// The samples of bins [pw, pw + bins) of row ph: row i of the samples of all these bins begins at
// i * bins * (samples of a row of a bin).
template <typename M, typename P, typename A>
DETOPS_INLINE void find_samples(const RotatedTask<M, P>& t, int64_t ph, int64_t pw, int64_t bins,
                                BinSamples<A>& samples) {
  const auto& roi = t.taps.roi;
  const auto &rows = roi.rows, &cols = roi.cols;
  const int64_t down_count = static_cast<int64_t>(rows.count);
  const int64_t across_count = static_cast<int64_t>(cols.count), n = bins * across_count;
  A across[kSampleRoom<A>];
  for (int64_t b = 0; b < bins; ++b) {
    const A left = cols.start + A(pw + b) * cols.bin;
    for (int64_t j = 0; j < across_count; ++j) {
      across[b * across_count + j] = left + (A(j) + A(0.5)) * cols.bin / cols.count;
    }
  }
  for (int64_t k = n; k < n + kLanes<A>; ++k) across[k] = 0;
  const A top = rows.start + A(ph) * rows.bin;
  const Vector<A> sine = splat(roi.sin), cosine = splat(roi.cos);
  for (int64_t i = 0; i < down_count; ++i) {
    const A down = top + (A(i) + A(0.5)) * rows.bin / rows.count;
    const Vector<A> x0 = splat(down * roi.sin + roi.x);
    const Vector<A> y0 = splat(down * roi.cos + roi.y);
    for (int64_t k = 0; k < n; k += kLanes<A>) {
      const Vector<A> along = load(across + k);
      find_neighbours<A>(y0 - along * sine, x0 + along * cosine, t.taps.height, t.width, samples,
                         i * n + k);
    }
  }
}

// Calls visit(position, weight) for what a bin reads, and for nothing else: what is not finite must
// not meet a weight of zero.
template <typename M, typename P, typename Visit>
void visit_exactly(const RotatedTask<M, P>& t, int64_t bin, const Visit& visit) {
  using A = accumulate_t<std::remove_const_t<M>>;
  const auto& roi = t.taps.roi;
  const int64_t height = t.taps.height, width = t.width;
  const A factor = 1 / (roi.rows.count * roi.cols.count);
  const auto add = [&](A y, A x) {
    math::visit_corners(y, x, height, width, [&](int64_t row, int64_t col, A weight) {
      visit(row * width + col, weight * factor);
    });
  };
  math::visit_samples(roi, bin / t.wide, bin % t.wide, math::sampling_range(height, width), add);
}

// Calls run(samples, first sample, samples from one row of the bin to the next, channel, bin).
template <typename M, typename P, typename Run>
DETOPS_INLINE void for_each_bin_of_samples(const RotatedTask<M, P>& t, const Run& run) {
  using A = accumulate_t<std::remove_const_t<M>>;
  const int64_t cols = static_cast<int64_t>(t.taps.roi.cols.count);
  const int64_t most = kMostSamples / (static_cast<int64_t>(t.taps.roi.rows.count) * cols);
  BinSamples<A> samples;
  for (int64_t ph = 0; ph < t.taps.pooled_height; ++ph) {
    for (int64_t pw = 0; pw < t.wide; pw += most) {
      const int64_t rest = t.wide - pw, bins = rest < most ? rest : most;
      find_samples(t, ph, pw, bins, samples);
      for (int64_t c = 0; c < t.channels; ++c) {
        for (int64_t b = 0; b < bins; ++b) {
          run(samples, b * cols, bins * cols, c, ph * t.wide + pw + b);
        }
      }
    }
  }
}

// Channels in the same order as the samples' number: kPairs is whether a bin has 2 x 2 of them.
template <bool kPairs, typename T, typename A = accumulate_t<T>>
DETOPS_INLINE void move_samples(const RotatedTask<const T, T>& t) {
  const int64_t rows = kPairs ? 2 : static_cast<int64_t>(t.taps.roi.rows.count);
  const int64_t cols = kPairs ? 2 : static_cast<int64_t>(t.taps.roi.cols.count);
  const int64_t apart = t.position_stride, down = t.width * apart;
  const A factor = A(1) / A(rows * cols);
  for_each_bin_of_samples(
      t, [&](const BinSamples<A>& s, int64_t first, int64_t stride, int64_t c, int64_t bin) {
        const T* map = t.map + c * t.channel_stride;
        A sum = 0;
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t k = first + i * stride; k < first + i * stride + cols; ++k) {
            const T* p = map + s.position[k] * apart;
            sum += (s.weight[0][k] * A(math::to_float(p[0])) +
                    s.weight[1][k] * A(math::to_float(p[apart]))) +
                   (s.weight[2][k] * A(math::to_float(p[down])) +
                    s.weight[3][k] * A(math::to_float(p[down + apart])));
          }
        }
        sum *= factor;
        if (!(sum - sum == 0)) {
          sum = 0;
          visit_exactly(t, bin, [&](int64_t at, A weight) {
            sum += weight * A(math::to_float(map[at * apart]));
          });
        }
        math::from_float(sum, t.pooled[c * t.pooled_channel_stride + bin * t.bin_stride]);
      });
}

// The reverse; adds to the map.
template <bool kPairs, typename T, typename A>
DETOPS_INLINE void move_samples(const RotatedTask<A, const T>& t) {
  const int64_t rows = kPairs ? 2 : static_cast<int64_t>(t.taps.roi.rows.count);
  const int64_t cols = kPairs ? 2 : static_cast<int64_t>(t.taps.roi.cols.count);
  const int64_t first_position = t.row_begin * t.width, apart = t.position_stride;
  const int64_t positions = (t.row_end - t.row_begin) * t.width;
  const A factor = A(1) / A(rows * cols);
  for_each_bin_of_samples(
      t, [&](const BinSamples<A>& s, int64_t first, int64_t stride, int64_t c, int64_t bin) {
        A* map = t.map + c * t.channel_stride;
        const A grad = math::to_float(t.pooled[c * t.pooled_channel_stride + bin * t.bin_stride]);
        if (!(grad - grad == 0)) {
          visit_exactly(t, bin, [&](int64_t at, A weight) {
            at -= first_position;
            if (at >= 0 && at < positions) map[at * apart] += weight * grad;
          });
          return;
        }
        const A share = grad * factor;
        const auto add = [&](int64_t at, A left, A right) {
          if (at < 0 || at >= positions) return;
          map[at * apart] += left * share;
          map[(at + 1) * apart] += right * share;
        };
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t k = first + i * stride; k < first + i * stride + cols; ++k) {
            const int64_t at = s.position[k] - first_position;
            add(at, s.weight[0][k], s.weight[1][k]);
            add(at + t.width, s.weight[2][k], s.weight[3][k]);
          }
        }
      });
}

template <typename M, typename P>
void rotated_samples(const RotatedTask<M, P>& task) {
  const RotatedTask<M, P> t = task;  // see spread_planes in ps_roi_align.inl
  if (t.taps.roi.rows.count == 2 && t.taps.roi.cols.count == 2) return move_samples<true>(t);
  move_samples<false>(t);
}

// to[i] = keep * first[i] + share * second[i]. What is not finite must not meet a share of zero.
template <typename To, typename A>
DETOPS_INLINE void blend(const A* first, const A* second, A keep, A share, int64_t count, To* to) {
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    const int64_t n = count - i;
    Vector<A> sum = load_first(first + i, n);
    if (share != 0) sum = fused(splat(share), load_first(second + i, n), splat(keep) * sum);
    store_first(to + i, sum, n);
  }
}

template <typename From, typename A>
DETOPS_INLINE void copy_wide(const From* from, int64_t count, A* to) {
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    store_first(to + i, load_first(from + i, count - i), count - i);
  }
}

// One pooled RoI in either layout; `from` and `to` may be the same. `scratch` has room for the bins
// of `n` orientations, or for all channels, `places` for twice the channels.
template <typename From, typename To, typename A = accumulate_t<From>>
void switch_roi(const From* from, To* to, math::OrientationSwitch<A> how, int64_t channels,
                int64_t n, int64_t bins, bool channels_last, A* scratch, int32_t* places) {
  if (!channels_last) {
    // An orientation is a plane of bins.
    for (int64_t c = 0; c < channels; c += n) {
      copy_wide(from + c * bins, n * bins, scratch);
      for (int64_t o = 0; o < n; ++o) {
        blend(scratch + (o + how.first) % n * bins, scratch + (o + how.second) % n * bins,
              how.first_weight, how.second_weight, bins, to + (c + o) * bins);
      }
    }
    return;
  }
  // The orientations of a channel are neighbours: all positions read the same places.
  int32_t *first = places, *second = first + channels;
  for (int64_t c = 0; c < channels; ++c) {
    const int64_t o = c % n;
    first[c] = static_cast<int32_t>(c - o + (o + how.first) % n);
    second[c] = static_cast<int32_t>(c - o + (o + how.second) % n);
  }
  for (int64_t at = 0; at < bins * channels; at += channels) {
    copy_wide(from + at, channels, scratch);
    for (int64_t c = 0; c < channels; ++c) {
      A sum = scratch[first[c]];
      if (how.second_weight != 0)
        sum = how.first_weight * sum + how.second_weight * scratch[second[c]];
      math::from_float(sum, to[at + c]);
    }
  }
}
