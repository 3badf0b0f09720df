// SPDX-License-Identifier: MIT
#include "structured.h"

namespace detops {

TensorFacts facts_of(const Place& place, const Tensor& t) {
  const auto refuse = [&](const auto&... what) {
    TORCH_CHECK(false, "detops.", place.contract.name(), ": ", place.contract.argument(place.index),
                " must ", what...);
  };
  if (!t.defined()) refuse("be a tensor, got None");
  if (t.layout() != at::kStrided) refuse("be strided, got ", t.layout());
  if (t.is_nested() || at::isQIntType(t.scalar_type())) {
    refuse("not be ", t.is_nested() ? "nested" : "quantized");
  }
  const c10::Device device = t.device();
  return {t.sizes().data(), t.strides().data(), t.dim(),
          t.scalar_type(),  int(device.type()), device.index()};
}

Tensor empty(const Output& output, const c10::Device& device) {
  const auto format =
      output.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  return at::empty(at::IntArrayRef(output.sizes, output.dim),
                   at::TensorOptions().dtype(output.dtype).device(device).memory_format(format));
}

bool is_empty(const std::vector<Tensor>& outputs) {
  for (const Tensor& t : outputs) {
    if (t.numel() > 0) return false;
  }
  return true;
}

void rethrow(const Contract& contract) {
  constexpr const char* kNoMemory =
      ": not enough memory for what lies between the input and the result";
  try {
    throw;
  } catch (c10::Error& error) {
    if (error.msg().find("detops") == std::string::npos) {
      error.add_context("in detops." + contract.name());
    }
    throw;
  } catch (const std::bad_alloc&) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "detops.", contract.name(), kNoMemory);
  } catch (const std::length_error&) {  // of a std::vector
    TORCH_CHECK_WITH(OutOfMemoryError, false, "detops.", contract.name(), kNoMemory);
  }
}

}  // namespace detops
