// A function of the kernel library for float32 and float64, called by what its arguments are.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include <c10/core/ScalarType.h>

namespace fenchel {

// All that a kernel on rows may ask for.
struct Arguments {
  const void* rows;         // (n, d), scores or a solution
  const void* v;            // (n, d), the vector that a Jacobian multiplies
  const double* parameter;  // one for all rows (step 0), or one per row (step 1)
  int64_t step;
  double option;
  int64_t n, d;
  void* out;
  int threads;
};

using Call = int (*)(void* function, const Arguments&);

template <class... Types>
int invoke(void* function, Types... arguments) {
  return reinterpret_cast<int (*)(Types...)>(function)(arguments...);
}

// How functions are called whose arguments have these types. Pointers to float and double are passed alike.
inline Call call_of(const std::string& types) {
  using Rows = const void*;
  using Numbers = const double*;
  static const std::unordered_map<std::string, Call> calls = {
      // solutions
      {"T* f64 i64 i64 T* i32",
       [](void* f, const Arguments& a) {
         return invoke<Rows, double, int64_t, int64_t, void*, int>(f, a.rows, *a.parameter, a.n, a.d, a.out, a.threads);
       }},
      {"T* f64* i64 i64 i64 T* i32",
       [](void* f, const Arguments& a) {
         return invoke<Rows, Numbers, int64_t, int64_t, int64_t, void*, int>(f, a.rows, a.parameter, a.step, a.n, a.d,
                                                                            a.out, a.threads);
       }},
      {"T* f64* i64 i64 i64 T* f64* i32",
       [](void* f, const Arguments& a) {
         return invoke<Rows, Numbers, int64_t, int64_t, int64_t, void*, double*, int>(
             f, a.rows, a.parameter, a.step, a.n, a.d, a.out, nullptr, a.threads);
       }},
      {"T* f64* i64 f64 i64 i64 T* i32",
       [](void* f, const Arguments& a) {
         return invoke<Rows, Numbers, int64_t, double, int64_t, int64_t, void*, int>(
             f, a.rows, a.parameter, a.step, a.option, a.n, a.d, a.out, a.threads);
       }},
      // products with a Jacobian
      {"T* T* i64 i64 T* i32",
       [](void* f, const Arguments& a) {
         return invoke<Rows, Rows, int64_t, int64_t, void*, int>(f, a.rows, a.v, a.n, a.d, a.out, a.threads);
       }},
      {"T* T* f64 i64 i64 T* i32",
       [](void* f, const Arguments& a) {
         return invoke<Rows, Rows, double, int64_t, int64_t, void*, int>(f, a.rows, a.v, a.option, a.n, a.d, a.out,
                                                                        a.threads);
       }},
      {"T* T* f64* i64 i64 i64 T* i32",
       [](void* f, const Arguments& a) {
         return invoke<Rows, Rows, Numbers, int64_t, int64_t, int64_t, void*, int>(f, a.rows, a.v, a.parameter, a.step,
                                                                                  a.n, a.d, a.out, a.threads);
       }},
  };
  const auto found = calls.find(types);
  if (found == calls.end()) throw std::invalid_argument("no kernel is called with " + types);
  return found->second;
}

// The addresses of one function for float32 and float64.
struct Entry {
  void* f32 = nullptr;
  void* f64 = nullptr;

  void* at(c10::ScalarType type) const { return type == c10::ScalarType::Float ? f32 : f64; }
};

struct Kernel {
  Entry entry;
  Call call = nullptr;

  explicit operator bool() const { return call != nullptr; }
  int operator()(c10::ScalarType type, const Arguments& arguments) const { return call(entry.at(type), arguments); }
};

}  // namespace fenchel
