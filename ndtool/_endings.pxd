# How a signal ends the process at once: nothing here needs Python, a lock or memory.

cdef extern from * nogil:
    """
    #include <signal.h>
    #include <string.h>
    #include <unistd.h>
    #include <fcntl.h>

    #define ND_SIGNALS 65
    #define ND_DIES (-1) /* a status: the process dies of the signal, once the file is gone */
    static struct { int status, fd; Py_ssize_t length; char words[2048]; } nd_endings[ND_SIGNALS];
    #define ND_LEFT 64 /* files that may have a hidden name at once */
    static struct { int folder; char name[256]; } nd_left[ND_LEFT];
    enum { ND_RUNNING, ND_SETTLED, ND_ENDING };
    static int nd_state = ND_RUNNING;

    static int nd_say(int fd, const char *words, Py_ssize_t length)
    {
        Py_ssize_t done = 0, more;
        while (done < length) {
            more = write(fd, words + done, length - done);
            if (more <= 0) return 0;
            done += more;
        }
        return 1;
    }

    static void nd_end(int number, siginfo_t *info, void *context)
    {
        int before = ND_RUNNING, dies = nd_endings[number].status == ND_DIES, slot, fd;
        (void)context;
        if (number == SIGBUS && info->si_code != BUS_ADRERR) {
            signal(number, SIG_DFL); /* no lost page but a bug or a kill: a core dump tells more */
            raise(number);
            return;
        }
        if (!__atomic_compare_exchange_n(&nd_state, &before, ND_ENDING, 0, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST)) {
            while (before == ND_ENDING) pause(); /* another thread is at the same place */
            if (number != SIGBUS && !dies) return; /* the output has its name: too late to stop */
        }
        for (slot = 0; slot < ND_LEFT; slot++)
            if (__atomic_load_n(&nd_left[slot].name[0], __ATOMIC_SEQ_CST))
                unlinkat(nd_left[slot].folder, nd_left[slot].name, 0);
        if (dies) {
            signal(number, SIG_DFL);
            raise(number); /* comes when this returns */
            return;
        }
        for (fd = nd_endings[number].fd; fd <= 2; fd++) /* stderr, if stdout is closed */
            if (nd_say(fd, nd_endings[number].words, nd_endings[number].length)) break;
        _exit(nd_endings[number].status);
    }

    static void nd_end_on(int number, int status, int fd, const char *words, Py_ssize_t length)
    {
        struct sigaction old, act;
        if (number <= 0 || number >= ND_SIGNALS) return;
        if (sigaction(number, NULL, &old)) return;
        if (old.sa_handler == SIG_IGN && !(old.sa_flags & SA_SIGINFO)) return;
        if (status == ND_DIES && old.sa_handler != SIG_DFL) return;
        if (length > (Py_ssize_t)sizeof nd_endings[0].words)
            length = sizeof nd_endings[0].words;
        memcpy(nd_endings[number].words, words, length);
        nd_endings[number].length = length;
        nd_endings[number].status = status;
        nd_endings[number].fd = fd;
        memset(&act, 0, sizeof act);
        act.sa_sigaction = nd_end;
        act.sa_flags = SA_SIGINFO;
        sigfillset(&act.sa_mask);
        (void)sigaction(number, &act, NULL);
    }

    static int nd_remember(int folder, const char *name)
    {
        int slot = 0;
        while (slot < ND_LEFT && nd_left[slot].name[0]) slot++;
        if (slot == ND_LEFT || !*name) return -1;
        nd_left[slot].folder = folder;
        strncpy(nd_left[slot].name + 1, name + 1, sizeof nd_left[slot].name - 2);
        /* last: whole or not at all */
        __atomic_store_n(&nd_left[slot].name[0], *name, __ATOMIC_SEQ_CST);
        return slot;
    }

    static void nd_forget(int slot)
    {
        if (slot >= 0 && slot < ND_LEFT)
            __atomic_store_n(&nd_left[slot].name[0], 0, __ATOMIC_SEQ_CST);
    }

    static void nd_settle(int settled)
    {
        int before = settled ? ND_RUNNING : ND_SETTLED;
        if (!__atomic_compare_exchange_n(&nd_state, &before, settled ? ND_SETTLED : ND_RUNNING, 0,
                                         __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            while (before == ND_ENDING) pause();
    }
    """
    void nd_end_on(int number, int status, int fd, const char* words, Py_ssize_t length)
    int nd_remember(int folder, const char* name)
    void nd_forget(int slot)
    void nd_settle(int settled)
