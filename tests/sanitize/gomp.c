/* Annotates libgomp's synchronization for ThreadSanitizer: accesses before a region, barrier or
 * critical section happen before accesses after it. The library itself is not
 * instrumented, so without this all shared data would be reported. Preloaded before libgomp.
 *
 * Tokens are as narrow as possible, because wider ones hide races: a region has its own token;
 * barriers alternate between two; the iterations of a dynamic loop are not ordered, and have
 * none.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>

void __tsan_acquire(void *token);
void __tsan_release(void *token);

struct region {
    void (*work)(void *);
    void *data;
    char begin, end, barrier[2];
};

static __thread struct region *current;
static __thread unsigned barrier_count;
static char serial; /* for all critical sections without a name, and atomic ones */

static void *find_symbol(const char *name)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    if (!symbol)
        abort();
    return symbol;
}

static void run_region(void *pointer)
{
    struct region *region_data = pointer, *outer = current;
    unsigned outer_count = barrier_count;
    current = region_data;
    barrier_count = 0;
    __tsan_acquire(&region_data->begin);
    region_data->work(region_data->data);
    __tsan_release(&region_data->end);
    current = outer;
    barrier_count = outer_count;
}

void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags)
{
    void (*real_function)(void (*)(void *), void *, unsigned, unsigned) = find_symbol("GOMP_parallel");
    struct region region_data = {.work = work, .data = data};
    __tsan_release(&region_data.begin);
    real_function(run_region, &region_data, threads, flags);
    __tsan_acquire(&region_data.end);
}

#define PARALLEL_LOOP(name)                                                              \
    void name(void (*work)(void *), void *data, unsigned threads, long first, long stop, \
              long step, long chunk, unsigned flags)                                     \
    {                                                                                    \
        void (*real_function)(void (*)(void *), void *, unsigned, long, long, long, long,         \
                     unsigned) = find_symbol(#name);                                            \
        struct region region_data = {.work = work, .data = data};                               \
        __tsan_release(&region_data.begin);                                                     \
        real_function(run_region, &region_data, threads, first, stop, step, chunk, flags);                    \
        __tsan_acquire(&region_data.end);                                                       \
    }

PARALLEL_LOOP(GOMP_parallel_loop_dynamic)
PARALLEL_LOOP(GOMP_parallel_loop_nonmonotonic_dynamic)

static void annotate_barrier(const char *name)
{
    void (*real_function)(void) = find_symbol(name);
    char *token = current ? &current->barrier[barrier_count++ & 1] : &serial;
    __tsan_release(token);
    real_function();
    __tsan_acquire(token);
}

void GOMP_barrier(void) { annotate_barrier("GOMP_barrier"); }
void GOMP_loop_end(void) { annotate_barrier("GOMP_loop_end"); }

static void annotate_enter(const char *name)
{
    ((void (*)(void)) find_symbol(name))();
    __tsan_acquire(&serial);
}

static void annotate_leave(const char *name)
{
    __tsan_release(&serial);
    ((void (*)(void)) find_symbol(name))();
}

void GOMP_critical_start(void) { annotate_enter("GOMP_critical_start"); }
void GOMP_critical_end(void) { annotate_leave("GOMP_critical_end"); }
void GOMP_atomic_start(void) { annotate_enter("GOMP_atomic_start"); }
void GOMP_atomic_end(void) { annotate_leave("GOMP_atomic_end"); }

void GOMP_critical_name_start(void **lock)
{
    ((void (*)(void **)) find_symbol("GOMP_critical_name_start"))(lock);
    __tsan_acquire(lock);
}

void GOMP_critical_name_end(void **lock)
{
    __tsan_release(lock);
    ((void (*)(void **)) find_symbol("GOMP_critical_name_end"))(lock);
}
