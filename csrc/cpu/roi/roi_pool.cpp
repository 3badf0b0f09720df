// SPDX-License-Identifier: MIT
#include "../../math/roi_pool.h"
#include "../common/host.h"
#include "roi_plan.h"

namespace detops::cpu {

// One RoI on a map of which either one position's channels are neighbours, and so are those of a
// bin, or one channel's positions, and so are its bins.
template <typename T>
struct RoIPoolTile {
  const math::PixelRange *rows, *cols;  // of each bin
  int64_t pooled_height, pooled_width;
  const T* map;  // where position (0, 0) is, or would be
  int64_t row_stride, col_stride, channel_stride;
  int64_t width;  // of the whole map: an index is y * width + x
  int64_t channels;
  T* pooled;
  int32_t* argmax;
  int64_t bin_stride;
};

}  // namespace detops::cpu

#define DETOPS_KERNELS "../roi/roi_pool.inl"
#include "../simd/variants.h"

namespace detops::cpu {
namespace {

// The pixels of a RoI's bins, which are `high` rows of `wide`: those of the rows, then of the
// columns.
template <typename A>
void fill_ranges(const A* roi, A scale, const Tensor& maps, int64_t high, int64_t wide,
                 math::PixelRange* out) {
  const auto row = math::pool_axis(roi[2], roi[4], scale, 1, high);
  const auto col = math::pool_axis(roi[1], roi[3], scale, 1, wide);
  for (int64_t p = 0; p < high; ++p) *out++ = math::bin_range(row, p, maps.size(2));
  for (int64_t p = 0; p < wide; ++p) *out++ = math::bin_range(col, p, maps.size(3));
}

// The same of all RoIs, in the order of work.
class BinRanges {
 public:
  template <typename A>
  BinRanges(const A* rois, A scale, const Plan& plan, const Tensor& maps, const Tensor& output)
      : high_(output.size(2)), wide_(output.size(3)), ranges_(output.size(0) * (high_ + wide_)) {
    parallel_each(output.size(0), 256, [&](int64_t i) {
      fill_ranges(rois + 5 * int64_t(plan.order[i]), scale, maps, high_, wide_,
                  ranges_.data() + i * (high_ + wide_));
    });
  }

  const math::PixelRange* rows(int64_t i) const { return ranges_.data() + i * (high_ + wide_); }
  const math::PixelRange* cols(int64_t i) const { return rows(i) + high_; }

  Reads reads(int64_t i) const {
    const math::PixelRange *r = rows(i), *c = cols(i);
    return {r[0].begin, r[high_ - 1].end, {c[0].begin, c[wide_ - 1].end}};
  }

  // A maximum takes a comparison and two choices, and those of planes run side by side; there, bins
  // with the pixels of the one before are copied.
  void add_to(RoICost& cost, int64_t i) const {
    const math::PixelRange *r = rows(i), *c = cols(i);
    double down = 0, across = 0, new_down = 0, steps = 0, new_rows = 0, new_cols = 0;
    for (int64_t p = 0; p < high_; ++p) {
      const double n = double(r[p].size());
      down += n;
      if (p == 0 || !math::same(r[p], r[p - 1])) new_down += n, ++new_rows;
    }
    for (int64_t p = 0; p < wide_; ++p) {
      const double n = double(c[p].size());
      across += n;
      if (p > 0 && math::same(c[p], c[p - 1])) continue;
      steps += n < cost.lanes ? 2 * n : 3 * std::ceil(n / cost.lanes);
      ++new_cols;
    }
    const double bins = double(high_ * wide_);
    cost.planes += new_down * steps + 10 * new_rows * new_cols + 0.3 * bins;
    cost.in_lanes += 3 * down * across + 12 * bins;
  }

