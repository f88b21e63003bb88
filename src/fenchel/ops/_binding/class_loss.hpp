// The mean or sum of the losses of rows for class indices in one call, with its node in the graph.
#pragma once

#include <array>
#include <cmath>
#include <limits>

#include "solution.hpp"

namespace fenchel {

constexpr const char* kLossTypes = "T* i64* i64 f64* i64 i64 i64 T* f64* i32";
constexpr const char* kGradientTypes = "T* f64* i64* T* f64* i64 i64 i64 T* i32";
constexpr int64_t kStateWidth = 4;
constexpr int64_t kNoIndex = std::numeric_limits<int64_t>::min();  // which no class has

struct LossRecipe {
  Entry loss, gradient;
  c10::SafePyObject rule;  // (mapping, scores, state, target, grad, count, ignore_index) → gradient, in Python
  Gpu gpu;
  std::unique_ptr<Operation> gpu_loss, gpu_gradient;  // both or none

  bool serves(const Tensor& rows) const { return is_replayed(rows) || (rows.is_cpu() && is_float(rows)); }
  bool is_replayed(const Tensor& rows) const { return gpu_loss && gpu.serves(rows); }
};

// Whether a tensor is a direct one on the device of the scores.
inline bool is_beside(const Tensor& tensor, const Tensor& scores) {
  return is_direct(tensor) && tensor.device() == scores.device();
}

// The gradient of a reduced loss, given that of its value.
struct LossRule {
  std::shared_ptr<const LossRecipe> recipe;
  c10::SafePyObject mapping;
  double alpha;
  int64_t count;  // the rows of a mean; −1 for a sum, and for a mean whose count is a tensor
  bool has_count;
  int64_t ignore_index;

  // `counted` is the count if it is a tensor.
  Tensor operator()(const Tensor& scores, const Tensor& state, const Tensor& target, const Tensor& counted,
                    const Tensor& given) const {
    const Tensor grad = given.defined() ? given : at::zeros({}, scores.options().requires_grad(false));
    const bool direct = !at::GradMode::is_enabled() && is_eager() && is_direct(scores) && recipe->serves(scores) &&
                        is_beside(state, scores) && state.scalar_type() == at::kDouble && is_beside(target, scores) &&
                        target.scalar_type() == at::kLong && is_beside(grad, scores) && grad.dim() == 0 &&
                        grad.scalar_type() == scores.scalar_type() && (!has_count || is_beside(counted, scores));
    if (!direct) return in_python(scores, state, target, counted, grad);
    if (recipe->is_replayed(scores)) {
      const Tensor weight = counted.defined() ? grad.div(counted) : count >= 0 ? grad.div(count) : grad;
      const Given given{{scores, state, target, weight}, Tensor(), alpha, 0.0};
      const Tensors found = (*recipe->gpu_gradient)(given, Result{scores.sizes(), scores.scalar_type()});
      return found.empty() ? in_python(scores, state, target, counted, grad) : found[0];
    }
    return scores.scalar_type() == at::kFloat ? by_kernel<float>(scores, state, target, grad)
                                              : by_kernel<double>(scores, state, target, grad);
  }

 private:
  template <class T>
  Tensor by_kernel(const Tensor& scores, const Tensor& state, const Tensor& target, const Tensor& grad) const {
    const int64_t n = count_rows(scores);
    T weight = *grad.const_data_ptr<T>();
    if (count >= 0) weight /= static_cast<T>(count);
    const c10::SmallVector<T, 64> weights(n, weight);
    Tensor out = empty(scores.sizes(), scores.scalar_type());
    check_memory(invoke<const T*, const double*, const int64_t*, const T*, const double*, int64_t, int64_t, int64_t, T*,
                        int>(recipe->gradient.at(scores.scalar_type()), scores.const_data_ptr<T>(),
                             state.const_data_ptr<double>(), target.const_data_ptr<int64_t>(), weights.data(), &alpha,
                             0, n, scores.size(-1), out.data_ptr<T>(), at::get_num_threads()));
    return out;
  }

