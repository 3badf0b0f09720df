// SPDX-License-Identifier: MIT
#pragma once

#include "roi_cost.h"
#include "roi_plan.h"
#include "roi_rules.h"

// The ways that RoIAlign takes from a map to its RoIs and back; see RoIPath.
namespace detops::cpu {

// RoIs [begin, begin + size) of a run with their rules, what they read of the map, and what they
// cost.
template <typename A>
struct RoIBatch {
  RoIRules<A> rules;
  int64_t begin = 0, size = 0;
  Footprint footprint;
  int64_t most_taps = 0;  // of columns

  Reads reads(int64_t i) const {
    const AxisRule<A> r = rules.rows(i), c = rules.cols(i);
    return {r.first, r.first + r.extent, {c.first, c.first + c.extent}};
  }

  // See RoIRules::build.
  template <typename Axes>
  void build(int64_t first, int64_t most, int64_t taps, int64_t height, int64_t width,
             int64_t pooled_height, int64_t pooled_width, const Axes& axes_of) {
    begin = first;
    size = rules.build(most, taps, height, width, pooled_height, pooled_width, axes_of);
    footprint = Footprint(height, width);
    most_taps = 0;
    for (int64_t i = 0; i < size; ++i) {
      footprint.add(reads(i));
      most_taps = std::max(most_taps, rules.cols(i).taps());
    }
  }

  // Of all paths but lanes, for each thread.
  int64_t scratch(int64_t interleaved) const {
    return std::max(footprint.widest() * interleaved, most_taps);
  }
};

// All pooled RoIs, in the layout of their map.
template <typename T>
struct PooledRoIs {
  T* data;
  const uint32_t* order;
  int64_t height, width;

  int64_t bins() const { return height * width; }
  // Those of RoI i of the order of work.
  Planes<T> planes(int64_t i, int64_t channels, bool channels_last) const {
    return {data + order[i] * channels * bins(), channels, height, width, channels_last};
  }
};

template <typename A, typename T>
RoIPath path_of(const RoIBatch<A>& batch, const Planes<T>& map, int64_t pooled_height,
                int64_t pooled_width, bool backward, int64_t most) {
  using M = std::remove_const_t<T>;
  const Footprint& f = batch.footprint;
  const int64_t buffers = (pooled_width + f.widest()) * pooled_height * kRoIChannels;
  RoICost cost(roi_align_kernels<M>().lanes);
  for (int64_t i = 0; i < batch.size; ++i) cost.add(batch.rules.rows(i), batch.rules.cols(i));
  return cost.best({backward, map.channels, map.channels_last,
                    f.near(batch.size, map.channels * int64_t(sizeof(T))),
                    f.moved(!backward && !map.channels_last),
                    backward && !std::is_same_v<M, A> ? map.height * map.width : 0,
                    f.template window_bytes<A>() + buffers * int64_t(sizeof(A)), most});
}

// A vector holds channels of one position.
template <typename T>
void forward_positions(const RoIBatch<accumulate_t<T>>& batch, const Planes<const T>& map,
                       const PooledRoIs<T>& pooled) {
  const auto& kernel = roi_align_kernels<T>();
  const int64_t grain = tasks_per_thread(batch.size, batch.size * map.channels * pooled.bins());
  parallel_for(0, batch.size, grain, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      kernel.forward({batch.rules.rows(i), batch.rules.cols(i), map.data, map.width, map.channels,
                      pooled.planes(batch.begin + i, map.channels, true).data, 0, 0});
    }
  });
}

template <typename T>
void forward_planes(const RoIBatch<accumulate_t<T>>& batch, const Planes<const T>& map,
                    const PooledRoIs<T>& pooled) {
  const auto& kernel = roi_align_kernels<T>();
  const int64_t together = interleaved(map), pixels = map.height * map.width;
  const PlaneTasks tasks(map.channels / together, pixels * together * int64_t(sizeof(T)),
                         batch.size, batch.footprint);
  const int64_t outputs = batch.size * map.channels * pooled.bins();
  parallel_for(
      0, tasks.size(), tasks_per_thread(tasks.size(), outputs), [&](int64_t task, int64_t last) {
        Buffer<accumulate_t<T>> scratch(batch.scratch(together));
        for (; task < last; ++task) {
          const PlaneTask t = tasks[task];
          for (int64_t i = t.begin; i < t.end; ++i) {
            const auto out = pooled.planes(batch.begin + i, map.channels, map.channels_last);
            kernel.forward_planes({batch.rules.rows(i), batch.rules.cols(i),
                                   map.data + t.plane * pixels, map.width * together, pixels,
                                   t.planes, together, out.at(t.plane, 0, 0), 0, 0,
                                   scratch.data()});
          }
        }
      });
}

