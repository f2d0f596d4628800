// raw_square.cpp: an extension for Python that reads and writes tensors past the dispatcher.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <Python.h>
#include <torch/csrc/autograd/python_variable.h>

namespace {

template <typename Function>
PyObject* call(const Function& function) {
  try {
    return function();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

// square(x): into a tensor of zeros.
PyObject* square(PyObject*, PyObject* x) {
  return call([&] {
    const at::Tensor in = THPVariable_Unpack(x).contiguous();
    at::Tensor out = at::zeros_like(in);
    const float* from = in.data_ptr<float>();
    float* to = out.data_ptr<float>();
    for (int64_t i = 0; i < in.numel(); ++i) to[i] = from[i] * from[i];
    return THPVariable_Wrap(out);
  });
}

// square_into(out, x): returns out.
PyObject* square_into(PyObject*, PyObject* arguments) {
  PyObject *out, *x;
  if (!PyArg_ParseTuple(arguments, "OO", &out, &x)) return nullptr;
  return call([&] {
    const at::Tensor in = THPVariable_Unpack(x).contiguous();
    const float* from = in.data_ptr<float>();
    float* to = THPVariable_Unpack(out).data_ptr<float>();
    for (int64_t i = 0; i < in.numel(); ++i) to[i] = from[i] * from[i];
    return Py_NewRef(out);
  });
}

// square_backward(gradient, x)
PyObject* square_backward(PyObject*, PyObject* arguments) {
  PyObject *gradient, *x;
  if (!PyArg_ParseTuple(arguments, "OO", &gradient, &x)) return nullptr;
  return call([&] {
    const at::Tensor by = THPVariable_Unpack(gradient).contiguous();
    const at::Tensor in = THPVariable_Unpack(x).contiguous();
    at::Tensor out = at::empty_like(in);
    const float *from = in.data_ptr<float>(), *factor = by.data_ptr<float>();
    float* to = out.data_ptr<float>();
    for (int64_t i = 0; i < in.numel(); ++i) to[i] = 2 * factor[i] * from[i];
    return THPVariable_Wrap(out);
  });
}

// fourth(x, square): by a function that squares, with tensors of its own meanwhile.
PyObject* fourth(PyObject*, PyObject* arguments) {
  PyObject *x, *function;
  if (!PyArg_ParseTuple(arguments, "OO", &x, &function)) return nullptr;
  return call([&]() -> PyObject* {
    const at::Tensor in = THPVariable_Unpack(x).contiguous();
    at::Tensor half = at::zeros_like(in);
    PyObject* squared = PyObject_CallOneArg(function, x);
    if (!squared) return nullptr;
    const at::Tensor by = THPVariable_Unpack(squared).contiguous();
    at::Tensor out = at::zeros_like(in);
    const float* from = by.data_ptr<float>();
    float *between = half.data_ptr<float>(), *to = out.data_ptr<float>();
    for (int64_t i = 0; i < in.numel(); ++i) between[i] = from[i];
    for (int64_t i = 0; i < in.numel(); ++i) to[i] = between[i] * from[i];
    Py_DECREF(squared);
    return THPVariable_Wrap(out);
  });
}

// total(tensors): a number, by way of a copy that is contiguous.
PyObject* total(PyObject*, PyObject* tensors) {
  return call([&] {
    double sum = 0;
    for (Py_ssize_t at = 0; at < PyList_Size(tensors); ++at) {
      const at::Tensor copy = THPVariable_Unpack(PyList_GetItem(tensors, at)).t().contiguous();
      const float* from = copy.data_ptr<float>();
      for (int64_t i = 0; i < copy.numel(); ++i) sum += from[i];
    }
    return PyFloat_FromDouble(sum);
  });
}

// Reader: the first number of a tensor, by a method of the C API, by one of pybind11's kind, and by a
// static one.
PyObject* first(PyObject*, PyObject* x) {
  return call([&] { return PyFloat_FromDouble(*THPVariable_Unpack(x).data_ptr<float>()); });
}

PyObject* second_argument_first(PyObject*, PyObject* arguments) {
  return first(nullptr, PyTuple_GetItem(arguments, 1));
}

PyMethodDef as_pybind11s = {"as_pybind11s", second_argument_first, METH_VARARGS, nullptr};
PyMethodDef methods_of_reader[] = {{"first", first, METH_O, nullptr},
                                   {"static_first", first, METH_O | METH_STATIC, nullptr},
                                   {nullptr, nullptr, 0, nullptr}};
PyType_Slot slots_of_reader[] = {{Py_tp_methods, methods_of_reader}, {0, nullptr}};
PyType_Spec reader = {"raw_square.Reader", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT,
                      slots_of_reader};

PyMethodDef methods[] = {{"square", square, METH_O, nullptr},
                         {"square_into", square_into, METH_VARARGS, nullptr},
                         {"fourth", fourth, METH_VARARGS, nullptr},
                         {"square_backward", square_backward, METH_VARARGS, nullptr},
                         {"total", total, METH_O, nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "raw_square", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_raw_square() {
  PyObject* kind = PyType_FromSpec(&reader);
  PyObject* function = PyCFunction_New(&as_pybind11s, nullptr);
  PyObject_SetAttrString(kind, as_pybind11s.ml_name, PyInstanceMethod_New(function));
  PyObject* module = PyModule_Create(&definition);
  PyModule_AddObject(module, "Reader", kind);
  return module;
}
