// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "../ops.h"
#include "roi_window.h"
#include "sort.h"

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

// `rois` are rows of `columns` numbers, the batch index first; level(roi) is asked for where there
// are several, top(roi) is where a RoI begins.
template <typename A, typename Level, typename Top>
Plan make_plan(const char* op, const A* rois, int64_t columns, int64_t count, int64_t images,
               int64_t levels, const Level& level, const Top& top) {
  TORCH_CHECK(count <= INT32_MAX, "detops.", op, ": at most ", INT32_MAX, " RoIs, got ", count);
  Buffer<uint64_t> keys(count);
  std::vector<int64_t> sizes(images * levels, 0);
  for (int64_t k = 0; k < count; ++k) {
    const A* roi = rois + columns * k;
    TORCH_CHECK(roi[0] >= 0 && roi[0] < A(images), "detops.", op, ": boxes[", k,
                ", 0] is a batch index and must be in [0, ", images, "), got ", roi[0]);
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

inline int64_t blocks_of(int64_t channels) { return (channels + kRoIChannels - 1) / kRoIChannels; }

// Some 16,000 outputs are worth a thread.
inline int64_t tasks_per_thread(int64_t tasks, int64_t outputs) {
  return std::max<int64_t>(1, tasks * 16384 / std::max<int64_t>(1, outputs));
}

// What one RoI reads of a map: rows [first, last) of some columns.
struct Reads {
  int64_t first, last;
  Columns columns;

  static Reads none() { return {INT32_MAX, 0, {INT32_MAX, 0}}; }

  bool empty() const { return first >= last || columns.begin >= columns.end; }
  int64_t width() const { return columns.end - columns.begin; }
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
  Footprint(int64_t height, int64_t width) : columns_{width, 0}, read_(height, 0) {}

  void add(const Reads& reads) {
    widest_ = std::max(widest_, reads.width());
    if (reads.empty()) return;
    columns_.begin = std::min(columns_.begin, reads.columns.begin);
    columns_.end = std::max(columns_.end, reads.columns.end);
    positions_ += reads.area();
    std::fill(read_.begin() + reads.first, read_.begin() + reads.last, 1);
  }

  Columns columns() const { return {std::min(columns_.begin, columns_.end), columns_.end}; }
  int64_t widest() const { return widest_; }        // columns of one RoI
  int64_t positions() const { return positions_; }  // RoI by RoI

  // RoIs that are few and far between: together they read less than the rows they touch.
  bool sparse() const {
    const int64_t rows = std::count(read_.begin(), read_.end(), 1);
    return positions_ < rows * (columns().end - columns().begin);
  }

 private:
  Columns columns_;
  int64_t widest_ = 0, positions_ = 0;
  std::vector<char> read_;
};

// Channels of a map to be brought into lanes. With whole_rows, rows of the window have all columns,
// so that positions mean the same there as on the map; columns that are not read stay empty.
struct LaneSource {
  int64_t channel, channels;
  bool whole_rows = false;
};

// A block of channels at a time: the rows that RoIs read are brought into lanes, and RoI by RoI
// pool(i, channel, channels, window) finds them there. What many RoIs read is brought in once, and
// they find it in a near cache. make_pool() gives each thread a pool of its own.
template <typename T, typename ReadsOf, typename MakePool>
void pool_from_lanes(const Planes<const T>& map, const LaneSource& source,
                     const Footprint& footprint, int64_t count, int64_t outputs,
                     const ReadsOf& reads_of, const MakePool& make_pool) {
  const int64_t blocks = blocks_of(source.channels);
  // Where there are fewer blocks than threads, threads share the RoIs of a block.
  const int64_t parts = (at::get_num_threads() + blocks - 1) / blocks;
  const bool sparse = footprint.sparse();
  const auto columns_of = [&](const Columns& read) {
    return source.whole_rows ? Columns{0, map.width} : read;
  };
  const auto share = [&](int64_t task, int64_t last_task) {
    auto pool = make_pool();
    RoIWindow<accumulate_t<T>> window(map.height);
    for (; task < last_task; ++task) {
      const int64_t first = task / parts * kRoIChannels, part = task % parts;
      const int64_t c = source.channel + first, n = std::min(kRoIChannels, source.channels - first);
      window.restart(columns_of(footprint.columns()), 0, 0);
      for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) {
        const Reads reads = reads_of(i);
        if (!reads.empty()) {
          const Columns read = sparse ? reads.columns : footprint.columns();
          if (sparse || !window.holds(reads.first, reads.last)) {
            window.restart(columns_of(read), reads.first, reads.last);
          }
          window.extend(reads.last, [&](int64_t y, auto* row) {
            load_lanes(map, c, n, y, read.begin, read.end - read.begin,
                       row + (read.begin - window.columns().begin) * kRoIChannels);
          });
        }
        pool(i, c, n, window);
      }
    }
  };
  at::parallel_for(0, blocks * parts, tasks_per_thread(blocks * parts, outputs), share);
}

}  // namespace detops::cpu
