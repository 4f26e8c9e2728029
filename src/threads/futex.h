/* Sleeping until a word changes: Linux's futex(2), within one process. */
#ifndef ATTUNE_THREADS_FUTEX_H
#define ATTUNE_THREADS_FUTEX_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Returns when the word is not `seen` any more, after a wake-up, or for no reason. */
static inline void at_futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static inline void at_futex_wake(_Atomic uint32_t *word, uint32_t most) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, most > INT_MAX ? INT_MAX : (int)most, NULL, NULL, 0);
}

#endif
