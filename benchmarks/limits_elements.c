/* The limits of elements operators along an axis of a matrix of floats. */
#include "limits.h"

/* out[c] = data[index[c]][c] for columns [c, stop), prefetching the elements `ahead` later */
INLINE void gather_columns(
    const Job *j, int64_t row, int64_t c, int64_t stop, int64_t width, int to_l1
) {
    const int64_t *index = j->indices + row * j->columns;
    const float *data = (const float *) j->data;
    float *out = (float *) j->out + row * j->columns;
    int64_t more = row + 1 < j->index_rows ? j->columns - width : 0;
    for (; c < stop - j->ahead; c++) {
        prefetch(data + index[c + j->ahead] * j->columns + c + j->ahead, to_l1);
        out[c] = data[index[c] * j->columns + c];
    }
    for (; c < stop; c++) {
        int64_t ahead_index = more ? c + j->ahead + more : c;
        int64_t column = more ? c + j->ahead - width : c;
        prefetch(data + index[ahead_index] * j->columns + column, to_l1);
        out[c] = data[index[c] * j->columns + c];
    }
}

INLINE void axis0_loop(
    const Job *job, int64_t c, int64_t stop, int64_t width, int nontemporal, int64_t head, int to_l1
) {
    Job j = *job, staged;
    float stage[BLOCK * 4] __attribute__((aligned(64)));
    (void) head;
    for (int64_t end; c < stop; c = end) {
        end = c + width < stop ? c + width : stop;
        if (j.ahead > end - c) j.ahead = end - c;
        for (int64_t row = 0; row < j.index_rows; row++) {
            if (!nontemporal) {
                gather_columns(&j, row, c, end, end - c, to_l1);
                continue;
            }
            staged = j;
            staged.out = (char *) (stage + 16) - (row * j.columns + c) * 4;
            gather_columns(&staged, row, c, end, end - c, to_l1);
            copy_long_slice(j.out + (row * j.columns + c) * 4, (char *) (stage + 16), 0, (end - c) * 4, nontemporal);
        }
    }
    fence(nontemporal);
}

#define AXIS0(j, a, b, w, s, h, n) axis0_loop(j, a, b, w, s, h, n)

/* `division` columns at a time, aligned to the cache lines of out */
void gather_axis0(const Job *j) {
#pragma omp parallel num_threads(j->threads)
    {
        int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        int64_t head = bytes_to_line(j->out) / 4, c = j->columns * thread / threads;
        int64_t stop = j->columns * (thread + 1) / threads;
        if (thread) c += head;
        if (thread + 1 < threads) stop += head;
        if (c < j->columns) {
            if (stop > j->columns) stop = j->columns;
            BY_STORE(AXIS0, j, c, stop, j->division);
        }
    }
}

/* out[row][c] = data[row][index[c]], prefetching data `ahead` bytes ahead */
INLINE void axis1_loop(
    const Job *job, int64_t row, int64_t stop, int64_t width, int nontemporal, int64_t head, int to_l1
) {
    const Job j = *job;
    char stage[1024] __attribute__((aligned(64)));
    int64_t per = (int64_t) sizeof stage / 4;
    for (; row < stop; row++) {
        const float *data = (const float *) j.data + row * j.columns;
        const int64_t *index = j.indices + row * j.columns;
        float *out = (float *) j.out + row * j.columns;
        int64_t c = 0;
        if (nontemporal) {
            for (; c < bytes_to_line((char *) out) / 4 && c < j.columns; c++) out[c] = data[index[c]];
            for (; c + per <= j.columns; c += per) {
                for (int64_t i = 0; i < per; i += 16) {
                    prefetch((const char *) (data + c + i) + j.ahead, to_l1);
                    for (int64_t e = 0; e < 16; e++)
                        memcpy(stage + (i + e) * 4, data + index[c + i + e], 4);
                }
                for (int64_t i = 0; i < (int64_t) sizeof stage; i += LINE)
                    store_line((char *) (out + c) + i, stage + i, nontemporal);
            }
        }
        for (; c + 16 <= j.columns; c += 16) {
            prefetch((const char *) (data + c) + j.ahead, to_l1);
            for (int64_t e = 0; e < 16; e++) out[c + e] = data[index[c + e]];
        }
        for (; c < j.columns; c++) out[c] = data[index[c]];
    }
    fence(nontemporal);
    (void) width, (void) head;
}

