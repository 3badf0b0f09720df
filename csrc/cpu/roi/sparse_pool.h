// SPDX-License-Identifier: MIT
#pragma once

#include "bin_rules.h"
#include "roi_cost.h"

// Ops that pool each bin of a RoI as a sparse weighted sum of one map's positions, the same for a
// share of the channels: what differs between them is the sampling, see bin_rules.h.
namespace detops::cpu {

inline void check_positions(const char* op, int64_t height, int64_t width) {
  check(height <= INT32_MAX / width, "detops.", op, ": at most ", INT32_MAX, " pixels a map, got ",
        height, " x ", width);
}

// A share's bins of one pooled RoI, as runs of neighbours: visit(row, column, bins, first bin).
template <typename T, typename Visit>
void visit_runs(const Planes<T>& pooled, const Share& share, const Visit& visit) {
  if (share.wide == pooled.width) return visit(share.top, 0, share.bins(), 0);
  for (int64_t row = 0; row < share.high; ++row) {
    visit(share.top + row, share.left, share.wide, row * share.wide);
  }
}

// How the planes of a share and its bins of one RoI lie.
template <typename M, typename P>
SparsePlanes<M, P> sparse_planes(const BinRule<accumulate_t<std::remove_const_t<M>>>& rule,
                                 const Planes<M>& map, const Share& share,
                                 const Planes<P>& pooled) {
  const int64_t bin_stride = pooled.channels_last ? pooled.channels : 1;
  return {rule,
          map.at(share.channel, 0, 0),
          share.channels,
          map.channels_last ? 1 : map.stride(),
          map.channels_last ? map.channels : 1,
          pooled.at(share.channel, share.top, share.left),
          share.wide,
          pooled.width * bin_stride,
          pooled.channels_last ? 1 : pooled.stride(),
          bin_stride,
          0,
          map.height * map.width};
}

// kPositions: straight from a channels_last map to bins in the same layout. kPlanes: any layouts.
template <typename T, typename PooledOf>
void sparse_forward_direct(const BinRules<accumulate_t<T>>& rules, const uint32_t* order,
                           const Share& share, const Planes<const T>& map, RoIPath path,
                           const PooledOf& pooled_of) {
  const auto& kernel = sparse_pool_kernels<T>();
  const int64_t grain = tasks_per_thread(rules.size, rules.size * share.channels * share.bins());
  parallel_for(0, rules.size, grain, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const Planes<T> pooled = pooled_of(order[rules.begin + i]);
      if (path == RoIPath::kPositions) {
        kernel.forward({rules.rule(i), map.data + share.channel, pooled.data + share.channel,
                        share.channels, map.channels, 0, 0});
      } else {
        kernel.forward_planes(sparse_planes(rules.rule(i), map, share, pooled));
      }
    }
  });
}

template <typename T, typename PooledOf>
void sparse_forward_lanes(const BinRules<accumulate_t<T>>& rules, const uint32_t* order,
                          const Share& share, const Planes<const T>& map,
                          const PooledOf& pooled_of) {
  using A = accumulate_t<T>;
  const auto& kernel = sparse_pool_kernels<T>();
  const auto make_pool = [&] {
    return [&, lanes = Buffer<A>(share.bins() * kRoIChannels)](int64_t i, int64_t c, int64_t n,
                                                               RoIWindow<A>& window) mutable {
      kernel.forward_lanes({rules.rule(i), window.data(), window.first() * map.width},
                           lanes.data());
      const Planes<T> pooled = pooled_of(order[rules.begin + i]);
      visit_runs(pooled, share, [&](int64_t row, int64_t col, int64_t bins, int64_t bin) {
        store_lanes(lanes.data() + bin * kRoIChannels, pooled, c, n, row, col, bins);
      });
    };
  };
  pool_from_lanes(
      map, {share.channel, share.channels, true}, rules.footprint, rules.size,
      rules.size * share.channels * share.bins(), [&](int64_t i) { return rules.reads(i); },
      make_pool);
}

template <typename A, typename T>
RoIPath sparse_path(const BinRules<A>& rules, const Share& share, const Planes<T>& map, bool direct,
                    bool backward, int64_t most) {
  using M = std::remove_const_t<T>;
  const Footprint& f = rules.footprint;
  RoICost cost(sparse_pool_kernels<M>().lanes);
  for (int64_t i = 0; i < rules.size; ++i) {
    const BinRule<A> rule = rules.rule(i);
    cost.add(double(rule.begin[rule.bins]), double(rule.bins));
  }
  const int64_t lanes = share.bins() * kRoIChannels * int64_t(sizeof(A));
  return cost.best({backward, share.channels, direct,
                    f.near(rules.size, share.channels * int64_t(sizeof(T))), f.moved(),
                    backward && !std::is_same_v<M, A> ? map.height * map.width : 0,
                    f.template window_bytes<A>(true) + lanes, most});
}

// map_of(image) and pooled_of(roi) give planes of which channel c of the output reads and writes
// number c.
template <typename T, typename Sampling, typename MapOf, typename PooledOf>
void sparse_forward(const Sampling& sampling, const Plan& plan, const Share& share,
                    const MapOf& map_of, const PooledOf& pooled_of) {
  BinRules<accumulate_t<T>> rules;
  const uint32_t* order = plan.order.data();
  for (const Run& run : plan.runs) {
    for (int64_t begin = run.begin; begin < run.end; begin += rules.size) {
      const Planes<const T> map = map_of(run.image);
      rules.build(sampling, order, run, begin, share, map.height, map.width);
      const bool direct = map.channels_last && pooled_of(order[begin]).channels_last;
      const int64_t result = rules.size * share.channels * share.bins() * int64_t(sizeof(T));
      const RoIPath path = sparse_path(rules, share, map, direct, false, scratch_for(result));
      if (path == RoIPath::kLanes) {
        sparse_forward_lanes<T>(rules, order, share, map, pooled_of);
      } else {
        sparse_forward_direct<T>(rules, order, share, map, path, pooled_of);
      }
    }
  }
}

