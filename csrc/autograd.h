// SPDX-License-Identifier: MIT
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace detops {

namespace py = pybind11;

// The two passes of an autograd function around two raw ops. In Python they take longer than small
// ops compute, and so they would as functions of pybind11: hence Python's own interface.

using Places = std::vector<Py_ssize_t>;
using Objects = std::vector<PyObject*>;  // without references

inline py::object owned(PyObject* made) {
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

inline py::object name_of(const char* attribute) {
  return owned(PyUnicode_InternFromString(attribute));
}

template <typename Pass>
PyObject* enter(PyObject* pass, PyObject* const* arguments, Py_ssize_t count) {
  try {
    if (count == 0) throw std::invalid_argument("detops: a pass without its context");
    const void* const state = PyCapsule_GetPointer(pass, nullptr);
    return (*static_cast<const Pass*>(state))(arguments, count).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// A function of Python's that calls `pass`, a lambda with a type of its own.
template <typename Pass>
py::object function(const char* name, Pass pass) {
  static PyMethodDef definition = {
      name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&enter<Pass>)),
      METH_FASTCALL, nullptr};
  const py::capsule kept(new Pass(std::move(pass)), [](void* p) { delete static_cast<Pass*>(p); });
  return owned(PyCFunction_New(&definition, kept.ptr()));
}

// forward(ctx, *inputs): keeps what stands at `saved` in inputs and results, one after the other.
inline py::object forward_pass(const py::object& op, const Places& saved, Py_ssize_t shown) {
  const py::object save = name_of("save_for_backward");
  return function("forward", [=](PyObject* const* arguments, Py_ssize_t count) {
    const py::tuple results =
        owned(PyObject_Vectorcall(op.ptr(), arguments + 1, count - 1, nullptr));
    Objects kept;
    kept.reserve(1 + saved.size());
    kept.push_back(arguments[0]);
    for (Py_ssize_t i : saved) {
      i += 1;
      kept.push_back(i < count ? arguments[i] : PyTuple_GetItem(results.ptr(), i - count));
      if (kept.back() == nullptr) throw py::error_already_set();
    }
    owned(PyObject_VectorcallMethod(save.ptr(), kept.data(), kept.size(), nullptr));
    return owned(PyTuple_GetSlice(results.ptr(), 0, shown));
  });
}

// apply(self, *grads): the op's arguments stand at `given` in the gradients of what is shown, what
// was saved, which inputs want a gradient, and None, one after the other. Inputs at `told` have one
// only where it is wanted. With gradients of gradients to come, it is the pass in Python.
inline py::object backward_pass(const py::object& op, size_t places, const Places& given,
                                const Places& told, const py::object& in_python) {
  const py::object is_grad_enabled = py::module_::import("torch").attr("is_grad_enabled");
  const py::object saved_tensors = name_of("saved_tensors");
  const py::object needs_input_grad = name_of("needs_input_grad");
  const auto pass = [=](PyObject* const* arguments, Py_ssize_t count) -> py::object {
    if (owned(PyObject_CallNoArgs(is_grad_enabled.ptr())).ptr() == Py_True) {
      return owned(PyObject_Vectorcall(in_python.ptr(), arguments, count, nullptr));
    }
    const py::tuple saved = owned(PyObject_GetAttr(arguments[0], saved_tensors.ptr()));
    const py::tuple wanted = owned(PyObject_GetAttr(arguments[0], needs_input_grad.ptr()));
    Objects pool, taken;
    pool.reserve(places);
    taken.reserve(given.size());
    pool.assign(arguments + 1, arguments + count);
    for (const py::handle x : saved) pool.push_back(x.ptr());
    for (const py::handle x : wanted) pool.push_back(x.ptr());
    pool.push_back(Py_None);
    if (pool.size() != places)
      throw std::invalid_argument("detops: not as many gradients as results");
    for (const Py_ssize_t i : given) taken.push_back(pool[i]);
    const py::tuple grads =
        owned(PyObject_Vectorcall(op.ptr(), taken.data(), taken.size(), nullptr));
    if (grads.size() != wanted.size()) throw std::invalid_argument("detops: not a gradient each");
    py::tuple all(grads.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = grads[i];
    for (const Py_ssize_t i : told) {
      if (PyTuple_GET_ITEM(wanted.ptr(), i) != Py_True) all[i] = py::none();
    }
    return all;
  };
  return owned(PyInstanceMethod_New(function("apply", pass).ptr()));
}

}  // namespace detops
