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

PyMethodDef methods[] = {{"square", square, METH_O, nullptr},
                         {"square_backward", square_backward, METH_VARARGS, nullptr},
                         {"total", total, METH_O, nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "raw_square", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_raw_square() { return PyModule_Create(&definition); }