// In place; threads own bands of rows of some channels. See backward_in_place in roi_align_paths.h.
template <typename T, typename PooledOf>
void sparse_backward_in_place(const BinRules<accumulate_t<T>>& rules, const uint32_t* order,
                              const Share& share, const Planes<T>& map, RoIPath path, bool fresh,
                              const PooledOf& pooled_of) {
  using A = accumulate_t<T>;
  const auto& kernel = sparse_pool_kernels<T>();
  const int64_t together = map.channels_last ? share.channels : 1;
  const BandTasks tasks(share.channels / together, map.height,
                        map.width * together * int64_t(sizeof(A)), !std::is_same_v<T, A>);
  const int64_t outputs = rules.size * share.bins() + map.height * map.width;
  const int64_t grain = tasks_per_thread(tasks.size(), share.channels * outputs);
  parallel_for(0, tasks.size(), grain, [&](int64_t task, int64_t last) {
    GradientBand<T> band;
    for (; task < last; ++task) {
      const BandTask t = tasks[task];
      const Share part{share.channel + t.plane,
                       t.planes * together,
                       share.top,
                       share.left,
                       share.high,
                       share.wide};
      A* sums = band.open(map, part.channel, part.channels, t.begin, t.end, fresh);
      const int64_t first = t.begin * map.width, positions = (t.end - t.begin) * map.width;
      for (int64_t i = 0; i < rules.size; ++i) {
        const Reads& reads = rules.reads(i);
        if (reads.empty() || reads.first >= t.end || reads.last <= t.begin) continue;
        const Planes<const T> pooled = pooled_of(order[rules.begin + i]);
        if (path == RoIPath::kPositions) {
          kernel.backward({rules.rule(i), sums, pooled.data + part.channel, part.channels,
                           map.channels, first, positions});
        } else {
          const auto planes = sparse_planes(rules.rule(i), map.for_reading(), part, pooled);
          kernel.backward_planes(
              {planes.rule, sums, planes.channels, map.channels_last ? 1 : band.plane_stride(),
               planes.position_stride, planes.pooled, planes.wide, planes.pooled_row_stride,
               planes.pooled_channel_stride, planes.bin_stride, first, positions});
        }
      }
      band.close();
    }
  });
}

// Threads own a block of channels: no two write the same element, and each element adds its RoIs in
// the order of the plan, so the bits do not depend on the number of threads.
template <typename T, typename Sampling, typename MapOf, typename PooledOf>
void sparse_backward(const Sampling& sampling, const Plan& plan, const Share& share,
                     const MapOf& map_of, const PooledOf& pooled_of) {
  using A = accumulate_t<T>;
  const auto& kernel = sparse_pool_kernels<T>();
  const int64_t blocks = blocks_of(share.channels);
  BinRules<A> rules;
  for (const Run& run : plan.runs) {
    const Planes<T> map = map_of(run.image);
    // Some channels of all are no run of neighbours, and are not copied.
    const bool whole = !map.channels_last || share.channels == map.channels;
    RoIPath path = RoIPath::kPlanes;
    int64_t begin = run.begin, written = 0;
    do {
      rules.build(sampling, plan.order.data(), run, begin, share, map.height, map.width);
      const bool fresh = begin == run.begin;
      begin += rules.size;
      if (fresh && rules.size > 0) {
        const bool direct = map.channels_last && pooled_of(plan.order[rules.begin]).channels_last;
        const int64_t result = share.channels * map.height * map.width * int64_t(sizeof(T));
        path = sparse_path(rules, share, map, direct, true, scratch_for(result));
        if (!whole && !std::is_same_v<T, A>) path = RoIPath::kLanes;
      }
      if (path != RoIPath::kLanes && (whole || std::is_same_v<T, A>)) {
        sparse_backward_in_place<T>(rules, plan.order.data(), share, map, path, fresh, pooled_of);
        continue;
      }
      const int64_t outputs = rules.size * share.bins() + map.height * map.width;
      const int64_t written_before = written;
      parallel_for(
          0, blocks, tasks_per_thread(blocks, share.channels * outputs),
          [&](int64_t block, int64_t last_block) {
            Buffer<A> lanes(share.bins() * kRoIChannels);
            for (; block < last_block; ++block) {
              const int64_t first = block * kRoIChannels, c = share.channel + first;
              const int64_t n = std::min(kRoIChannels, share.channels - first);
              GradientRows<T> rows(map, c, n, written_before, {0, map.width});
              for (int64_t i = 0; i < rules.size; ++i) {
                const Reads& reads = rules.reads(i);
                if (reads.empty()) continue;
                const Planes<const T> pooled = pooled_of(plan.order[rules.begin + i]);
                visit_runs(pooled, share, [&](int64_t row, int64_t col, int64_t bins, int64_t bin) {
                  load_lanes(pooled, c, n, row, col, bins, lanes.data() + bin * kRoIChannels);
                });
                RoIWindow<A>& window = rows.reach(reads.first, reads.last);
                kernel.backward_lanes({rules.rule(i), window.data(), window.first() * map.width},
                                      lanes.data());
              }
              const int64_t now = rows.finish(begin == run.end);
              if (block == 0) written = now;
            }
          });
    } while (begin < run.end);
  }
}

}  // namespace detops::cpu
