// The Jacobian of a solution of a graph times a vector; structures/relaxation/_jacobian.py has the mathematics.
#include "graph.hpp"

namespace fenchel {
namespace {

double inner(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

class Product {
 public:
  Product(const Graph& graph, const Probe& probe) : graph_(graph), probe_(probe), factors_(graph) {
    degree_.assign(static_cast<size_t>(graph.variables), 0.0);
    for (int64_t e = 0; e < graph.copies; ++e) ++degree_[graph.index[e]];
    for (auto* values : {&copies_, &seen_}) values->resize(static_cast<size_t>(graph.copies));
    for (auto* values : {&u_, &residual_, &direction_, &image_, &solution_})
      values->resize(static_cast<size_t>(graph.variables));
    extras_.resize(static_cast<size_t>(graph.extras));
  }

  // False if a factor does not know its Jacobian.
  bool solve(const double* theta, const double* shifted, const double* extra_scores, const double* in_u,
             const double* in_v, double* out_u, double* out_v) {
    theta_ = theta;
    factors_.forget();
    factors_.settle(probe_, shifted, extra_scores, copies_.data(), extras_.data());
    if (!factors_.have_jacobians()) return false;
    u_.assign(in_u, in_u + graph_.variables);
    if (graph_.extras) {
      factors_.multiply(nullptr, in_v, copies_.data(), nullptr);
      for (int64_t e = 0; e < graph_.copies; ++e) u_[graph_.index[e]] += copies_[e];
    }
    find_complement();
    for (int64_t i = 0; i < graph_.variables; ++i) out_u[i] = u_[i] - solution_[i];
    if (graph_.extras) {
      copy(out_u);
      factors_.multiply(seen_.data(), nullptr, nullptr, out_v);
    }
    return true;
  }

 private:
  void copy(const double* u) {
    for (int64_t e = 0; e < graph_.copies; ++e) seen_[e] = u[graph_.index[e]];
  }

  // Σ_f C_fᵀ (I − J_f) C_f u; its null space is where the marginals move.
  void normal(const std::vector<double>& u, std::vector<double>& out) {
    copy(u.data());
    factors_.multiply(seen_.data(), nullptr, copies_.data(), nullptr);
    for (int64_t i = 0; i < graph_.variables; ++i) {
      const bool is_fixed = degree_[i] == 0 && !(theta_[i] > 0 && theta_[i] < 1);
      out[i] = is_fixed ? u[i] : 0;
    }
    for (int64_t e = 0; e < graph_.copies; ++e) out[graph_.index[e]] += seen_[e] - copies_[e];
  }

  // The projection of u on the range of `normal`, by conjugate gradient.
  void find_complement() {
    normal(u_, residual_);
    direction_ = residual_;
    std::fill(solution_.begin(), solution_.end(), 0.0);
    double square = inner(residual_, residual_);
    const double goal = 1e-26 * inner(u_, u_);
    for (int64_t step = 0; step < 2 * graph_.variables + 20 && square > goal; ++step) {
      normal(direction_, image_);
      const double curve = inner(direction_, image_);
      const double length = curve > 0 ? square / curve : 0;
      for (size_t i = 0; i < u_.size(); ++i) solution_[i] += length * direction_[i], residual_[i] -= length * image_[i];
      const double previous = square;
      square = inner(residual_, residual_);
      for (size_t i = 0; i < u_.size(); ++i) direction_[i] = residual_[i] + square / previous * direction_[i];
    }
  }

  const Graph& graph_;
  const Probe& probe_;
  Factors factors_;
  const double* theta_ = nullptr;
  std::vector<double> degree_, copies_, seen_, extras_, u_, residual_, direction_, image_, solution_;
};

}  // namespace
}  // namespace fenchel

// Of `count` instances with the scores `shifted` and `extra_scores` of their last subproblems; `is_known` is false where
// there is no product, because a factor was solved at once.
FENCHEL_API int fenchel_factor_graph_product(
    const double* scores, const double* shifted, const double* extra_scores, int64_t count, const int64_t* groups,
    int64_t num_groups, const double* numbers, const int64_t* index, const bool* negated, int64_t variables,
    int64_t num_copies, int64_t num_extras, const double* directions, const double* radii, int64_t num_radii,
    double straight, const double* in_u, const double* in_v, double* out_u, double* out_v, bool* is_known, int threads) {
  const fenchel::Graph graph{groups, num_groups, numbers, index, negated, variables, num_copies, num_extras};
  const fenchel::Probe probe{directions, radii, num_radii, straight};
  return fenchel::parallel_instances(
      count, threads, [&] { return fenchel::Product(graph, probe); },
      [&](fenchel::Product& product, int64_t row) {
        const int64_t u = row * variables, v = row * num_extras;
        is_known[row] = product.solve(scores + u, shifted + row * num_copies, extra_scores + v, in_u + u, in_v + v,
                                      out_u + u, out_v + v);
      });
}
FENCHEL_SIGNATURE(factor_graph_product,
                  "scores, shifted, extra_scores, count, groups, num_groups, numbers, index, negated, variables, "
                  "num_copies, num_extras, directions, radii, num_radii, straight, in_u, in_v, out_u, out_v, is_known, "
                  "threads")
