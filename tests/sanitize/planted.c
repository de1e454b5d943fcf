/* Loops with and without data races, with all synchronization that gomp.c annotates. */
#include <stdint.h>

#define ROUNDS 20000

/* All threads add to one sum. */
int64_t race(int threads)
{
    volatile int64_t sum = 0;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int i = 0; i < ROUNDS; i++)
        sum += i;
    return sum;
}

/* Two iterations of a dynamic loop write to one location, each on another thread. */
int64_t race_dynamic(int threads)
{
    volatile int64_t sum = 0;
    int begun = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int i = 0; i < 2; i++) {
        __atomic_add_fetch(&begun, 1, __ATOMIC_RELAXED); /* relaxed: orders nothing */
        while (__atomic_load_n(&begun, __ATOMIC_RELAXED) < 2)
            ;
        sum += i;
    }
    return sum;
}

/* The second half of a region reads what the first wrote, without a barrier. */
int64_t race_nowait(int threads)
{
    static int64_t values[ROUNDS];
    int64_t sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    {
#pragma omp for schedule(static) nowait
        for (int i = 0; i < ROUNDS; i++)
            values[i] = i;
#pragma omp for schedule(static)
        for (int i = 0; i < ROUNDS; i++)
            sum += values[ROUNDS - 1 - i];
    }
    return sum;
}

int64_t clean_reduction(int threads)
{
    int64_t sum = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : sum)
    for (int i = 0; i < ROUNDS; i++)
        sum += i;
    return sum;
}

int64_t clean_dynamic(int threads)
{
    static int64_t values[ROUNDS];
    int64_t sum = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int i = 0; i < ROUNDS; i++)
        values[i] = i;
    for (int i = 0; i < ROUNDS; i++)
        sum += values[i];
    return sum;
}

int64_t clean_barriers(int threads)
{
    static int64_t values[ROUNDS];
    int64_t sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    {
        for (int turn = 0; turn < 5; turn++) {
#pragma omp for schedule(static)
            for (int i = 0; i < ROUNDS; i++)
                values[i] = i;
#pragma omp for schedule(static)
            for (int i = 0; i < ROUNDS; i++)
                sum += values[ROUNDS - 1 - i];
        }
    }
    return sum / 5;
}

int64_t clean_critical(int threads)
{
    int64_t sum = 0, other = 0;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int i = 0; i < ROUNDS / 100; i++) {
#pragma omp critical
        sum += i;
#pragma omp critical(named)
        other += i;
    }
    return sum - other;
}
