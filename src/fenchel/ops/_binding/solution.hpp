// ŷ of a mapping in one call: the solution and, where a gradient is wanted, its node in the graph.
#pragma once

#include <limits>
#include <memory>
#include <mutex>

#include "compiled_backward.hpp"
#include "kernel.hpp"
#include "replay.hpp"

namespace fenchel {

// What the solutions of one class of mappings are made with.
struct Recipe {
  Kernel solve, jvp, parameter_vjp;  // the last one may be missing
  c10::SafePyObject rule;            // (mapping, y, parameter, grad, needs) → gradients, in Python, always right
  Gpu gpu;
  std::unique_ptr<Operation> gpu_solve, gpu_jvp, gpu_parameter_vjp;  // each may be missing

  bool serves(const Tensor& rows) const { return is_replayed(rows) || (rows.is_cpu() && is_float(rows)); }
  bool is_replayed(const Tensor& rows) const { return gpu_solve && gpu.serves(rows); }
};

// The parameter of a call as kernels take it: a number, or one per row.
class Parameter {
 public:
  explicit Parameter(double number) : number_(number) {}

  // Of a tensor with a single value, or with one for each of n rows.
  Parameter(const Tensor& tensor, int64_t n) : step_(1) {
    if (tensor.scalar_type() == at::kDouble && tensor.dim() > 0) {
      given_ = tensor.const_data_ptr<double>();
      return;
    }
    numbers_.resize(n);
    if (tensor.scalar_type() == at::kDouble)
      fill(tensor.const_data_ptr<double>(), tensor.dim() > 0);
    else
      fill(tensor.const_data_ptr<float>(), tensor.dim() > 0);
  }

  const double* data() const { return step_ == 0 ? &number_ : given_ ? given_ : numbers_.data(); }
  int64_t step() const { return step_; }

  bool is_between(double low, double high, int64_t n) const {
    const double* values = data();
    for (int64_t i = 0; i < (step_ ? n : 1); ++i)
      if (!(values[i] >= low && values[i] <= high)) return false;
    return true;
  }

 private:
  template <class T>
  void fill(const T* values, bool per_row) {
    for (size_t i = 0; i < numbers_.size(); ++i) numbers_[i] = values[per_row ? i : 0];
  }

  double number_ = 0;
  int64_t step_ = 0;
  const double* given_ = nullptr;
  c10::SmallVector<double, 64> numbers_;
};

// Whether a tensor has one value, or one for each of the rows (..., d): the shape (..., 1). The gradient of one value
// for rows of half precision is summed in Python.
inline bool fits_rows(const Tensor& parameter, const Tensor& rows) {
  if (!is_direct(parameter) || !is_float(parameter) || parameter.device() != rows.device()) return false;
  if (parameter.dim() == 0) return is_float(rows);
  return parameter.dim() == rows.dim() && parameter.size(-1) == 1 &&
         parameter.sizes().slice(0, rows.dim() - 1) == rows.sizes().slice(0, rows.dim() - 1);
}

inline int64_t count_rows(const Tensor& rows) { return rows.numel() / rows.size(-1); }

using Shape = c10::SmallVector<int64_t, 8>;

// The shape of rows (..., d) with another d.
inline Shape with_width(const Tensor& rows, int64_t width) {
  Shape shape(rows.sizes().begin(), rows.sizes().end());
  shape.back() = width;
  return shape;
}

// A parameter as operations of a GPU take it: undefined, or one value for each of the rows.
inline Tensor per_row(const Tensor& parameter, const Tensor& rows) {
  if (!parameter.defined() || parameter.dim() > 0) return parameter;
  const at::AutoGradMode no_grad(false);
  return parameter.expand(with_width(rows, 1)).contiguous();
}

// The gradients of a solution, given that in y.
struct SolutionRule {
  std::shared_ptr<const Recipe> recipe;
  c10::SafePyObject mapping;
  double number, option;
  bool has_tensor;

  variable_list operator()(const Tensor& y, const Tensor& parameter, const Tensor& given, bool for_scores,
                           bool for_parameter) const {
    const Tensor grad = given.defined() ? given : at::zeros_like(y);
    if (!is_direct_backward(y, parameter, grad, for_parameter))
      return in_python(y, parameter, grad, for_scores, for_parameter);
    variable_list results(has_tensor ? 2 : 1);
    const Tensor v = grad.contiguous();
    if (recipe->is_replayed(y)) {
      if (replay(y, v, parameter, for_scores, for_parameter, results)) return results;
      return in_python(y, parameter, grad, for_scores, for_parameter);
    }
    const int64_t n = count_rows(y), d = y.size(-1);
    const Parameter value = has_tensor ? Parameter(parameter, n) : Parameter(number);
    Arguments arguments{y.const_data_ptr(), v.const_data_ptr(), value.data(), value.step(), option, n, d, nullptr,
                        at::get_num_threads()};
    const auto run = [&](const Kernel& kernel, const Tensor& out) {
      arguments.out = out.data_ptr();
      check_memory(kernel(y.scalar_type(), arguments));
    };
    if (for_scores) run(recipe->jvp, results[0] = empty(y.sizes(), y.scalar_type()));
    if (for_parameter) {
      const Tensor slope = empty(with_width(y, 1), y.scalar_type());
      run(recipe->parameter_vjp, slope);
      results[1] = slope.sum_to_size(parameter.sizes()).to(parameter.scalar_type());
    }
    return results;
  }

