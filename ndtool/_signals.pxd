# The signal handler that ends the process immediately, and its data.
# The handler is async-signal-safe C: it uses no Python, no locks, no allocation.

cdef extern from * nogil:
    """
    #include <signal.h>
    #include <string.h>
    #include <unistd.h>
    #include <fcntl.h>

    #define ND_SIGNALS 65
    #define ND_DEFAULT_ACTION (-1) /* instead of an exit status */
    static struct { int status, fd; Py_ssize_t length; char text[2048]; } nd_actions[ND_SIGNALS];
    #define ND_MAX_FILES 64
    static struct { int folder; char name[256]; } nd_files[ND_MAX_FILES]; /* temporary files */
    enum { ND_RUNNING, ND_PUBLISHED, ND_ENDING };
    static int nd_state = ND_RUNNING;

    static int nd_write_all(int fd, const char *text, Py_ssize_t length)
    {
        Py_ssize_t total = 0, written;
        while (total < length) {
            written = write(fd, text + total, length - total);
            if (written <= 0) return 0;
            total += written;
        }
        return 1;
    }

    static void nd_handle_signal(int number, siginfo_t *info, void *context)
    {
        int previous = ND_RUNNING, is_default = nd_actions[number].status == ND_DEFAULT_ACTION;
        int slot, fd;
        (void)context;
        if (number == SIGBUS && info && info->si_code != BUS_ADRERR) {
            signal(number, SIG_DFL); /* a bug, not a missing page of a mapped file: dump core */
            raise(number);
            return;
        }
        if (!__atomic_compare_exchange_n(&nd_state, &previous, ND_ENDING, 0, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST)) {
            while (previous == ND_ENDING) pause(); /* another thread is ending the process */
            if (number != SIGBUS && !is_default) return; /* published: finish the run */
        }
        for (slot = 0; slot < ND_MAX_FILES; slot++)
            if (__atomic_load_n(&nd_files[slot].name[0], __ATOMIC_SEQ_CST))
                unlinkat(nd_files[slot].folder, nd_files[slot].name, 0);
        if (is_default) {
            signal(number, SIG_DFL);
            raise(number); /* signals are blocked: delivered on return */
            return;
        }
        for (fd = nd_actions[number].fd; fd <= 2; fd++) /* stderr, if stdout is closed */
            if (nd_write_all(fd, nd_actions[number].text, nd_actions[number].length)) break;
        _exit(nd_actions[number].status);
    }

    static void nd_install_handler(int number, int status, int fd, const char *text,
                                   Py_ssize_t length)
    {
        struct sigaction current, action;
        if (number <= 0 || number >= ND_SIGNALS) return;
        if (sigaction(number, NULL, &current)) return;
        if (current.sa_handler == SIG_IGN && !(current.sa_flags & SA_SIGINFO)) return;
        if (status == ND_DEFAULT_ACTION && current.sa_handler != SIG_DFL) return;
        if (length > (Py_ssize_t)sizeof nd_actions[0].text)
            length = sizeof nd_actions[0].text;
        memcpy(nd_actions[number].text, text, length);
        nd_actions[number].length = length;
        nd_actions[number].status = status;
        nd_actions[number].fd = fd;
        memset(&action, 0, sizeof action);
        action.sa_sigaction = nd_handle_signal;
        action.sa_flags = SA_SIGINFO;
        sigfillset(&action.sa_mask);
        (void)sigaction(number, &action, NULL);
    }

    static int nd_register_file(int folder, const char *name)
    {
        int slot = 0;
        while (slot < ND_MAX_FILES && nd_files[slot].name[0]) slot++;
        if (slot == ND_MAX_FILES || !*name) return -1;
        nd_files[slot].folder = folder;
        strncpy(nd_files[slot].name + 1, name + 1, sizeof nd_files[slot].name - 2);
        __atomic_store_n(&nd_files[slot].name[0], *name, __ATOMIC_SEQ_CST); /* last */
        return slot;
    }

    static void nd_unregister_file(int slot)
    {
        if (slot >= 0 && slot < ND_MAX_FILES)
            __atomic_store_n(&nd_files[slot].name[0], 0, __ATOMIC_SEQ_CST);
    }

    static void nd_set_published(int published)
    {
        int previous = published ? ND_RUNNING : ND_PUBLISHED;
        int state = published ? ND_PUBLISHED : ND_RUNNING;
        if (!__atomic_compare_exchange_n(&nd_state, &previous, state, 0, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST))
            while (previous == ND_ENDING) pause();
    }
    """
    ctypedef struct siginfo_t:
        pass
    void nd_handle_signal(int number, siginfo_t* info, void* context)
    void nd_install_handler(int number, int status, int fd, const char* text, Py_ssize_t length)
    int nd_register_file(int folder, const char* name)
    void nd_unregister_file(int slot)
    void nd_set_published(int published)
