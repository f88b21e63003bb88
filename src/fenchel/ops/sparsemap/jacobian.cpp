// The Jacobian of SparseMAP times vectors, from the structures and the factor of the forward pass.
#include <algorithm>
#include <cstring>
#include <vector>

#include "abi.hpp"
#include "face.hpp"
#include "gram.hpp"

namespace fenchel {
namespace {

double product(const double* a, const double* b, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// x = (A⁻¹ − A⁻¹11ᵀA⁻¹ / 1ᵀA⁻¹1) h for A = LLᵀ, L by columns of `stride`.
void solve(const double* factor, int64_t size, int64_t stride, double* x, double* ones) {
  for (int64_t k = 0; k < size; ++k) ones[k] = 1;
  for (int64_t j = 0; j < size; ++j) {
    const double* l = factor + j * stride;
    const double a = x[j] /= l[j], b = ones[j] /= l[j];
#pragma omp simd
    for (int64_t i = j + 1; i < size; ++i) x[i] -= a * l[i], ones[i] -= b * l[i];
  }
  const double shift = product(x, ones, size) / product(ones, ones, size);
  for (int64_t k = 0; k < size; ++k) x[k] -= shift * ones[k];
  for (int64_t j = size - 1; j >= 0; --j) {
    const double* l = factor + j * stride;
    x[j] = (x[j] - product(l + j + 1, x + j + 1, size - 1 - j)) / l[j];
  }
}

struct Indicators {
  const int32_t* indices;  // (count, width, each), −1 for none
  int64_t each, size;
  const double* in;        // (count, size) or null
  double* out;             // (count, size) or null
};

// Adds to x the sums over each structure.
void gather_sums(const Indicators& space, int64_t row, int64_t width, int64_t size, double* x) {
  if (!space.in) return;
  const int32_t* index = space.indices + row * width * space.each;
  const double* v = space.in + row * space.size;
  for (int64_t k = 0; k < size; ++k)
    for (int64_t i = 0; i < space.each; ++i, ++index)
      if (*index >= 0) x[k] += v[*index];
}

void scatter_sums(const Indicators& space, int64_t row, int64_t width, int64_t size, const double* x) {
  if (!space.out) return;
  const int32_t* index = space.indices + row * width * space.each;
  double* v = space.out + row * space.size;
  for (int64_t k = 0; k < size; ++k)
    for (int64_t i = 0; i < space.each; ++i, ++index)
      if (*index >= 0) v[*index] += x[k];
}

void clear(const Indicators& space, int64_t row) {
  if (space.out) std::memset(space.out + row * space.size, 0, static_cast<size_t>(space.size) * sizeof(double));
}

}  // namespace
}  // namespace fenchel

// With B the rows (part indicators, extra part indicators, identity) of the structures and D the solve above:
// B D Bᵀ (in_parts, in_extras, in_weights). Nulls are zeros, or not wanted.
//
// An instance that was solved at once (at_once is null if none was) has no factor. Its structures may not span its
// face. So between parts and extra parts the projection onto the face stands for M D Mᵀ, and links for the extra
// parts (null if there are none).
FENCHEL_API int fenchel_sparsemap_jacobian(
    const int32_t* part_indices, int64_t positions, int64_t parts, const int32_t* extra_indices,
    int64_t extras_each, int64_t extras, const double* factor, int64_t factor_width, const bool* at_once,
    const int32_t* groups, const int32_t* links, int64_t num_links, const int64_t* sizes, int64_t count,
    int64_t width, const double* in_parts, const double* in_extras, const double* in_weights,
    double* out_parts, double* out_extras, double* out_weights, int threads) {
  using namespace fenchel;
  const Indicators u{part_indices, positions, parts, in_parts, out_parts};
  const Indicators v{extra_indices, extras_each, extras, in_extras, out_extras};
  return parallel_rows(count, width * (positions + width), threads, [&](int64_t first, int64_t last) {
    std::vector<double> x(width), ones(width), along(width), vector;
    GramFactor gram;
    Face face;
    Links link;
    for (int64_t row = first; row < last; ++row) {
      const int64_t size = sizes[row];
      clear(u, row), clear(v, row);
      for (int64_t k = 0; k < width; ++k)
        x[k] = in_weights && k < size ? in_weights[row * width + k] : 0;
      if (size && !(at_once && at_once[row])) {
        gather_sums(u, row, width, size, x.data());
        gather_sums(v, row, width, size, x.data());
        solve(factor + row * factor_width * factor_width, size, factor_width, x.data(), ones.data());
        scatter_sums(u, row, width, size, x.data());
        scatter_sums(v, row, width, size, x.data());
      } else if (size) {
        if (in_weights || out_weights) {
          gram.set(part_indices + row * width * positions, size, positions);
          std::fill(along.begin(), along.end(), 0.0);
          gather_sums(u, row, width, size, along.data());
          gather_sums(v, row, width, size, along.data());
          solve(gram.data(), size, gram.stride(), along.data(), ones.data());
          solve(gram.data(), size, gram.stride(), x.data(), ones.data());
          scatter_sums(u, row, width, size, x.data());
          scatter_sums(v, row, width, size, x.data());
          for (int64_t k = 0; k < size; ++k) x[k] += along[k];
        }
        vector.assign(static_cast<size_t>(parts), 0.0);
        link.set(links ? links + row * 3 * num_links : nullptr, links ? num_links : 0);
        if (in_parts) std::copy_n(in_parts + row * parts, parts, vector.data());
        if (in_extras) link.apply_transposed(in_extras + row * extras, parts, vector.data());
        face.set(groups + row * 3 * parts, parts);
        face.project(vector.data(), vector.data());
        if (out_parts)
          for (int64_t p = 0; p < parts; ++p) out_parts[row * parts + p] += vector[p];
        if (out_extras) link.apply(vector.data(), parts, out_extras + row * extras);
      }
      if (out_weights) std::copy(x.begin(), x.end(), out_weights + row * width);
    }
  });
}
FENCHEL_SIGNATURE(sparsemap_jacobian,
                  "part_indices, positions, parts, extra_indices, extras_each, extras, factor, "
                  "factor_width, at_once, groups, links, num_links, sizes, count, width, in_parts, "
                  "in_extras, in_weights, out_parts, out_extras, out_weights, threads")
