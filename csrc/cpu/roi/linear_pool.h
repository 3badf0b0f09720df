// SPDX-License-Identifier: MIT
#pragma once

#include "roi_plan.h"

#include "../simd/variants.h"

// Ops whose bins are weighted sums of one map's positions, the same for a share of the channels. To
// be included after all other headers, by a file that defines DETOPS_KERNELS: the kernels for
// ProductTaps (roi_align.inl) or BinTaps (bin_pool.inl).
namespace detops::cpu {

// Some RoIs of a run with their taps, in tables that threads fill side by side, and what they read
// of the map.
template <typename Table>
class Batch {
 public:
  int64_t size = 0, pixels = 0;
  int64_t scratch = 0, lane_scratch = 0;  // numbers that kernels take, in place and in lanes
  Footprint footprint;

  int64_t roi(int64_t i) const { return order_[i]; }
  auto taps(int64_t i) const { return tables_[i / Table::kRoIs][i % Table::kRoIs]; }

  // The first of `rois` RoIs, as many as have some `most_taps` taps together, at least one;
  // sampling.taps(roi) is a guess of their number.
  template <typename Sampling, typename M>
  void build(const Sampling& sampling, const uint32_t* order, int64_t rois, const Share& share,
             const Planes<M>& map, int64_t most_taps) {
    constexpr int64_t kMost = 1024;
    const int64_t most = std::min(rois, kMost);
    order_ = order;
    size = 0;
    for (double taps = 0; size < most && taps < double(most_taps);) {
      taps += sampling.taps(order[size++]);
    }
    for_each_table([&](Table& table, int64_t i, int64_t end) {
      table.clear();
      for (; i < end; ++i) table.add(sampling, order[i], share, map.height, map.width);
    });
    footprint = Footprint(map.height, map.width);
    pixels = scratch = lane_scratch = 0;
    for (int64_t i = 0; i < size; ++i) {
      const auto of_roi = taps(i);
      footprint.add(of_roi.reads());
      pixels += of_roi.pixels();
      scratch = std::max(scratch, of_roi.scratch(map.channels_last ? share.channels : 1));
      lane_scratch = std::max(lane_scratch, of_roi.lane_scratch());
    }
  }

  // For the backward pass in lanes, which goes by positions of the map.
  void transpose() {
    for_each_table([](Table& table, int64_t, int64_t) { table.transpose(); });
  }

 private:
  template <typename Run>
  void for_each_table(const Run& run) {
    const int64_t count = divide_up(size, Table::kRoIs);
    if (int64_t(tables_.size()) < count) tables_.resize(count);
    parallel_for(count, 1, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) {
        run(tables_[i], i * Table::kRoIs, std::min((i + 1) * Table::kRoIs, size));
      }
    });
  }

  const uint32_t* order_ = nullptr;
  std::vector<Table> tables_;
};

// `sums` are the rows [row_begin, row_end) of the share's channels, or the map's own numbers.
template <typename Taps, typename M, typename T, typename P>
PoolTask<Taps, M, P> pool_task(const Taps& taps, M* sums, int64_t channel_stride,
                               const Planes<T>& map, const Share& share, const Planes<P>& pooled,
                               int64_t row_begin, int64_t row_end,
                               accumulate_t<std::remove_const_t<M>>* scratch) {
  const int64_t bin_stride = pooled.channels_last ? pooled.channels : 1;
  return {taps,
          sums,
          map.width,
          share.channels,
          map.channels_last ? 1 : channel_stride,
          map.channels_last ? map.channels : 1,
          pooled.at(share.channel, share.top, share.left),
          share.wide,
          pooled.width * bin_stride,
          pooled.channels_last ? 1 : pooled.stride(),
          bin_stride,
          row_begin,
          row_end,
          scratch};
}

// A share's bins of one pooled RoI, as runs of neighbours: visit(row, column, bins, first bin).
template <typename T, typename Visit>
void visit_runs(const Planes<T>& pooled, const Share& share, const Visit& visit) {
  if (share.wide == pooled.width) return visit(share.top, 0, share.bins(), 0);
  for (int64_t row = 0; row < share.high; ++row) {
    visit(share.top + row, share.left, share.wide, row * share.wide);
  }
}

// Forward where M is const, else backward.
template <typename Table, typename M, typename PooledOf>
RoIPath path_of(const Batch<Table>& batch, const Share& share, const Planes<M>& map,
                int64_t result_bytes, const PooledOf& pooled_of) {
  using T = std::remove_const_t<M>;
  using A = accumulate_t<T>;
  constexpr bool kBackward = !std::is_const_v<M>;
  constexpr int64_t kNear = 1 << 20;
  const Footprint& f = batch.footprint;
  const int64_t read = f.positions() / std::max<int64_t>(1, batch.size);
  const int64_t buffers = share.bins() * kRoIChannels + batch.lane_scratch;
  RoICost cost{double(DETOPS_IN_USE(kLanes<A>))};
  for (int64_t i = 0; i < batch.size; ++i) batch.taps(i).add_to(cost);
  const bool direct =
      map.channels_last && (batch.size == 0 || pooled_of(batch.roi(0)).channels_last);
  return cost.best({kBackward, share.channels, direct,
                    read * share.channels * int64_t(sizeof(T)) < kNear,
                    f.moved(!kBackward && !map.channels_last),
                    kBackward && !std::is_same_v<T, A> ? map.height * map.width : 0,
                    f.template window_bytes<A>(Table::kWholeRows) + buffers * int64_t(sizeof(A)),
                    scratch_for(result_bytes)});
}

