/* Writes relocatable ELF64 objects, of x86-64 or AArch64: sections, symbols and relocations, in memory.
 *
 * Failures (no memory, sizes beyond ELF's) are sticky, as those of at_string: at_object_finish reports them. */
#ifndef ATTUNE_BUNDLE_OBJECT_WRITE_H
#define ATTUNE_BUNDLE_OBJECT_WRITE_H

#include "base/error.h"
#include "base/memory.h"

enum { AT_OBJECT_SECTIONS = 12 };

typedef struct at_object_section {
    const char *name; /* static storage */
    uint32_t type;    /* SHT_* */
    uint64_t flags, align;
    at_string data, relocations; /* of SHT_NOBITS `data` is zeros, which are not written */
    uint32_t symbol;             /* of the section itself */
} at_object_section;

typedef struct at_object {
    const attune_allocator *allocator;
    uint16_t machine; /* EM_X86_64 or EM_AARCH64 */
    at_object_section sections[AT_OBJECT_SECTIONS];
    uint32_t num_sections;
    at_string symbols, names;
} at_object;

typedef struct at_object_symbol {
    const char *name;
    uint32_t section; /* 0: undefined */
    uint64_t offset, size;
    unsigned char type, binding, visibility; /* STT_*, STB_*, STV_* */
} at_object_symbol;

void at_object_init(at_object *object, uint16_t machine, const attune_allocator *allocator);
void at_object_free(at_object *object);

/* The number of a new section. */
uint32_t at_object_section_add(at_object *object, const char *name, uint32_t type, uint64_t flags, uint64_t align);

/* Appends bytes (NULL: zeros) at a multiple of `align`, and returns their offset. */
uint64_t at_object_append(at_object *object, uint32_t section, const void *data, size_t bytes, uint64_t align);

/* The number of a new symbol, by which relocations name it. */
uint32_t at_object_symbol_add(at_object *object, const at_object_symbol *symbol);

void at_object_relocate(at_object *object, uint32_t section, uint64_t offset, uint32_t type, uint32_t symbol,
                        int64_t addend);

/* At `offset`, 4 bytes: the distance from them to the symbol. */
void at_object_distance(at_object *object, uint32_t section, uint64_t offset, uint32_t symbol, int64_t addend);

/* A pointer of 8 bytes at `offset`. */
void at_object_pointer(at_object *object, uint32_t section, uint64_t offset, uint32_t symbol, int64_t addend);

/* Adds the notes that every object of a bundle has: landing pads are in place (IBT or BTI), and the stack need not be
 * executable. */
void at_object_add_notes(at_object *object);

attune_status at_object_finish(at_object *object, at_string *out, at_error *err);

#endif
