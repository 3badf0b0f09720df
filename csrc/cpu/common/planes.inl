// SPDX-License-Identifier: MIT
// Included once per instruction set; see variants.h. Between planes, where the positions of one
// channel are neighbours, and lanes, where the channels of one position are: [position,
// kRoIChannels].

// Where the square of positions that begins at i is read: the last one overlaps the one before it,
// so that nothing beyond the end is touched.
DETOPS_INLINE int64_t square_begin(int64_t i, int64_t width, int64_t count) {
  return i + width <= count || count < width ? i : count - width;
}

// lanes[i, c] = planes[c * stride + i] for i < count, c < channels; zero for the channels beyond.
template <typename T, typename A = accumulate_t<T>>
void planes_to_lanes(const T* planes, int64_t stride, int64_t channels, int64_t count, A* lanes) {
  constexpr int64_t kWidth = kLanes<A>;
  for (int64_t c = 0; c < kRoIChannels; c += kWidth) {
    for (int64_t i = 0; i < count; i += kWidth) {
      const int64_t at = square_begin(i, kWidth, count);
      const T* from = planes + c * stride + at;
      A* to = lanes + at * kRoIChannels + c;
      const int64_t some = channels - c;
      if (at + kWidth <= count) {
        Vector<A> v[kWidth];
        DETOPS_UNROLL for (int64_t j = 0; j < kWidth; ++j) {
          v[j] = j < some ? load(from + j * stride) : Vector<A>{};
        }
        transpose<A>(v);
        DETOPS_UNROLL for (int64_t j = 0; j < kWidth; ++j) store(to + j * kRoIChannels, v[j]);
      } else {
        Vector<A> v[kWidth];
        DETOPS_UNROLL for (int64_t j = 0; j < kWidth; ++j) {
          v[j] = j < some ? load_part(from + j * stride, count) : Vector<A>{};
        }
        transpose<A>(v);
        DETOPS_UNROLL for (int64_t j = 0; j < kWidth; ++j) {
          if (j < count) store(to + j * kRoIChannels, v[j]);
        }
      }
    }
  }
}

// The reverse; positions are kApart numbers apart.
template <typename T, int64_t kApart = kRoIChannels, typename A = accumulate_t<T>>
void lanes_to_planes(const A* lanes, int64_t stride, int64_t channels, int64_t count, T* planes) {
  constexpr int64_t kWidth = kLanes<A>;
  // So few channels or positions, such as the last of 7 x 7 bins, cost less one by one.
  constexpr int64_t kFew = kWidth > 4 ? 2 : 1;
  for (int64_t c = 0; c < channels; c += kWidth) {
    for (int64_t i = 0; i < count; i += kWidth) {
      const int64_t some = channels - c < kWidth ? channels - c : kWidth;
      const int64_t rest = count - i < kWidth ? count - i : kWidth;
      if (some <= kFew || rest <= kFew) {
        for (int64_t j = 0; j < some; ++j) {
          for (int64_t k = i; k < i + rest; ++k) {
            math::from_float(lanes[k * kApart + c + j], planes[(c + j) * stride + k]);
          }
        }
        continue;
      }
      const int64_t at = square_begin(i, kWidth, count);
      const A* from = lanes + at * kApart + c;
      T* to = planes + c * stride + at;
      if (at + kWidth <= count) {
        Vector<A> v[kWidth];
        DETOPS_UNROLL for (int64_t j = 0; j < kWidth; ++j) v[j] = load(from + j * kApart);
        transpose<A>(v);
        DETOPS_UNROLL for (int64_t j = 0; j < kWidth; ++j) {
          if (j < some) store(to + j * stride, v[j]);
        }
      } else {
        Vector<A> v[kWidth];
        DETOPS_UNROLL for (int64_t j = 0; j < kWidth; ++j) {
          v[j] = j < rest ? load(from + j * kApart) : Vector<A>{};
        }
        transpose<A>(v);
        DETOPS_UNROLL for (int64_t j = 0; j < kWidth; ++j) {
          if (j < some) store_part(to + j * stride, v[j], rest);
        }
      }
    }
  }
}

// The same where channels are neighbours on both sides: positions are `stride` apart.
template <typename T, typename A = accumulate_t<T>>
void rows_to_lanes(const T* rows, int64_t stride, int64_t channels, int64_t count, A* lanes) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < kRoIChannels; c += kLanes<A>) {
      const int64_t n = channels > c ? channels - c : 0;
      store(lanes + i * kRoIChannels + c, load_first(rows + i * stride + c, n));
    }
  }
}

template <typename T, typename A = accumulate_t<T>>
void lanes_to_rows(const A* lanes, int64_t stride, int64_t channels, int64_t count, T* rows) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < channels; c += kLanes<A>) {
      store_first(rows + i * stride + c, load(lanes + i * kRoIChannels + c), channels - c);
    }
  }
}
