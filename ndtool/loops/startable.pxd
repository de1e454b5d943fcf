# The number of threads that the system can start: libgomp aborts the process if one cannot be, so
# threads are created as a test before the first team and before any larger one.
#
# libgomp ends the threads that a smaller team does not need. No other run of ndtool may take the
# last thread between test and start: both happen under the admission lock that all runs share.

cdef extern from * nogil:
    """
    #ifdef _OPENMP
    #include <fcntl.h>
    #include <omp.h>
    #include <pthread.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/file.h>
    #include <sys/stat.h>
    #include <unistd.h>

    static char *nd_lock_path;        /* the extension's own file: always readable */
    static int nd_has_pool;           /* perhaps, when this process was forked last */
    static int nd_forked;             /* in its child, libgomp would wait for threads it lacks */
    static __thread int nd_last = 1;  /* per calling thread: libgomp has a pool for each */

    static unsigned long nd_threads(void)
    {
        struct stat tasks; /* a directory has a link per subdirectory, and two */
        return stat("/proc/self/task", &tasks) ? 0 : (unsigned long)tasks.st_nlink;
    }

    /* a process of one thread has no pool, whichever library uses libgomp */
    static void nd_before_fork(void) { nd_has_pool = nd_threads() != 3; }
    static void nd_in_child(void) { nd_forked |= nd_has_pool; nd_last = 1; }

    static int nd_prepare(const char *file)
    {
        nd_lock_path = strdup(file);
        return pthread_atfork(nd_before_fork, NULL, nd_in_child);
    }

    /* waits for at most 0.1 s: a stopped process may hold the lock */
    static int nd_lock_admission(void)
    {
        int file = nd_lock_path ? open(nd_lock_path, O_RDONLY | O_CLOEXEC) : -1, tries;
        for (tries = 0; file >= 0 && tries < 100 && flock(file, LOCK_EX | LOCK_NB); tries++)
            usleep(1000);
        return file;
    }

    static void nd_unlock_admission(int file)
    {
        if (file < 0) return;
        (void)flock(file, LOCK_UN); /* a child forked meanwhile has the file open, too */
        close(file);
    }

    static void *nd_wait(void *gate)
    {
        pthread_mutex_lock((pthread_mutex_t *)gate);
        pthread_mutex_unlock((pthread_mutex_t *)gate);
        return NULL;
    }

    /* how many of `wanted` additional threads the system starts */
    static int nd_startable(int wanted)
    {
        pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
        pthread_t others[1024];
        unsigned long before = nd_threads();
        int started = 0, i;
        if (wanted > 1024) wanted = 1024;
        pthread_mutex_lock(&gate);
        while (started < wanted && !pthread_create(&others[started], NULL, nd_wait, &gate))
            started++;
        pthread_mutex_unlock(&gate);
        for (i = 0; i < started; i++) pthread_join(others[i], NULL);
        for (i = 0; i < 1000 && nd_threads() > before; i++)
            usleep(100); /* an exited thread may still be counted */
        return started;
    }

    static int nd_start(int wanted)
    {
        int lock = nd_lock_admission();
        wanted = nd_last + nd_startable(wanted - nd_last);
        omp_set_dynamic(0); /* else a team may be smaller than wanted, and the others end */
        if (wanted > nd_last) {
            #pragma omp parallel num_threads(wanted)
            __asm__ volatile(""); /* empty, but not optimized away */
        }
        nd_unlock_admission(lock);
        return wanted;
    }

    static int nd_team(int wanted)
    {
        if (nd_forked) return 1;
        if (wanted > nd_last) wanted = nd_start(wanted);
        if (wanted > 1) nd_last = wanted; /* a team of one does not involve libgomp */
        return wanted;
    }

    /* bytes that a thread copies while an idle one wakes, with its return to sleep: the least of
       several, of buffers in cache */
    static int64_t nd_bytes_per_wake(void)
    {
        enum { BYTES = 1 << 18, TRIES = 5 };
        double wake = 1, copy = 1, start;
        char *buffer = malloc(2 * BYTES);
        int i;
        if (!buffer || nd_team(2) < 2) {
            free(buffer);
            return INT64_MAX;
        }
        memset(buffer, 1, 2 * BYTES);
        for (i = 0; i < TRIES; i++) {
            usleep(100); /* the other thread sleeps now */
            start = omp_get_wtime();
            #pragma omp parallel num_threads(2)
            __asm__ volatile("" : : : "memory");
            if (omp_get_wtime() - start < wake) wake = omp_get_wtime() - start;
            start = omp_get_wtime();
            memcpy(buffer, buffer + BYTES, BYTES);
            __asm__ volatile("" : : : "memory");
            if (omp_get_wtime() - start < copy) copy = omp_get_wtime() - start;
        }
        free(buffer);
        return (int64_t)(BYTES * wake / (copy > 1e-9 ? copy : 1e-9));
    }
    #else
    static int64_t nd_bytes_per_wake(void) { return INT64_MAX; }
    static int nd_prepare(const char *file) { (void)file; return 0; }
    static int nd_lock_admission(void) { return -1; }
    static void nd_unlock_admission(int file) { (void)file; }
    static int nd_team(int wanted) { (void)wanted; return 1; }
    #endif
    """
    int prepare "nd_prepare"(const char* file)
    int lock_admission "nd_lock_admission"()
    void unlock_admission "nd_unlock_admission"(int file)
    int team_size "nd_team"(int wanted)
    long long bytes_per_wake "nd_bytes_per_wake"()
