// The signature of an exported function as text, which the loader compares with what it expects.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

namespace fenchel {

template <class T>
std::string type_name() {
  if constexpr (std::is_pointer_v<T>)
    return type_name<std::remove_cv_t<std::remove_pointer_t<T>>>() + "*";
  else if constexpr (std::is_floating_point_v<T>)
    return "f" + std::to_string(8 * sizeof(T));
  else if constexpr (std::is_same_v<T, bool>)
    return "bool";
  else if constexpr (std::is_integral_v<T>)
    return "i" + std::to_string(8 * sizeof(T));
  else
    return "void";
}

template <class... Arguments>
constexpr int arity(int (*)(Arguments...)) {
  return sizeof...(Arguments);
}

// How many names "scores, rows, d" has.
constexpr int count_names(const char* names) {
  int count = 1;
  for (; *names; ++names) count += *names == ',';
  return count;
}

// "scores: f32*, rows: i64, d: i64" from a function and the names of its arguments.
template <class... Arguments>
std::string signature(int (*)(Arguments...), const char* names) {
  std::string text;
  const auto add = [&](const std::string& type) {
    while (*names && *names != ',') text += *names++;
    text += ": " + type;
    if (*names) text += *names++;
  };
  (add(type_name<Arguments>()), ...);
  return text;
}

}  // namespace fenchel
