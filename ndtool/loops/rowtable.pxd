# cython: language_level=3, wraparound=False, cdivision=True
# A hash table that numbers the rows which tuples select, so that memory and time depend on the
# number of tuples, not of rows. Several threads may insert rows; slots do not affect results.

from libc.stdint cimport uint64_t

cdef extern from * nogil:
    """
    #if defined(__GNUC__) || defined(__clang__)
      /* writes the key to an empty slot; returns the slot's key: this one, or another thread's */
      static inline uint64_t nd_claim(uint64_t *slot, uint64_t key)
      {
          uint64_t found = 0;
          if (__atomic_compare_exchange_n(slot, &found, key, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
              return key;
          return found;
      }
      #define nd_read_key(slot) __atomic_load_n(slot, __ATOMIC_RELAXED)
    #else
      #define nd_claim(slot, key) (*(slot) = (key)) /* without OpenMP, there is one thread */
      #define nd_read_key(slot) (*(slot))
    #endif
    """
    uint64_t claim_slot "nd_claim"(uint64_t* slot, uint64_t key)
    uint64_t read_key "nd_read_key"(uint64_t* slot)


cdef struct RowTable:
    uint64_t* keys    # of each slot: its row plus 1, 0 if it is empty; NULL if there is no table
    uint64_t mask     # the number of slots, a power of two, less 1; there are more than tuples
    uint64_t factor   # an odd random number, so that nobody can choose rows that collide


cdef inline uint64_t first_slot(const RowTable* table, uint64_t row) noexcept nogil:
    """Return the slot at which the search for a row begins."""
    cdef uint64_t hashed = (row + 1) * table.factor
    return (hashed ^ hashed >> 32) * table.factor >> 20 & table.mask


cdef inline uint64_t slot_of(const RowTable* table, uint64_t row, bint* is_new) noexcept nogil:
    """Return the slot of a row, which is inserted if it is new."""
    cdef uint64_t i = first_slot(table, row), key
    while True:
        key = read_key(table.keys + i)
        is_new[0] = key == 0
        if key == 0:
            key = claim_slot(table.keys + i, row + 1)
        if key == row + 1:
            return i
        i = i + 1 & table.mask
