/* The limits: a plain loop for every kind of case, without checks.
 *
 * Loops with prefetches and non-temporal stores; compiled for this processor. Indices must be
 * in bounds and not negative. Sums are those of the sequential loop: two threads own parts of the
 * output. plainest.py selects the variant. */
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
            const char *from = data + j.indices[t] * j.strides[0];
            int64_t later = t + j.ahead < end ? t + j.ahead : t;
            const char *next = data + j.indices[later] * j.strides[0];
            prefetch(j.indices + t + 2048, 0);
            copy_run(j.out + t * width, from, next, width, nontemporal, head, to_l1);
        }
    }
    end_stream(nontemporal);
}

static void rows_part(const Job *j, int64_t t, int64_t stop) {
    switch (j->width) {
    case 256: BY_STORE(rows_loop, j, t, stop, 256); break;
    case 512: BY_STORE(rows_loop, j, t, stop, 512); break;
    case 4096: BY_STORE(rows_loop, j, t, stop, 4096); break;
    default: BY_NEAR(rows_loop, j, t, stop, j->width, 0, 0);
    }
}

/* Divides the tuples among threads. */
static void shared(const Job *j, void (*work)(const Job *, int64_t, int64_t)) {
    int64_t count = j->batches * j->per_batch;
#pragma omp parallel num_threads(j->threads)
    {
        int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
        work(j, count * part / parts, count * (part + 1) / parts);
    }
}

void gather_rows(const Job *j) { shared(j, rows_part); }

/* Gathers of short slices: direct, or through a stage of a few lines that is then nontemporal. */

INLINE void short_loop(
    const Job *job, int64_t t, int64_t stop, int64_t width, int nontemporal, int64_t k, int to_l1
) {
    const Job j = *job;
    char stage[1024] __attribute__((aligned(64)));
    int64_t per = (int64_t) sizeof stage / width, last = j.batches * j.per_batch - 1;
    if (nontemporal) {
        int64_t begin = t + head_of(j.out + t * width) / width;
        for (; t < begin && t < stop; t++) memcpy(j.out + t * width, j.data + offset_of(&j, t, k), width);
        for (; t + per <= stop; t += per) {
            for (int64_t i = 0; i < per; i++) {
                int64_t later = t + i + j.ahead;
                prefetch(j.data + offset_of(&j, later < last ? later : last, k), to_l1);
                memcpy(stage + i * width, j.data + offset_of(&j, t + i, k), width);
            }
            for (int64_t i = 0; i < (int64_t) sizeof stage; i += LINE)
                put_line(j.out + t * width + i, stage + i, nontemporal);
        }
    }
    for (; t < stop; t++) {
        int64_t later = t + j.ahead;
        prefetch(j.data + offset_of(&j, later < last ? later : last, k), to_l1);
        memcpy(j.out + t * width, j.data + offset_of(&j, t, k), width);
    }
    end_stream(nontemporal);
}

#define SHORT_BY_STORE(j, a, b, w, k)                                                             \
    do {                                                                                          \
        if ((j)->nontemporal) BY_NEAR(short_loop, j, a, b, w, 1, k);                                 \
        else BY_NEAR(short_loop, j, a, b, w, 0, k);                                               \
    } while (0)

static void short_part(const Job *j, int64_t t, int64_t stop) {
    if (j->width == 4 && j->k == 1) SHORT_BY_STORE(j, t, stop, 4, 1);
    else if (j->width == 4 && j->k == 2) SHORT_BY_STORE(j, t, stop, 4, 2);
    else if (j->width == 16 && j->k == 1) SHORT_BY_STORE(j, t, stop, 16, 1);
    else BY_NEAR(short_loop, j, t, stop, j->width, 0, j->k);
}

void gather_short(const Job *j) { shared(j, short_part); }

/* Scatters of slices: data is copied, then rows are assigned or added. */

