// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <type_traits>

#include "../common/buffer.h"
#include "planes.h"

namespace detops::cpu {

struct Columns {
  int64_t begin = 0, end = 0;
};

// Bytes of a band that a near cache holds; where the call gives little, not much more than that.
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
  RoIWindow(int64_t height, int64_t tallest, int64_t bytes)
      : height_(height), tallest_(tallest), bytes_(bytes) {}

  A* data() { return lanes_.data(); }
  A* row(int64_t y) { return lanes_.data() + (y - first_) * stride(); }
  int64_t first() const { return first_; }
  int64_t last() const { return last_; }
  const Columns& columns() const { return columns_; }
  int64_t width() const { return columns_.end - columns_.begin; }
  int64_t stride() const { return width() * kRoIChannels; }

  // True if rows [first, last) are there or fit behind those that are.
  bool holds(int64_t first, int64_t last) const {
    return first >= first_ && first <= last_ && last - first_ <= capacity_;
  }

  // Empties the band and lets it begin at row `first`, with room for any RoI.
  void restart(const Columns& columns, int64_t first) {
    columns_ = columns;
    capacity_ =
        std::min(height_ - first, rows_for<A>(columns.end - columns.begin, tallest_, bytes_));
    lanes_.reserve(static_cast<size_t>(capacity_ * stride()));
    first_ = last_ = first;
  }

  // Gives up the rows above `first`; those below move up.
  void drop(int64_t first) {
    if (first <= first_) return;
    const int64_t from = std::min(first, last_);
    std::copy(row(from), row(last_), lanes_.data());
    last_ = first + last_ - from;
    first_ = first;
  }

  // Calls fill(row, lanes) for the rows that are missing up to `last`.
  template <typename Fill>
  void extend(int64_t last, Fill&& fill) {
    for (; last_ < last; ++last_) fill(last_, row(last_));
  }

 private:
  int64_t height_, tallest_, bytes_, first_ = 0, last_ = 0, capacity_ = 0;
  Columns columns_;
  Buffer<A> lanes_;
};

// A map as RoIPlanes has it: one plane of several channels, or a plane a channel.
template <typename T>
int64_t interleaved(const Planes<T>& map) {
  return map.channels_last ? map.channels : 1;
}

// Rows [begin, end) of some channels of a map, where sums can grow: the map itself, or a copy of
// one whose numbers are too short. What it gives back is in RoIPlanes' order.
template <typename T>
class GradientBand {
 public:
  using A = accumulate_t<T>;

  A* open(const Planes<T>& map, int64_t channel, int64_t channels, int64_t begin, int64_t end,
          bool fresh) {
    map_ = map, channel_ = channel, channels_ = channels, begin_ = begin, end_ = end;
    if constexpr (std::is_same_v<T, A>) {
      if (fresh) clear_positions(map, channel, channels, begin * map.width, end * map.width);
      return map.at(channel, begin, 0);
    } else {
      A* copy = copy_.reserve(channels * positions() + kRoIChannels);
      if (fresh) {
        std::fill_n(copy, channels * positions(), A(0));
      } else {
        for_each_run([&](const Planes<T>& run, int64_t at) {
          load_lanes(run.for_reading(), 0, run.channels, 0, 0, run.width, copy + at);
        });
      }
      return copy;
    }
  }

  int64_t plane_stride() const { return std::is_same_v<T, A> ? map_.stride() : positions(); }

  void close() {
    if constexpr (!std::is_same_v<T, A>) {
      for_each_run([&](const Planes<T>& run, int64_t at) {
        store_lanes(copy_.data() + at, run, 0, run.channels, 0, 0, run.width);
      });
    }
  }

 private:
  int64_t positions() const { return (end_ - begin_) * map_.width; }

  // Neighbours on both sides, as a map of kRoIChannels channels and what is left of a position.
  template <typename Convert>
  void for_each_run(const Convert& convert) {
    const int64_t together = interleaved(map_), run = positions() * together;
    const int64_t whole = run / kRoIChannels, rest = run % kRoIChannels;
    for (int64_t p = 0; p < channels_ / together; ++p) {
      T* to = map_.at(channel_ + p, begin_, 0);
      convert(Planes<T>{to, kRoIChannels, 1, whole, true}, p * run);
      if (rest > 0) {
        convert(Planes<T>{to + whole * kRoIChannels, rest, 1, 1, true}, (p + 1) * run - rest);
      }
    }
  }

  Planes<T> map_{};
  int64_t channel_ = 0, channels_ = 0, begin_ = 0, end_ = 0;
  Buffer<A> copy_;
};

// The rows of a map that are final so far: [0, written) hold sums, below them nothing is there yet.
// Sums grow in a window; what it does not reach is cleared, so each number is written about once.
template <typename T>
class GradientRows {
 public:
  using A = accumulate_t<T>;

  GradientRows(const Planes<T>& map, int64_t channel, int64_t channels, int64_t written,
               const Columns& columns, int64_t tallest)
      : map_(map),
        channel_(channel),
        channels_(channels),
        written_(written),
        columns_(columns),
        window_(map.height, tallest,
                band_bytes(channels * map.height * map.width * int64_t(sizeof(T)))) {}

  RoIWindow<A>& reach(int64_t first, int64_t last) {
    if (!window_.holds(first, last)) {
      flush(first);
      window_.drop(first);
    }
    if (!window_.holds(first, last)) {
      flush(map_.height);
      window_.restart(columns_, first);
    }
    window_.extend(last, [&](int64_t y, A* lanes) {
      if (y < written_) {
        load_lanes(map_.for_reading(), channel_, channels_, y, columns_.begin, window_.width(),
                   lanes);
      } else {
        std::fill(lanes, lanes + window_.stride(), A(0));
      }
    });
    return window_;
  }

  // The window's rows above `end` are final.
  void flush(int64_t end) {
    const int64_t width = map_.width;
    for (int64_t y = window_.first(); y < std::min(end, window_.last()); ++y) {
      if (y >= written_) {
        clear_positions(map_, channel_, channels_, written_ * width, y * width + columns_.begin);
        clear_positions(map_, channel_, channels_, y * width + columns_.end, (y + 1) * width);
        written_ = y + 1;
      }
      store_lanes(window_.row(y), map_, channel_, channels_, y, columns_.begin, window_.width());
    }
  }

  int64_t finish(bool whole) {
    flush(map_.height);
    window_.restart(columns_, 0);
    if (whole) {
      clear_positions(map_, channel_, channels_, written_ * map_.width, map_.height * map_.width);
    }
    return written_;
  }

 private:
  Planes<T> map_;
  int64_t channel_, channels_, written_;
  Columns columns_;
  RoIWindow<A> window_;
};

}  // namespace detops::cpu
