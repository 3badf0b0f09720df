// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "../common/host.h"
#include "../common/sort.h"
#include "roi_window.h"

// What the RoI ops share: their order of work and their share of threads.
namespace detops::cpu {

// RoIs [begin, end) of the order of work lie on one level of one image.
struct Run {
  int64_t image, level, begin, end;
};

struct Plan {
  Buffer<uint32_t> order;  // by image, level and height in the picture
  std::vector<Run> runs;   // one for each level of each image
};

// This comes before threads share the RoIs, so that the error names the first bad one.
template <typename A>
void check_batch_indices(const char* op, const A* rois, int64_t columns, int64_t count,
                         int64_t images) {
  for (int64_t k = 0; k < count; ++k) {
    const A image = rois[columns * k];
    check(image >= 0 && image < A(images), "detops.", op, ": boxes[", k,
          ", 0] is a batch index and must be in [0, ", images, "), got ", image);
  }
}

// `rois` are rows of `columns` numbers, the batch index first; level(roi) is asked for where there
// are several, top(roi) is where a RoI begins.
template <typename A, typename Level, typename Top>
Plan make_plan(const char* op, const A* rois, int64_t columns, int64_t count, int64_t images,
               int64_t levels, const Level& level, const Top& top) {
  check_batch_indices(op, rois, columns, count, images);
  Buffer<uint64_t> keys(count);
  std::vector<int64_t> sizes(images * levels, 0);
  for (int64_t k = 0; k < count; ++k) {
    const A* roi = rois + columns * k;
    const int64_t run = static_cast<int64_t>(roi[0]) * levels + (levels == 1 ? 0 : level(roi));
    keys[k] = uint64_t(run) << 32 | uint32_t(~descending_key(static_cast<float>(top(roi))));
    ++sizes[run];
  }
  Plan plan{Buffer<uint32_t>(count), {}};
  ArgSort<uint64_t>()(count, [&](int64_t k) { return keys[k]; }, plan.order.data());
  int64_t begin = 0;
  for (int64_t run = 0; run < images * levels; ++run) {
    plan.runs.push_back({run / levels, run % levels, begin, begin + sizes[run]});
    begin += sizes[run];
  }
  return plan;
}

// Of boxes [K, 5] on one level.
template <typename A>
Plan make_plan(const char* op, const A* rois, int64_t count, int64_t images) {
  return make_plan(
      op, rois, 5, count, images, 1, [](const A*) { return 0; },
      [](const A* roi) { return roi[2]; });
}

template <typename T>
Planes<T> planes_of(const Tensor& maps, int64_t image, bool channels_last) {
  const int64_t channels = maps.size(1), height = maps.size(2), width = maps.size(3);
  auto* data = static_cast<std::remove_const_t<T>*>(const_cast<void*>(maps.const_data_ptr()));
  return {data + image * channels * height * width, channels, height, width, channels_last};
}

// Whether the pixels of a channel are neighbours.
inline bool in_planes(const Tensor& maps) { return maps.size(1) == 1 || !is_channels_last(maps); }

inline int64_t blocks_of(int64_t channels) { return divide_up(channels, kRoIChannels); }

constexpr int64_t kWorthAThread = 16384;  // outputs

inline int64_t tasks_per_thread(int64_t tasks, int64_t outputs) {
  return std::max<int64_t>(1, tasks * kWorthAThread / std::max<int64_t>(1, outputs));
}

// What one RoI reads of a map: rows [first, last) of some columns.
struct Reads {
  int64_t first, last;
  math::PixelRange columns;

  static Reads none() { return {INT32_MAX, 0, {INT32_MAX, 0}}; }

  bool empty() const { return first >= last || columns.begin >= columns.end; }
  int64_t width() const { return columns.size(); }
  int64_t area() const { return (last - first) * width(); }

  void include(const Reads& r) {
    first = std::min(first, r.first);
    last = std::max(last, r.last);
    columns.begin = std::min(columns.begin, r.columns.begin);
    columns.end = std::max(columns.end, r.columns.end);
  }
};

// What many do.
class Footprint {
 public:
  Footprint() = default;
  Footprint(int64_t height, int64_t width) : width_(width), read_(height, 0) {}

  void add(const Reads& reads) {
    widest_ = std::max(widest_, reads.width());
    tallest_ = std::max(tallest_, reads.last - reads.first);
    if (reads.empty()) return;
    all_.include(reads);
    positions_ += reads.area();
    squares_ += (reads.last - reads.first) * round_up(reads.width(), kSquare);
    std::fill(read_.begin() + reads.first, read_.begin() + reads.last, 1);
  }

