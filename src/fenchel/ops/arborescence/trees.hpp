// Log-partition, marginals and their derivative of the dependency trees of one sentence.
#pragma once

#include <algorithm>

#include "escape.hpp"
#include "inference.hpp"
#include "math.hpp"

namespace fenchel {

// The weights of one sentence, and memory, in one kind of numbers.
template <class Num>
struct TreeNumbers {
  std::vector<Num> memory[2];
  std::vector<Num> arcs, root;  // by head and modifier, zero on the diagonal
  int64_t width = 0;

  Num* reserve(int which, int64_t n) {
    auto& store = memory[which];
    if (static_cast<int64_t>(store.size()) < n) store.resize(n);
    return store.data();
  }
};

class Trees {
 public:
  Trees(int n, bool single_root) : full_n_(n), single_root_(single_root) {
    const int64_t width = padded<double>(n);
    score_.resize(n * width);
    for (Workspace* w : {&scale_, &own_root_}) w->resize(width);
  }

  int64_t parts() const { return full_n_ * full_n_; }
  int64_t extras() const { return 0; }

  template <class T>
  double forward(const T* scores, const T*, const int64_t* lengths) {
    n_ = lengths ? *lengths : full_n_;
    width_ = padded<double>(n_);
    bool solvable = true;
    for (int64_t h = 0; h < n_; ++h) {
      double* row = score_.data() + h * width_;
      for (int64_t d = 0; d < n_; ++d) {
        row[d] = static_cast<double>(scores[h * full_n_ + d]);
        solvable &= row[d] < kInf<double>;
      }
      for (int64_t d = n_; d < width_; ++d) row[d] = kNone;
    }
    if (!solvable) return std::numeric_limits<double>::quiet_NaN();
    if (n_ == 1) return score_[0];
    if (!rescale()) return kNone;
    is_wide_ = !is_tame_;
    double value = is_wide_ ? kNone : eliminate<double>(plain_);
    if (!(value > kNone && value < kInf<double>)) is_wide_ = true, value = eliminate<Wide>(wide_);
    return value;
  }

  template <class T>
  void marginals(T* u, T*) {
    if (n_ == 1) {
      u[0] = 1;
    } else if (is_wide_ || !write<double, false, T>(plain_, nullptr, u)) {
      weigh<Wide>(wide_);
      write<Wide, false, T>(wide_, nullptr, u);
    }
  }

  template <class T>
  void product(const T* of_u, const T*, T* u, T*) {
    if (n_ == 1) return;
    if (is_wide_ || !write<double, true>(plain_, of_u, u)) {
      weigh<Wide>(wide_);
      write<Wide, true>(wide_, of_u, u);
    }
  }

 private:
  // Two roots are so unlikely beside one, in numbers that have the room, that they never count.
  static constexpr int64_t kRare = int64_t(1) << 32;
  // Scores that lie this close together neither overflow nor underflow.
  static constexpr double kNear = 600;

  int64_t full_n_, n_ = 0, width_ = 0;
  bool single_root_, is_wide_ = false, is_tame_ = true;
  double base_ = 0;
  Workspace score_, scale_, own_root_;
  TreeNumbers<double> plain_;
  TreeNumbers<Wide> wide_;

  bool leaves_root_out(double) const { return single_root_; }
  bool leaves_root_out(Wide) const { return false; }

  // Subtracts from the scores of each word's heads the largest, and from the root's the largest in all if it
  // is single; base is the sum of these. False if a word has no head at all.
  bool rescale() {
    double spread = 0;
    bool forbids = false;
    base_ = 0;
    for (int64_t d = 0; d < n_; ++d) scale_[d] = kNone;
    for (int64_t h = 0; h < n_; ++h)
      for (int64_t d = 0; d < n_; ++d)
        if (h != d || !single_root_) scale_[d] = std::max(scale_[d], score_[h * width_ + d]);
    double top = single_root_ ? kNone : 0, low = kInf<double>;
    bool orphan = false;
    for (int64_t d = 0; d < n_; ++d) {
      const double root = score_[d * width_ + d];
      if (scale_[d] == kNone) {
        if (root == kNone) return false;
        orphan = true;
        scale_[d] = root;
      }
      base_ += scale_[d];
      own_root_[d] = root - scale_[d];
      if (single_root_) top = std::max(top, own_root_[d]);
      forbids |= own_root_[d] == kNone;
      if (own_root_[d] > kNone) low = std::min(low, own_root_[d]);
    }
    if (top == kNone) return false;
    for (int64_t d = 0; d < n_; ++d) own_root_[d] -= top;
    base_ += top;
    spread = std::max(spread, top - low);
    for (int64_t h = 0; h < n_; ++h)
      for (int64_t d = 0; d < n_; ++d) {
        double& s = score_[h * width_ + d];
        s -= scale_[d];
        if (h == d) continue;
        forbids |= s == kNone;
        if (s > kNone) spread = std::max(spread, -s);
      }
    is_tame_ = !orphan && (forbids ? static_cast<double>(n_) * spread : spread) <= kNear;
    return true;
  }

