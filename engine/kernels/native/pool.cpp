#include "pool.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

namespace artesian {
namespace {

std::atomic<int> wanted_threads{1};

class Pool {
 public:
  void run(int64_t n_tasks, Task task, void* context, int n_workers) {
    grow(n_workers);
    {
      std::lock_guard<std::mutex> hold(mutex_);
      task_ = task;
      context_ = context;
      n_tasks_ = n_tasks;
      next_.store(0, std::memory_order_relaxed);
      failed_.store(false, std::memory_order_relaxed);
      places_ = n_workers;
    }
    wake_.notify_all();
    work(task, context, n_tasks);
    std::unique_lock<std::mutex> hold(mutex_);
    places_ = 0;  // who wakes up only now finds nothing to do and is not waited for
    idle_.wait(hold, [this] { return active_ == 0; });
    if (failed_.load()) throw std::bad_alloc();
  }

  std::mutex busy;  // held by the call that uses the pool

 private:
  void grow(int n_workers) {
    for (; n_started_ < n_workers; ++n_started_) {
      try {
        std::thread([this] { serve(); }).detach();  // lives as long as the process
      } catch (const std::system_error&) {
        return;  // fewer threads: slower, not wrong
      }
    }
  }

  void serve() {
    std::unique_lock<std::mutex> hold(mutex_);
    for (;;) {
      wake_.wait(hold, [this] { return places_ > 0; });
      --places_;
      ++active_;
      const Task task = task_;
      void* const context = context_;
      const int64_t n_tasks = n_tasks_;
      hold.unlock();
      work(task, context, n_tasks);
      hold.lock();
      if (--active_ == 0) idle_.notify_one();
    }
  }

  void work(Task task, void* context, int64_t n_tasks) {
    try {
      for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n_tasks;) task(context, i);
    } catch (const std::bad_alloc&) {
      failed_.store(true);
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  Task task_ = nullptr;
  void* context_ = nullptr;
  int64_t n_tasks_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> failed_{false};
  int places_ = 0;   // workers that may still join the current call
  int active_ = 0;   // workers inside it
  int n_started_ = 0;
};

// Never destroyed: workers may sleep in it while the process ends.
std::atomic<Pool*> the_pool{nullptr};

Pool& pool() {
  Pool* found = the_pool.load();
  if (found == nullptr) {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr); });
    (void)registered;  // a child of fork has no workers: it starts its own pool
    Pool* fresh = new Pool;
    if (the_pool.compare_exchange_strong(found, fresh)) return *fresh;
    delete fresh;
  }
  return *found;
}

}  // namespace

void set_threads(int n) { wanted_threads.store(n < 1 ? 1 : n); }

int threads() { return wanted_threads.load(); }

void run_tasks(int64_t n_tasks, Task task, void* context, bool worth) {
  const int n_threads = threads();
  if (worth && n_tasks > 1 && n_threads > 1) {
    Pool& shared = pool();
    std::unique_lock<std::mutex> alone(shared.busy, std::try_to_lock);
    if (alone.owns_lock()) {
      const int64_t helpers = n_tasks - 1 < n_threads - 1 ? n_tasks - 1 : n_threads - 1;
      shared.run(n_tasks, task, context, static_cast<int>(helpers));
      return;
    }
  }
  for (int64_t i = 0; i < n_tasks; ++i) task(context, i);
}

}  // namespace artesian
