// The Python module: makes callables from the addresses of kernels.
#include "class_loss.hpp"

namespace py = pybind11;

namespace fenchel {
namespace {

// (types, address for float32, address for float64), as `NativeFunction.entry` gives it.
using Address = std::tuple<std::string, uintptr_t, uintptr_t>;

Entry entry(const Address& given) {
  return {reinterpret_cast<void*>(std::get<1>(given)), reinterpret_cast<void*>(std::get<2>(given))};
}

Entry entry(const Address& given, const std::string& types) {
  if (std::get<0>(given) != types)
    throw std::invalid_argument("a function takes " + std::get<0>(given) + " instead of " + types);
  return entry(given);
}

Kernel kernel(const Address& given) { return {entry(given), call_of(std::get<0>(given))}; }

// The name of a field, and no number; or None, and the number that stands for it.
std::pair<py::object, double> name_or_number(const py::object& given) {
  if (py::isinstance<py::str>(given)) return {given, 0.0};
  return {py::none(), given.cast<double>()};
}

// What is repeated on a GPU: the kind of device, and whether it takes half precision, and a function in Python for each
// operation, or None.
using Replayed = std::tuple<std::string, bool, std::vector<py::object>>;

Gpu gpu(const std::optional<Replayed>& given) {
  if (!given) return {};
  return {c10::Device(std::get<0>(*given)).type(), std::get<1>(*given)};
}

std::unique_ptr<Operation> operation(const std::optional<Replayed>& given, size_t i) {
  if (!given || std::get<2>(*given).at(i).is_none()) return nullptr;
  return std::make_unique<Operation>(share(std::get<2>(*given)[i].ptr()));
}

template <class Self>
PyObject* fast_call(PyObject* capsule, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != Self::num_arguments) {
    PyErr_Format(PyExc_TypeError, "%d arguments are needed, got %zd.", Self::num_arguments, count);
    return nullptr;
  }
  return call(*static_cast<const Self*>(PyCapsule_GetPointer(capsule, nullptr)), arguments);
  END_HANDLE_TH_ERRORS
}

// A function of Python's that owns `self` and is called at the least cost.
template <class Self>
py::object callable(const char* name, Self&& self) {
  static PyMethodDef method = {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&fast_call<Self>)),
                               METH_FASTCALL, nullptr};
  const py::capsule owner(new Self(std::move(self)), [](void* object) { delete static_cast<Self*>(object); });
  return py::reinterpret_steal<py::object>(PyCFunction_New(&method, owner.ptr()));
}

py::object solver(const Address& solve, const Address& jvp, const std::optional<Address>& parameter_vjp,
                  const py::object& rule, const py::object& parameter, const py::object& option, double minimum,
                  double max_option, bool is_part, const std::optional<Replayed>& replayed) {
  Recipe recipe{kernel(solve),          kernel(jvp),
                parameter_vjp ? kernel(*parameter_vjp) : Kernel(),
                share(rule.ptr()),      gpu(replayed),
                operation(replayed, 0), operation(replayed, 1),
                operation(replayed, 2)};
  const auto [name, number] = name_or_number(parameter);
  return callable("solve", Solver{std::make_shared<const Recipe>(std::move(recipe)), name, option, number, minimum,
                                  max_option, is_part});
}

py::object class_loss(const Address& loss, const Address& gradient, const py::object& rule,
                      const py::object& parameter, const std::optional<Replayed>& replayed) {
  LossRecipe recipe{entry(loss, kLossTypes), entry(gradient, kGradientTypes), share(rule.ptr()),
                    gpu(replayed),           operation(replayed, 0),          operation(replayed, 1)};
  const auto [name, number] = name_or_number(parameter);
  return callable("class_loss", ClassLoss{std::make_shared<const LossRecipe>(std::move(recipe)), name, number});
}

}  // namespace
}  // namespace fenchel

PYBIND11_MODULE(compiled, module) {
  module.attr("interface") = 2;  // as INTERFACE in Python
  using py::arg;
  module.def("solver", fenchel::solver, py::kw_only(), arg("solve"), arg("jvp"), arg("parameter_vjp"), arg("rule"),
             arg("parameter"), arg("option"), arg("minimum"), arg("max_option"), arg("is_part"), arg("replayed"));
  module.def("class_loss", fenchel::class_loss, py::kw_only(), arg("loss"), arg("gradient"), arg("rule"),
             arg("parameter"), arg("replayed"));
  module.def("num_replays", [] { return fenchel::num_replays.load(); });
}