 private:
  // Whether launches were repeated.
  bool replay(const Tensor& y, const Tensor& v, const Tensor& parameter, bool for_scores, bool for_parameter,
              variable_list& results) const {
    if ((for_scores && !recipe->gpu_jvp) || (for_parameter && !recipe->gpu_parameter_vjp)) return false;
    const Given given{{y, v}, per_row(has_tensor ? parameter : Tensor(), y), number, option};
    if (for_scores) {
      const Tensors found = (*recipe->gpu_jvp)(given, Result{y.sizes(), y.scalar_type()});
      if (found.empty()) return false;
      results[0] = found[0];
    }
    if (for_parameter) {
      const Shape shape = with_width(y, 1);
      const Tensors found = (*recipe->gpu_parameter_vjp)(given, Result{shape, y.scalar_type()});
      if (found.empty()) return false;
      results[1] = found[0].sum_to_size(parameter.sizes()).to(parameter.scalar_type());
    }
    return true;
  }

  bool is_direct_backward(const Tensor& y, const Tensor& parameter, const Tensor& grad, bool for_parameter) const {
    return !at::GradMode::is_enabled() && is_eager() && is_direct(y) && recipe->serves(y) && is_plain(grad) &&
           grad.device() == y.device() && grad.scalar_type() == y.scalar_type() && grad.sizes() == y.sizes() &&
           grad.const_data_ptr() != nullptr && (!has_tensor || fits_rows(parameter, y)) &&
           (!for_parameter || recipe->parameter_vjp);
  }

  variable_list in_python(const Tensor& y, const Tensor& parameter, const Tensor& grad, bool for_scores,
                          bool for_parameter) const {
    return call_python([&] {
      const pybind11::tuple gradients = borrow(recipe->rule)(borrow(mapping), wrap(y), wrap(parameter), wrap(grad),
                                                             pybind11::make_tuple(for_scores, for_parameter));
      variable_list results = {unwrap(gradients[0])};
      if (has_tensor) results.push_back(unwrap(gradients[1]));
      return results;
    });
  }
};

struct BoundArgmaxBackward : public Node {
  explicit BoundArgmaxBackward(SolutionRule rule) : rule(std::move(rule)) {}

  std::string name() const override { return "BoundArgmaxBackward"; }

  variable_list apply(variable_list&& grads) override {
    const auto [y, parameter] = unpack();
    return rule(y, parameter, grads[0], task_should_compute_output(0), needs_parameter());
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    saved_y.reset_data();
    saved_parameter.reset_data();
  }

  void compiled_args(CompiledNodeArgs& args) const override {
    args.collect(reinterpret_cast<uint64_t>(rule.recipe.get()));
    args.collect(rule.number);
    args.collect(rule.option);
    args.collect(rule.has_tensor);
    args.collect(saved_y, true);
    args.collect(saved_parameter, false);
  }

  variable_list apply_with_saved(const variable_list& grads, SwapSavedVariables& saved) override {
    saved.before(saved_y);
    saved.before(saved_parameter);
    const auto [y, parameter] = unpack();
    PackedArgs args;
    args.pack(task_should_compute_output(0));
    args.pack(needs_parameter());
    args.pack(y);
    if (rule.has_tensor) args.pack(parameter);
    variable_list results =
        call_later(*this, grads, saved, args, [rule = rule](const variable_list& grads, const IValues& values) {
          PackedArgs args(values);
          const bool for_scores = args.unpack<bool>(), for_parameter = args.unpack<bool>();
          const Tensor y = args.unpack<Tensor>(), parameter = rule.has_tensor ? args.unpack<Tensor>() : Tensor();
          return rule(y, parameter, grads[0], for_scores, for_parameter);
        });
    saved.after(saved_y);
    saved.after(saved_parameter);
    return results;
  }

  SolutionRule rule;
  SavedVariable saved_y, saved_parameter;

 private:
  bool needs_parameter() const { return rule.has_tensor && task_should_compute_output(1); }

