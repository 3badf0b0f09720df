// SPDX-License-Identifier: MIT
#include <algorithm>
#include <vector>

#include "../../ops.h"

#define DETOPS_KERNELS "../masks/masks_to_rle.inl"
#include "../simd/variants.h"

namespace detops {
namespace {

using namespace cpu;

// A mask in the compressed RLE format of COCO: the lengths of its runs down the columns, starting
// with a run of zeros. From the fourth on, each is stored as the difference from the length two
// before it. A number is split into groups of five bits, low ones first. Each group becomes the
// character 48 + group, plus 32 if more groups follow. The highest bit of the last group is the
// sign.
class RunLengths {
 public:
  // Ends a run at the pixel where the value changes, counted down the columns.
  void change_at(int64_t pixel) {
    if (size_ + kMaxGroups > text_.size()) text_.resize(2 * text_.size() + 256);
    const int64_t length = pixel - begin_;
    int64_t rest = length - second_previous_;
    for (bool more = true; more;) {
      const int64_t group = rest & 31;
      rest >>= 5;
      more = rest != ((group & 16) ? -1 : 0);
      text_[size_++] = static_cast<uint8_t>(48 + group + (more ? 32 : 0));
    }
    second_previous_ = previous_;
    previous_ = first_ ? 0 : length;  // the third length is stored as it is
    first_ = false;
    begin_ = pixel;
  }

  const uint8_t* text() const { return text_.data(); }
  int64_t size() const { return static_cast<int64_t>(size_); }

 private:
  static constexpr size_t kMaxGroups = 7;  // groups for 33 bits and a sign

  std::vector<uint8_t> text_;
  size_t size_ = 0;
  int64_t begin_ = 0, previous_ = 0, second_previous_ = 0;
  bool first_ = true;
};

// Pixel (y, x) is data[y * row_stride + x * column_stride]. A run ends where the byte changes.
struct Mask {
  const uint8_t* data;
  int64_t height, width, row_stride, column_stride;
};

// In column order, the first pixel of a column follows the last one of the previous column.
bool starts_with_change(const Mask& m, int64_t x) {
  const uint8_t before =
      x == 0 ? 0 : m.data[(m.height - 1) * m.row_stride + (x - 1) * m.column_stride];
  return m.data[x * m.column_stride] != before;
}

// Positions where a pixel differs from the one above it, by row. Row y has the columns[k] with
// row_end[y - 1] <= k < row_end[y].
struct Changes {
  std::vector<uint32_t> columns;
  std::vector<int64_t> row_end;
};

struct Encoder {
  // Sorts the changes, which are few, by column, and writes the runs.
  void write(const Mask& m, const Changes& changes, RunLengths& runs) {
    const int64_t count = changes.row_end[m.height - 1];
    column_end_.assign(m.width + 1, 0);
    for (int64_t k = 0; k < count; ++k) ++column_end_[changes.columns[k] + 1];
    for (int64_t x = 0; x < m.width; ++x) column_end_[x + 1] += column_end_[x];
    if (row_of_.size() < size_t(count)) row_of_.resize(count);
    for (int64_t y = 1, k = 0; y < m.height; ++y) {
      for (; k < changes.row_end[y]; ++k) {
        row_of_[column_end_[changes.columns[k]]++] = static_cast<uint32_t>(y);
      }
    }
    for (int64_t x = 0, k = 0; x < m.width; ++x) {
      if (starts_with_change(m, x)) runs.change_at(x * m.height);
      for (; k < column_end_[x]; ++k) runs.change_at(x * m.height + row_of_[k]);
    }
    runs.change_at(m.height * m.width);
  }

  // Encodes a mask whose columns are contiguous in memory.
  void encode_columns(Mask m, RunLengths& runs) {
    constexpr int64_t kBlock = 4096;
    uint32_t list[kBlock];
    const int64_t height = m.height, pixels = m.height * m.width;
    if (m.column_stride == height) m.height = pixels, m.width = 1;
    for (int64_t x = 0; x < m.width; ++x) {
      if (starts_with_change(m, x)) runs.change_at(x * height);
      const uint8_t* column = m.data + x * m.column_stride;
      for (int64_t y = 1; y < m.height; y += kBlock) {
        const int64_t n = std::min(kBlock, m.height - y);
        const int64_t count = differences_(column + y - 1, column + y, n, list);
        for (int64_t k = 0; k < count; ++k) runs.change_at(x * height + y + list[k]);
      }
    }
    runs.change_at(pixels);
  }

