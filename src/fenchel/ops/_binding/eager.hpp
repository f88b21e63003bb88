// Whether a call may go to a kernel at once, and what such a call needs of PyTorch.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/SmallVector.h>

namespace fenchel {

using at::Tensor;
using torch::autograd::ForwardADLevel;

// From this many entries on, other Python threads run during a call.
constexpr int64_t kLongCall = 16384;
constexpr int64_t kLongestRow = 2147483647;  // entries are numbered with 32 bits inside the library

// The keys of a plain tensor of a CPU or a GPU: no subclass, transform, lazy negation or sparsity adds one.
inline bool is_plain(const Tensor& tensor) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet known({DispatchKey::CPU, DispatchKey::AutogradCPU, DispatchKey::AutocastCPU,
                                        DispatchKey::CUDA, DispatchKey::AutogradCUDA, DispatchKey::AutocastCUDA,
                                        DispatchKey::ADInplaceOrView});
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return known.has_all(impl->key_set()) && (tensor.is_cpu() || tensor.is_cuda()) && impl->has_storage();
}

// The same for a contiguous tensor with memory.
inline bool is_direct(const Tensor& tensor) {
  return is_plain(tensor) && tensor.is_contiguous() && tensor.numel() > 0 && tensor.const_data_ptr() != nullptr;
}

inline bool is_float(const Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble;
}

// Whether nothing else looks at this thread's operations: no transform, tracer, mode, forward-mode AD or profiler.
inline bool is_eager() {
  return c10::default_included_set.has_all(c10::impl::tls_local_dispatch_key_set().included_) &&
         !c10::impl::TorchDispatchModeTLS::any_modes_set() && !at::impl::torch_function_mode_enabled() &&
         !torch::profiler::impl::profilerEnabled() && ForwardADLevel::try_get_by_idx(0) == nullptr;
}

// Whether rows (..., d) are such that a call along dimension `dim` may be direct; both as Python objects.
inline bool are_direct(PyObject* scores, PyObject* dim) {
  if (!THPVariable_CheckExact(scores) || !PyLong_CheckExact(dim)) return false;
  const Tensor& rows = THPVariable_Unpack(scores);
  if (!is_direct(rows) || rows.dim() == 0 || rows.size(-1) > kLongestRow) return false;
  int overflow = 0;
  const long at = PyLong_AsLongAndOverflow(dim, &overflow);
  return !overflow && (at == -1 || at == rows.dim() - 1);
}

inline Tensor empty(c10::IntArrayRef shape, c10::ScalarType type) { return at::detail::empty_cpu(shape, type); }

// Without Python's lock if the call is a long one; `run` must not touch Python.
template <class Run>
int run_unlocked(int64_t entries, Run run) {
  if (entries < kLongCall) return run();
  pybind11::gil_scoped_release unlocked;
  return run();
}

// A node of the graph, as this version of PyTorch holds it.
template <class Node, class... Arguments>
auto make_node(Arguments&&... arguments) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Node>)
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  else
    return std::shared_ptr<Node>(new Node(std::forward<Arguments>(arguments)...), [](Node* node) { deleteNode(node); });
}

// Takes Python's error, which is set, to the caller of a backward pass or of a function.
[[noreturn]] inline void throw_python_error() {
  python_error error;
  error.persist();
  throw error;
}

inline void check_memory(int status) {
  if (status == 0) return;
  pybind11::gil_scoped_acquire locked;
  PyErr_SetString(PyExc_MemoryError, "the native library could not allocate its working memory.");
  throw_python_error();
}

// The result of a function that calls Python, whose errors go on.
template <class Run>
auto call_python(Run run) {
  pybind11::gil_scoped_acquire locked;
  try {
    return run();
  } catch (pybind11::error_already_set& error) {
    error.restore();
    throw_python_error();
  }
}

// A tensor as a Python object, None for none.
inline pybind11::object wrap(const Tensor& tensor) {
  if (!tensor.defined()) return pybind11::none();
  return pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(tensor));
}

inline Tensor unwrap(const pybind11::handle& value) {
  return value.is_none() ? Tensor() : THPVariable_Unpack(value.ptr());
}

// A reference to a Python object that any thread may drop, also while the interpreter ends.
inline c10::SafePyObject share(PyObject* object) { return {Py_NewRef(object), getPyInterpreter()}; }

inline pybind11::handle borrow(const c10::SafePyObject& object) { return object.ptr(getPyInterpreter()); }

}  // namespace fenchel
