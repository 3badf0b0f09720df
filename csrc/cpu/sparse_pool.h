// SPDX-License-Identifier: MIT
#pragma once

#include "bin_rules.h"

// Ops that pool each bin of a RoI as a sparse weighted sum of one map's positions, the same for a
// share of the channels: what differs between them is the sampling, see bin_rules.h.
namespace detops::cpu {

inline void check_positions(const char* op, int64_t height, int64_t width) {
  TORCH_CHECK(height <= INT32_MAX / width, "detops.", op, ": at most ", INT32_MAX,
              " pixels a map, got ", height, " x ", width);
}

// A share's bins of one pooled RoI, as runs of neighbours: visit(row, column, bins, first bin).
template <typename T, typename Visit>
void visit_runs(const Planes<T>& pooled, const Share& share, const Visit& visit) {
  if (share.wide == pooled.width) return visit(share.top, 0, share.bins(), 0);
  for (int64_t row = 0; row < share.high; ++row) {
    visit(share.top + row, share.left, share.wide, row * share.wide);
  }
}

// Straight from a channels_last map to bins in the same layout.
template <typename T, typename PooledOf>
void sparse_forward_direct(const BinRules<accumulate_t<T>>& rules, const uint32_t* order,
                           const Share& share, const Planes<const T>& map,
                           const PooledOf& pooled_of) {
  const auto& kernel = sparse_pool_kernels<T>();
  const int64_t grain = tasks_per_thread(rules.size, rules.size * share.channels * share.bins());
  at::parallel_for(0, rules.size, grain, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) {
      const Planes<T> pooled = pooled_of(order[rules.begin + i]);
      kernel.forward({rules.rule(i), map.data + share.channel, pooled.data + share.channel,
                      share.channels, map.channels});
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
      // Straight from the map as long as a RoI's part of it stays in a near cache.
      constexpr int64_t kNear = 1 << 20;
      const int64_t window =
          rules.footprint.positions() / rules.size * share.channels * int64_t(sizeof(T));
      const bool direct = map.channels_last && pooled_of(order[begin]).channels_last;
      if (direct && window < kNear) {
        sparse_forward_direct<T>(rules, order, share, map, pooled_of);
      } else {
        sparse_forward_lanes<T>(rules, order, share, map, pooled_of);
      }
    }
  }
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
    int64_t begin = run.begin, written = 0;
    do {
      rules.build(sampling, plan.order.data(), run, begin, share, map.height, map.width);
      begin += rules.size;
      const int64_t outputs = rules.size * share.bins() + map.height * map.width;
      const int64_t written_before = written;
      at::parallel_for(
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
