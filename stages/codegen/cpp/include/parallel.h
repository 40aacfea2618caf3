// Threads, from the OpenMP runtime that torch has already loaded.
//
// GOMP_parallel is the entry point that GCC's own `#pragma omp parallel` calls; libgomp, LLVM's libomp and Intel's
// libiomp5 all export it. It is called by name because clang's pragmas would need libomp: a second pool of threads
// beside torch's, where torch came with libgomp.

extern "C" void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags);
extern "C" int omp_get_thread_num(void);
extern "C" int omp_get_num_threads(void);

namespace weld {

template <class Body> struct Team {
  Body body;
  int64_t items;
  int failed;

  static void work(void *data) {
    Team &team = *(Team *)data;
    const int64_t count = omp_get_num_threads(), rank = omp_get_thread_num();
    const int64_t begin = team.items * rank / count, end = team.items * (rank + 1) / count;
    if (begin < end && team.body(begin, end)) __atomic_store_n(&team.failed, 1, __ATOMIC_RELAXED);
  }
};

// body(begin, end) over [0, items), by at most `threads` threads and none with less than `grain` items. Not 0 where one
// call gave that.
template <class Body> INLINE int parallel_for(int64_t threads, int64_t items, int64_t grain, Body body) {
  const int64_t useful = items / grain;
  if (useful < threads) threads = useful;
  if (threads <= 1) return body(0, items);
  Team<Body> team{body, items, 0};
  GOMP_parallel(Team<Body>::work, &team, unsigned(threads), 0);
  return team.failed;
}

}  // namespace weld