  std::pair<Tensor, Tensor> unpack() {
    std::lock_guard<std::mutex> lock(mutex_);
    return {saved_y.unpack(getptr()), rule.has_tensor ? saved_parameter.unpack() : Tensor()};
  }
};

// A callable (mapping, scores, dim) → ŷ, or None where the call is not a direct one.
struct Solver {
  std::shared_ptr<const Recipe> recipe;
  pybind11::object parameter;  // the name of the field; None if it is always `number`
  pybind11::object option;     // the name of the field, or None
  double number, minimum, max_option;
  bool is_part;  // whether the parameter is at most d

  static constexpr int num_arguments = 3;
};

inline pybind11::object gamma_name() {
  static const PyObject* name = PyUnicode_InternFromString("gamma");
  return pybind11::reinterpret_borrow<pybind11::object>(const_cast<PyObject*>(name));
}

// A field of a mapping.
inline pybind11::object field(PyObject* mapping, const pybind11::object& name) {
  PyObject* value = PyObject_GetAttr(mapping, name.ptr());
  if (value == nullptr) throw_python_error();
  return pybind11::reinterpret_steal<pybind11::object>(value);
}

// Whether a value is a Python number, which is then stored.
inline bool read_number(const pybind11::object& value, double& number) {
  if (PyFloat_CheckExact(value.ptr())) {
    number = PyFloat_AS_DOUBLE(value.ptr());
    return true;
  }
  if (!PyLong_CheckExact(value.ptr())) return false;
  number = PyLong_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  return true;
}

inline bool has_unit_gamma(PyObject* mapping) {
  const pybind11::object gamma = field(mapping, gamma_name());
  return PyFloat_CheckExact(gamma.ptr()) && PyFloat_AS_DOUBLE(gamma.ptr()) == 1.0;
}

inline PyObject* call(const Solver& solver, PyObject* const* given) {
  PyObject *mapping = given[0], *scores = given[1], *dim = given[2];
  if (!are_direct(scores, dim) || !has_unit_gamma(mapping) || !is_eager()) Py_RETURN_NONE;
  const Tensor rows = THPVariable_Unpack(scores);
  if (!solver.recipe->serves(rows)) Py_RETURN_NONE;
  const bool is_replayed = solver.recipe->is_replayed(rows);
  const int64_t n = count_rows(rows), d = rows.size(-1);
  double number = solver.number, option = 0;
  if (!solver.option.is_none() && (!read_number(field(mapping, solver.option), option) || option > solver.max_option))
    Py_RETURN_NONE;
  Tensor tensor;
  if (!solver.parameter.is_none()) {
    const pybind11::object given = field(mapping, solver.parameter);
    if (!read_number(given, number)) {
      if (!THPVariable_CheckExact(given.ptr())) Py_RETURN_NONE;
      tensor = THPVariable_Unpack(given.ptr());
      if (!fits_rows(tensor, rows)) Py_RETURN_NONE;
    }
  }
  // The values of a tensor on a GPU are not looked at.
  const Parameter value = tensor.defined() && !is_replayed ? Parameter(tensor, n) : Parameter(number);
  const double maximum = solver.is_part ? static_cast<double>(d) : std::numeric_limits<double>::max();
  if (!(is_replayed && tensor.defined()) && !value.is_between(solver.minimum, maximum, n)) Py_RETURN_NONE;

  Tensor y;
  if (is_replayed) {
    const pybind11::gil_scoped_release unlocked;
    const Given given{{rows}, per_row(tensor, rows), number, option};
    const Tensors found = (*solver.recipe->gpu_solve)(given, Result{rows.sizes(), rows.scalar_type()});
    if (!found.empty()) y = found[0];
  } else {
    y = empty(rows.sizes(), rows.scalar_type());
    const Arguments arguments{rows.const_data_ptr(), nullptr, value.data(),  value.step(),         option,
                              n,                     d,       y.data_ptr(), at::get_num_threads()};
    check_memory(run_unlocked(rows.numel(), [&] { return solver.recipe->solve(rows.scalar_type(), arguments); }));
  }
  if (!y.defined()) Py_RETURN_NONE;
  if (torch::autograd::compute_requires_grad(rows, tensor)) {
    auto node = make_node<BoundArgmaxBackward>(
        SolutionRule{solver.recipe, share(mapping), number, option, tensor.defined()});
    node->set_next_edges(tensor.defined() ? torch::autograd::collect_next_edges(rows, tensor)
                                          : torch::autograd::collect_next_edges(rows));
    torch::autograd::set_history(y, node);
    node->saved_y = SavedVariable(y, true);
    if (tensor.defined()) node->saved_parameter = SavedVariable(tensor, false);
  }
  return THPVariable_Wrap(std::move(y));
}

}  // namespace fenchel
