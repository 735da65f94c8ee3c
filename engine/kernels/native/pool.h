// Worker threads that sleep until there is work. They never spin: on a machine shared with others, spinning threads that
// are not on a core turned calls of 0.4 ms into 24 ms.
#pragma once
#include <cstdint>

namespace artesian {

using Task = void (*)(void* context, int64_t task);

// How many threads a call may use, the caller included; at least 1. Takes effect with the next call.
void set_threads(int n);
int threads();

// Runs task 0 .. n_tasks-1, each once, on the caller and the workers; returns when all are done. Tasks of two calls at
// once do not mix: the second call runs on its caller alone. A task may throw std::bad_alloc, which is then thrown here
// when the others are done.
// `worth` says whether there is enough to do to wake a thread for it, which takes some 10 microseconds.
void run_tasks(int64_t n_tasks, Task task, void* context, bool worth = true);

}  // namespace artesian