  math::PixelRange columns() const {
    return {std::min(all_.columns.begin, all_.columns.end), all_.columns.end};
  }
  int64_t last() const { return all_.last; }        // the row below those that are read
  int64_t tallest() const { return tallest_; }      // rows of one RoI
  int64_t positions() const { return positions_; }  // RoI by RoI

  // The rows that are read, with all columns that are.
  int64_t area() const { return std::count(read_.begin(), read_.end(), 1) * columns().size(); }

  // Positions that are brought into lanes; from planes by squares, of which one RoI's may be empty
  // in part.
  int64_t moved(bool by_squares) const {
    return sparse() ? (by_squares ? squares_ : positions_) : area();
  }

  // RoIs that are few and far between: together they read less than the rows they touch.
  bool sparse() const { return positions_ < area(); }

  // Bytes of the least band in lanes; see RoIWindow and pool_from_lanes.
  template <typename A>
  int64_t window_bytes(bool whole_rows = false) const {
    const int64_t read = sparse() ? widest_ : columns().size();
    const int64_t width = whole_rows ? width_ : read;
    const int64_t rows =
        std::min<int64_t>(read_.size(), rows_for<A>(width, tallest_, band_bytes(0)));
    return rows * width * kRoIChannels * int64_t(sizeof(A));
  }

 private:
  static constexpr int64_t kSquare = 16;

  int64_t width_ = 0, widest_ = 0, tallest_ = 0, positions_ = 0, squares_ = 0;
  Reads all_ = Reads::none();
  std::vector<char> read_;
};

// Bins of a pooled RoI, a rectangle of them, and the channels of the output that read the map where
// these bins say.
struct Share {
  int64_t channel, channels;
  int64_t top, left, high, wide;

  int64_t bins() const { return high * wide; }
};

inline Share all_bins(const Tensor& pooled) {
  return {0, pooled.size(1), 0, 0, pooled.size(2), pooled.size(3)};
}

// One RoI on some channels of a map as they are; backward, on its rows [row_begin, row_end), with
// which `map` begins.
template <typename Taps, typename M, typename P>
struct PoolTask {
  using A = accumulate_t<std::remove_const_t<M>>;
  Taps taps;
  M* map;
  int64_t width, channels, channel_stride, position_stride;
  P* pooled;  // from the first bin on, `wide` a row
  int64_t wide, pooled_row_stride, pooled_channel_stride, bin_stride;
  int64_t row_begin, row_end;
  A* scratch;

  int64_t row_stride() const { return width * position_stride; }
};

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
  bool near;              // all channels of the pixels of a RoI fit into the L2 cache
  int64_t moved;          // positions that are brought into lanes
  int64_t copied;         // and, for the other paths, into numbers that sums can grow in
  int64_t scratch, most;  // bytes that lanes take, and may take
};

// What some RoIs take on each path, in cycles: for kPlanes a channel, for kPositions a vector of
// channels, for kLanes a vector of the lanes. The constants are rounded from measurements.
struct RoICost {
  double lanes;  // of a vector
  double planes = 0, positions = 0, in_lanes = 0;

  RoIPath best(const RoIMap& map) const {
    // A vector that is not full is read and written in part, which takes twice as long.
    const double channels = double(map.channels), full = std::floor(channels / lanes);
    const double vectors = full + (full * lanes < channels ? 2 : 0);
    const double blocks = std::ceil(channels / double(kRoIChannels));
    const double copy = 2 * double(map.copied) * channels / lanes;
    // To add is to read and to write.
    const double once = map.backward ? 1.7 : 1, far = map.near ? 1 : 1.5;
    const double by_planes = once * planes * channels + copy;
    const double by_positions =
        map.channels_last ? once * far * positions * vectors + copy : by_planes;
    // A square of positions and channels is transposed on its way from planes.
    const double move = double(map.moved) * (map.channels_last ? 6 : 12);
    const double by_lanes = (in_lanes + move) * blocks * double(kRoIChannels) / lanes;
    if (map.scratch <= map.most && by_lanes < std::min(by_planes, by_positions)) {
      return RoIPath::kLanes;
    }
    return by_positions < by_planes ? RoIPath::kPositions : RoIPath::kPlanes;
  }
};

