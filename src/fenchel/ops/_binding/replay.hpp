// Launches of GPU kernels that one call of an operation made, repeated for later calls like it without Python.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include <pybind11/stl.h>

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>

#include "eager.hpp"

namespace fenchel {

// Functions of CUDA's driver and of PyTorch with C interfaces; Python finds their addresses.
struct Driver {
  int (*launch)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                unsigned block_z, unsigned shared, void* stream, void** parameters, void** extra);
  int (*current_device)(int* device);
  int (*current_stream)(int32_t device, void** stream);
};

constexpr int kNumber = -1;
constexpr size_t kMaxWords = 64;

// An argument of a kernel: the bits of a number (base −1), or a place so many bytes past the start of a tensor.
struct Word {
  int base;  // which one: of the inputs, then the results, then the buffers
  uint64_t value;
};

struct Launch {
  void* function;
  std::array<unsigned, 3> grid;
  unsigned threads, shared;
  std::vector<Word> words;
};

// All that a call does: it allocates its results and buffers, and launches.
struct Record {
  Driver driver;
  std::vector<int64_t> buffers;  // their bytes
  std::vector<Launch> launches;
};

using Tensors = c10::SmallVector<Tensor, 4>;
using Option = std::variant<double, int64_t>;

// The arguments of a call. Tensors are contiguous and on one device; the first one is the rows (..., d).
struct Given {
  Tensors tensors;
  Tensor parameter;  // one per row; undefined if it is the number
  double number;
  Option option;
};

struct Result {
  c10::IntArrayRef shape;
  c10::ScalarType type;

  bool is_like(const Tensor& tensor) const {
    return tensor.sizes() == shape && tensor.scalar_type() == type && tensor.is_contiguous();
  }
};

inline std::atomic<int64_t> num_replays{0};

// An operation on a GPU. A call with new arguments is left to Python (no results), a second one like it is noted by
// Python, and from the third one on its launches are repeated. It is called without Python's lock.
class Operation {
 public:
  static constexpr size_t kMaxRecords = 1024;

  // (tensors, parameter, option) → (results, record or None), in Python
  explicit Operation(c10::SafePyObject note) : note_(std::move(note)) {}

  Tensors operator()(const Given& given, c10::ArrayRef<Result> wanted) {
    const Key key = key_of(given);
    std::shared_ptr<const Record> record;
    switch (find(key, record)) {
      case State::kNoted:
        return repeat(*record, given, wanted);
      case State::kSeen:
        return note(key, given, wanted);
      default:
        return {};
    }
  }

 private:
  using Key = std::array<int64_t, 5>;
  enum class State { kNew, kSeen, kRefused, kNoted };

  struct Hash {
    size_t operator()(const Key& key) const {
      uint64_t hash = 0;
      for (const int64_t word : key) hash = (hash ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
      return hash;
    }
  };

  struct Entry {
    State state = State::kNew;
    std::shared_ptr<const Record> record;
  };

  using Table = std::unordered_map<Key, Entry, Hash>;

  // Everything on which launches depend, but for the places in memory.
  static Key key_of(const Given& given) {
    const Tensor& rows = given.tensors[0];
    const int64_t d = rows.size(-1);
    int64_t kinds = rows.device().index() + 1;
    const auto add = [&](int64_t kind) { kinds = kinds << 8 | kind; };
    add(static_cast<int64_t>(rows.scalar_type()));
    add(given.parameter.defined() ? 1 + static_cast<int64_t>(given.parameter.scalar_type()) : 0);
    add(static_cast<int64_t>(given.option.index()));
    int64_t aligned = 0;
    const auto see = [&](const Tensor& tensor) {
      aligned = aligned << 1 | (reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0);
    };
    for (const Tensor& tensor : given.tensors) see(tensor);
    if (given.parameter.defined()) see(given.parameter);
    add(aligned);
    const int64_t option = given.option.index() == 0 ? std::bit_cast<int64_t>(std::get<0>(given.option))
                                                      : std::get<1>(given.option);
    const double number = given.parameter.defined() ? 0.0 : given.number;
    return {kinds, rows.numel() / d, d, std::bit_cast<int64_t>(number), option};
  }

  // What is known of a call, which is then known to have been made.
  State find(const Key& key, std::shared_ptr<const Record>& record) {
    Table dropped;  // after the lock is released
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = table_.find(key);
    if (found == table_.end()) {
      if (table_.size() >= kMaxRecords) table_.swap(dropped);
      table_[key].state = State::kSeen;
      return State::kNew;
    }
    Entry& entry = found->second;
    record = entry.record;
    const State state = entry.state;
    if (state == State::kSeen) entry.state = State::kRefused;  // one thread notes it, and only once
    return state;
  }