INLINE void change_row(
    char *to, const char *update, const char *next, int64_t width, int64_t op, int nontemporal,
    int64_t head, int to_l1
) {
    if (op == NONE) {
        copy_run(to, update, next, width, nontemporal, head, to_l1);
        return;
    }
    ask_run(next, width, to_l1);
    for (int64_t i = 0; i < width; i += 4) apply(to + i, update + i, op);
}

/* tuples [t, stop) whose rows are in bytes [low, high) of out, columns from `column` on */
INLINE void change_loop(
    const Job *job, int64_t t, int64_t stop, int64_t width, int nontemporal, int64_t head, int to_l1,
    int64_t op, int64_t low, int64_t high, int64_t column
) {
    const Job j = *job;
    int64_t at[BLOCK], number[BLOCK];
    while (t < stop) {
        int64_t n = 0, end = t + BLOCK < stop ? t + BLOCK : stop;
        for (; t < end; t++) {
            at[n] = j.indices[t] * j.strides[0];
            number[n] = t;
            n += at[n] >= low && at[n] < high;
        }
        for (int64_t i = 0; i < n; i++) {
            int64_t later = i + j.ahead < n ? i + j.ahead : i;
            const char *next = j.updates + number[later] * j.width + column;
            if (!nontemporal) ask_run(j.out + at[later] + column, width, to_l1);
            change_row(
                j.out + at[i] + column, j.updates + number[i] * j.width + column, next, width, op,
                nontemporal, head, to_l1
            );
        }
    }
    end_stream(nontemporal);
}

INLINE void set_loop(
    const Job *j, int64_t t, int64_t stop, int64_t width, int nontemporal, int64_t head, int to_l1,
    int64_t low, int64_t high
) {
    change_loop(j, t, stop, width, nontemporal, head, to_l1, NONE, low, high, 0);
}

#define SET(j, a, b, w, s, h, n) set_loop(j, a, b, w, s, h, n, low, high)
#define SUM(j, a, b, w, s, h, n) change_loop(j, a, b, w, 0, 0, n, ADD, low, high, column)

static void change_part(
    const Job *j, int64_t t, int64_t stop, int64_t low, int64_t high, int64_t column, int64_t width
) {
    if (j->op == NONE) {
        if (width == 256) BY_STORE(SET, j, t, stop, 256);
        else BY_NEAR(SET, j, t, stop, width, 0, 0);
    } else if (width == 256) BY_NEAR(SUM, j, t, stop, 256, 0, 0);
    else if (width == 128) BY_NEAR(SUM, j, t, stop, 128, 0, 0);
    else BY_NEAR(SUM, j, t, stop, width, 0, 0);
}

/* the last update of every row first, then every row once, from data or from updates */
INLINE void inverted_loop(
    const Job *job, int64_t low, int64_t high, int64_t width, int nontemporal, int64_t head, int to_l1
) {
    const Job j = *job;
    int64_t count = j.batches * j.per_batch;
    for (int64_t r = low; r < high; r++) j.inverse[r] = -1;
    for (int64_t t = 0; t < count; t++) {
        int64_t r = j.indices[t];
        if (r >= low && r < high) j.inverse[r] = (int32_t) t;
    }
    for (int64_t r = low; r < high; r++) {
        int64_t later = r + j.ahead < high ? r + j.ahead : r;
        const char *from = j.inverse[r] < 0 ? j.data + r * width : j.updates + j.inverse[r] * width;
        const char *next =
            j.inverse[later] < 0 ? j.data + later * width : j.updates + j.inverse[later] * width;
        copy_run(j.out + r * width, from, next, width, nontemporal, head, to_l1);
    }
    end_stream(nontemporal);
}

static void inverted_part(const Job *j, int64_t low, int64_t high) {
    if (j->width == 256) BY_STORE(inverted_loop, j, low, high, 256);
    else BY_NEAR(inverted_loop, j, low, high, j->width, 0, 0);
}