constexpr int64_t kNearCache = 1 << 19;

// Bound of the scratch memory of a call: some L2 caches, or the size of its result.
inline int64_t scratch_for(int64_t result_bytes) { return std::max(3 * kNearCache, result_bytes); }

// Planes [plane, plane + planes) of a map, and RoIs or rows [begin, end).
struct PlaneTask {
  int64_t plane, planes, begin, end;
};

// Blocks of planes, of each of which threads share RoIs or rows [0, length) where blocks are fewer.
struct PlaneTasks {
  int64_t planes, block, length, least_parts = 1;
  int64_t blocks = divide_up(planes, block);
  int64_t parts = std::min(length, std::max(least_parts, divide_up(get_num_threads(), blocks)));

  // Blocks of planes that fit into the L2 cache if RoIs read each position more than twice:
  // `read` positions in total, of `area`.
  static PlaneTasks of_rois(int64_t planes, int64_t plane_bytes, int64_t rois, int64_t read,
                            int64_t area) {
    return {planes, read <= 2 * area ? planes : near(planes, plane_bytes), rois};
  }

  // Bands of rows in which a gradient is summed, each owned by one thread. A copy of a band is at
  // most an eighth of the feature map, or one L2 cache.
  static PlaneTasks of_rows(int64_t planes, int64_t height, int64_t row_bytes, bool copied) {
    const int64_t plane_bytes = height * row_bytes, block = near(planes, plane_bytes);
    const int64_t most = std::max(kNearCache, planes * plane_bytes / 8);
    return {planes, block, height, copied ? divide_up(block * plane_bytes, most) : 1};
  }

  static int64_t near(int64_t planes, int64_t plane_bytes) {
    return std::clamp<int64_t>(kNearCache / plane_bytes, 1, planes);
  }

  int64_t size() const { return blocks * parts; }
  PlaneTask operator[](int64_t i) const {
    const int64_t plane = i / parts * block, part = i % parts;
    return {plane, std::min(block, planes - plane), length * part / parts,
            length * (part + 1) / parts};
  }
};

// A block of channels at a time: the rows that RoIs read are brought into lanes, and RoI by RoI
// pool(i, channel, channels, window) finds them there. Rows that many RoIs read are
// brought in once, and stay in the L2 cache. make_pool() gives each thread a pool of its own. With
// whole_rows, rows of the window have all columns, so that positions mean the same there as on the
// map; columns that are not read stay empty.
template <typename T, typename ReadsOf, typename MakePool>
void pool_from_lanes(const Planes<const T>& map, const Share& share, bool whole_rows,
                     const Footprint& footprint, int64_t count, const ReadsOf& reads_of,
                     const MakePool& make_pool) {
  const int64_t blocks = blocks_of(share.channels);
  const int64_t outputs = count * share.channels * share.bins();
  // Where there are fewer blocks than threads, threads share the RoIs of a block.
  const int64_t parts = divide_up(get_num_threads(), blocks);
  const bool sparse = footprint.sparse();
  const auto columns_of = [&](const math::PixelRange& read) {
    return whole_rows ? math::PixelRange{0, map.width} : read;
  };
  const int64_t grain = tasks_per_thread(blocks * parts, outputs);
  parallel_for(blocks * parts, grain, [&](int64_t task, int64_t last_task) {
    auto pool = make_pool();
    RoIWindow<accumulate_t<T>> window(map.height, footprint.tallest(),
                                      band_bytes(outputs * int64_t(sizeof(T))),
                                      columns_of(footprint.columns()));
    for (; task < last_task; ++task) {
      const int64_t first = task / parts * kRoIChannels, part = task % parts;
      const int64_t c = share.channel + first, n = std::min(kRoIChannels, share.channels - first);
      if (!sparse) window.restart(window.columns(), 0);
      for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) {
        const Reads reads = reads_of(i);
        if (!reads.empty()) {
          const math::PixelRange read = sparse ? reads.columns : footprint.columns();
          if (sparse) window.restart(columns_of(read), reads.first);
          const auto fill = [&](int64_t y, auto* row) {
            load_lanes(map, c, n, y, read.begin, read.size(),
                       row + (read.begin - window.columns().begin) * kRoIChannels);
          };
          window.reach(reads.first, reads.last, [](int64_t) {}, fill);
        }
        pool(i, c, n, window);
      }
    }
  });
}

}  // namespace detops::cpu
