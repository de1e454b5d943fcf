# The process: the lock for starting threads, and how a signal ends the process immediately.


@cython.final
cdef class AdmissionLock:
    """The admission lock: no other run of ndtool starts threads, unless its wait timed out."""

    cdef int file

    def __enter__(self) -> AdmissionLock:
        with nogil:
            self.file = lock_admission()
        return self

    def __exit__(self, *failure: object) -> None:
        unlock_admission(self.file)


def end_on(int number, int status, int fd, bytes message) -> None:
    """Install a handler that ends the process, unless the signal is ignored; see endings.py."""
    nd_end_on(number, status, fd, message, len(message))


def end(int number) -> None:
    """End the process as the handler that `end_on` installed would."""
    nd_end(number, NULL, NULL)


def remember(int folder, bytes name) -> int:
    """Register a file that the handler removes; return its slot, -1 if none is free."""
    return nd_remember(folder, name)


def forget(int slot) -> None:
    """Unregister the file of a slot."""
    nd_forget(slot)


def settle(bint settled) -> None:
    """Set whether the output is published: from then on, signals do not end the process."""
    with nogil:
        nd_settle(settled)
