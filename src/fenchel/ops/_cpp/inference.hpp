// Log-partitions, marginals and their derivatives of a batch, over a model of one instance:
//
//   Model(n, m, option)                         from the full sizes of the scores and the structure's option
//   int64_t parts(), extras()                   the sizes of the full scores and extra scores
//   double forward(scores, extra_scores, lengths) the log-partition of an instance; −inf if it has no
//                                               structure, NaN if a score is NaN or +inf
//   void marginals(u, v)                        after forward, into zeroed memory of the full sizes; v may be
//                                               null
//   void product(of_u, of_v, u, v)              after forward, the derivative of the marginals in a direction;
//                                               of_v and v may be null
#pragma once

#include <algorithm>

#include "structure.hpp"

namespace fenchel {

template <class T>
struct Instances {
  const T *scores, *extra_scores;
  int64_t extra_step;  // from the extra scores of one instance to the next; 0 if all share them
  const int64_t* lengths;
  int64_t batch, work;
  int threads;
};

// Calls answer(model, row, u, v) for each instance that has structures, into zeroed u and v where they are
// not null; instances with NaN or +inf get NaN.
template <class T, class Make, class Answer>
int infer(const Instances<T>& all, Make make, double* values, T* u, T* v, Answer answer) {
  return parallel_rows(all.batch, all.work, all.threads, [&](int64_t first, int64_t last) {
    auto model = make();
    const int64_t parts = model.parts(), extras = model.extras();
    for (int64_t row = first; row < last; ++row) {
      const T* extra_scores = all.extra_scores ? all.extra_scores + row * all.extra_step : nullptr;
      const int64_t* length = all.lengths ? all.lengths + row : nullptr;
      const double value = model.forward(all.scores + row * parts, extra_scores, length);
      if (values) values[row] = value;
      const T blank = value == value ? T(0) : std::numeric_limits<T>::quiet_NaN();
      T *own_u = u ? u + row * parts : nullptr, *own_v = v ? v + row * extras : nullptr;
      if (u) std::fill(own_u, own_u + parts, blank);
      if (v) std::fill(own_v, own_v + extras, blank);
      if (u && value > kNone) answer(model, row, own_u, own_v);
    }
  });
}

template <class T, class Make>
int infer_marginals(const Instances<T>& all, Make make, double* values, T* u, T* v) {
  return infer(all, make, values, u, v, [&](auto& model, int64_t, T* own_u, T* own_v) {
    model.marginals(own_u, own_v);
  });
}

template <class T, class Make>
int infer_product(const Instances<T>& all, Make make, const T* of_u, const T* of_v, T* u, T* v) {
  return infer(all, make, nullptr, u, v, [&](auto& model, int64_t row, T* own_u, T* own_v) {
    model.product(of_u + row * model.parts(), of_v ? of_v + row * model.extras() : nullptr, own_u, own_v);
  });
}

}  // namespace fenchel

// The signatures of the entry points of a structure's inference.
#define FENCHEL_INFERENCE_SIGNATURES(name, suffix)                                                  \
  FENCHEL_SIGNATURE(name##_marginals_##suffix,                                                      \
                    "scores, extra_scores, extra_step, lengths, batch, n, m, option, values, u, v, " \
                    "threads")                                                                      \
  FENCHEL_SIGNATURE(name##_product_##suffix,                                                        \
                    "scores, extra_scores, extra_step, lengths, batch, n, m, option, of_u, of_v, u, " \
                    "v, threads")

#define FENCHEL_INFERENCE_OF(name, suffix, T, work, Model)                                            \
  FENCHEL_API int fenchel_##name##_marginals_##suffix(                                              \
      const T* scores, const T* extra_scores, int64_t extra_step, const int64_t* lengths,           \
      int64_t batch, int64_t n, int64_t m, int64_t option, double* values, T* u, T* v,              \
      int threads) {                                                                                \
    return fenchel::infer_marginals<T>({scores, extra_scores, extra_step, lengths, batch, work, threads}, \
                                       [=] { return fenchel::Model(n, m, option); }, values, u, v);                  \
  }                                                                                                 \
  FENCHEL_API int fenchel_##name##_product_##suffix(                                                \
      const T* scores, const T* extra_scores, int64_t extra_step, const int64_t* lengths,           \
      int64_t batch, int64_t n, int64_t m, int64_t option, const T* of_u, const T* of_v, T* u,      \
      T* v, int threads) {                                                                          \
    return fenchel::infer_product<T>({scores, extra_scores, extra_step, lengths, batch, work, threads}, \
                                     [=] { return fenchel::Model(n, m, option); }, of_u, of_v, u, v);                \
  }                                                                                                 \
  FENCHEL_INFERENCE_SIGNATURES(name, suffix)

// The entry points of a structure's inference; arguments as for FENCHEL_MAP, the last a model.
#define FENCHEL_INFERENCE(name, work, Model)                  \
  FENCHEL_INFERENCE_OF(name, f32, float, work, Model) \
  FENCHEL_INFERENCE_OF(name, f64, double, work, Model)
