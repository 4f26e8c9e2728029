/* Allocation through the caller's allocator: single blocks, arenas and growing strings.
 * Nothing here aborts: every refusal comes back as NULL or as a sticky `failed` flag. */
#ifndef ATTUNE_BASE_MEMORY_H
#define ATTUNE_BASE_MEMORY_H

#include <attune.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* malloc and free as an allocator. A NULL allocator means this one everywhere. */
const attune_allocator *at_default_allocator(void);

void *at_alloc(const attune_allocator *allocator, size_t bytes);                       /* zeroed, 16-byte aligned */
void *at_alloc_aligned(const attune_allocator *allocator, size_t bytes, size_t align); /* not zeroed */
void at_free(const attune_allocator *allocator, void *pointer);                        /* NULL is fine */

/* true and *out = a * b, or false on overflow. */
static inline bool at_mul_size(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool at_add_size(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }

/* An arena: allocations are zeroed, 16-byte aligned and freed all at once. */
typedef struct at_arena_chunk at_arena_chunk;
typedef struct at_arena {
    const attune_allocator *allocator;
    at_arena_chunk *chunks;
    char *cursor, *end;
    bool failed; /* sticky: some allocation was refused */
} at_arena;

void at_arena_init(at_arena *arena, const attune_allocator *allocator); /* NULL: the default allocator */
void at_arena_free(at_arena *arena);
size_t at_arena_bytes(const at_arena *arena); /* of its blocks */
void *at_arena_alloc(at_arena *arena, size_t bytes);
char *at_arena_strndup(at_arena *arena, const char *text, size_t length);

/* A growing, always NUL-terminated text. */
typedef struct at_string {
    const attune_allocator *allocator;
    char *data;
    size_t length, capacity;
    bool failed; /* sticky */
} at_string;

void at_string_init(at_string *string, const attune_allocator *allocator);
void at_string_free(at_string *string);
void at_string_append(at_string *string, const char *text, size_t length);
void at_string_puts(at_string *string, const char *text);
void at_string_printf(at_string *string, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