  Tensors note(const Key& key, const Given& given, c10::ArrayRef<Result> wanted) {
    std::shared_ptr<const Record> record;
    Tensors results = call_python([&] {
      namespace py = pybind11;
      const at::AutoGradMode no_grad(false);
      py::tuple tensors(given.tensors.size());
      for (size_t i = 0; i < given.tensors.size(); ++i) tensors[i] = wrap(given.tensors[i]);
      const py::object parameter = given.parameter.defined() ? wrap(given.parameter) : py::float_(given.number);
      const py::tuple answer = borrow(note_)(tensors, parameter, given.option);
      Tensors found;
      for (const py::handle& result : answer[0].cast<py::tuple>()) found.push_back(unwrap(result));
      const size_t inputs = tensors.size() + given.parameter.defined();
      if (!answer[1].is_none()) record = read(answer[1], inputs + wanted.size());
      return found;
    });
    if (results.size() != wanted.size()) throw std::invalid_argument("an operation has other results.");
    for (size_t i = 0; i < wanted.size(); ++i)
      if (!wanted[i].is_like(results[i])) throw std::invalid_argument("a result has another shape or type.");
    if (record != nullptr) {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = table_.find(key);
      if (found != table_.end()) found->second = {State::kNoted, std::move(record)};
    }
    return results;
  }

  static std::shared_ptr<const Record> read(const pybind11::handle& given, size_t tensors) {
    using Addresses = std::tuple<uintptr_t, uintptr_t, uintptr_t>;
    using Words = std::vector<std::pair<int, uint64_t>>;
    using Launches = std::vector<std::tuple<uintptr_t, std::array<unsigned, 3>, unsigned, unsigned, Words>>;
    auto [driver, buffers, launches] = given.cast<std::tuple<Addresses, std::vector<int64_t>, Launches>>();
    Record record;
    record.driver = {reinterpret_cast<decltype(Driver::launch)>(std::get<0>(driver)),
                     reinterpret_cast<decltype(Driver::current_device)>(std::get<1>(driver)),
                     reinterpret_cast<decltype(Driver::current_stream)>(std::get<2>(driver))};
    const int bases = static_cast<int>(tensors + buffers.size());
    record.buffers = std::move(buffers);
    for (const auto& [function, grid, threads, shared, words] : launches) {
      Launch launch{reinterpret_cast<void*>(function), grid, threads, shared, {}};
      if (words.size() > kMaxWords) throw std::invalid_argument("a kernel has too many arguments.");
      for (const auto& [base, value] : words) {
        if (base < kNumber || base >= bases) throw std::invalid_argument("an argument is of no tensor.");
        launch.words.push_back({base, value});
      }
      record.launches.push_back(std::move(launch));
    }
    return std::make_shared<const Record>(std::move(record));
  }

  static Tensors repeat(const Record& record, const Given& given, c10::ArrayRef<Result> wanted) {
    const c10::Device device = given.tensors[0].device();
    int current = 0;
    if (record.driver.current_device(&current) != 0 || current != device.index()) return {};
    c10::SmallVector<uint64_t, 12> starts;
    const auto start_at = [&](const void* place) { starts.push_back(reinterpret_cast<uintptr_t>(place)); };
    for (const Tensor& tensor : given.tensors) start_at(tensor.const_data_ptr());
    if (given.parameter.defined()) start_at(given.parameter.const_data_ptr());
    Tensors results, buffers;
    for (const Result& result : wanted) {
      results.push_back(at::empty(result.shape, at::TensorOptions(device).dtype(result.type)));
      start_at(results.back().data_ptr());
    }
    for (const int64_t bytes : record.buffers) {
      buffers.push_back(at::empty({bytes}, at::TensorOptions(device).dtype(at::kByte)));
      start_at(buffers.back().data_ptr());
    }
    void* stream = nullptr;
    check("aoti_torch_get_current_cuda_stream", record.driver.current_stream(device.index(), &stream));
    for (const Launch& launch : record.launches) {
      std::array<uint64_t, kMaxWords> words;
      std::array<void*, kMaxWords> parameters;
      for (size_t i = 0; i < launch.words.size(); ++i) {
        const Word& word = launch.words[i];
        words[i] = word.base == kNumber ? word.value : starts[word.base] + word.value;
        parameters[i] = &words[i];
      }
      check("cuLaunchKernel", record.driver.launch(launch.function, launch.grid[0], launch.grid[1], launch.grid[2],
                                                   launch.threads, 1, 1, launch.shared, stream, parameters.data(),
                                                   nullptr));
    }
    ++num_replays;
    return results;
  }

  static void check(const char* function, int status) {
    if (status != 0) throw std::runtime_error(std::string(function) + " returned error " + std::to_string(status) + ".");
  }

  c10::SafePyObject note_;
  std::mutex mutex_;
  Table table_;
};

// The device whose calls are repeated, and the types of numbers there.
struct Gpu {
  c10::DeviceType type = c10::DeviceType::CUDA;
  bool takes_half = false;

  // Whether rows are of this kind; in autocast, half precision would become float32.
  bool serves(const Tensor& rows) const {
    if (rows.device().type() != type) return false;
    if (is_float(rows)) return true;
    return takes_half && (rows.scalar_type() == at::kHalf || rows.scalar_type() == at::kBFloat16) &&
           !at::autocast::is_autocast_enabled(type);
  }
};

}  // namespace fenchel
