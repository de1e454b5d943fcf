# How a signal ends the process at once: nothing here needs Python, a lock or memory.

cdef extern from * nogil:
    """
    #ifdef _WIN32
    static void nd_end_on(int number, int status, const char *words, Py_ssize_t length) {}
    static void nd_remove_at_end(int folder, const char *name) {}
    static void nd_settle(int settled) {}
    #else
    #include <signal.h>
    #include <string.h>
    #include <unistd.h>
    #include <fcntl.h>

    #define ND_SIGNALS 32
    static struct { int status; Py_ssize_t length; char words[2048]; } nd_endings[ND_SIGNALS];
    static struct { int folder; char name[256]; } nd_left = {-1, ""};
    enum { ND_RUNNING, ND_SETTLED, ND_ENDING };
    static int nd_state = ND_RUNNING;

    static void nd_end(int number, siginfo_t *info, void *context)
    {
        int before = ND_RUNNING;
        Py_ssize_t done = 0, more;
        (void)context;
        if (number == SIGBUS && info->si_code != BUS_ADRERR) {
            signal(number, SIG_DFL); /* no lost page but a bug or a kill: a core dump tells more */
            raise(number);
            return;
        }
        if (!__atomic_compare_exchange_n(&nd_state, &before, ND_ENDING, 0, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST)) {
            while (before == ND_ENDING) pause(); /* another thread is at the same place */
            if (number != SIGBUS) return;        /* the output has its name: too late to stop */
        }
        if (__atomic_load_n(&nd_left.name[0], __ATOMIC_SEQ_CST))
            unlinkat(nd_left.folder, nd_left.name, 0);
        while (done < nd_endings[number].length) {
            more = write(2, nd_endings[number].words + done, nd_endings[number].length - done);
            if (more <= 0) break;
            done += more;
        }
        _exit(nd_endings[number].status);
    }

    static void nd_end_on(int number, int status, const char *words, Py_ssize_t length)
    {
        struct sigaction old, act;
        if (number <= 0 || number >= ND_SIGNALS) return;
        if (sigaction(number, NULL, &old)) return;
        if (old.sa_handler == SIG_IGN && !(old.sa_flags & SA_SIGINFO)) return;
        if (length > (Py_ssize_t)sizeof nd_endings[0].words)
            length = sizeof nd_endings[0].words;
        memcpy(nd_endings[number].words, words, length);
        nd_endings[number].length = length;
        nd_endings[number].status = status;
        memset(&act, 0, sizeof act);
        act.sa_sigaction = nd_end;
        act.sa_flags = SA_SIGINFO;
        sigfillset(&act.sa_mask);
        (void)sigaction(number, &act, NULL);
    }

    static void nd_remove_at_end(int folder, const char *name)
    {
        __atomic_store_n(&nd_left.name[0], 0, __ATOMIC_SEQ_CST);
        nd_left.folder = folder;
        strncpy(nd_left.name + 1, *name ? name + 1 : name, sizeof nd_left.name - 2);
        __atomic_store_n(&nd_left.name[0], *name, __ATOMIC_SEQ_CST); /* last: whole or not at all */
    }

    static void nd_settle(int settled)
    {
        int before = settled ? ND_RUNNING : ND_SETTLED;
        if (!__atomic_compare_exchange_n(&nd_state, &before, settled ? ND_SETTLED : ND_RUNNING, 0,
                                         __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            while (before == ND_ENDING) pause();
    }
    #endif
    """
    void nd_end_on(int number, int status, const char* words, Py_ssize_t length)
    void nd_remove_at_end(int folder, const char* name)
    void nd_settle(int settled)
