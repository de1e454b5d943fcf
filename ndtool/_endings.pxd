# The signal handler that ends the process immediately, and the data that it needs.
# The handler is async-signal-safe C: no Python, no locks, no allocation.

cdef extern from * nogil:
    """
    #include <signal.h>
    #include <string.h>
    #include <unistd.h>
    #include <fcntl.h>

    #define ND_SIGNALS 65
    #define ND_DIES (-1) /* a status: remove the files, then take the signal's default action */
    static struct { int status, fd; Py_ssize_t length; char text[2048]; } nd_endings[ND_SIGNALS];
    #define ND_TEMPORARIES 64 /* temporary files at one time */
    static struct { int folder; char name[256]; } nd_temporary[ND_TEMPORARIES];
    enum { ND_RUNNING, ND_PUBLISHED, ND_ENDING };
    static int nd_state = ND_RUNNING;

    static int nd_write_all(int fd, const char *text, Py_ssize_t length)
    {
        Py_ssize_t done = 0, more;
        while (done < length) {
            more = write(fd, text + done, length - done);
            if (more <= 0) return 0;
            done += more;
        }
        return 1;
    }

    static void nd_end(int number, siginfo_t *info, void *context)
    {
        int before = ND_RUNNING, dies = nd_endings[number].status == ND_DIES, slot, fd;
        (void)context;
        if (number == SIGBUS && info && info->si_code != BUS_ADRERR) {
            signal(number, SIG_DFL); /* no lost page of a mapped file but a bug: dump core */
            raise(number);
            return;
        }
        if (!__atomic_compare_exchange_n(&nd_state, &before, ND_ENDING, 0, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST)) {
            while (before == ND_ENDING) pause(); /* another thread is ending the process */
            if (number != SIGBUS && !dies) return; /* the output is published: finish the run */
        }
        for (slot = 0; slot < ND_TEMPORARIES; slot++)
            if (__atomic_load_n(&nd_temporary[slot].name[0], __ATOMIC_SEQ_CST))
                unlinkat(nd_temporary[slot].folder, nd_temporary[slot].name, 0);
        if (dies) {
            signal(number, SIG_DFL);
            raise(number); /* signals are blocked: delivered on return */
            return;
        }
        for (fd = nd_endings[number].fd; fd <= 2; fd++) /* stderr, if stdout is closed */
            if (nd_write_all(fd, nd_endings[number].text, nd_endings[number].length)) break;
        _exit(nd_endings[number].status);
    }

    static void nd_end_on(int number, int status, int fd, const char *text, Py_ssize_t length)
    {
        struct sigaction old, act;
        if (number <= 0 || number >= ND_SIGNALS) return;
        if (sigaction(number, NULL, &old)) return;
        if (old.sa_handler == SIG_IGN && !(old.sa_flags & SA_SIGINFO)) return;
        if (status == ND_DIES && old.sa_handler != SIG_DFL) return;
        if (length > (Py_ssize_t)sizeof nd_endings[0].text)
            length = sizeof nd_endings[0].text;
        memcpy(nd_endings[number].text, text, length);
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
        while (slot < ND_TEMPORARIES && nd_temporary[slot].name[0]) slot++;
        if (slot == ND_TEMPORARIES || !*name) return -1;
        nd_temporary[slot].folder = folder;
        strncpy(nd_temporary[slot].name + 1, name + 1, sizeof nd_temporary[slot].name - 2);
        __atomic_store_n(&nd_temporary[slot].name[0], *name, __ATOMIC_SEQ_CST); /* last: commits */
        return slot;
    }

    static void nd_forget(int slot)
    {
        if (slot >= 0 && slot < ND_TEMPORARIES)
            __atomic_store_n(&nd_temporary[slot].name[0], 0, __ATOMIC_SEQ_CST);
    }

    static void nd_settle(int settled)
    {
        int before = settled ? ND_RUNNING : ND_PUBLISHED;
        if (!__atomic_compare_exchange_n(&nd_state, &before, settled ? ND_PUBLISHED : ND_RUNNING, 0,
                                         __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            while (before == ND_ENDING) pause();
    }
    """
    ctypedef struct siginfo_t:
        pass
    void nd_end(int number, siginfo_t* info, void* context)
    void nd_end_on(int number, int status, int fd, const char* text, Py_ssize_t length)
    int nd_remember(int folder, const char* name)
    void nd_forget(int slot)
    void nd_settle(int settled)
