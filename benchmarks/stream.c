/* STREAM's copy and triad, on arrays of doubles: the bandwidth of memory to compare with. */
#include <omp.h>
#include <stdint.h>

void stream_copy(double *restrict c, const double *restrict a, int64_t n, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i++) c[i] = a[i];
}

void stream_triad(
    double *restrict a, const double *restrict b, const double *restrict c, int64_t n,
    int64_t threads
) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i++) a[i] = b[i] + 3.0 * c[i];
}