  Tensor in_python(const Tensor& scores, const Tensor& state, const Tensor& target, const Tensor& counted,
                   const Tensor& grad) const {
    return call_python([&] {
      const pybind11::object none = pybind11::none();
      return unwrap(borrow(recipe->rule)(borrow(mapping), wrap(scores), wrap(state), wrap(target), wrap(grad),
                                         count < 0 ? wrap(counted) : pybind11::int_(count),
                                         ignore_index == kNoIndex ? none : pybind11::int_(ignore_index)));
    });
  }
};

struct BoundClassLossBackward : public Node {
  explicit BoundClassLossBackward(LossRule rule) : rule(std::move(rule)) {}

  std::string name() const override { return "BoundClassLossBackward"; }

  variable_list apply(variable_list&& grads) override {
    const auto [scores, state, target, counted] = unpack();
    return {rule(scores, state, target, counted, grads[0])};
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable* variable : saved()) variable->reset_data();
    counted.reset();
  }

  void compiled_args(CompiledNodeArgs& args) const override {
    args.collect(reinterpret_cast<uint64_t>(rule.recipe.get()));
    args.collect(rule.alpha);
    args.collect(rule.count);
    args.collect(rule.has_count);
    args.collect(rule.ignore_index);
    for (const SavedVariable* variable : {&saved_scores, &saved_state, &saved_target}) args.collect(*variable, false);
    args.collect(counted);
  }

  variable_list apply_with_saved(const variable_list& grads, SwapSavedVariables& swapped) override {
    for (SavedVariable* variable : saved()) swapped.before(*variable);
    swapped.before(this->counted);
    const auto [scores, state, target, counted] = unpack();
    PackedArgs args;
    for (const Tensor& tensor : {scores, state, target}) args.pack(tensor);
    if (rule.has_count) args.pack(counted);
    variable_list results =
        call_later(*this, grads, swapped, args, [rule = rule](const variable_list& grads, const IValues& values) {
          PackedArgs args(values);
          const Tensor scores = args.unpack<Tensor>(), state = args.unpack<Tensor>(), target = args.unpack<Tensor>();
          const Tensor counted = rule.has_count ? args.unpack<Tensor>() : Tensor();
          return variable_list{rule(scores, state, target, counted, grads[0])};
        });
    for (SavedVariable* variable : saved()) swapped.after(*variable);
    swapped.after(this->counted);
    return results;
  }

  LossRule rule;
  SavedVariable saved_scores, saved_state, saved_target;
  Tensor counted;  // the count if it is a tensor

 private:
  std::array<SavedVariable*, 3> saved() { return {&saved_scores, &saved_state, &saved_target}; }

  std::tuple<Tensor, Tensor, Tensor, Tensor> unpack() {
    std::lock_guard<std::mutex> lock(mutex_);
    return {saved_scores.unpack(), saved_state.unpack(), saved_target.unpack(), counted};
  }
};

// A callable (mapping, scores, target, dim, reduction, ignore_index) → loss, or None where the call is not direct.
struct ClassLoss {
  std::shared_ptr<const LossRecipe> recipe;
  pybind11::object parameter;  // as for a Solver
  double number;

  static constexpr int num_arguments = 6;
};

// The class indices that count, and their number.
struct Kept {
  int64_t ignore_index = kNoIndex;
  int64_t count;

  bool read(PyObject* index) {
    if (index == Py_None) return true;
    int overflow = 0;
    if (!PyLong_CheckExact(index)) return false;
    ignore_index = PyLong_AsLongLongAndOverflow(index, &overflow);
    return !overflow;
  }

  void add_up(const int64_t* target, int64_t n) {
    count = n;
    if (ignore_index != kNoIndex)
      for (int64_t i = 0; i < n; ++i) count -= target[i] == ignore_index;
  }
};

inline bool is_direct_target(PyObject* object, const Tensor& rows) {
  if (Py_TYPE(object) != reinterpret_cast<PyTypeObject*>(THPVariableClass)) return false;
  const Tensor& target = THPVariable_Unpack(object);
  return is_beside(target, rows) && target.scalar_type() == at::kLong &&
         target.sizes() == rows.sizes().slice(0, rows.dim() - 1);
}

// The reduced loss, undefined where the call is not a direct one; and what its gradient needs.
struct Reduced {
  Tensor total, state;
  Tensor counted;      // the count of a mean if it is a tensor
  int64_t count = -1;  // that count if it is a number
};

template <class T>
void reduce_in_place(Tensor& total, int64_t count, bool is_mean) {
  if (is_mean) *total.data_ptr<T>() /= static_cast<T>(count);
  if (std::isnan(*total.const_data_ptr<T>())) total.reset();  // a target may be out of range
}