void scatter_rows(const Job *j) {
    int64_t count = j->batches * j->per_batch, rows = j->size / j->width;
#pragma omp parallel num_threads(j->threads)
    {
        int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
        int64_t first = rows * part / parts, stop = rows * (part + 1) / parts;
        int64_t low = first * j->width, high = stop * j->width;
        if (j->way == INVERTED) inverted_part(j, first, stop);
        else {
            copy_part(j, low, high);
            if (j->way == OWNED) change_part(j, 0, count, low, high, 0, j->width);
            else {
#pragma omp barrier
                if (j->way == TUPLES)
                    change_part(
                        j, count * part / parts, count * (part + 1) / parts, 0, j->size, 0, j->width
                    );
                else {
                    int64_t begin = j->width / 4 * part / parts * 4;
                    int64_t end = j->width / 4 * (part + 1) / parts * 4;
                    change_part(j, 0, count, 0, j->size, begin, end - begin);
                }
            }
        }
    }
}

/* Scatters of single floats. */

INLINE void scalars_loop(const Job *job, int64_t count, int64_t k, int64_t op, int to_l1) {
    const Job j = *job;
    for (int64_t t = 0; t < count; t++) {
        int64_t later = t + j.ahead < count ? t + j.ahead : t;
        prefetch(j.out + offset_of(&j, later, k), to_l1);
        apply(j.out + offset_of(&j, t, k), j.updates + t * 4, op);
    }
}

/* the same for bytes [low, high) only: collected in blocks, prefetched, applied */
INLINE void owned_loop(
    const Job *job, int64_t count, int64_t k, int64_t op, int to_l1, int64_t low, int64_t high
) {
    const Job j = *job;
    int64_t at[2][BLOCK], n[2] = {0, 0}, block = j.ahead ? j.ahead : 512;
    float value[2][BLOCK];
    if (block > BLOCK) block = BLOCK;
    for (int64_t t = 0, turn = 0; t < count + block; t += block, turn ^= 1) {
        int64_t count_owned = 0, end = t + block < count ? t + block : count;
        for (int64_t i = t; i < end; i++) {
            int64_t here = offset_of(&j, i, k);
            at[turn][count_owned] = here;
            memcpy(&value[turn][count_owned], j.updates + i * 4, 4);
            count_owned += here >= low && here < high;
        }
        n[turn] = count_owned;
        for (int64_t i = 0; i < count_owned; i++) prefetch(j.out + at[turn][i], to_l1);
        for (int64_t i = 0; i < n[turn ^ 1]; i++)
            apply(j.out + at[turn ^ 1][i], (const char *) &value[turn ^ 1][i], op);
        n[turn ^ 1] = 0;
    }
}

INLINE void scalars_by(
    const Job *j, int64_t count, int64_t k, int64_t op, int to_l1, int64_t low, int64_t high
) {
    if (low == 0 && high == j->size) scalars_loop(j, count, k, op, to_l1);
    else owned_loop(j, count, k, op, to_l1, low, high);
}

#define SCALARS(j, a, b, k, op, _, n) scalars_by(j, count, k, op, n, a, b)

static void scalars_part(const Job *j, int64_t low, int64_t high) {
    int64_t count = j->batches * j->per_batch;
    if (j->k == 1 && j->op == ADD) BY_NEAR(SCALARS, j, low, high, 1, ADD, 0);
    else if (j->k == 2 && j->op == ADD) BY_NEAR(SCALARS, j, low, high, 2, ADD, 0);
    else if (j->k == 2 && j->op == MAX) BY_NEAR(SCALARS, j, low, high, 2, MAX, 0);
    else BY_NEAR(SCALARS, j, low, high, j->k, j->op, 0);
}

/* with ALONE only the copy is parallel: one thread is faster if others skip most tuples */
void scatter_scalars(const Job *j) {
#pragma omp parallel num_threads(j->threads)
    {
        int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
        int64_t low = j->size / 4 * part / parts * 4, high = j->size / 4 * (part + 1) / parts * 4;
        copy_part(j, low, high);
        if (j->way != ALONE) scalars_part(j, low, high);
        else {
#pragma omp barrier
            if (!part) scalars_part(j, 0, j->size);
        }
    }
}