void gather_axis1(const Job *j) {
#pragma omp parallel num_threads(j->threads)
    {
        int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        int64_t row = j->index_rows * thread / threads, stop = j->index_rows * (thread + 1) / threads;
        BY_STORE(axis1_loop, j, row, stop, 0);
    }
}

INLINE void update_columns_loop(
    const Job *job, int64_t c, int64_t stop, int64_t width, int nontemporal, int64_t head, int to_l1
) {
    Job j = *job;
    (void) nontemporal, (void) head;
    for (int64_t end; c < stop; c = end) {
        end = c + width < stop ? c + width : stop;
        if (j.ahead > end - c) j.ahead = end - c;
        for (int64_t row = 0; row < j.rows; row++)
            memcpy(j.out + (row * j.columns + c) * 4, j.data + (row * j.columns + c) * 4, (end - c) * 4);
        for (int64_t row = 0; row < j.index_rows; row++) {
            const int64_t *index = j.indices + row * j.columns;
            const float *updates = (const float *) j.updates + row * j.columns;
            float *out = (float *) j.out;
            int64_t i = c, more = row + 1 < j.index_rows ? j.columns - (end - c) : 0;
            for (; i < end - j.ahead; i++) {
                prefetch(out + index[i + j.ahead] * j.columns + i + j.ahead, to_l1);
                out[index[i] * j.columns + i] += updates[i];
            }
            for (; i < end; i++) {
                int64_t ahead_index = more ? i + j.ahead + more : i;
                int64_t column = more ? i + j.ahead - (end - c) : i;
                prefetch(out + index[ahead_index] * j.columns + column, to_l1);
                out[index[i] * j.columns + i] += updates[i];
            }
        }
    }
}

void scatter_axis0(const Job *j) {
#pragma omp parallel num_threads(j->threads)
    {
        int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        int64_t c = j->columns * thread / threads, stop = j->columns * (thread + 1) / threads;
        if (c < stop) BY_PREFETCH(update_columns_loop, j, c, stop, j->division, 0, 0);
    }
}

/* copies a row and updates it, in place or in a buffer, which non-temporal stores write to out */
INLINE void update_axis1_loop(
    const Job *job, int64_t row, int64_t stop, int64_t width, int nontemporal, int64_t head, int to_l1
) {
    const Job j = *job;
    float buffer[1 << 14] __attribute__((aligned(64)));
    int64_t bytes = j.columns * 4;
    (void) width, (void) head;
    for (; row < stop; row++) {
        const int64_t *index = j.indices + row * j.columns;
        const char *next = j.data + row * bytes + j.ahead;
        const float *updates = (const float *) j.updates + row * j.columns;
        float *target = nontemporal ? buffer : (float *) (j.out + row * bytes);
        memcpy(target, j.data + row * bytes, bytes);
        int64_t c = 0;
        for (; c + 16 <= j.columns; c += 16) {
            prefetch(next + c * 4, to_l1);
            for (int64_t e = c; e < c + 16; e++) target[index[e]] += updates[e];
        }
        for (; c < j.columns; c++) target[index[c]] += updates[c];
        if (nontemporal) copy_long_slice(j.out + row * bytes, (const char *) buffer, 0, bytes, nontemporal);
    }
    fence(nontemporal);
}

void scatter_axis1(const Job *j) {
#pragma omp parallel num_threads(j->threads)
    {
        int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        int64_t row = j->rows * thread / threads, stop = j->rows * (thread + 1) / threads;
        BY_STORE(update_axis1_loop, j, row, stop, 0);
    }
}
