/* The limits: a plain loop for each kind of case, without bounds checks.
 *
 * Loops with prefetches and non-temporal stores; compiled for this processor. Indices must be
 * in bounds and not negative. Sums have the bits of the sequential loop: each thread owns a range
 * of the output. plain_c.py selects the variant. */
#include "limits.h"

/* Gathers of slices longer than a line. */

INLINE void rows_loop(
    const Job *job, int64_t t, int64_t stop, int64_t width, int nontemporal, int64_t head, int to_l1
) {
    const Job j = *job;
    while (t < stop) {
        int64_t batch = t / j.per_batch, end = (batch + 1) * j.per_batch;
        const char *data = j.data + batch * j.pitch;
        if (end > stop) end = stop;
        for (; t < end; t++) {
            const char *source = data + j.indices[t] * j.strides[0];
            int64_t ahead_index = t + j.ahead < end ? t + j.ahead : t;
            const char *next = data + j.indices[ahead_index] * j.strides[0];
            prefetch(j.indices + t + 2048, 0);
            copy_slice(j.out + t * width, source, next, width, nontemporal, head, to_l1);
        }
    }
    fence(nontemporal);
}

static void rows_task(const Job *j, int64_t t, int64_t stop) {
    switch (j->width) {
    case 256: BY_STORE(rows_loop, j, t, stop, 256); break;
    case 512: BY_STORE(rows_loop, j, t, stop, 512); break;
    case 4096: BY_STORE(rows_loop, j, t, stop, 4096); break;
    default: BY_PREFETCH(rows_loop, j, t, stop, j->width, 0, 0);
    }
}

/* Divides the tuples among threads. */
static void divide_tuples(const Job *j, void (*work)(const Job *, int64_t, int64_t)) {
    int64_t count = j->batches * j->per_batch;
#pragma omp parallel num_threads(j->threads)
    {
        int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        work(j, count * thread / threads, count * (thread + 1) / threads);
    }
}

void gather_rows(const Job *j) { divide_tuples(j, rows_task); }

/* Gathers of short slices: direct, or to a buffer of a few lines, then by non-temporal stores. */

INLINE void short_loop(
    const Job *job, int64_t t, int64_t stop, int64_t width, int nontemporal, int64_t k, int to_l1
) {
    const Job j = *job;
    char stage[1024] __attribute__((aligned(64)));
    int64_t per = (int64_t) sizeof stage / width, last = j.batches * j.per_batch - 1;
    if (nontemporal) {
        int64_t begin = t + bytes_to_line(j.out + t * width) / width;
        for (; t < begin && t < stop; t++) memcpy(j.out + t * width, j.data + offset_of(&j, t, k), width);
        for (; t + per <= stop; t += per) {
            for (int64_t i = 0; i < per; i++) {
                int64_t ahead_index = t + i + j.ahead;
                prefetch(j.data + offset_of(&j, ahead_index < last ? ahead_index : last, k), to_l1);
                memcpy(stage + i * width, j.data + offset_of(&j, t + i, k), width);
            }
            for (int64_t i = 0; i < (int64_t) sizeof stage; i += LINE)
                store_line(j.out + t * width + i, stage + i, nontemporal);
        }
    }
    for (; t < stop; t++) {
        int64_t ahead_index = t + j.ahead;
        prefetch(j.data + offset_of(&j, ahead_index < last ? ahead_index : last, k), to_l1);
        memcpy(j.out + t * width, j.data + offset_of(&j, t, k), width);
    }
    fence(nontemporal);
}

#define SHORT_BY_STORE(j, a, b, w, k)                                                             \
    do {                                                                                          \
        if ((j)->nontemporal) BY_PREFETCH(short_loop, j, a, b, w, 1, k);                                 \
        else BY_PREFETCH(short_loop, j, a, b, w, 0, k);                                               \
    } while (0)

static void short_task(const Job *j, int64_t t, int64_t stop) {
    if (j->width == 4 && j->k == 1) SHORT_BY_STORE(j, t, stop, 4, 1);
    else if (j->width == 4 && j->k == 2) SHORT_BY_STORE(j, t, stop, 4, 2);
    else if (j->width == 16 && j->k == 1) SHORT_BY_STORE(j, t, stop, 16, 1);
    else BY_PREFETCH(short_loop, j, t, stop, j->width, 0, j->k);
}

