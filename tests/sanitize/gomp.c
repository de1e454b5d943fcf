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
static __thread unsigned turn;
static char serial; /* for all critical sections without a name, and atomic ones */

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        abort();
    return found;
}

static void begun(void *pointer)
{
    struct region *here = pointer, *outer = current;
    unsigned outer_turn = turn;
    current = here;
    turn = 0;
    __tsan_acquire(&here->begin);
    here->work(here->data);
    __tsan_release(&here->end);
    current = outer;
    turn = outer_turn;
}

void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags)
{
    void (*next)(void (*)(void *), void *, unsigned, unsigned) = real("GOMP_parallel");
    struct region here = {.work = work, .data = data};
    __tsan_release(&here.begin);
    next(begun, &here, threads, flags);
    __tsan_acquire(&here.end);
}

#define PARALLEL_LOOP(name)                                                              \
    void name(void (*work)(void *), void *data, unsigned threads, long first, long stop, \
              long step, long chunk, unsigned flags)                                     \
    {                                                                                    \
        void (*next)(void (*)(void *), void *, unsigned, long, long, long, long,         \
                     unsigned) = real(#name);                                            \
        struct region here = {.work = work, .data = data};                               \
        __tsan_release(&here.begin);                                                     \
        next(begun, &here, threads, first, stop, step, chunk, flags);                    \
        __tsan_acquire(&here.end);                                                       \
    }

PARALLEL_LOOP(GOMP_parallel_loop_dynamic)
PARALLEL_LOOP(GOMP_parallel_loop_nonmonotonic_dynamic)

static void wait_with(const char *name)
{
    void (*next)(void) = real(name);
    char *token = current ? &current->barrier[turn++ & 1] : &serial;
    __tsan_release(token);
    next();
    __tsan_acquire(token);
}

void GOMP_barrier(void) { wait_with("GOMP_barrier"); }
void GOMP_loop_end(void) { wait_with("GOMP_loop_end"); }

static void enter(const char *name)
{
    ((void (*)(void)) real(name))();
    __tsan_acquire(&serial);
}

static void leave(const char *name)
{
    __tsan_release(&serial);
    ((void (*)(void)) real(name))();
}

void GOMP_critical_start(void) { enter("GOMP_critical_start"); }
void GOMP_critical_end(void) { leave("GOMP_critical_end"); }
void GOMP_atomic_start(void) { enter("GOMP_atomic_start"); }
void GOMP_atomic_end(void) { leave("GOMP_atomic_end"); }

void GOMP_critical_name_start(void **lock)
{
    ((void (*)(void **)) real("GOMP_critical_name_start"))(lock);
    __tsan_acquire(lock);
}

void GOMP_critical_name_end(void **lock)
{
    __tsan_release(lock);
    ((void (*)(void **)) real("GOMP_critical_name_end"))(lock);
}
