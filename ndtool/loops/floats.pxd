# cython: language_level=3, wraparound=False, cdivision=True
# The floating-point state of a thread: rounding mode, and whether subnormal numbers are zeros.
# Threads of a team may have another state than the caller's, on which the bits of sums would
# depend: each task with arithmetic sets the caller's, and restores the thread's.

from libc.stdint cimport uint64_t

cdef extern from * nogil:
    """
    #if defined(__SSE2__)
      #include <xmmintrin.h>
      enum { ND_FLOAT_STATE = 0xE040, ND_DEFAULT_STATE = 0 }; /* of MXCSR; not exception bits */
      #define nd_read_state() _mm_getcsr()
      #define nd_write_state(word) _mm_setcsr((unsigned)(word))
    #elif defined(__aarch64__)
      enum { ND_FLOAT_STATE = 0x07C80000, ND_DEFAULT_STATE = 0 }; /* of FPCR */
      static inline uint64_t nd_read_state(void)
      {
          uint64_t word;
          __asm__ volatile("mrs %0, fpcr" : "=r"(word));
          return word;
      }
      #define nd_write_state(word) __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)(word)))
    #else
      #include <fenv.h>
      enum { ND_FLOAT_STATE = -1, ND_DEFAULT_STATE = FE_TONEAREST };
      #define nd_read_state() fegetround()
      #define nd_write_state(word) fesetround((int)(word))
    #endif
    static inline uint64_t nd_float_state(void)
    {
        return (uint64_t)nd_read_state() & (uint64_t)ND_FLOAT_STATE;
    }
    static inline uint64_t nd_set_float_state(uint64_t state)
    {
        uint64_t word = nd_read_state(), previous = word & (uint64_t)ND_FLOAT_STATE;
        __asm__ volatile("" : : : "memory"); /* no arithmetic moves to the other side */
        if (previous != state) nd_write_state((word & ~(uint64_t)ND_FLOAT_STATE) | state);
        __asm__ volatile("" : : : "memory");
        return previous;
    }
    """
    const uint64_t DEFAULT_STATE "ND_DEFAULT_STATE"
    uint64_t float_state "nd_float_state"()
    uint64_t set_float_state "nd_set_float_state"(uint64_t state)    # returns the previous one