// By a kernel for kPositions or kPlanes, forward where M is const. `rois` are a Batch, or what has
// its members; `fresh`: nothing is on the map yet.
//
// Backward, threads own bands of rows of some channels: no two write the same element, and each
// element adds its RoIs in the order of the plan, so the bits do not depend on the number of
// threads, nor on where a band begins.
template <typename M, typename RoIs, typename Kernel, typename PooledOf>
void run_in_place(const RoIs& rois, const Share& share, const Planes<M>& map, Kernel kernel,
                  bool fresh, const PooledOf& pooled_of) {
  using T = std::remove_const_t<M>;
  using A = accumulate_t<T>;
  constexpr bool kForward = std::is_const_v<M>;
  const int64_t together = map.channels_last ? share.channels : 1;
  const int64_t planes = share.channels / together, row = map.width * together;
  // A pixel that is read brings a line of a cache with it.
  const int64_t read = std::min(rois.footprint.positions(), 64 / int64_t(sizeof(T)) * rois.pixels);
  const auto tasks = kForward ? PlaneTasks::of_rois(planes, map.height * row * int64_t(sizeof(T)),
                                                    rois.size, read, rois.footprint.area())
                              : PlaneTasks::of_rows(planes, map.height, row * int64_t(sizeof(A)),
                                                    !std::is_same_v<T, A>);
  const int64_t cleared = kForward ? 0 : map.height * map.width;
  const int64_t outputs = share.channels * (rois.size * share.bins() + cleared);
  const int64_t grain = tasks_per_thread(tasks.size(), outputs);
  parallel_for(tasks.size(), grain, [&](int64_t task, int64_t last) {
    Buffer<A> scratch(rois.scratch);
    GradientBand<T> band;
    for (; task < last; ++task) {
      const PlaneTask t = tasks[task];
      Share part = share;
      part.channel += t.plane, part.channels = t.planes * together;
      if constexpr (kForward) {
        for (int64_t i = t.begin; i < t.end; ++i) {
          kernel(pool_task(rois.taps(i), map.at(part.channel, 0, 0), map.stride(), map, part,
                           pooled_of(rois.roi(i)), 0, 0, scratch.data()));
        }
      } else {
        A* sums = band.open(map, part.channel, part.channels, t.begin, t.end, fresh);
        for (int64_t i = 0; i < rois.size; ++i) {
          const auto taps = rois.taps(i);
          const Reads reads = taps.reads();
          if (reads.empty() || reads.first >= t.end || reads.last <= t.begin) continue;
          kernel(pool_task(taps, sums, band.plane_stride(), map, part, pooled_of(rois.roi(i)),
                           t.begin, t.end, scratch.data()));
        }
        band.close();
      }
    }
  });
}

template <typename T, typename Table, typename PooledOf>
void pool_in_lanes(const Batch<Table>& batch, const Share& share, const Planes<const T>& map,
                   const PooledOf& pooled_of) {
  using A = accumulate_t<T>;
  const auto make_pool = [&] {
    return [&, lanes = Buffer<A>(share.bins() * kRoIChannels),
            scratch = Buffer<A>(batch.lane_scratch)](int64_t i, int64_t c, int64_t n,
                                                     RoIWindow<A>& window) mutable {
      DETOPS_IN_USE(pool_lanes<A>)
      (batch.taps(i), window.origin(), window.stride(), scratch.data(), lanes.data());
      const Planes<T> pooled = pooled_of(batch.roi(i));
      visit_runs(pooled, share, [&](int64_t row, int64_t col, int64_t bins, int64_t bin) {
        store_lanes(lanes.data() + bin * kRoIChannels, pooled, c, n, row, col, bins);
      });
    };
  };
  pool_from_lanes(
      map, share, Table::kWholeRows, batch.footprint, batch.size,
      [&](int64_t i) { return batch.taps(i).reads(); }, make_pool);
}