  // Encodes a mask whose rows are contiguous in memory by comparing each row with the one above it.
  // Several short rows are compared at once if they are adjacent in memory.
  void encode_rows(const Mask& m, RunLengths& runs) {
    constexpr int64_t kShortRow = 128, kPixelsPerBlock = 1 << 14;
    const int64_t rows_per_block =
        m.width < kShortRow && m.row_stride == m.width ? kPixelsPerBlock / m.width : 1;
    auto& columns = changes_.columns;
    changes_.row_end.assign(m.height, 0);
    int64_t count = 0;
    for (int64_t y = 1; y < m.height;) {
      const int64_t rows = std::min(rows_per_block, m.height - y), pixels = rows * m.width;
      if (count + pixels > int64_t(columns.size())) columns.resize(2 * columns.size() + pixels);
      const uint8_t* row = m.data + y * m.row_stride;
      const int64_t end =
          count + differences_(row - m.row_stride, row, pixels, columns.data() + count);
      for (int64_t begin = 0; begin < pixels; begin += m.width, ++y) {
        if (rows == 1) count = end;
        for (; count < end && columns[count] < begin + m.width; ++count) {
          columns[count] -= static_cast<uint32_t>(begin);
        }
        changes_.row_end[y] = count;
      }
    }
    write(m, changes_, runs);
  }

  int64_t (*differences_)(const uint8_t* a, const uint8_t* b, int64_t n,
                          uint32_t* list) = DETOPS_IN_USE(differences);
  Changes changes_;
  std::vector<uint32_t> row_of_, column_end_;
};

// Finds the changes of all masks at once, for masks interleaved in each pixel. Compares row by row
// if the pixels of a row are contiguous too, and otherwise pixel by pixel.
std::vector<Changes> interleaved_changes(const Mask& first, int64_t masks) {
  const auto differences = DETOPS_IN_USE(differences);
  const bool contiguous_rows = first.column_stride == masks;
  const int64_t run = contiguous_rows ? first.width * masks : masks;
  std::vector<Changes> changes(masks);
  std::vector<uint32_t> list(run);
  for (Changes& item : changes) item.row_end.assign(first.height, 0);
  for (int64_t y = 1; y < first.height; ++y) {
    for (int64_t x = 0; x < (contiguous_rows ? 1 : first.width); ++x) {
      const uint8_t* pixel = first.data + y * first.row_stride + x * first.column_stride;
      const int64_t count = differences(pixel - first.row_stride, pixel, run, list.data());
      for (int64_t k = 0; k < count; ++k) {
        const uint32_t j = list[k], stride = static_cast<uint32_t>(masks);
        changes[j % stride].columns.push_back(static_cast<uint32_t>(x) + j / stride);
      }
    }
    for (Changes& item : changes) item.row_end[y] = static_cast<int64_t>(item.columns.size());
  }
  return changes;
}

void encode(const Tensor& masks, RunLengths* runs) {
  constexpr int64_t kBytesPerThread = 1 << 16, kMinInterleaved = 64;
  const int64_t count = masks.size(0), height = masks.size(1), width = masks.size(2);
  if (height * width == 0) {
    for (int64_t i = 0; i < count; ++i) runs[i].change_at(0);
    return;
  }
  const bool contiguous = masks.stride(1) == 1 || masks.stride(2) == 1;
  // Comparing a few masks at once pays off only for whole rows.
  const bool interleaved = !contiguous && masks.stride(0) == 1 && count * width <= UINT32_MAX &&
                           (masks.stride(2) == count || count >= kMinInterleaved);
  const Tensor pixels = contiguous || interleaved ? masks : masks.contiguous();
  const auto* data = static_cast<const uint8_t*>(pixels.const_data_ptr());
  const auto mask = [&](int64_t i) -> Mask {
    return {data + i * pixels.stride(0), height, width, pixels.stride(1), pixels.stride(2)};
  };
  std::vector<Changes> changes;
  if (interleaved) changes = interleaved_changes(mask(0), count);
  const int64_t grain = std::max<int64_t>(1, kBytesPerThread / (height * width));
  parallel_for(count, grain, [&](int64_t i, int64_t end) {
    Encoder encoder;
    for (; i < end; ++i) {
      if (interleaved) {
        encoder.write(mask(i), changes[i], runs[i]);
      } else if (pixels.stride(1) == 1) {
        encoder.encode_columns(mask(i), runs[i]);
      } else {
        encoder.encode_rows(mask(i), runs[i]);
      }
    }
  });
}

}  // namespace

std::tuple<Tensor, Tensor> masks_to_rle(const Tensor& masks) {
  const int64_t count = masks.size(0);
  std::vector<RunLengths> runs(count);
  if (masks.is_cpu()) {
    encode(masks, runs.data());
  } else {
    // One mask at a time: a few megabytes of host memory are enough.
    for (int64_t i = 0; i < count; ++i) {
      const Tensor one = masks.narrow(0, i, 1);
      encode(empty(one.sizes(), {one.scalar_type(), kCPU, -1}).copy_(one), runs.data() + i);
    };
  }
  Tensor ends = empty({count}, {kLong, kCPU, -1});
  int64_t* end = ends.mutable_data_ptr<int64_t>();
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) end[i] = total += runs[i].size();
  Tensor text = empty({total}, {kByte, kCPU, -1});
  uint8_t* out = text.mutable_data_ptr<uint8_t>();
  for (const RunLengths& item : runs) out = std::copy_n(item.text(), item.size(), out);
  return {text, ends};
}

}  // namespace detops
