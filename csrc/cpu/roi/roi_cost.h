// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "../../math/roi_pool.h"
#include "roi_align_kernels.h"

namespace detops::cpu {

// The ways from a map to its RoIs and back. What is best depends on how much of what is moved is
// read.
enum class RoIPath {
  kPositions,  // an [H, W, C] map as it is: a vector holds channels of one position
  kPlanes,     // any map as it is: number by number, or a vector of one row
  kLanes,      // blocks of channels are brought into lanes first, for many RoIs at once
};

// What else the choice hangs on.
struct RoIMap {
  bool backward;
  int64_t channels;
  bool channels_last;     // the map and its RoIs
  bool near;              // what a RoI reads of all channels stays in a near cache
  int64_t moved;          // positions that are brought into lanes
  int64_t copied;         // and, for the other paths, into numbers that sums can grow in
  int64_t scratch, most;  // bytes that lanes take, and may take
};

// What a batch of RoIs takes on each path, in cycles: for kPlanes a channel, for kPositions a
// vector of channels, for kLanes a vector of the lanes. The constants are rounded from
// measurements.
class RoICost {
 public:
  explicit RoICost(int64_t lanes) : lanes_(double(lanes)) {}

  template <typename A>
  void add(const AxisRule<A>& rows, const AxisRule<A>& cols) {
    const double r = double(rows.taps()), c = double(cols.taps());
    const double bins = double(rows.pooled) * double(cols.pooled);
    // See rows_first in roi_planes.inl.
    const double by_rows =
        r * (double(cols.extent) / lanes_ + 2) + double(rows.pooled) * (1.5 * c) + 4 * bins;
    planes_ += std::min(r * c + 4 * bins, by_rows);
    positions_ += 2 * r * c + 3 * bins;
    in_lanes_ += 2.2 * (r * double(cols.extent) + double(rows.pooled) * c) + 8 * bins;
  }

  // A maximum takes a comparison and two choices, and those of planes run side by side; there, bins
  // with the pixels of the one before are copied.
  void add(const math::PixelRange* rows, int64_t height, const math::PixelRange* cols,
           int64_t width) {
    double down = 0, across = 0, new_down = 0, steps = 0, new_rows = 0, new_cols = 0;
    for (int64_t p = 0; p < height; ++p) {
      const double n = double(rows[p].end - rows[p].begin);
      down += n;
      if (p == 0 || !math::same(rows[p], rows[p - 1])) new_down += n, ++new_rows;
    }
    for (int64_t p = 0; p < width; ++p) {
      const double n = double(cols[p].end - cols[p].begin);
      across += n;
      if (p > 0 && math::same(cols[p], cols[p - 1])) continue;
      steps += n < lanes_ ? 2 * n : 3 * std::ceil(n / lanes_);
      ++new_cols;
    }
    const double bins = double(height) * double(width);
    planes_ += new_down * steps + 10 * new_rows * new_cols + 0.3 * bins;
    positions_ += 3 * down * across + 6 * bins;
    in_lanes_ += 3 * down * across + 12 * bins;
  }

  // Bins as lists of taps.
  void add(double taps, double bins) {
    planes_ += 1.5 * taps + 4 * bins;
    positions_ += 2 * taps + 3 * bins;
    in_lanes_ += 2.2 * taps + 8 * bins;
  }

  RoIPath best(const RoIMap& map) const {
    // A vector that is not full is read and written in part, which takes twice as long.
    const double channels = double(map.channels), full = std::floor(channels / lanes_);
    const double vectors = full + (full * lanes_ < channels ? 2 : 0);
    const double blocks = std::ceil(channels / double(kRoIChannels));
    const double copy = 2 * double(map.copied) * channels / lanes_;
    // To add is to read and to write.
    const double once = map.backward ? 1.7 : 1, far = map.near ? 1 : 1.5;
    const double planes = once * planes_ * channels + copy;
    const double positions = map.channels_last ? once * far * positions_ * vectors + copy : planes;
    // A square of positions and channels is transposed on its way from planes.
    const double move = double(map.moved) * (map.channels_last ? 6 : 12);
    const double lanes = (in_lanes_ + move) * blocks * double(kRoIChannels) / lanes_;
    if (map.scratch <= map.most && lanes < std::min(planes, positions)) return RoIPath::kLanes;
    return positions < planes ? RoIPath::kPositions : RoIPath::kPlanes;
  }

 private:
  double lanes_, planes_ = 0, positions_ = 0, in_lanes_ = 0;
};

}  // namespace detops::cpu