template <typename T>
void forward_lanes(const RoIBatch<accumulate_t<T>>& batch, const Planes<const T>& map,
                   const PooledRoIs<T>& pooled) {
  using A = accumulate_t<T>;
  const auto& kernel = roi_align_kernels<T>();
  const int64_t bins = pooled.bins();
  const auto make_pool = [&] {
    return [&, lanes = Buffer<A>(bins * kRoIChannels),
            scratch = Buffer<A>(pooled.height * batch.footprint.widest() * kRoIChannels)](
               int64_t i, int64_t c, int64_t n, RoIWindow<A>& window) mutable {
      kernel.forward_lanes({batch.rules.rows(i), batch.rules.cols(i), window.data(), window.first(),
                            window.columns().begin, window.stride(), scratch.data()},
                           lanes.data());
      store_lanes(lanes.data(), pooled.planes(batch.begin + i, map.channels, map.channels_last), c,
                  n, 0, 0, bins);
    };
  };
  pool_from_lanes(
      map, {0, map.channels}, batch.footprint, batch.size, batch.size * map.channels * bins,
      [&](int64_t i) { return batch.reads(i); }, make_pool);
}

// Threads own bands of rows of some channels: no two write the same element, and each element adds
// its RoIs in the order of the plan, so the bits do not depend on the number of threads, nor on
// where a band begins. `fresh`: nothing is on the map yet.
template <typename T>
void backward_in_place(const RoIBatch<accumulate_t<T>>& batch, const Planes<T>& map,
                       const PooledRoIs<const T>& pooled, RoIPath path, bool fresh) {
  using A = accumulate_t<T>;
  const auto& kernel = roi_align_kernels<T>();
  const int64_t together = interleaved(map);
  const BandTasks tasks(map.channels / together, map.height,
                        map.width * together * int64_t(sizeof(A)), !std::is_same_v<T, A>);
  const int64_t outputs = map.channels * (batch.size * pooled.bins() + map.height * map.width);
  const int64_t grain = tasks_per_thread(tasks.size(), outputs);
  parallel_for(0, tasks.size(), grain, [&](int64_t task, int64_t last) {
    Buffer<A> scratch(batch.scratch(together));
    GradientBand<T> band;
    for (; task < last; ++task) {
      const BandTask t = tasks[task];
      A* sums = band.open(map, t.plane, t.planes * together, t.begin, t.end, fresh);
      for (int64_t i = 0; i < batch.size; ++i) {
        const AxisRule<A> rows = batch.rules.rows(i), cols = batch.rules.cols(i);
        if (rows.first >= t.end || rows.first + rows.extent <= t.begin || cols.extent == 0)
          continue;
        const auto grad = pooled.planes(batch.begin + i, map.channels, map.channels_last);
        if (path == RoIPath::kPositions) {
          kernel.backward({rows, cols, sums, map.width, map.channels, grad.data, t.begin, t.end});
        } else {
          kernel.backward_planes({rows, cols, sums, map.width * together, band.plane_stride(),
                                  t.planes, together, grad.at(t.plane, 0, 0), t.begin, t.end,
                                  scratch.data()});
        }
      }
      band.close();
    }
  });
}

// Threads own a block of channels: as above, but each number of the map is written about once.
// Returns how many rows are final so far; `written` are those of the batches before.
template <typename T>
int64_t backward_lanes(RoIBatch<accumulate_t<T>>& batch, const Planes<T>& map,
                       const PooledRoIs<const T>& pooled, int64_t written, bool whole) {
  using A = accumulate_t<T>;
  const auto& kernel = roi_align_kernels<T>();
  const int64_t blocks = blocks_of(map.channels), bins = pooled.bins();
  const int64_t outputs = map.channels * (batch.size * bins + map.height * map.width);
  const Columns columns = batch.footprint.columns();
  int64_t written_now = written;
  batch.rules.transpose();
  parallel_for(
      0, blocks, tasks_per_thread(blocks, outputs), [&](int64_t block, int64_t last_block) {
        Buffer<A> lanes(bins * kRoIChannels),
            scratch(pooled.height * batch.footprint.widest() * kRoIChannels);
        for (; block < last_block; ++block) {
          const int64_t c = block * kRoIChannels, n = std::min(kRoIChannels, map.channels - c);
          GradientRows<T> rows(map, c, n, written, columns);
          for (int64_t i = 0; i < batch.size; ++i) {
            const AxisRule<A> row_rule = batch.rules.rows(i), col_rule = batch.rules.cols(i);
            if (row_rule.extent == 0 || col_rule.extent == 0) continue;
            load_lanes(pooled.planes(batch.begin + i, map.channels, map.channels_last), c, n, 0, 0,
                       bins, lanes.data());
            RoIWindow<A>& window = rows.reach(row_rule.first, row_rule.first + row_rule.extent);
            kernel.backward_lanes({row_rule, col_rule, window.data(), window.first(), columns.begin,
                                   window.stride(), scratch.data()},
                                  lanes.data());
          }
          const int64_t now = rows.finish(whole);
          if (block == 0) written_now = now;
        }
      });
  return written_now;
}

}  // namespace detops::cpu
