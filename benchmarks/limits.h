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
    int32_t *inverse;                    /* an index for every slice of data, if way is INVERTED */
    int64_t size;                     /* bytes of data */
    int64_t batches, per_batch, pitch; /* pitch: bytes of data from batch to batch */
    int64_t k, strides[4];            /* bytes */
    int64_t width;                    /* bytes of a slice */
    int64_t rows, columns;            /* of data, in elements */
    int64_t index_rows;
    int64_t op, ahead, to_l1, nontemporal, way, threads;
} Job;

enum { NONE, ADD, MAX };
enum { OWNED, TUPLES, INVERTED, COLUMNS, ALONE }; /* how threads divide a scatter */

/* to_l1: into L1, otherwise L2 */
INLINE void prefetch(const void *at, int to_l1) {
    if (to_l1) __builtin_prefetch(at, 0, 3);
    else __builtin_prefetch(at, 0, 2);
    __asm__ volatile("");
}

INLINE void ask_run(const char *at, int64_t n, int to_l1) {
    for (int64_t i = 0; i < n; i += LINE) prefetch(at + i, to_l1);
    prefetch(at + n - 1, to_l1);
}

INLINE void stream16(char *to, const char *from) {
#if defined(__SSE2__)
    _mm_stream_si128((__m128i *) to, _mm_loadu_si128((const __m128i *) from));
#else
    memcpy(to, from, 16);
#endif
}

/* a complete line, aligned if it is nontemporal */
INLINE void put_line(char *to, const char *from, int nontemporal) {
    if (!nontemporal) {
        memcpy(to, from, LINE);
        return;
    }
#if defined(__AVX512F__)
    _mm512_stream_si512((void *) to, _mm512_loadu_si512((const void *) from));
#elif defined(__AVX__)
    for (int i = 0; i < LINE; i += 32)
        _mm256_stream_si256((__m256i *) (to + i), _mm256_loadu_si256((const __m256i *) (from + i)));
#else
    for (int i = 0; i < LINE; i += 16) stream16(to + i, from + i);
#endif
}

INLINE void end_stream(int nontemporal) {
#if defined(__SSE2__)
    if (nontemporal) _mm_sfence();
#endif
}

INLINE int64_t head_of(const char *to) { return (int64_t) (-(uintptr_t) to & (LINE - 1)); }

/* n bytes, of which a line of `to` begins after `head`; prefetches as many at `next` */
INLINE void copy_run(
    char *to, const char *from, const char *next, int64_t n, int nontemporal, int64_t head, int to_l1
) {
    int64_t i = 0;
    if (!nontemporal) head = 0;
    prefetch(next, to_l1);
    for (; i < head; i += 16) stream16(to + i, from + i);
#pragma GCC unroll 8
    for (; i + LINE <= n; i += LINE) {
        prefetch(next + i, to_l1);
        put_line(to + i, from + i, nontemporal);
    }
    if (nontemporal) for (; i < n; i += 16) stream16(to + i, from + i);
    else if (i < n) memcpy(to + i, from + i, (size_t) (n - i));
    prefetch(next + n - 1, to_l1);
}

/* bytes [begin, end) of one long slice */
INLINE void copy_all(char *to, const char *from, int64_t begin, int64_t end, int nontemporal) {
    int64_t i = begin + head_of(to + begin);
    if (!nontemporal || i + LINE > end) {
        memcpy(to + begin, from + begin, (size_t) (end - begin));
        return;
    }
    memcpy(to + begin, from + begin, (size_t) (i - begin));
    for (; i + LINE <= end; i += LINE) put_line(to + i, from + i, nontemporal);
    memcpy(to + i, from + i, (size_t) (end - i));
}

INLINE void copy_part(const Job *j, int64_t begin, int64_t end) {
    if (j->nontemporal) copy_all(j->out, j->data, begin, end, 1);
    else memcpy(j->out + begin, j->data + begin, (size_t) (end - begin));
    end_stream(1);
}

INLINE int64_t offset_of(const Job *j, int64_t i, int64_t k) {
    const int64_t *index = j->indices + i * k;
    if (k == 1) return index[0] * j->strides[0];
    if (k == 2) return index[0] * j->strides[0] + index[1] * j->strides[1];
    int64_t at = 0;
    for (int64_t c = 0; c < k; c++) at += index[c] * j->strides[c];
    return at;
}

INLINE void apply(char *at, const char *update, int64_t op) {
    float a, b;
    memcpy(&a, at, 4);
    memcpy(&b, update, 4);
    a = op == ADD ? a + b : op == MAX ? (a > b ? a : b) : b;
    memcpy(at, &a, 4);
}

/* A loop for each kind of prefetch and store: f(job, first, stop, width, nontemporal, head, to_l1). */
#define BY_NEAR(f, j, a, b, w, s, h)                                                              \
    do {                                                                                          \
        if ((j)->to_l1) f(j, a, b, w, s, h, 1);                                                    \
        else f(j, a, b, w, s, h, 0);                                                              \
    } while (0)
#define BY_STORE(f, j, a, b, w)                                                                   \
    do {                                                                                          \
        if ((j)->nontemporal) BY_NEAR(f, j, a, b, w, 1, head_of((j)->out));                          \
        else BY_NEAR(f, j, a, b, w, 0, 0);                                                        \
    } while (0)