inline Reduced on_cpu(const LossRecipe& recipe, const Tensor& rows, const Tensor& target, double alpha, Kept kept,
                      bool is_mean) {
  const auto type = rows.scalar_type();
  const int64_t n = count_rows(rows), d = rows.size(-1);
  const Tensor losses = empty(target.sizes(), type);
  Reduced found{Tensor(), empty(with_width(rows, kStateWidth), at::kDouble), Tensor()};
  const int threads = at::get_num_threads();
  check_memory(run_unlocked(rows.numel(), [&] {
    kept.add_up(target.const_data_ptr<int64_t>(), n);
    return invoke<const void*, const int64_t*, int64_t, const double*, int64_t, int64_t, int64_t, void*, double*, int>(
        recipe.loss.at(type), rows.const_data_ptr(), target.const_data_ptr<int64_t>(), kept.ignore_index, &alpha, 0, n,
        d, losses.data_ptr(), found.state.data_ptr<double>(), threads);
  }));
  if (is_mean) found.count = kept.count;
  found.total = losses.sum();
  if (type == at::kFloat)
    reduce_in_place<float>(found.total, kept.count, is_mean);
  else
    reduce_in_place<double>(found.total, kept.count, is_mean);
  return found;
}

// Nothing waits for the device: the count of a mean stays there, and targets are not checked.
inline Reduced on_gpu(const LossRecipe& recipe, const Tensor& rows, const Tensor& target, double alpha, Kept kept,
                      bool is_mean) {
  const pybind11::gil_scoped_release unlocked;
  const Shape shape = with_width(rows, kStateWidth);
  const std::array<Result, 2> wanted = {Result{target.sizes(), rows.scalar_type()}, Result{shape, at::kDouble}};
  const Tensors results = (*recipe.gpu_loss)(Given{{rows, target}, Tensor(), alpha, kept.ignore_index}, wanted);
  if (results.empty()) return {};
  Reduced found{results[0].sum(), results[1], Tensor()};
  if (is_mean && kept.ignore_index == kNoIndex) {
    found.count = target.numel();
    found.total = found.total.div(found.count);
  } else if (is_mean) {
    found.counted = target.ne(kept.ignore_index).sum();
    found.total = found.total.div(found.counted);
  }
  return found;
}

inline PyObject* call(const ClassLoss& self, PyObject* const* given) {
  PyObject *mapping = given[0], *scores = given[1], *classes = given[2], *dim = given[3];
  PyObject *reduction = given[4], *index = given[5];
  if (!are_direct(scores, dim) || !PyUnicode_Check(reduction) || !has_unit_gamma(mapping) || !is_eager()) Py_RETURN_NONE;
  const bool is_mean = PyUnicode_CompareWithASCIIString(reduction, "mean") == 0;
  if (!is_mean && PyUnicode_CompareWithASCIIString(reduction, "sum") != 0) Py_RETURN_NONE;
  const Tensor rows = THPVariable_Unpack(scores);
  Kept kept;
  double alpha = self.number;
  if (!self.recipe->serves(rows) || !is_direct_target(classes, rows) || !kept.read(index)) Py_RETURN_NONE;
  if (!self.parameter.is_none() && !read_number(field(mapping, self.parameter), alpha)) Py_RETURN_NONE;
  const Tensor target = THPVariable_Unpack(classes);
  const auto run = self.recipe->is_replayed(rows) ? on_gpu : on_cpu;
  Reduced found = run(*self.recipe, rows, target, alpha, kept, is_mean);
  if (!found.total.defined()) Py_RETURN_NONE;
  if (torch::autograd::compute_requires_grad(rows)) {
    auto node = make_node<BoundClassLossBackward>(LossRule{self.recipe, share(mapping), alpha, found.count,
                                                           found.counted.defined(), kept.ignore_index});
    node->set_next_edges(torch::autograd::collect_next_edges(rows));
    torch::autograd::set_history(found.total, node);
    node->saved_scores = SavedVariable(rows, false);
    node->saved_state = SavedVariable(found.state, false);
    node->saved_target = SavedVariable(target, false);
    node->counted = found.counted;
  }
  return THPVariable_Wrap(std::move(found.total));
}

}  // namespace fenchel
