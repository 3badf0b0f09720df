// SPDX-License-Identifier: MIT
#include "structured.h"

#include <algorithm>
#include <new>
#include <stdexcept>

#include "../detops/include/detops/library.h"
#include "parallel.h"

// The last error of this thread. A program that is linked against both libraries has a single one:
// the linker takes these functions from the first library for both.
static std::string& last_error() {
  static DETOPS_PER_THREAD std::string message;
  return message;
}
const char* detops_last_error(void) { return last_error().c_str(); }
void detops_set_last_error(const char* message) { last_error() = message; }

namespace detops {

std::vector<StableIValue> unpack_list(StableIValue value) {
  const auto list = reinterpret_cast<StableListHandle>(value);
  size_t size = 0;
  DETOPS_STABLE(torch_list_size, list, &size);
  std::vector<StableIValue> items(size);
  for (size_t i = 0; i < size; ++i) DETOPS_STABLE(torch_list_get_item, list, i, &items[i]);
  DETOPS_STABLE(torch_delete_list, list);
  return items;
}

void unpack(StableIValue from, std::string& to) {
  const auto string = reinterpret_cast<StringHandle>(from);
  size_t length = 0;
  const char* data = nullptr;
  DETOPS_STABLE(torch_string_length, string, &length);
  DETOPS_STABLE(torch_string_c_str, string, &data);
  to.assign(data, length);
  DETOPS_STABLE(torch_delete_string, string);
}

StableIValue pack(std::vector<Tensor>& list) {
  StableListHandle result = nullptr;
  DETOPS_STABLE(torch_new_list_reserve_size, list.size(), &result);
  for (Tensor& t : list) DETOPS_STABLE(torch_list_push_back, result, pack(t));
  return reinterpret_cast<StableIValue>(result);
}

Tensor allocate_output(const Output& output, const Options& device) {
  return empty(IntArrayRef(output.sizes, output.dim), device.dtype(output.computed),
               output.channels_last ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous);
}

StableIValue pack(Tensor& t, const Output& output) {
  if (t.scalar_type() != output.dtype) t = t.to(output.dtype);
  return pack(t);
}

bool all_empty(const Tensor* outputs, size_t count) {
  return std::all_of(outputs, outputs + count, [](const Tensor& t) { return t.numel() == 0; });
}

void rethrow(const Contract& contract) {
  const std::string op = "detops." + contract.name;
  std::string message = op + ": not enough memory for the result or for temporary buffers";
  try {
    throw;
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {  // from a std::vector
  } catch (const std::exception& error) {
    message = error.what();
    if (message.find("detops") != 0) message = op + ": " + message;
  }
  // PyTorch's C functions report that an op failed, but not why.
  detops_set_last_error(message.c_str());
  fail(message);
}

}  // namespace detops
