/* All memory comes from the caller's allocator. An arena hands out parts of larger blocks and frees them all at once;
 * a string doubles its room when it is full. */
#include "base/memory.h"

#include "base/plain_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *default_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    size_t padded;
    if (!at_add_size(bytes, align - 1, &padded)) return NULL;
    return aligned_alloc(align, padded / align * align);
}

static void default_free(void *user, void *pointer) {
    (void)user;
    free(pointer);
}

const attune_allocator *at_default_allocator(void) {
    static const attune_allocator allocator = {default_alloc, default_free, NULL};
    return &allocator;
}

void *at_alloc_aligned(const attune_allocator *allocator, size_t bytes, size_t align) {
    if (!allocator) allocator = at_default_allocator();
    return allocator->alloc(allocator->user, bytes ? bytes : 1, align);
}

void *at_alloc(const attune_allocator *allocator, size_t bytes) {
    void *pointer = at_alloc_aligned(allocator, bytes, 16);
    if (pointer) memset(pointer, 0, bytes);
    return pointer;
}

void at_free(const attune_allocator *allocator, void *pointer) {
    if (!pointer) return;
    if (!allocator) allocator = at_default_allocator();
    allocator->free(allocator->user, pointer);
}

/* ---- arena ---- */

enum { ARENA_CHUNK_BYTES = 64 * 1024, ARENA_ALIGN = 16 };

struct at_arena_chunk {
    at_arena_chunk *next;
    size_t bytes;
};

void at_arena_init(at_arena *arena, const attune_allocator *allocator) {
    *arena = (at_arena){.allocator = allocator ? allocator : at_default_allocator()};
}

void at_arena_free(at_arena *arena) {
    for (at_arena_chunk *chunk = arena->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        at_free(arena->allocator, chunk);
    }
    at_arena_init(arena, arena->allocator);
}

size_t at_arena_bytes(const at_arena *arena) {
    size_t bytes = 0;
    for (const at_arena_chunk *chunk = arena->chunks; chunk; chunk = chunk->next) bytes += chunk->bytes;
    return bytes;
}

static bool arena_grow(at_arena *arena, size_t bytes) {
    size_t total;
    if (!at_add_size(bytes, ARENA_ALIGN + sizeof(at_arena_chunk), &total)) return false;
    if (total < ARENA_CHUNK_BYTES) total = ARENA_CHUNK_BYTES;
    at_arena_chunk *chunk = at_alloc_aligned(arena->allocator, total, ARENA_ALIGN);
    if (!chunk) return false;
    *chunk = (at_arena_chunk){.next = arena->chunks, .bytes = total};
    arena->chunks = chunk;
    arena->cursor = (char *)chunk + ((sizeof *chunk + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1));
    arena->end = (char *)chunk + total;
    return true;
}

void *at_arena_alloc(at_arena *arena, size_t bytes) {
    if (arena->failed) return NULL;
    size_t padded;
    if (!at_add_size(bytes, ARENA_ALIGN - 1, &padded)) padded = SIZE_MAX;
    padded &= ~(size_t)(ARENA_ALIGN - 1);
    if ((size_t)(arena->end - arena->cursor) < padded && !arena_grow(arena, padded)) {
        arena->failed = true;
        return NULL;
    }
    void *pointer = arena->cursor;
    arena->cursor += padded;
    return memset(pointer, 0, bytes);
}

char *at_arena_strndup(at_arena *arena, const char *text, size_t length) {
    char *copy = at_arena_alloc(arena, length + 1);
    if (copy) memcpy(copy, text, length);
    return copy;
}

/* ---- string ---- */

void at_string_init(at_string *string, const attune_allocator *allocator) {
    *string = (at_string){.allocator = allocator ? allocator : at_default_allocator()};
}

void at_string_free(at_string *string) {
    at_free(string->allocator, string->data);
    at_string_init(string, string->allocator);
}

static bool string_reserve(at_string *string, size_t extra) {
    if (string->failed) return false;
    size_t needed = string->length + extra + 1;
    if (needed <= string->capacity) return true;
    size_t capacity = string->capacity ? string->capacity * 2 : 1024;
    if (capacity < needed) capacity = needed;
    char *data = at_alloc_aligned(string->allocator, capacity, 16);
    if (!data) {
        string->failed = true;
        return false;
    }
    if (string->length) memcpy(data, string->data, string->length);
    at_free(string->allocator, string->data);
    string->data = data;
    string->capacity = capacity;
    return true;
}

void at_string_append(at_string *string, const char *text, size_t length) {
    if (!string_reserve(string, length)) return;
    if (length) memcpy(string->data + string->length, text, length); // memcpy forbids null, even for nothing
    string->length += length;
    string->data[string->length] = '\0';
}

void at_string_puts(at_string *string, const char *text) { at_string_append(string, text, strlen(text)); }

void at_string_printf(at_string *string, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = at_vprint(NULL, 0, format, args);
    va_end(args);
    if (length >= 0 && string_reserve(string, (size_t)length)) {
        at_vprint(string->data + string->length, (size_t)length + 1, format, again);
        string->length += (size_t)length;
    }
    va_end(again);
}
