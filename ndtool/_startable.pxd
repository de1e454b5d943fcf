# How many threads the system gives: libgomp ends the process where it is refused one.

cdef extern from * nogil:
    """
    #ifdef _WIN32
    static int nd_startable(int wanted)
    {
        return wanted;
    }
    #else
    #include <pthread.h>
    #include <sys/stat.h>
    #include <unistd.h>

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

    static int nd_startable(int wanted)
    {
        pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
        pthread_t others[1024];
        unsigned long before = nd_threads();
        int started = 0, i;
        if (wanted > 1024) wanted = 1024;
        pthread_mutex_lock(&gate);
        while (started < wanted - 1 && !pthread_create(&others[started], NULL, nd_wait, &gate))
            started++;
        pthread_mutex_unlock(&gate);
        for (i = 0; i < started; i++) pthread_join(others[i], NULL);
        for (i = 0; i < 1000 && nd_threads() > before; i++)
            usleep(100); /* one that has ended may still count */
        return started + 1;
    }
    #endif
    """
    int nd_startable(int wanted)