// Threads own a block of channels: as in place, but each number of the map is written about once.
// So many rows are `written` by the batches before.
template <typename T, typename Table, typename PooledOf>
void spread_in_lanes(Batch<Table>& batch, const Share& share, const Planes<T>& map, int64_t written,
                     bool last_batch, const PooledOf& pooled_of) {
  using A = accumulate_t<T>;
  const int64_t blocks = blocks_of(share.channels);
  const int64_t outputs = share.channels * (batch.size * share.bins() + map.height * map.width);
  const math::PixelRange columns =
      Table::kWholeRows ? math::PixelRange{0, map.width} : batch.footprint.columns();
  batch.transpose();
  parallel_for(blocks, tasks_per_thread(blocks, outputs), [&](int64_t block, int64_t end) {
    Buffer<A> lanes(share.bins() * kRoIChannels), scratch(batch.lane_scratch);
    GradientRows<T> rows{map, columns, batch.footprint.tallest()};
    for (; block < end; ++block) {
      const int64_t first = block * kRoIChannels, c = share.channel + first;
      const int64_t n = std::min(kRoIChannels, share.channels - first);
      rows.restart(c, n, written);
      for (int64_t i = 0; i < batch.size; ++i) {
        const auto taps = batch.taps(i);
        const Reads reads = taps.reads();
        if (reads.empty()) continue;
        const Planes<const T> pooled = pooled_of(batch.roi(i));
        visit_runs(pooled, share, [&](int64_t row, int64_t col, int64_t bins, int64_t bin) {
          load_lanes(pooled, c, n, row, col, bins, lanes.data() + bin * kRoIChannels);
        });
        RoIWindow<A>& window = rows.reach(reads.first, reads.last);
        DETOPS_IN_USE(spread_lanes<A>)
        (taps, window.origin(), window.stride(), scratch.data(), lanes.data());
      }
      rows.flush(map.height);
      if (last_batch) {
        clear_positions(map, c, n, rows.written * map.width, map.height * map.width);
      }
    }
  });
}

// The RoIs of one run: forward where M is const, else what the map gets from them. pooled_of(roi)
// gives planes of which channel c is that of the map and sampling is what the table asks for;
// result_bytes are those of all that the call gives.
template <typename Table, typename M, typename Sampling, typename PooledOf>
void pool_run(Batch<Table>& batch, const Sampling& sampling, const uint32_t* order, const Run& run,
              const Share& share, const Planes<M>& map, int64_t result_bytes,
              const PooledOf& pooled_of) {
  using T = std::remove_const_t<M>;
  constexpr bool kForward = std::is_const_v<M>;
  // Lanes of a channels_last map are less than the copy in NCHW that one would make otherwise.
  const int64_t copy = map.channels * map.height * map.width * int64_t(sizeof(T));
  const int64_t most = kForward && map.channels_last ? std::max(result_bytes, copy) : result_bytes;
  // Taps of a gradient, of 8 bytes each and with copies, are to take little beside it.
  const int64_t taps = kForward
                           ? Table::kMostTaps
                           : std::clamp(result_bytes / 64, Table::kLeastTaps, Table::kMostTaps);
  // Some channels of all are no run of neighbours, and are not copied.
  const bool copied = !kForward && map.channels_last && share.channels < map.channels &&
                      !std::is_same_v<T, accumulate_t<T>>;
  RoIPath path = RoIPath::kLanes;
  int64_t begin = run.begin, written = 0;
  do {
    batch.build(sampling, order + begin, run.end - begin, share, map, taps);
    const bool fresh = begin == run.begin;
    // One path serves all batches of a gradient: what they leave behind differs.
    if (kForward || (fresh && !copied)) path = path_of(batch, share, map, most, pooled_of);
    begin += batch.size;
    const bool by_positions = path == RoIPath::kPositions;
    if constexpr (kForward) {
      if (path == RoIPath::kLanes) {
        pool_in_lanes(batch, share, map, pooled_of);
      } else {
        const auto pool =
            by_positions ? DETOPS_IN_USE(pool_positions<T>) : DETOPS_IN_USE(pool_planes<T>);
        run_in_place(batch, share, map, pool, fresh, pooled_of);
      }
    } else if (path == RoIPath::kLanes) {
      spread_in_lanes(batch, share, map, written, begin == run.end, pooled_of);
      written = std::max(written, batch.footprint.last());
    } else {
      const auto spread =
          by_positions ? DETOPS_IN_USE(spread_positions<T>) : DETOPS_IN_USE(spread_planes<T>);
      run_in_place(batch, share, map, spread, fresh, pooled_of);
    }
  } while (begin < run.end);
}

// All RoIs of a plan, in the layout of the maps: forward where M is const, else backward.
// sampling_of(level) is what the table asks for.
template <typename Table, typename M, typename P, typename SamplingOf>
void pool_plan(const Plan& plan, TensorList maps, const Tensor& pooled,
               const SamplingOf& sampling_of) {
  const bool channels_last = is_channels_last(maps[0]);
  const auto pooled_of = [&](int64_t k) { return planes_of<P>(pooled, k, channels_last); };
  Batch<Table> batch;
  for (const Run& run : plan.runs) {
    const Tensor& level = maps[run.level];
    const auto map = planes_of<M>(level, run.image, channels_last);
    const Tensor& result = std::is_const_v<M> ? pooled : level;
    pool_run(batch, sampling_of(run.level), plan.order.data(), run, all_bins(pooled), map,
             result.nbytes(), pooled_of);
  }
}

}  // namespace detops::cpu
