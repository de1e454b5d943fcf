/* The arguments of a loop, and shared functions: prefetches, non-temporal stores, copies. */
#pragma once
#include <omp.h>
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define LINE 64
#define BLOCK 2048

typedef struct {
    const char *data, *updates;
    const int64_t *indices;
    char *out;
    int32_t *last_update;             /* of each slice of data, or -1; for BY_LAST_UPDATE */
    int64_t size;                     /* bytes of data */
    int64_t batches, per_batch, pitch; /* pitch: bytes from batch to batch */
    int64_t k, strides[4];            /* bytes */
    int64_t width;                    /* bytes of a slice */
    int64_t rows, columns;            /* of data, in elements */
    int64_t index_rows;
    int64_t op, ahead, to_l1, nontemporal, division, threads;
} Job;

enum { NONE, ADD, MAX };
enum { BY_SLICES, BY_TUPLES, BY_LAST_UPDATE, BY_COLUMNS, SEQUENTIAL }; /* how threads divide a scatter */

/* to_l1: prefetches to L1, otherwise to L2 */
INLINE void prefetch(const void *address, int to_l1) {
    if (to_l1) __builtin_prefetch(address, 0, 3);
    else __builtin_prefetch(address, 0, 2);
    __asm__ volatile("");
}

INLINE void prefetch_slice(const char *address, int64_t n, int to_l1) {
    for (int64_t i = 0; i < n; i += LINE) prefetch(address + i, to_l1);
    prefetch(address + n - 1, to_l1);
}

INLINE void stream_16_bytes(char *target, const char *source) {
#if defined(__SSE2__)
    _mm_stream_si128((__m128i *) target, _mm_loadu_si128((const __m128i *) source));
#else
    memcpy(target, source, 16);
#endif
}

/* stores a cache line, which is aligned if nontemporal */
INLINE void store_line(char *target, const char *source, int nontemporal) {
    if (!nontemporal) {
        memcpy(target, source, LINE);
        return;
    }
#if defined(__AVX512F__)
    _mm512_stream_si512((void *) target, _mm512_loadu_si512((const void *) source));
#elif defined(__AVX__)
    for (int i = 0; i < LINE; i += 32)
        _mm256_stream_si256((__m256i *) (target + i), _mm256_loadu_si256((const __m256i *) (source + i)));
#else
    for (int i = 0; i < LINE; i += 16) stream_16_bytes(target + i, source + i);
#endif
}

INLINE void fence(int nontemporal) {
#if defined(__SSE2__)
    if (nontemporal) _mm_sfence();
#endif
}

INLINE int64_t bytes_to_line(const char *target) { return (int64_t) (-(uintptr_t) target & (LINE - 1)); }

/* copies n bytes; `head` of them precede a cache line of target; prefetches n bytes at `next` */
INLINE void copy_slice(
    char *target, const char *source, const char *next, int64_t n, int nontemporal, int64_t head, int to_l1
) {
    int64_t i = 0;
    if (!nontemporal) head = 0;
    prefetch(next, to_l1);
    for (; i < head; i += 16) stream_16_bytes(target + i, source + i);
#pragma GCC unroll 8
    for (; i + LINE <= n; i += LINE) {
        prefetch(next + i, to_l1);
        store_line(target + i, source + i, nontemporal);
    }
    if (nontemporal) for (; i < n; i += 16) stream_16_bytes(target + i, source + i);
    else if (i < n) memcpy(target + i, source + i, (size_t) (n - i));
    prefetch(next + n - 1, to_l1);
}

/* copies bytes [begin, end) of a slice */
INLINE void copy_long_slice(char *target, const char *source, int64_t begin, int64_t end, int nontemporal) {
    int64_t i = begin + bytes_to_line(target + begin);
    if (!nontemporal || i + LINE > end) {
        memcpy(target + begin, source + begin, (size_t) (end - begin));
        return;
    }
    memcpy(target + begin, source + begin, (size_t) (i - begin));
    for (; i + LINE <= end; i += LINE) store_line(target + i, source + i, nontemporal);
    memcpy(target + i, source + i, (size_t) (end - i));
}

INLINE void copy_range(const Job *j, int64_t begin, int64_t end) {
    if (j->nontemporal) copy_long_slice(j->out, j->data, begin, end, 1);
    else memcpy(j->out + begin, j->data + begin, (size_t) (end - begin));
    fence(1);
}

INLINE int64_t offset_of(const Job *j, int64_t i, int64_t k) {
    const int64_t *index = j->indices + i * k;
    if (k == 1) return index[0] * j->strides[0];
    if (k == 2) return index[0] * j->strides[0] + index[1] * j->strides[1];
    int64_t offset = 0;
    for (int64_t c = 0; c < k; c++) offset += index[c] * j->strides[c];
    return offset;
}

INLINE void apply(char *element, const char *update, int64_t op) {
    float a, b;
    memcpy(&a, element, 4);
    memcpy(&b, update, 4);
    a = op == ADD ? a + b : op == MAX ? (a > b ? a : b) : b;
    memcpy(element, &a, 4);
}

/* A loop for each kind of prefetch and store: f(job, first, stop, width, nontemporal, head, to_l1). */
#define BY_PREFETCH(f, j, a, b, w, s, h)                                                              \
    do {                                                                                          \
        if ((j)->to_l1) f(j, a, b, w, s, h, 1);                                                    \
        else f(j, a, b, w, s, h, 0);                                                              \
    } while (0)
#define BY_STORE(f, j, a, b, w)                                                                   \
    do {                                                                                          \
        if ((j)->nontemporal) BY_PREFETCH(f, j, a, b, w, 1, bytes_to_line((j)->out));                          \
        else BY_PREFETCH(f, j, a, b, w, 0, 0);                                                        \
    } while (0)
