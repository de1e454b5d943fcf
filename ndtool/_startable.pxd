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

    static void *nd_wait(void *gate)
    {
        pthread_mutex_lock((pthread_mutex_t *)gate);
        pthread_mutex_unlock((pthread_mutex_t *)gate);
        return NULL;
    }

    static int nd_startable(int wanted)
    {
        pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
        pthread_t others[1024];
        int started = 0, i;
        if (wanted > 1024) wanted = 1024;
        pthread_mutex_lock(&gate);
        while (started < wanted - 1 && !pthread_create(&others[started], NULL, nd_wait, &gate))
            started++;
        pthread_mutex_unlock(&gate);
        for (i = 0; i < started; i++) pthread_join(others[i], NULL);
        return started + 1;
    }
    #endif
    """
    int nd_startable(int wanted)
