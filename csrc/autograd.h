// SPDX-License-Identifier: MIT
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace detops {

namespace py = pybind11;

// What comes before a small op, and the two passes of an autograd function around two raw ops. In
// Python they take longer than small ops compute, and so they would as functions of pybind11: hence
// Python's own interface.

using Places = std::vector<Py_ssize_t>;
using Objects = std::vector<PyObject*>;  // without references

inline py::object owned(PyObject* made) {
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

inline bool holds(const py::object& question, PyObject* const* arguments = nullptr,
                  size_t count = 0) {
  return owned(PyObject_Vectorcall(question.ptr(), arguments, count, nullptr)).ptr() == Py_True;
}

inline py::object name_of(const char* attribute) {
  return owned(PyUnicode_InternFromString(attribute));
}

inline py::object attribute(PyObject* of, const py::object& name) {
  return owned(PyObject_GetAttr(of, name.ptr()));
}

template <typename Pass>
PyObject* enter(PyObject* pass, PyObject* const* arguments, Py_ssize_t count) {
  try {
    if (count == 0) throw std::invalid_argument("detops: a function without its arguments");
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

// run(*inputs) calls `recorded` where one of them wants a gradient, `compute` where none does, and
// `special` where PyTorch transforms functions, follows tangents or casts: only it knows of these.
inline py::object runner(const py::object& compute, const py::object& recorded,
                         const py::object& special) {
  const py::object torch = py::module_::import("torch"), internal = torch.attr("_C");
  const py::object is_transforming = internal.attr("_are_functorch_transforms_active");
  const py::object is_casting = internal.attr("_is_any_autocast_enabled");
  const py::object is_wrapped = internal.attr("_functorch").attr("is_functorch_wrapped_tensor");
  const py::object is_grad_enabled = torch.attr("is_grad_enabled");
  auto* const tensor = reinterpret_cast<PyTypeObject*>(torch.attr("Tensor").ptr());
  const py::object forward_ad = torch.attr("autograd").attr("forward_ad");
  const py::object level = name_of("_current_level"), requires_grad = name_of("requires_grad");
  return function("run", [=](PyObject* const* arguments, Py_ssize_t count) {
    const auto call = [&](const py::object& run) {
      return owned(PyObject_Vectorcall(run.ptr(), arguments, count, nullptr));
    };
    const bool has_tangents = attribute(forward_ad.ptr(), level).cast<int>() >= 0;
    if (has_tangents || holds(is_transforming) || holds(is_casting)) return call(special);
    if (!holds(is_grad_enabled)) return call(compute);
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const x = arguments[i];
      if (!PyObject_TypeCheck(x, tensor) || attribute(x, requires_grad).ptr() != Py_True) continue;
      // A tensor that has left its transform is not what it seems; of other types, none has.
      const bool left = Py_TYPE(x) == tensor && holds(is_wrapped, &x, 1);
      return call(left ? special : recorded);
    }
    return call(compute);
  });
}

// forward(ctx, *inputs): keeps what stands at `saved` in inputs and results, one after the other.
inline py::object forward_pass(const py::object& op, const Places& saved, Py_ssize_t shown) {
  const py::object to_save = name_of("to_save");
  return function("forward", [=](PyObject* const* arguments, Py_ssize_t count) {
    const py::tuple results =
        owned(PyObject_Vectorcall(op.ptr(), arguments + 1, count - 1, nullptr));
    py::tuple kept(saved.size());
    for (size_t i = 0; i < saved.size(); ++i) {
      const Py_ssize_t at = saved[i] + 1;
      kept[i] = at < count ? py::handle(arguments[at]) : py::handle(results[at - count]);
    }
    py::setattr(arguments[0], to_save, kept);  // as ctx.save_for_backward does
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
    if (holds(is_grad_enabled)) {
      return owned(PyObject_Vectorcall(in_python.ptr(), arguments, count, nullptr));
    }
    const py::tuple saved = attribute(arguments[0], saved_tensors);
    const py::tuple wanted = attribute(arguments[0], needs_input_grad);
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
