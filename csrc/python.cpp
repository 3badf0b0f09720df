// SPDX-License-Identifier: MIT
// detops._C: the library's functions for Python, in addition to its ops. Includes no header of
// PyTorch, so a build depends only on the version of Python.
#include <pybind11/pybind11.h>

#include "../detops/include/detops/library.h"

// These functions are thread-safe, so a Python without a global lock needs none here.
PYBIND11_MODULE(_C, m, pybind11::mod_gil_not_used()) {
  namespace py = pybind11;
  // The library has already registered its ops: detops._C.X is torch.ops.detops.X.
  const py::object ops = py::module_::import("torch").attr("ops").attr("detops");
  for (int i = 0; i < detops_op_count(); ++i)
    m.attr(detops_op_name(i)) = ops.attr(detops_op_name(i));
  m.attr("contracts") = detops_contracts();
  m.attr("emulated") = bool(detops_is_emulated());
  m.def("cpu_isa", &detops_cpu_isa, "The instruction set in use: baseline, avx2 or avx512.");
  m.def(
      "set_cpu_isa",
      [](const char* name) {
        if (const char* error = detops_set_cpu_isa(name)) throw py::value_error(error);
      },
      py::arg("name"),
      "Forces an instruction set (baseline, avx2, avx512), or auto for the best one of the "
      "processor.");
  m.def(
      "use_arena", [](bool on) { return detops_use_arena(on) != 0; }, py::arg("on"),
      "Lets large results of this thread reuse memory; returns the previous setting.");
  m.def(
      "arena_size",
      [] {
        long long held = 0, free = 0;
        detops_arena_size(&held, &free);
        return py::make_tuple(held, free);
      },
      "Returns the bytes that are held for reuse, and how many of them are free.");
  m.def("limit_grain", &detops_limit_grain, py::arg("most"),
        "Bounds the least part of a loop that a thread gets; for tests.");
  m.def("shared_loops", &detops_shared_loops,
        "Returns the number of loops that several threads have shared.");
  m.def("release_arena", &detops_release_arena, "Returns free memory to the system.");
}