void gather_short(const Job *j) { divide_tuples(j, short_task); }

/* Scatters of slices: data are copied, then updates are assigned or added. */

INLINE void update_row(
    char *target, const char *update, const char *next, int64_t width, int64_t op, int nontemporal,
    int64_t head, int to_l1
) {
    if (op == NONE) {
        copy_slice(target, update, next, width, nontemporal, head, to_l1);
        return;
    }
    prefetch_slice(next, width, to_l1);
    for (int64_t i = 0; i < width; i += 4) apply(target + i, update + i, op);
}

/* updates of tuples [t, stop) whose slices are in bytes [low, high) of out, from byte `column` on */
INLINE void update_loop(
    const Job *job, int64_t t, int64_t stop, int64_t width, int nontemporal, int64_t head, int to_l1,
    int64_t op, int64_t low, int64_t high, int64_t column
) {
    const Job j = *job;
    int64_t offsets[BLOCK], positions[BLOCK];
    while (t < stop) {
        int64_t n = 0, end = t + BLOCK < stop ? t + BLOCK : stop;
        for (; t < end; t++) {
            offsets[n] = j.indices[t] * j.strides[0];
            positions[n] = t;
            n += offsets[n] >= low && offsets[n] < high;
        }
        for (int64_t i = 0; i < n; i++) {
            int64_t ahead_index = i + j.ahead < n ? i + j.ahead : i;
            const char *next = j.updates + positions[ahead_index] * j.width + column;
            if (!nontemporal) prefetch_slice(j.out + offsets[ahead_index] + column, width, to_l1);
            update_row(
                j.out + offsets[i] + column, j.updates + positions[i] * j.width + column, next, width, op,
                nontemporal, head, to_l1
            );
        }
    }
    fence(nontemporal);
}

INLINE void assign_loop(
    const Job *j, int64_t t, int64_t stop, int64_t width, int nontemporal, int64_t head, int to_l1,
    int64_t low, int64_t high
) {
    update_loop(j, t, stop, width, nontemporal, head, to_l1, NONE, low, high, 0);
}

#define ASSIGN_LOOP(j, a, b, w, s, h, n) assign_loop(j, a, b, w, s, h, n, low, high)
#define ADD_LOOP(j, a, b, w, s, h, n) update_loop(j, a, b, w, 0, 0, n, ADD, low, high, column)

static void update_task(
    const Job *j, int64_t t, int64_t stop, int64_t low, int64_t high, int64_t column, int64_t width
) {
    if (j->op == NONE) {
        if (width == 256) BY_STORE(ASSIGN_LOOP, j, t, stop, 256);
        else BY_PREFETCH(ASSIGN_LOOP, j, t, stop, width, 0, 0);
    } else if (width == 256) BY_PREFETCH(ADD_LOOP, j, t, stop, 256, 0, 0);
    else if (width == 128) BY_PREFETCH(ADD_LOOP, j, t, stop, 128, 0, 0);
    else BY_PREFETCH(ADD_LOOP, j, t, stop, width, 0, 0);
}

/* finds the last update of each slice, then copies each slice once, from data or from updates */
INLINE void inverted_loop(
    const Job *job, int64_t low, int64_t high, int64_t width, int nontemporal, int64_t head, int to_l1
) {
    const Job j = *job;
    int64_t count = j.batches * j.per_batch;
    for (int64_t r = low; r < high; r++) j.last_update[r] = -1;
    for (int64_t t = 0; t < count; t++) {
        int64_t r = j.indices[t];
        if (r >= low && r < high) j.last_update[r] = (int32_t) t;
    }
    for (int64_t r = low; r < high; r++) {
        int64_t ahead_index = r + j.ahead < high ? r + j.ahead : r;
        int64_t update = j.last_update[r], next_update = j.last_update[ahead_index];
        const char *source = update < 0 ? j.data + r * width : j.updates + update * width;
        const char *next =
            next_update < 0 ? j.data + ahead_index * width : j.updates + next_update * width;
        copy_slice(j.out + r * width, source, next, width, nontemporal, head, to_l1);
    }
    fence(nontemporal);
}

static void inverted_task(const Job *j, int64_t low, int64_t high) {
    if (j->width == 256) BY_STORE(inverted_loop, j, low, high, 256);
    else BY_PREFETCH(inverted_loop, j, low, high, j->width, 0, 0);
}

