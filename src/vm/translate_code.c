/* Code of the open levels, allocation of places in the frame, and constants, each of which exists once. */
#include "vm/translate.h"

#include <string.h>

void *vm_grow(vm_translator *t, void *array, uint32_t count, uint32_t *room, size_t size) {
    if (count < *room) return array;
    const uint32_t more = *room ? *room * 2 : 32;
    void *grown = at_arena_alloc(t->arena, more * size);
    if (!grown) {
        at_fail_memory(t->err, more * size);
        return NULL;
    }
    if (count) memcpy(grown, array, count * size);
    *room = more;
    return grown;
}

/* ---- Code ---- */

static vm_op *reserve(vm_translator *t, vm_code *code, uint32_t count) {
    while (code->count + count > code->capacity) {
        vm_op *grown = vm_grow(t, code->ops, code->capacity, &code->capacity, sizeof *code->ops);
        if (!grown) return NULL;
        code->ops = grown;
    }
    code->count += count;
    return code->ops + code->count - count;
}

vm_op *vm_emit_at(vm_translator *t, uint32_t level, vm_op op) {
    static vm_op nowhere; /* the result after a failure; never read */
    vm_op *at = reserve(t, &t->levels[level].code, 1);
    if (!at) return &nowhere;
    *at = op;
    return at;
}

void vm_append(vm_translator *t, const vm_code *code) {
    vm_op *to = reserve(t, &t->levels[t->level].code, code->count);
    if (to && code->count) memcpy(to, code->ops, code->count * sizeof *to);
}

bool vm_open(vm_translator *t) {
    if (t->level + 1 == VM_MAX_LEVELS) {
        at_fail(t->err, ATTUNE_INVALID_IR, "kernel @%s: blocks are nested too deeply", t->kernel->name);
        return false;
    }
    /* Reuses the memory of an earlier level of this depth, whose code has been copied. */
    vm_level *level = &t->levels[++t->level];
    const vm_code code = {level->code.ops, 0, level->code.capacity};
    *level = (vm_level){.code = code, .serial = t->next_serial++};
    return true;
}

/* Valid until the next vm_open. */
vm_code vm_close(vm_translator *t) { return t->levels[t->level--].code; }

/* ---- Places ---- */

/* Kept places are at the top of the list. */
static int32_t take_spare(vm_translator *t) {
    const uint32_t last = --t->num_spare, taken = last - t->num_kept;
    const int32_t at = t->spare[taken];
    t->spare[taken] = t->spare[last];
    return at;
}

int32_t vm_new_place(vm_translator *t, size_t bytes) {
    enum { MOST = 1 << 28 };
    if (bytes <= VM_SLOT_BYTES && t->num_spare > t->num_kept) return take_spare(t);
    const size_t size = (bytes + VM_SLOT_BYTES - 1) / VM_SLOT_BYTES * VM_SLOT_BYTES;
    const int32_t at = t->top;
    if (size > MOST || t->top > MOST) {
        at_fail(t->err, ATTUNE_INVALID_IR, "kernel @%s needs more values at a time than fit into a frame",
                t->kernel->name);
        return 0;
    }
    t->top += (int32_t)(size ? size : VM_SLOT_BYTES);
    return at;
}

int32_t vm_new_int(vm_translator *t) {
    enum { AT_ONCE = 8 * VM_SLOT_BYTES };
    if (t->ints == t->ints_end) {
        t->ints = vm_new_place(t, AT_ONCE);
        t->ints_end = t->ints + AT_ONCE;
    }
    t->ints += 8;
    return t->ints - 8;
}

void vm_free_place(vm_translator *t, int32_t at) {
    int32_t *spare = vm_grow(t, t->spare, t->num_spare, &t->room_for_spare, sizeof *spare);
    if (!spare) return;
    t->spare = spare;
    t->spare[t->num_spare++] = at;
    t->num_kept += t->keeps_places;
}

/* ---- Constants ---- */

static int32_t place_of_constant(uint32_t number) { return -(int32_t)((number + 1) * VM_SLOT_BYTES); }

static uint32_t hash_of(const void *bytes) {
    uint64_t words[VM_SLOT_BYTES / 8], h = 0;
    memcpy(words, bytes, sizeof words);
    for (int i = 0; i < VM_SLOT_BYTES / 8; i++) h = (h ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(h >> 32);
}

static uint32_t slot_of_constant(const vm_translator *t, const void *bytes) {
    for (uint32_t i = hash_of(bytes);; i++) {
        const uint32_t slot = i & (t->table_size - 1);
        const int32_t known = t->constant_table[slot];
        if (!known || !memcmp(t->constants + (size_t)(known - 1) * VM_SLOT_BYTES, bytes, VM_SLOT_BYTES)) return slot;
    }
}

static bool grow_table(vm_translator *t) {
    if (t->num_constants < t->table_size / 2) return true;
    const uint32_t size = t->table_size ? t->table_size * 2 : 256;
    int32_t *table = at_arena_alloc(t->arena, size * sizeof *table);
    if (!table) {
        at_fail_memory(t->err, size * sizeof *table);
        return false;
    }
    memset(table, 0, size * sizeof *table);
    t->constant_table = table;
    t->table_size = size;
    for (uint32_t n = 0; n < t->num_constants; n++)
        table[slot_of_constant(t, t->constants + (size_t)n * VM_SLOT_BYTES)] = (int32_t)n + 1;
    return true;
}

int32_t vm_constant(vm_translator *t, const void *bytes) {
    if (!grow_table(t)) return 0;
    const uint32_t slot = slot_of_constant(t, bytes);
    if (t->constant_table[slot]) return place_of_constant((uint32_t)t->constant_table[slot] - 1);
    char *constants = vm_grow(t, t->constants, t->num_constants, &t->room_for_constants, VM_SLOT_BYTES);
    if (!constants) return 0;
    t->constants = constants;
    memcpy(constants + (size_t)t->num_constants * VM_SLOT_BYTES, bytes, VM_SLOT_BYTES);
    t->constant_table[slot] = (int32_t)++t->num_constants;
    return place_of_constant(t->num_constants - 1);
}

int32_t vm_constant_of(vm_translator *t, const void *element, size_t bytes) {
    char all[VM_SLOT_BYTES];
    for (size_t i = 0; i < VM_SLOT_BYTES; i += bytes) memcpy(all + i, element, bytes);
    return vm_constant(t, all);
}