 private:
  int64_t high_, wide_;
  Buffer<math::PixelRange> ranges_;
};

// Whether an order of the RoIs costs more than it saves: they are many, and planes few and near.
bool in_turn(const Tensor& maps, int64_t count) {
  constexpr int64_t kMany = 64, kFewChannels = 4, kNear = 1 << 20;
  return count >= kMany && maps.size(1) <= kFewChannels && in_planes(maps) &&
         int64_t(maps.nbytes()) <= kNear * maps.size(0);
}

// RoI by RoI as they come.
template <typename T, typename A = accumulate_t<T>>
void forward_in_turn(const Tensor& maps, const Tensor& output, const Tensor& argmax, const A* rois,
                     A scale) {
  const int64_t count = output.size(0), channels = maps.size(1),
                pixels = maps.size(2) * maps.size(3);
  const int64_t high = output.size(2), wide = output.size(3), numbers = channels * high * wide;
  check_batch_indices("roi_pool", rois, 5, count, maps.size(0));
  T* pooled = mutable_elements<T>(output);
  int32_t* index = argmax.mutable_data_ptr<int32_t>();
  const auto pool = DETOPS_IN_USE(roi_pool_forward_planes<T>);
  parallel_for(count, tasks_per_thread(count, output.numel()), [&](int64_t k, int64_t end) {
    Buffer<math::PixelRange> ranges(high + wide);
    for (; k < end; ++k) {
      fill_ranges(rois + 5 * k, scale, maps, high, wide, ranges.data());
      const T* map = elements<T>(maps) + static_cast<int64_t>(rois[5 * k]) * channels * pixels;
      pool({ranges.data(), ranges.data() + high, high, wide, map, maps.size(3), 1, pixels,
            maps.size(3), channels, pooled + k * numbers, index + k * numbers, 1});
    }
  });
}

template <typename T>
struct Forward {
  using A = accumulate_t<T>;
  const Tensor &maps, &output, &argmax;
  const A* rois;  // [K, 5]
  const A scale;
  const Plan plan = make_plan("roi_pool", rois, output.size(0), maps.size(0));
  const BinRanges ranges{rois, scale, plan, maps, output};
  const int64_t channels = output.size(1), ph = output.size(2), pw = output.size(3);
  T* const pooled = mutable_elements<T>(output);
  int32_t* const index = argmax.mutable_data_ptr<int32_t>();

  // Straight from a channels_last map.
  void direct() const {
    const int64_t count = output.size(0), grain = tasks_per_thread(count, output.numel());
    parallel_each(count, grain, [&](int64_t i) {
      const int64_t k = plan.order[i], to = k * channels * ph * pw;
      const auto map = planes_of<const T>(maps, static_cast<int64_t>(rois[5 * k]), true);
      DETOPS_IN_USE(roi_pool_forward<T>)
      ({ranges.rows(i), ranges.cols(i), ph, pw, map.data, map.width * channels, channels, 1,
        map.width, channels, pooled + to, index + to, channels});
    });
  }

  // Planes of NCHW, or the one plane of one channel.
  void planes(const Run& run, const Planes<const T>& map, const Footprint& footprint) const {
    const int64_t count = run.end - run.begin, pixels = map.height * map.width;
    const auto tasks = PlaneTasks::of_rois(channels, pixels * int64_t(sizeof(T)), count,
                                           footprint.positions(), footprint.area());
    const int64_t grain = tasks_per_thread(tasks.size(), count * channels * ph * pw);
    parallel_each(tasks.size(), grain, [&](int64_t task) {
      const PlaneTask t = tasks[task];
      for (int64_t i = run.begin + t.begin; i < run.begin + t.end; ++i) {
        const int64_t to = (plan.order[i] * channels + t.plane) * ph * pw;
        DETOPS_IN_USE(roi_pool_forward_planes<T>)
        ({ranges.rows(i), ranges.cols(i), ph, pw, map.data + t.plane * pixels, map.width, 1, pixels,
          map.width, t.planes, pooled + to, index + to, 1});
      }
    });
  }

  void lanes(const Run& run, const Planes<const T>& map, const Footprint& footprint) const {
    const int64_t count = run.end - run.begin, bins = ph * pw, numbers = bins * kRoIChannels;
    const auto make_pool = [&] {
      return [&, best = Buffer<A>(numbers), where = Buffer<int32_t>(numbers)](
                 int64_t i, int64_t c, int64_t n, RoIWindow<A>& window) mutable {
        i += run.begin;
        DETOPS_IN_USE(roi_pool_forward<A>)
        ({ranges.rows(i), ranges.cols(i), ph, pw, window.origin(), window.stride(), kRoIChannels, 1,
          map.width, kRoIChannels, best.data(), where.data(), kRoIChannels});
        const int64_t k = plan.order[i];
        store_lanes(best.data(), planes_of<T>(output, k, false), c, n, 0, 0, bins);
        store_lanes(where.data(), planes_of<int32_t>(argmax, k, false), c, n, 0, 0, bins);
      };
    };
    pool_from_lanes(
        map, all_bins(output), false, footprint, count,
        [&](int64_t i) { return ranges.reads(run.begin + i); }, make_pool);
  }