void scatter_rows(const Job *j) {
    int64_t count = j->batches * j->per_batch, rows = j->size / j->width;
#pragma omp parallel num_threads(j->threads)
    {
        int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        int64_t first = rows * thread / threads, stop = rows * (thread + 1) / threads;
        int64_t low = first * j->width, high = stop * j->width;
        if (j->division == BY_LAST_UPDATE) inverted_task(j, first, stop);
        else {
            copy_range(j, low, high);
            if (j->division == BY_SLICES) update_task(j, 0, count, low, high, 0, j->width);
            else {
#pragma omp barrier
                if (j->division == BY_TUPLES)
                    update_task(
                        j, count * thread / threads, count * (thread + 1) / threads, 0, j->size, 0, j->width
                    );
                else {
                    int64_t begin = j->width / 4 * thread / threads * 4;
                    int64_t end = j->width / 4 * (thread + 1) / threads * 4;
                    update_task(j, 0, count, 0, j->size, begin, end - begin);
                }
            }
        }
    }
}

/* Scatters of single floats. */

INLINE void scalars_loop(const Job *job, int64_t count, int64_t k, int64_t op, int to_l1) {
    const Job j = *job;
    for (int64_t t = 0; t < count; t++) {
        int64_t ahead_index = t + j.ahead < count ? t + j.ahead : t;
        prefetch(j.out + offset_of(&j, ahead_index, k), to_l1);
        apply(j.out + offset_of(&j, t, k), j.updates + t * 4, op);
    }
}

/* updates of bytes [low, high) only: collected in blocks, prefetched, applied */
INLINE void owned_loop(
    const Job *job, int64_t count, int64_t k, int64_t op, int to_l1, int64_t low, int64_t high
) {
    const Job j = *job;
    int64_t offsets[2][BLOCK], n[2] = {0, 0}, block = j.ahead ? j.ahead : 512;
    float value[2][BLOCK];
    if (block > BLOCK) block = BLOCK;
    for (int64_t t = 0, current = 0; t < count + block; t += block, current ^= 1) {
        int64_t count_owned = 0, end = t + block < count ? t + block : count;
        for (int64_t i = t; i < end; i++) {
            int64_t offset = offset_of(&j, i, k);
            offsets[current][count_owned] = offset;
            memcpy(&value[current][count_owned], j.updates + i * 4, 4);
            count_owned += offset >= low && offset < high;
        }
        n[current] = count_owned;
        for (int64_t i = 0; i < count_owned; i++) prefetch(j.out + offsets[current][i], to_l1);
        for (int64_t i = 0; i < n[current ^ 1]; i++)
            apply(j.out + offsets[current ^ 1][i], (const char *) &value[current ^ 1][i], op);
        n[current ^ 1] = 0;
    }
}

INLINE void scalars_loop_for(
    const Job *j, int64_t count, int64_t k, int64_t op, int to_l1, int64_t low, int64_t high
) {
    if (low == 0 && high == j->size) scalars_loop(j, count, k, op, to_l1);
    else owned_loop(j, count, k, op, to_l1, low, high);
}

#define SCALARS_LOOP(j, a, b, k, op, _, n) scalars_loop_for(j, count, k, op, n, a, b)

static void scalars_task(const Job *j, int64_t low, int64_t high) {
    int64_t count = j->batches * j->per_batch;
    if (j->k == 1 && j->op == ADD) BY_PREFETCH(SCALARS_LOOP, j, low, high, 1, ADD, 0);
    else if (j->k == 2 && j->op == ADD) BY_PREFETCH(SCALARS_LOOP, j, low, high, 2, ADD, 0);
    else if (j->k == 2 && j->op == MAX) BY_PREFETCH(SCALARS_LOOP, j, low, high, 2, MAX, 0);
    else BY_PREFETCH(SCALARS_LOOP, j, low, high, j->k, j->op, 0);
}

/* SEQUENTIAL: only the copy is parallel; one thread is faster if others would skip most tuples */
void scatter_scalars(const Job *j) {
#pragma omp parallel num_threads(j->threads)
    {
        int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        int64_t low = j->size / 4 * thread / threads * 4, high = j->size / 4 * (thread + 1) / threads * 4;
        copy_range(j, low, high);
        if (j->division != SEQUENTIAL) scalars_task(j, low, high);
        else {
#pragma omp barrier
            if (!thread) scalars_task(j, 0, j->size);
        }
    }
}
