/* Reads the functions of an image from its unwind table, and names those that the header lists as entry points. */
#include "engine/image_functions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Records ---- */

enum { WORD = AT_UNWIND_WORD, LEAST_FUNCTION = 4 * WORD };

static uint32_t word_at(const unsigned char *bytes) {
    uint32_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

/* The size of what follows, 0 or where the common record is, the function (relative to this word), its size, … */
bool at_unwind_read(const at_image_header *image, uint32_t at, at_unwind_record *record) {
    const unsigned char *const table = at_unwind_table(image);
    const uint32_t left = image->unwind_bytes - at;
    const uint32_t bytes = left < 3 * WORD ? 0 : word_at(table + at);
    if (bytes < 2 * WORD || bytes % WORD || bytes > left - WORD) return false;
    *record = (at_unwind_record){.bytes = bytes + WORD, .is_function = word_at(table + at + WORD) != 0};
    if (!record->is_function) return true;
    if (record->bytes < LEAST_FUNCTION) return false;
    record->field = at + 2 * WORD;
    record->begin = (int64_t)image->unwind_offset + record->field + (int32_t)word_at(table + record->field);
    record->num_bytes = word_at(table + record->field + WORD);
    return true;
}

/* ---- Functions ---- */

static uint64_t code_end(const at_image_header *image) {
    return image->unwind_bytes ? image->unwind_offset : image->code_bytes; /* the table comes last */
}

static void add_entries(at_image_functions *f, const at_image_header *image) {
    for (uint32_t p = 0; p < image->num_phases; p++) {
        at_image_function *item = &f->items[f->count++];
        *item = (at_image_function){.begin = at_image_phases(image)[p].entry};
        snprintf(item->name, sizeof item->name, "phase%u", p);
    }
    f->items[f->count++] = (at_image_function){.begin = image->plan_entry, .name = "plan"};
}

static void add_described(at_image_functions *f, const at_image_header *image) {
    at_unwind_record record;
    for (uint32_t at = 0; at < image->unwind_bytes && at_unwind_read(image, at, &record); at += record.bytes) {
        if (!record.is_function || !record.num_bytes || record.begin < 0) continue;
        if ((uint64_t)record.begin + record.num_bytes > code_end(image)) continue;
        f->items[f->count++] = (at_image_function){.begin = (uint32_t)record.begin, .bytes = record.num_bytes};
    }
}

/* Of those at one place the one with a name comes first. */
static int by_begin(const void *a, const void *b) {
    const at_image_function *x = a, *y = b;
    if (x->begin != y->begin) return x->begin > y->begin ? 1 : -1;
    return (x->name[0] == '\0') - (y->name[0] == '\0');
}

/* An entry point is found twice: the header has its name, the unwind table its size. */
static void merge(at_image_functions *f) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < f->count; i++) {
        at_image_function *last = count ? &f->items[count - 1] : NULL;
        if (!last || last->begin != f->items[i].begin)
            f->items[count++] = f->items[i];
        else if (!last->bytes)
            last->bytes = f->items[i].bytes;
    }
    f->count = count;
}

/* A function without a size, of a table that lacks it, ends where the next one begins. */
static void complete(at_image_functions *f, const at_image_header *image) {
    uint32_t helpers = 0;
    for (uint32_t i = 0; i < f->count; i++) {
        at_image_function *item = &f->items[i];
        const uint64_t most = (i + 1 < f->count ? item[1].begin : code_end(image)) - item->begin;
        if (!item->bytes || item->bytes > most) item->bytes = (uint32_t)most;
        if (!item->name[0]) snprintf(item->name, sizeof item->name, "helper%u", helpers++);
    }
}

bool at_image_functions_list(at_image_functions *f, const at_image_header *image, const attune_allocator *allocator) {
    const size_t most = image->num_phases + 1 + image->unwind_bytes / LEAST_FUNCTION;
    *f = (at_image_functions){.items = at_alloc(allocator, most * sizeof *f->items)};
    if (!f->items) return false;
    add_entries(f, image);
    add_described(f, image);
    qsort(f->items, f->count, sizeof *f->items, by_begin);
    merge(f);
    complete(f, image);
    return true;
}

void at_image_functions_free(at_image_functions *f, const attune_allocator *allocator) {
    at_free(allocator, f->items);
    *f = (at_image_functions){0};
}
