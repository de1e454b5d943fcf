/* The limits of elements operators along an axis of a matrix of floats. */
#include "limits.h"

/* out[c] = data[index[c]][c] for columns [c, stop), prefetching the elements `ahead` later */
INLINE void pick_columns(
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
        int64_t later = more ? c + j->ahead + more : c;
        int64_t column = more ? c + j->ahead - width : c;
        prefetch(data + index[later] * j->columns + column, to_l1);
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
                pick_columns(&j, row, c, end, end - c, to_l1);
                continue;
            }
            staged = j;
            staged.out = (char *) (stage + 16) - (row * j.columns + c) * 4;
            pick_columns(&staged, row, c, end, end - c, to_l1);
            copy_all(j.out + (row * j.columns + c) * 4, (char *) (stage + 16), 0, (end - c) * 4, nontemporal);
        }
    }
    end_stream(nontemporal);
}

#define AXIS0(j, a, b, w, s, h, n) axis0_loop(j, a, b, w, s, h, n)

/* `way` columns at a time, aligned to the cache lines of out */
void gather_axis0(const Job *j) {
#pragma omp parallel num_threads(j->threads)
    {
        int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
        int64_t head = head_of(j->out) / 4, c = j->columns * part / parts;
        int64_t stop = j->columns * (part + 1) / parts;
        if (part) c += head;
        if (part + 1 < parts) stop += head;
        if (c < j->columns) {
            if (stop > j->columns) stop = j->columns;
            BY_STORE(AXIS0, j, c, stop, j->way);
        }
    }
}

/* the same elements of the row itself; the next rows are prefetched `ahead` bytes ahead */
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
            for (; c < head_of((char *) out) / 4 && c < j.columns; c++) out[c] = data[index[c]];
            for (; c + per <= j.columns; c += per) {
                for (int64_t i = 0; i < per; i += 16) {
                    prefetch((const char *) (data + c + i) + j.ahead, to_l1);
                    for (int64_t e = 0; e < 16; e++)
                        memcpy(stage + (i + e) * 4, data + index[c + i + e], 4);
                }
                for (int64_t i = 0; i < (int64_t) sizeof stage; i += LINE)
                    put_line((char *) (out + c) + i, stage + i, nontemporal);
            }
        }
        for (; c + 16 <= j.columns; c += 16) {
            prefetch((const char *) (data + c) + j.ahead, to_l1);
            for (int64_t e = 0; e < 16; e++) out[c + e] = data[index[c + e]];
        }
        for (; c < j.columns; c++) out[c] = data[index[c]];
    }
    end_stream(nontemporal);
    (void) width, (void) head;
}

void gather_axis1(const Job *j) {
#pragma omp parallel num_threads(j->threads)
    {
        int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
        int64_t row = j->index_rows * part / parts, stop = j->index_rows * (part + 1) / parts;
        BY_STORE(axis1_loop, j, row, stop, 0);
    }
}

INLINE void change_columns_loop(
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
                int64_t later = more ? i + j.ahead + more : i;
                int64_t column = more ? i + j.ahead - (end - c) : i;
                prefetch(out + index[later] * j.columns + column, to_l1);
                out[index[i] * j.columns + i] += updates[i];
            }
        }
    }
}

void scatter_axis0(const Job *j) {
#pragma omp parallel num_threads(j->threads)
    {
        int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
        int64_t c = j->columns * part / parts, stop = j->columns * (part + 1) / parts;
        if (c < stop) BY_NEAR(change_columns_loop, j, c, stop, j->way, 0, 0);
    }
}

/* a row copied, updated, and written: in place, or in a buffer that is then nontemporal */
INLINE void change_axis1_loop(
    const Job *job, int64_t row, int64_t stop, int64_t width, int nontemporal, int64_t head, int to_l1
) {
    const Job j = *job;
    float aside[1 << 14] __attribute__((aligned(64)));
    int64_t bytes = j.columns * 4;
    (void) width, (void) head;
    for (; row < stop; row++) {
        const int64_t *index = j.indices + row * j.columns;
        const char *next = j.data + row * bytes + j.ahead;
        const float *updates = (const float *) j.updates + row * j.columns;
        float *to = nontemporal ? aside : (float *) (j.out + row * bytes);
        memcpy(to, j.data + row * bytes, bytes);
        int64_t c = 0;
        for (; c + 16 <= j.columns; c += 16) {
            prefetch(next + c * 4, to_l1);
            for (int64_t e = c; e < c + 16; e++) to[index[e]] += updates[e];
        }
        for (; c < j.columns; c++) to[index[c]] += updates[c];
        if (nontemporal) copy_all(j.out + row * bytes, (const char *) aside, 0, bytes, nontemporal);
    }
    end_stream(nontemporal);
}

void scatter_axis1(const Job *j) {
#pragma omp parallel num_threads(j->threads)
    {
        int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
        int64_t row = j->rows * part / parts, stop = j->rows * (part + 1) / parts;
        BY_STORE(change_axis1_loop, j, row, stop, 0);
    }
}
