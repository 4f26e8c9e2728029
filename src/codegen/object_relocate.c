/* A relocation is a distance, and the bits of a field that encode it. The table has both for each type, so that one
 * function applies them all, and rejects a value that does not fit:
 *
 *     value = symbol + addend - place, shifted right by `shift` -> `bits` bits from bit `first` of the field on */
#include "codegen/object_relocate.h"

#include <elf.h>
#include <stddef.h>
#include <string.h>

enum { PAGE = 4096 }; /* images begin at a page, so distances in pages hold at every address */

typedef enum origin {
    DISTANCE, /* from the field to the symbol */
    PAGES,    /* from the field's page to the symbol's */
    IN_PAGE   /* the symbol within its page */
} origin;

typedef enum place {
    DATA,  /* all of the field */
    BITS,  /* `bits` of an instruction, from bit `first` on */
    SPLIT, /* ADR and ADRP: the two lowest bits from bit 29 on, the others from bit 5 on */
} place;

struct cg_relocation {
    uint16_t machine;
    uint32_t type;
    uint8_t bytes; /* of the field */
    uint8_t origin, place;
    uint8_t shift; /* low bits that are zero and not encoded */
    uint8_t bits, first;
};

static const cg_relocation relocations[] = {
    {EM_X86_64, R_X86_64_PC32, 4, DISTANCE, DATA, 0, 32, 0},
    {EM_X86_64, R_X86_64_PLT32, 4, DISTANCE, DATA, 0, 32, 0},
    {EM_X86_64, R_X86_64_PC64, 8, DISTANCE, DATA, 0, 64, 0},
    {EM_AARCH64, R_AARCH64_PREL64, 8, DISTANCE, DATA, 0, 64, 0},
    {EM_AARCH64, R_AARCH64_PREL32, 4, DISTANCE, DATA, 0, 32, 0},
    {EM_AARCH64, R_AARCH64_ADR_PREL_LO21, 4, DISTANCE, SPLIT, 0, 21, 0},
    {EM_AARCH64, R_AARCH64_ADR_PREL_PG_HI21, 4, PAGES, SPLIT, 12, 21, 0},
    {EM_AARCH64, R_AARCH64_JUMP26, 4, DISTANCE, BITS, 2, 26, 0},
    {EM_AARCH64, R_AARCH64_CALL26, 4, DISTANCE, BITS, 2, 26, 0},
    {EM_AARCH64, R_AARCH64_ADD_ABS_LO12_NC, 4, IN_PAGE, BITS, 0, 12, 10},
    {EM_AARCH64, R_AARCH64_LDST8_ABS_LO12_NC, 4, IN_PAGE, BITS, 0, 12, 10},
    {EM_AARCH64, R_AARCH64_LDST16_ABS_LO12_NC, 4, IN_PAGE, BITS, 1, 12, 10},
    {EM_AARCH64, R_AARCH64_LDST32_ABS_LO12_NC, 4, IN_PAGE, BITS, 2, 12, 10},
    {EM_AARCH64, R_AARCH64_LDST64_ABS_LO12_NC, 4, IN_PAGE, BITS, 3, 12, 10},
    {EM_AARCH64, R_AARCH64_LDST128_ABS_LO12_NC, 4, IN_PAGE, BITS, 4, 12, 10},
};

const cg_relocation *cg_relocation_find(uint16_t machine, uint64_t type) {
    for (size_t i = 0; i < sizeof relocations / sizeof *relocations; i++)
        if (relocations[i].machine == machine && relocations[i].type == type) return &relocations[i];
    return NULL;
}

uint64_t cg_relocation_bytes(const cg_relocation *relocation) { return relocation->bytes; }

static int64_t page_of(int64_t offset) { return offset & -(int64_t)PAGE; }

static bool compute(origin from, int64_t at, int64_t symbol, int64_t addend, int64_t *value) {
    int64_t target;
    if (__builtin_add_overflow(symbol, addend, &target)) return false;
    switch (from) {
    case IN_PAGE: *value = target & (PAGE - 1); return true;
    case PAGES: return !__builtin_sub_overflow(page_of(target), page_of(at), value);
    default: return !__builtin_sub_overflow(target, at, value);
    }
}

static uint32_t ones(unsigned count) { return (uint32_t)((UINT64_C(1) << count) - 1); }

static void write_bits(unsigned char *field, uint32_t value, unsigned bits, unsigned first) {
    uint32_t instruction;
    memcpy(&instruction, field, sizeof instruction);
    instruction = (instruction & ~(ones(bits) << first)) | (value & ones(bits)) << first;
    memcpy(field, &instruction, sizeof instruction);
}

bool cg_relocation_apply(const cg_relocation *r, unsigned char *field, int64_t at, int64_t symbol, int64_t addend) {
    int64_t value;
    if (!compute((origin)r->origin, at, symbol, addend, &value)) return false;
    if (value & (int64_t)ones(r->shift)) return false;
    value >>= r->shift;
    const bool narrow = r->origin != IN_PAGE && r->bits < 64; /* an offset within a page always fits */
    if (narrow && value >> (r->bits - 1) != value >> 63) return false;
    switch ((place)r->place) {
    case DATA: memcpy(field, &value, r->bytes); break; /* both little-endian: the low half comes first */
    case BITS: write_bits(field, (uint32_t)value, r->bits, r->first); break;
    case SPLIT:
        write_bits(field, (uint32_t)value, 2, 29);
        write_bits(field, (uint32_t)(value >> 2), 19, 5);
        break;
    }
    return true;
}
