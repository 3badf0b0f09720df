// SPDX-License-Identifier: MIT
#include "deform_conv2d.h"

#include "../common/element_type.h"
#include "../common/memory.h"

namespace detops::cpu {
namespace {

// A block of channels of a slice.
struct Block {
  int64_t slice, channel, channels;
};

template <typename T>
void forward(const DeformGeometry& g, const Tensor& input, const Tensor& offset, const Tensor& mask,
             const Tensor& weight, const Tensor& bias, Tensor& output) {
  using A = accumulate_t<T>;
  const std::vector<DeformSlice> slices = deform_slices(g, std::max(g.channels, kRoIChannels));
  const int64_t points = g.points(), positions = g.positions();
  std::vector<Block> blocks;
  std::vector<int64_t> first_weight{0};
  int64_t deepest = 0;
  for (const DeformSlice& s : slices) {
    for (int64_t c = 0; c < s.channels; c += kRoIChannels) {
      blocks.push_back({static_cast<int64_t>(first_weight.size()) - 1, s.channel + c,
                        std::min(kRoIChannels, s.channels - c)});
    }
    deepest = std::max(deepest, s.channels * points);
    first_weight.push_back(first_weight.back() + s.outputs * s.group_channels() * points);
  }
  Buffer<A> packed(first_weight.back());
  parallel_for(0, slices.size(), 1, [&](int64_t s, int64_t end) {
    for (; s < end; ++s) {
      pack_weight(g, slices[s], weight.const_data_ptr<A>(), packed.data() + first_weight[s]);
    }
  });

  const int64_t tile = deform_tile<A>(g, deepest), tiles = (positions + tile - 1) / tile;
  const DeformMap map = deform_map(g);
  const int64_t n_blocks = static_cast<int64_t>(blocks.size());
  constexpr int64_t kBytes = 64 << 20;  // of maps at a time
  const int64_t at_once =
      std::clamp<int64_t>(kBytes / int64_t(sizeof(A)) / (n_blocks * map.size()), 1, g.images);
  Buffer<A> maps(at_once * n_blocks * map.size());
  for (int64_t first = 0; first < g.images; first += at_once) {
    const int64_t images = std::min(at_once, g.images - first);
    const int64_t rows = map.rows();
    parallel_for(0, images * n_blocks * rows, 32, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) {
        const int64_t row = i % rows, block = i / rows % n_blocks, image = i / rows / n_blocks;
        const Block& b = blocks[block];
        map.load_row(deform_planes<const T>(g, input, first + image), b.channel, b.channels, row,
                     maps.data() + (image * n_blocks + block) * map.size());
      }
    });
    each_task(images * tiles, [&](int64_t task, int64_t last) {
      DeformTile<A> taps(g, offset.const_data_ptr<A>(),
                         mask.defined() ? mask.const_data_ptr<A>() : nullptr,
                         std::min(tile, positions));
      Buffer<A> columns(taps.stride() * deepest + taps.kRoom);
      for (; task < last; ++task) {
        const int64_t image = task / tiles, begin = task % tiles * tile;
        const int64_t count = std::min(tile, positions - begin);
        taps.move(first + image, begin, count);
        for (int64_t group = 0; group < g.offset_groups; ++group) taps.locate(group);
        for (int64_t block = 0; block < n_blocks;) {
          const int64_t slice = blocks[block].slice;
          const DeformSlice& s = slices[slice];
          for (; block < n_blocks && blocks[block].slice == slice; ++block) {
            const Block& b = blocks[block];
            const A* from = maps.data() + (image * n_blocks + block) * map.size();
            each_run(
                g, s, b.channel, b.channel + b.channels, [&](const DeformRun& run, int64_t group) {
                  DETOPS_IN_USE(deform_gather<A>)(
                      taps.block(s, run, group, from, run.channel - b.channel, columns.data()));
                });
          }
          for (int64_t group = 0; group < s.groups; ++group) {
            DeformProduct t = deform_product(g, s, group, output, first + image, begin, count,
                                             columns.data() + group * taps.column_size(s),
                                             packed.data() + first_weight[slice]);
            if (bias.defined()) {
              const int64_t n = s.group_outputs();
              t.outputs.copy_(bias.narrow(0, s.output + group * n, n));
              addmm_out(t.outputs, t.outputs, t.columns, t.weight.t());
            } else {
              mm_out(t.outputs, t.columns, t.weight.t());
            }
          }
        }
      }
    });
  }
}

}  // namespace

void deform_conv2d_forward(const Tensor& input, const Tensor& offset,
                           const std::optional<Tensor>& mask, const Tensor& weight,
                           const std::optional<Tensor>& bias, IntArrayRef stride,
                           IntArrayRef padding, IntArrayRef dilation, Tensor& output) {
  expect_writes(output);
  const DeformGeometry g(input, offset, weight, stride, padding, dilation);
  const Tensor maps = input.contiguous(input.suggest_memory_format());
  const ScalarType type = compute_type(input.scalar_type());
  const auto widened = [type](const auto& t) { return wide(t, type); };
  Tensor sums =
      output.scalar_type() == type ? output : empty_like(output, output.options().dtype(type));
  with_element_type(input.scalar_type(), [&](auto element) {
    forward<decltype(element)>(g, maps, widened(offset), widened(mask), widened(weight),
                               widened(bias), sums);
  });
  if (!sums.is_same(output)) output.copy_(sums);
}

}  // namespace detops::cpu
