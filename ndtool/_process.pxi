# The process: the admission lock for starting threads, and signal handlers that end the process.


@cython.final
cdef class AdmissionLock:
    """The admission lock: no other run of ndtool starts threads, unless its wait times out."""

    cdef int file

    def __enter__(self) -> AdmissionLock:
        with nogil:
            self.file = lock_admission()
        return self

    def __exit__(self, *failure: object) -> None:
        unlock_admission(self.file)


def measure_wake() -> int:
    """Return the bytes that a thread copies in the time in which another one starts to work."""
    cdef long long nbytes
    with nogil:
        nbytes = bytes_per_wake()
    return nbytes


def install_handler(int number, int status, int fd, bytes message) -> None:
    """Install a handler that ends the process, unless the signal is ignored; see signals.py."""
    nd_install_handler(number, status, fd, message, len(message))


def end_process(int number) -> None:
    """Call the handler that `install_handler` installed: it ends the process."""
    nd_handle_signal(number, NULL, NULL)


def register_file(int folder, bytes name) -> int:
    """Register a file for removal by the signal handlers; return its slot, -1 if none is free."""
    return nd_register_file(folder, name)


def unregister_file(int slot) -> None:
    """Unregister the file of a slot."""
    nd_unregister_file(slot)


def set_published(bint published) -> None:
    """Set whether the output is published: from then on, signals do not end the process."""
    with nogil:
        nd_set_published(published)