  void run(bool channels_last) const {
    if (channels_last && channels > 1) return direct();
    for (const Run& run : plan.runs) {
      if (run.begin == run.end) continue;
      const auto map = planes_of<const T>(maps, run.image, false);
      Footprint footprint(map.height, map.width);
      RoICost cost{double(DETOPS_IN_USE(kLanes<A>))};
      for (int64_t i = run.begin; i < run.end; ++i) {
        footprint.add(ranges.reads(i));
        ranges.add_to(cost, i);
      }
      const int64_t buffers = ph * pw * kRoIChannels * int64_t(sizeof(A) + sizeof(int32_t));
      const RoIPath path =
          cost.best({false, channels, false, true, footprint.moved(true), 0,
                     footprint.window_bytes<A>() + buffers, scratch_for(int64_t(output.nbytes()))});
      if (path == RoIPath::kLanes) {
        lanes(run, map, footprint);
      } else {
        planes(run, map, footprint);
      }
    }
  }
};

// Sums of the few numbers of a map that gradients reach, by their place on it.
template <typename A>
class ReachedSums {
 public:
  void restart(int64_t most) {
    shift_ = 63;
    while ((uint64_t(1) << (64 - shift_)) < uint64_t(2 * most)) --shift_;
    last_ = (uint64_t(1) << (64 - shift_)) - 1;
    std::fill_n(slots_.reserve(last_ + 1), last_ + 1, Slot{-1, 0});
  }

  A& operator[](int64_t place) {
    uint64_t i = uint64_t(place) * 0x9e3779b97f4a7c15u >> shift_;
    while (slots_[i].place >= 0 && slots_[i].place != place) i = (i + 1) & last_;
    slots_[i].place = place;
    return slots_[i].sum;
  }

  template <typename T>
  void store(T* map) const {
    for (uint64_t i = 0; i <= last_; ++i) {
      if (slots_[i].place >= 0) math::from_float(slots_[i].sum, map[slots_[i].place]);
    }
  }

 private:
  struct Slot {
    int64_t place;
    A sum;
  };