  // Weights from scores; a single root's infinitely small ones are as small as wide numbers can tell.
  template <class Num>
  void weigh(TreeNumbers<Num>& to) {
    to.arcs.resize(n_ * width_);
    to.root.resize(width_);
    if constexpr (sizeof(Num) == sizeof(double)) {
      for (int64_t k = 0; k < n_ * width_; k += kLanes<double>)
        store<double>(to.arcs.data() + k, exp<double>(load<double>(score_.data() + k)));
      for (int64_t d = 0; d < n_; ++d) to.root[d] = std::exp(own_root_[d]);
    } else {
      auto weight = [](double x) { return x == kNone ? Wide() : Wide::exp(x); };
      for (int64_t k = 0; k < n_ * width_; ++k) to.arcs[k] = weight(score_[k]);
      for (int64_t d = 0; d < n_; ++d) {
        to.root[d] = weight(own_root_[d]);
        if (single_root_ && !is_zero(to.root[d])) to.root[d].power -= kRare;
      }
    }
    for (int64_t d = 0; d < n_; ++d) to.arcs[d * width_ + d] = Num(0.0);
    for (int64_t d = n_; d < width_; ++d) to.root[d] = Num(0.0);
  }

  // The graph of the sentence, arcs by modifier and head, and the memory behind it.
  template <class Num, bool kSlopes, class T>
  Arcs<Num, kSlopes> graph(TreeNumbers<Num>& numbers, const T* of_u, Numbers<Num, kSlopes>& rest) {
    const int64_t size = (n_ + 1) * width_;
    const int64_t room = 2 * size + Escape<Num, kSlopes>::room(n_);
    rest = {numbers.reserve(0, room), kSlopes ? numbers.reserve(1, room) : nullptr};
    Arcs<Num, kSlopes> g = {rest, rest + n_ * width_, n_, width_};
    for (int64_t d = 0; d < n_; ++d) {
      for (int64_t h = 0; h < width_; ++h) {
        const Num w = h < n_ ? numbers.arcs[h * width_ + d] : Num(0.0);
        g.row(d).x[h] = w;
        if constexpr (kSlopes)
          g.row(d).slope[h] = h < n_ ? w * Num(static_cast<double>(of_u[h * full_n_ + d])) : Num(0.0);
      }
      g.root.x[d] = numbers.root[d];
      if constexpr (kSlopes)
        g.root.slope[d] = numbers.root[d] * Num(static_cast<double>(of_u[d * full_n_ + d]));
    }
    rest = rest + size;
    return g;
  }

  // The log-partition: the logarithm of the product of all S. NaN or infinite if the numbers are too narrow.
  template <class Num>
  double eliminate(TreeNumbers<Num>& numbers) {
    weigh<Num>(numbers);
    Numbers<Num, false> rest;
    auto g = graph<Num, false, double>(numbers, nullptr, rest);
    const Escape<Num, false> escape(leaves_root_out(Num()));
    Wide product(1.0);
    auto multiply = [&](Num s) {
      if constexpr (sizeof(Num) == sizeof(double))
        product *= Wide(s);
      else
        product *= s;
    };
    for (int64_t k = n_ - 1; k > 0; --k) {
      const Num s = escape.leave_out(g, k).x;
      if (is_zero(s)) return kNone;
      multiply(s);
    }
    multiply(g.root.x[0]);
    if constexpr (sizeof(Num) > sizeof(double)) {
      if (single_root_) product.power += kRare;
      if (single_root_ && product.power < -kRare / 2) return kNone;  // two roots are the least there can be
    }
    return is_zero(product) ? kNone : base_ + product.log();
  }

  template <class Num, bool kSlopes, class T>
  bool write(TreeNumbers<Num>& numbers, const T* of_u, T* u) {
    Numbers<Num, kSlopes> rest;
    const auto g = graph<Num, kSlopes>(numbers, of_u, rest);
    const Numbers<Num, kSlopes> rho = rest;
    if (!Escape<Num, kSlopes>(leaves_root_out(Num())).solve(g, rho, width_, rest + (n_ + 1) * width_)) return false;
    for (int64_t d = 0; d < n_; ++d) {
      Number<Num> all = {numbers.root[d], kSlopes ? at(g.root, d).slope : Num(0.0)};
      for (int64_t h = 0; h < n_; ++h) {
        if (h == d) continue;
        const Number<Num> w = at(g.row(d), h), r = at(rho, h * width_ + d);
        const Num x = w.x * r.x;
        all.x += x;
        if constexpr (kSlopes) {
          const Num slope = w.x * r.slope + w.slope * r.x;
          all.slope += slope;
          put(g.row(d), h, {x, slope});
        } else {
          g.row(d).x[h] = x;
        }
      }
      put(g.row(d), d, at(g.root, d));
      for (int64_t h = 0; h < n_; ++h) {
        const Number<Num> x = at(g.row(d), h);
        const Num p = x.x / all.x;
        u[h * full_n_ + d] =
            static_cast<T>(narrow(kSlopes ? (x.slope - p * all.slope) / all.x : p));
      }
    }
    return true;
  }
};

}  // namespace fenchel
