// Python's signal handlers, such as that of Ctrl-C, while the library works.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace fenchel {

struct Interrupted {};

// Python runs handlers in its main thread alone. A call from there comes with `python`: PyEval_SaveThread,
// PyEval_RestoreThread and PyErr_CheckSignals. It holds the lock of the interpreter, which is released meanwhile, and
// taken again at times for the handlers. If one raises, the work stops, and its exception is left to Python. In other
// threads `python` is null.
class Interrupts {
 public:
  explicit Interrupts(void* const* python) : in_main_(python) {
    if (!in_main_) return;
    save_ = reinterpret_cast<Save>(python[0]);
    restore_ = reinterpret_cast<Restore>(python[1]);
    run_handlers_ = reinterpret_cast<RunHandlers>(python[2]);
    state_ = save_();
  }
  ~Interrupts() {
    if (in_main_) restore_(state_);
  }
  Interrupts(const Interrupts&) = delete;

  void stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }

  // For all threads to call often; throws Interrupted if the work is to stop.
  void check() {
    if (in_main_ && std::this_thread::get_id() == caller_ && Clock::now() >= next_) ask();
    if (stopped_.load(std::memory_order_relaxed)) throw Interrupted();
  }

  // Checks until the other threads have done their work.
  template <class F>
  void wait_until(F done) {
    if (!in_main_) return;
    const auto start = Clock::now();
    while (!done()) {
      check();
      if (Clock::now() - start < kBrief)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(kBrief);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Save = void* (*)();
  using Restore = void (*)(void*);
  using RunHandlers = int (*)();
  static constexpr std::chrono::milliseconds kPeriod{100}, kBrief{1};

  void ask() {
    restore_(state_);
    if (run_handlers_()) stop();
    state_ = save_();
    next_ = Clock::now() + kPeriod;
  }

  const bool in_main_;
  const std::thread::id caller_ = std::this_thread::get_id();
  Clock::time_point next_ = Clock::now() + kPeriod;
  std::atomic<bool> stopped_{false};
  Save save_ = nullptr;
  Restore restore_ = nullptr;
  RunHandlers run_handlers_ = nullptr;
  void* state_ = nullptr;
};

}  // namespace fenchel
