// The Fenchel-Young loss of α-entmax for class indices: max_Ω(x) − x[target], from one solve.
#include <vector>

#include "state.hpp"

extern "C" {
int fenchel_entmax_state_f32(const float*, const double*, int64_t, int64_t, int64_t, double*, double*, int);
int fenchel_entmax_state_f64(const double*, const double*, int64_t, int64_t, int64_t, double*, double*, int);
}

namespace fenchel {
namespace {

// What rounding leaves of zero, or below it, is zero. A target out of range gives NaN. An ignored row has no
// loss, and the state of a row without entries, whose gradient is zero.
template <class T>
void subtract_scores(const T* scores, const int64_t* target, int64_t ignore_index, int64_t rows, int64_t d,
                     const double* maxima, T* losses, State* states) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = target[row];
    if (at == ignore_index) {
      losses[row] = 0;
      states[row] = {-kInf<double>, 0, 0, 0};
      continue;
    }
    const bool inside = at >= 0 && at < d;
    const double loss = inside ? maxima[row] - scores[row * d + at] : std::numeric_limits<double>::quiet_NaN();
    losses[row] = loss < std::numeric_limits<T>::epsilon() / 2 ? T(0) : static_cast<T>(loss);
  }
}

}  // namespace
}  // namespace fenchel

#define FENCHEL_LOSS(suffix, T)                                                                              \
  FENCHEL_API int fenchel_entmax_loss_##suffix(const T* scores, const int64_t* target, int64_t ignore_index, \
                                               const double* alphas, int64_t alpha_step, int64_t rows,       \
                                               int64_t d, T* losses, double* state, int threads) {           \
    double few[64];                                                                                          \
    std::vector<double> many(rows > 64 ? rows : 0);                                                          \
    double* maxima = rows > 64 ? many.data() : few;                                                          \
    const int status =                                                                                       \
        fenchel_entmax_state_##suffix(scores, alphas, alpha_step, rows, d, maxima, state, threads);          \
    if (status == fenchel::kOk)                                                                              \
      fenchel::subtract_scores(scores, target, ignore_index, rows, d, maxima, losses,                        \
                               reinterpret_cast<fenchel::State*>(state));                                    \
    return status;                                                                                           \
  }                                                            \
  FENCHEL_SIGNATURE(entmax_loss_##suffix, "scores, target, ignore_index, alpha, alpha_step, rows, d, losses, state, threads")
FENCHEL_LOSS(f32, float)
FENCHEL_LOSS(f64, double)
