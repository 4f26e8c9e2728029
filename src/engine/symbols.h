/* Names for machine code, if ATTUNE_PERF=1 is set: lines in /tmp/perf-PID.map for perf, and a small ELF object for each
 * kernel, registered by gdb's JIT interface. */
#ifndef ATTUNE_ENGINE_SYMBOLS_H
#define ATTUNE_ENGINE_SYMBOLS_H

#include "base/memory.h"
#include "target/kernel_abi.h"

#include <stdbool.h>

typedef struct at_symbol_handle at_symbol_handle;

typedef struct at_symbols {
    const attune_allocator *allocator;
    bool enabled;
} at_symbols;

void at_symbols_init(at_symbols *symbols, const attune_allocator *allocator);

/* Names the code of an image after `name`. NULL if symbols are off or memory is short: a kernel runs without names. */
at_symbol_handle *at_symbols_add(at_symbols *symbols, const char *name, const void *code, const at_image_header *image);
/* Around fork(): gdb reads one list for the whole process. */
void at_symbols_before_fork(void);
void at_symbols_after_fork(void);

void at_symbols_remove(at_symbols *symbols, at_symbol_handle *handle); /* NULL is fine */

#endif