  int shift_ = 63;
  uint64_t last_ = 0;  // slot
  Buffer<Slot> slots_;
};

// Indices that are compared at once: most bins are in the rows of one thread.
constexpr int64_t kTogether = 64;

bool any_in(const int32_t* index, int64_t count, int64_t first, int64_t size) {
  const auto low = static_cast<int32_t>(first), high = static_cast<int32_t>(first + size);
  int32_t any = 0;
  for (int64_t k = 0; k < count; ++k) any |= -int32_t((index[k] >= low) & (index[k] < high));
  return any != 0;
}

// Threads own a block of channels of an image, or rows of it: no two write the same element, and
// each element adds its RoIs in the order of the plan, so the bits do not depend on the number of
// threads.
template <typename T, typename A = accumulate_t<T>>
void backward(const Tensor& grad, const Tensor& rois, const Tensor& argmax, Tensor& maps) {
  constexpr bool kInPlace = std::is_same_v<T, A>;
  constexpr int64_t kFew = 32;  // a sum of its own costs as much as so many of a copy of the map
  const bool channels_last = is_channels_last(maps);
  const int64_t images = maps.size(0), channels = maps.size(1);
  const int64_t pixels = maps.size(2) * maps.size(3), bins = grad.size(2) * grad.size(3);
  const int64_t pixel_stride = channels_last ? channels : 1;
  const int64_t channel_stride = channels_last ? 1 : pixels;
  const Plan plan = make_plan("roi_pool_backward", rois.const_data_ptr<A>(), rois.size(0), images);
  const T* pooled = elements<T>(grad);
  const int32_t* index = argmax.const_data_ptr<int32_t>();
  const int64_t work = maps.numel() + grad.numel();
  // A copy of a block that is cheap to bring back is as wide as lanes are. In channels_last threads
  // share the rows where images are fewer: what some channels of a bin take is too short to be
  // read at full speed.
  int64_t size = kRoIChannels, parts = 1;
  if (channels_last && kInPlace) {
    const int64_t threads =
        std::min<int64_t>(get_num_threads(), work / effective_grain(kWorthAThread));
    size = channels, parts = std::clamp<int64_t>(threads / images, 1, maps.size(2));
  } else if (kInPlace || (!channels_last && channels < 4)) {  // as many planes as stay near
    constexpr int64_t kNear = 1 << 20;
    size = std::clamp<int64_t>(kNear / (pixels * int64_t(sizeof(A))), 1, kRoIChannels);
  }
  const int64_t blocks = divide_up(channels, size);
  const int64_t tasks = images * blocks * parts;
  parallel_for(tasks, tasks_per_thread(tasks, work), [&](int64_t task, int64_t end) {
    Buffer<A> lanes;
    GradientBand<T> band;
    ReachedSums<A> reached;
    for (; task < end; ++task) {
      const Run& run = plan.runs[task / (blocks * parts)];
      const int64_t c = task / parts % blocks * size, n = std::min(size, channels - c);
      const auto map = planes_of<T>(maps, run.image, channels_last);
      const int64_t part = task % parts, top = map.height * part / parts;
      const int64_t bottom = map.height * (part + 1) / parts;
      const int64_t above = top * map.width, owned = (bottom - top) * map.width;
      // Calls add(channel, pixel, gradient) for the bins of all RoIs, with the pixels that they
      // were taken from.
      const auto add_all = [&](const auto add) {
        for (int64_t i = run.begin; i < run.end; ++i) {
          const int64_t first = plan.order[i] * channels * bins;
          const auto add_one = [=](int64_t channel, int64_t at) {
            // The indices are an argument, which may hold anything; a negative one, and one that
            // is above, is a large unsigned one.
            const auto pixel = static_cast<uint32_t>(index[at]) - static_cast<uint32_t>(above);
            if (pixel < owned) add(channel, int64_t(pixel), A(math::to_float(pooled[at])));
          };
          if (channels_last) {
            for (int64_t bin = 0; bin < bins; ++bin) {
              const int64_t at = first + bin * channels;
              for (int64_t j = c; j < c + n; j += kTogether) {
                const int64_t some = std::min(kTogether, c + n - j);
                if (parts > 1 && !any_in(index + at + j, some, above, owned)) continue;
                for (int64_t k = j; k < j + some; ++k) add_one(k, at + k);
              }
            }
          } else {
            for (int64_t j = c; j < c + n; ++j) {
              for (int64_t bin = 0; bin < bins; ++bin) add_one(j, first + j * bins + bin);
            }
          }
        }
      };
      const auto add_to = [&](A* sums, int64_t from_pixel, int64_t from_channel) {
        add_all([=](int64_t channel, int64_t pixel, A g) {
          sums[pixel * from_pixel + (channel - c) * from_channel] += g;
        });
      };
      const int64_t gradients = (run.end - run.begin) * n * bins;
      if (!kInPlace && gradients * kFew <= n * pixels) {
        clear_positions(map, c, n, 0, pixels);
        reached.restart(gradients);
        add_all([&](int64_t channel, int64_t pixel, A g) {
          reached[channel * channel_stride + pixel * pixel_stride] += g;
        });
        reached.store(map.data);
      } else if (kInPlace || (n < kRoIChannels && (!channels_last || n == channels))) {
        add_to(band.open(map, c, n, top, bottom, true), pixel_stride, channel_stride);
        band.close();
      } else {
        lanes.reserve(pixels * kRoIChannels);
        std::fill_n(lanes.data(), pixels * kRoIChannels, A(0));
        add_to(lanes.data(), kRoIChannels, 1);
        store_lanes(lanes.data(), map, c, n, 0, 0, pixels);
      }
    }
  });
}

}  // namespace

void roi_pool_forward(const Tensor& input, const Tensor& rois, double spatial_scale, int64_t,
                      int64_t, Tensor& output, Tensor& argmax) {
  const bool channels_last = is_channels_last(input);
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const Tensor wide_rois = wide(rois, input.scalar_type());
  with_element_type(input.scalar_type(), [&](auto element) {
    using T = decltype(element);
    using A = accumulate_t<T>;
    const A *roi = wide_rois.const_data_ptr<A>(), scale = static_cast<A>(spatial_scale);
    if (in_turn(maps, output.size(0))) {
      forward_in_turn<T>(maps, output, argmax, roi, scale);
    } else {
      Forward<T>{maps, output, argmax, roi, scale}.run(channels_last);
    }
  });
}

void roi_pool_backward(const Tensor& grad, const Tensor&, const Tensor& rois, const Tensor& argmax,
                       double, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, Tensor& maps) {
  const auto format = maps.suggest_memory_format();
  const Tensor pooled = to_memory_format(grad, format), index = argmax.contiguous(format);
  const Tensor wide_rois = wide(rois, grad.scalar_type());
  with_element_type(grad.scalar_type(), [&](auto element) {
    backward<decltype(element)>(pooled, wide_rois, index, maps);
  });
}

}  // namespace detops::cpu
