# Teams that can be started: libgomp ends the process where the system refuses it a thread.
#
# A team is asked for at its first use, and again wherever it is larger than the one used last:
# libgomp dismisses those that a smaller one leaves over. Between the question and libgomp's start
# no other run of ndtool may take the last thread, so both happen under a lock that all runs share.

cdef extern from * nogil:
    """
    #ifdef _OPENMP
    #include <fcntl.h>
    #include <omp.h>
    #include <pthread.h>
    #include <string.h>
    #include <sys/file.h>
    #include <sys/stat.h>
    #include <unistd.h>

    static char *nd_file;             /* this extension's: whoever can run it can open it */
    static int nd_forked;             /* libgomp would wait for threads that a child has not */
    static __thread int nd_last = 1;  /* of each thread that calls: libgomp keeps a pool for each */

    static void nd_in_child(void) { nd_forked = 1; }

    static int nd_prepare(const char *file)
    {
        nd_file = strdup(file);
        return pthread_atfork(NULL, NULL, nd_in_child);
    }

    /* waits for its turn, but not for ever: a stopped process may have it */
    static int nd_enter(void)
    {
        int file = nd_file ? open(nd_file, O_RDONLY | O_CLOEXEC) : -1, tries;
        for (tries = 0; file >= 0 && tries < 100 && flock(file, LOCK_EX | LOCK_NB); tries++)
            usleep(1000);
        return file;
    }

    static void nd_leave(int file)
    {
        if (file < 0) return;
        (void)flock(file, LOCK_UN); /* a child that was forked meanwhile has the file, too */
        close(file);
    }

    static void *nd_wait(void *gate)
    {
        pthread_mutex_lock((pthread_mutex_t *)gate);
        pthread_mutex_unlock((pthread_mutex_t *)gate);
        return NULL;
    }

    static unsigned long nd_threads(void)
    {
        struct stat tasks; /* a directory has as many links as directories, two of its own aside */
        return stat("/proc/self/task", &tasks) ? 0 : (unsigned long)tasks.st_nlink;
    }

    /* how many of `wanted` threads the system gives beside those there are */
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
            usleep(100); /* one that has ended may still count */
        return started;
    }

    static int nd_start(int wanted)
    {
        int turn = nd_enter();
        wanted = nd_last + nd_startable(wanted - nd_last);
        omp_set_dynamic(0); /* else a team may have fewer than it is told, and dismiss the others */
        if (wanted > nd_last) {
            #pragma omp parallel num_threads(wanted)
            __asm__ volatile(""); /* nothing, but not left out */
        }
        nd_leave(turn);
        return wanted;
    }

    static int nd_team(int wanted)
    {
        if (nd_forked) return 1;
        if (wanted > nd_last) wanted = nd_start(wanted);
        if (wanted > 1) nd_last = wanted; /* one thread alone does not concern libgomp */
        return wanted;
    }
    #else
    static int nd_prepare(const char *file) { (void)file; return 0; }
    static int nd_enter(void) { return -1; }
    static void nd_leave(int file) { (void)file; }
    static int nd_team(int wanted) { (void)wanted; return 1; }
    #endif
    """
    int prepare "nd_prepare"(const char* file)
    int enter "nd_enter"()
    void leave "nd_leave"(int file)
    int startable "nd_team"(int wanted)
