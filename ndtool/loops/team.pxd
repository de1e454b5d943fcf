# cython: language_level=3, wraparound=False, cdivision=True
# A team: threads that share out the parts of one call, each taking the next one when it is done.
#
# Not OpenMP's: libgomp ends the process where the system refuses it a thread, nothing starts in a
# forked child, and every call waits for the last thread to wake. Here a call goes on with those
# that there are, and does not wait for one that has not begun.

from libc.stdint cimport int64_t, uint64_t

cdef extern from * nogil:
    """
    #include <pthread.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <time.h>

    typedef uint64_t (*nd_work)(void const *call, int64_t part, int thread);

    enum { ND_STACK = 1 << 20 };   /* bytes: a part takes a twentieth of it */
    enum { ND_KEPT = 256 };        /* threads that wait for the next call; more are dismissed */
    enum { ND_SPIN = 200000 };     /* ns that who waits stays awake: the next call is often near */
    enum { ND_RESTING, ND_CALLED, ND_AT_WORK, ND_DISMISSED };

    typedef struct { /* one call; it stands on its caller's stack */
        nd_work work;
        void const *call;
        int64_t parts, next;
        uint64_t seen;
    } nd_job;

    typedef struct nd_worker {
        struct nd_worker *next;
        pthread_mutex_t lock;
        pthread_cond_t changed;
        int state, sleepers, number;
        nd_job *job;
    } nd_worker;

    static pthread_mutex_t nd_pool = PTHREAD_MUTEX_INITIALIZER;
    static nd_worker *nd_resting;
    static int nd_at_rest;

    static void nd_pause(void)
    {
    #if defined(__x86_64__) || defined(__i386__)
        __asm__ volatile("pause");
    #elif defined(__aarch64__)
        __asm__ volatile("isb");
    #endif
    }

    static int64_t nd_now(void)
    {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }

    /* whether a worker was in one state, and so is in the next */
    static int nd_step(nd_worker *w, int from, int to)
    {
        return __atomic_compare_exchange_n(&w->state, &from, to, 0, __ATOMIC_ACQ_REL,
                                           __ATOMIC_ACQUIRE);
    }

    static void nd_set(nd_worker *w, int state)
    {
        pthread_mutex_lock(&w->lock);
        __atomic_store_n(&w->state, state, __ATOMIC_RELEASE);
        if (w->sleepers) pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
    }

    static void nd_wait_while(nd_worker *w, int state)
    {
        int64_t end = nd_now() + ND_SPIN;
        int i;
        do {
            for (i = 0; i < 32; i++) {
                if (__atomic_load_n(&w->state, __ATOMIC_ACQUIRE) != state) return;
                nd_pause();
            }
        } while (nd_now() < end);
        pthread_mutex_lock(&w->lock);
        w->sleepers++;
        while (__atomic_load_n(&w->state, __ATOMIC_ACQUIRE) == state)
            pthread_cond_wait(&w->changed, &w->lock);
        w->sleepers--;
        pthread_mutex_unlock(&w->lock);
    }

    static void nd_do(nd_job *job, int number)
    {
        uint64_t seen = 0;
        int64_t part;
        while ((part = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED)) < job->parts)
            seen |= job->work(job->call, part, number);
        if (seen) __atomic_fetch_or(&job->seen, seen, __ATOMIC_RELAXED);
    }

    static void *nd_live(void *self)
    {
        nd_worker *w = (nd_worker *)self;
        for (;;) {
            nd_wait_while(w, ND_RESTING);
            if (nd_step(w, ND_CALLED, ND_AT_WORK)) {
                nd_do(w->job, w->number);
                nd_set(w, ND_RESTING);
            } else if (__atomic_load_n(&w->state, __ATOMIC_ACQUIRE) == ND_DISMISSED) {
                break;
            }
        }
        pthread_mutex_lock(&w->lock); /* whoever dismissed it is done with it then */
        pthread_mutex_unlock(&w->lock);
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return NULL;
    }

    /* a new worker, called already; NULL where the system gives no thread */
    static nd_worker *nd_hire(nd_job *job, int number)
    {
        nd_worker *w = (nd_worker *)calloc(1, sizeof *w);
        pthread_attr_t attributes;
        pthread_t thread;
        int refused;
        if (!w) return NULL;
        pthread_mutex_init(&w->lock, NULL);
        pthread_cond_init(&w->changed, NULL);
        w->state = ND_CALLED;
        w->job = job;
        w->number = number;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        (void)pthread_attr_setstacksize(&attributes, ND_STACK);
        refused = pthread_create(&thread, &attributes, nd_live, w);
        pthread_attr_destroy(&attributes);
        if (!refused) return w;
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return NULL;
    }

    /* calls up to `wanted` workers, those first that rested last */
    static nd_worker *nd_call(nd_job *job, int wanted)
    {
        nd_worker *team = NULL, *w;
        int number = 0;
        pthread_mutex_lock(&nd_pool);
        while (number < wanted && nd_resting) {
            w = nd_resting;
            nd_resting = w->next;
            nd_at_rest--;
            w->next = team;
            team = w;
            w->job = job;
            w->number = ++number;
        }
        pthread_mutex_unlock(&nd_pool);
        for (w = team; w; w = w->next) nd_set(w, ND_CALLED);
        while (number < wanted && (w = nd_hire(job, number + 1))) {
            w->next = team;
            team = w;
            number++;
        }
        return team;
    }

    static void nd_release(nd_worker *team)
    {
        nd_worker *w, *after, *many = NULL;
        pthread_mutex_lock(&nd_pool);
        for (w = team; w; w = after) {
            after = w->next;
            w->next = nd_at_rest < ND_KEPT ? nd_resting : many;
            if (nd_at_rest < ND_KEPT) {
                nd_resting = w;
                nd_at_rest++;
            } else {
                many = w;
            }
        }
        pthread_mutex_unlock(&nd_pool);
        for (w = many; w; w = after) {
            after = w->next;
            nd_set(w, ND_DISMISSED);
        }
    }

    static uint64_t nd_share(nd_work work, void const *call, int64_t parts, int threads)
    {
        nd_job job = {work, call, parts, 0, 0};
        nd_worker *team = NULL, *w;
        if (threads > parts) threads = (int)parts;
        if (threads > 1) team = nd_call(&job, threads - 1);
        nd_do(&job, 0);
        for (w = team; w; w = w->next) /* one that has not begun need not */
            if (!nd_step(w, ND_CALLED, ND_RESTING)) nd_wait_while(w, ND_AT_WORK);
        if (team) nd_release(team);
        return job.seen;
    }

    static void nd_before_fork(void) { pthread_mutex_lock(&nd_pool); }
    static void nd_after_fork(void) { pthread_mutex_unlock(&nd_pool); }

    static void nd_in_child(void) /* where the workers do not exist */
    {
        nd_resting = NULL;
        nd_at_rest = 0;
        pthread_mutex_unlock(&nd_pool);
    }

    static int nd_prepare(void)
    {
        return pthread_atfork(nd_before_fork, nd_after_fork, nd_in_child);
    }
    """
    ctypedef uint64_t (*nd_work)(const void* call, int64_t part, int thread) noexcept nogil
    uint64_t share "nd_share"(nd_work work, const void* call, int64_t parts, int threads)
    int prepare "nd_prepare"()
