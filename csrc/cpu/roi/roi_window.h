// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <type_traits>

#include "../../math/roi_pool.h"
#include "../common/buffer.h"
#include "../common/planes.h"

namespace detops::cpu {

// Bytes of a band: as many as the result, within the size of an L2 cache.
inline int64_t band_bytes(int64_t result_bytes) {
  return std::clamp<int64_t>(result_bytes, 1 << 20, 2 << 20);
}

// Rows that a band has room for: those of so many bytes, and more than the tallest RoI, so that it
// moves.
template <typename A>
int64_t rows_for(int64_t width, int64_t tallest, int64_t bytes) {
  const int64_t some = bytes / int64_t(sizeof(A)) / std::max<int64_t>(1, width * kRoIChannels);
  return std::max(some, tallest + tallest / 2);
}

// A band of rows of one block of channels in the order [row, column, kRoIChannels], small enough
// for a cache. RoIs come roughly from top to bottom, and the band moves down with them.
template <typename A>
class RoIWindow {
 public:
  RoIWindow(int64_t height, int64_t tallest, int64_t bytes, const math::PixelRange& columns)
      : height_(height), tallest_(tallest), bytes_(bytes) {
    restart(columns, 0);
  }

  A* row(int64_t y) { return lanes_.data() + (y - first_) * stride(); }
  // Where position (0, 0) of the map would be.
  A* origin() { return row(0) - columns_.begin * kRoIChannels; }
  int64_t first() const { return first_; }
  int64_t last() const { return last_; }
  const math::PixelRange& columns() const { return columns_; }
  int64_t width() const { return columns_.size(); }
  int64_t stride() const { return width() * kRoIChannels; }

  // Empties the band and lets it begin at row `first`, with room for any RoI.
  void restart(const math::PixelRange& columns, int64_t first) {
    columns_ = columns;
    capacity_ = std::min(height_ - first, rows_for<A>(columns.size(), tallest_, bytes_));
    lanes_.reserve(static_cast<size_t>(capacity_ * stride()));
    first_ = last_ = first;
  }

  // Brings rows [first, last) in: fill(row, lanes) makes those that are not there. Where they do
  // not fit after those that are, rows above `first` make way, or all; leave(end) is called before
  // rows above `end` do.
  template <typename Leave, typename Fill>
  void reach(int64_t first, int64_t last, const Leave& leave, const Fill& fill) {
    const auto fits = [&] {
      return first >= first_ && first <= last_ && last - first_ <= capacity_;
    };
    if (!fits() && first > first_) {
      leave(first);
      const int64_t from = std::min(first, last_);
      std::copy(row(from), row(last_), lanes_.data());
      last_ += first - from;
      first_ = first;
    }
    if (!fits()) {
      leave(height_);
      restart(columns_, first);
    }
    for (; last_ < last; ++last_) fill(last_, row(last_));
  }

 private:
  int64_t height_, tallest_, bytes_, first_ = 0, last_ = 0, capacity_ = 0;
  math::PixelRange columns_;
  Buffer<A> lanes_;
};

// Rows [begin, end) of some channels of a map, where sums can grow: the map itself, or a copy of
// one whose numbers are too short, in which all channels of an [H, W, C] map are one plane.
template <typename T>
class GradientBand {
 public:
  using A = accumulate_t<T>;

  A* open(const Planes<T>& map, int64_t channel, int64_t channels, int64_t begin, int64_t end,
          bool fresh) {
    band_ = map.at(channel, begin, 0), apart_ = map.stride();
    if constexpr (std::is_same_v<T, A>) {
      if (fresh) clear_positions(map, channel, channels, begin * map.width, end * map.width);
      return band_;
    } else {
      const int64_t together = map.channels_last ? map.channels : 1;
      planes_ = channels / together, run_ = (end - begin) * map.width * together;
      A* copy = copy_.reserve(planes_ * run_ + kRoIChannels);
      if (fresh) {
        std::fill_n(copy, planes_ * run_, A(0));
      } else {
        for_each_run([&](const Planes<T>& run, int64_t at) {
          load_lanes(run.for_reading(), 0, run.channels, 0, 0, run.width, copy + at);
        });
      }
      return copy;
    }
  }

  int64_t plane_stride() const { return std::is_same_v<T, A> ? apart_ : run_; }

  void close() {
    if constexpr (!std::is_same_v<T, A>) {
      for_each_run([&](const Planes<T>& run, int64_t at) {
        store_lanes(copy_.data() + at, run, 0, run.channels, 0, 0, run.width);
      });
    }
  }

 private:
  // Neighbours on both sides, as a map of kRoIChannels channels and what is left of a position.
  template <typename Convert>
  void for_each_run(const Convert& convert) {
    const int64_t whole = run_ / kRoIChannels, rest = run_ % kRoIChannels;
    for (int64_t p = 0; p < planes_; ++p) {
      T* to = band_ + p * apart_;
      convert(Planes<T>{to, kRoIChannels, 1, whole, true}, p * run_);
      if (rest > 0) {
        convert(Planes<T>{to + whole * kRoIChannels, rest, 1, 1, true}, (p + 1) * run_ - rest);
      }
    }
  }

  T* band_ = nullptr;
  int64_t apart_ = 0, planes_ = 0, run_ = 0;
  Buffer<A> copy_;
};

// The rows of a block of channels that are final so far: [0, written) hold sums, below them nothing
// is there yet. Sums grow in a window, the same memory for one block after the other; what it does
// not reach is cleared, so each number is written about once.
template <typename T>
struct GradientRows {
  using A = accumulate_t<T>;

  Planes<T> map;
  math::PixelRange columns;
  int64_t tallest;  // of the RoIs
  int64_t channel = 0, channels = std::min(kRoIChannels, map.channels), written = 0;
  RoIWindow<A> window{map.height, tallest,
                      band_bytes(channels * map.height * map.width * int64_t(sizeof(T))), columns};

  // To other channels, of which so many rows are written.
  void restart(int64_t first, int64_t count, int64_t rows) {
    channel = first, channels = count, written = rows;
    window.restart(columns, 0);
  }

  RoIWindow<A>& reach(int64_t first, int64_t last) {
    const auto fill = [&](int64_t y, A* lanes) {
      if (y < written) {
        load_lanes(map.for_reading(), channel, channels, y, columns.begin, window.width(), lanes);
      } else {
        std::fill(lanes, lanes + window.stride(), A(0));
      }
    };
    window.reach(first, last, [&](int64_t end) { flush(end); }, fill);
    return window;
  }

  // The window's rows above `end` are final.
  void flush(int64_t end) {
    const int64_t width = map.width;
    for (int64_t y = window.first(); y < std::min(end, window.last()); ++y) {
      if (y >= written) {
        clear_positions(map, channel, channels, written * width, y * width + columns.begin);
        clear_positions(map, channel, channels, y * width + columns.end, (y + 1) * width);
        written = y + 1;
      }
      store_lanes(window.row(y), map, channel, channels, y, columns.begin, window.width());
    }
  }
};

}  // namespace detops::cpu
