/* .eh_frame of the code of a bundle. Images have a table whose pointers are relative; here each pointer to a function
 * becomes a relocation, because the linker puts tables and code apart. */
#include "bundle/bundle.h"
#include "engine/image_functions.h"

#include <elf.h>
#include <string.h>

enum { WORD = AT_UNWIND_WORD, RELATIVE_WORDS = 0x1b /* DW_EH_PE_pcrel | DW_EH_PE_sdata4 */ };

uint32_t at_unwind_section_add(at_object *o) {
    const uint32_t type = o->machine == EM_X86_64 ? SHT_X86_64_UNWIND : SHT_PROGBITS;
    return at_object_section_add(o, ".eh_frame", type, SHF_ALLOC, 8);
}

static void point_to_code(at_object *o, uint32_t unwind, uint64_t at, uint32_t text, uint64_t offset) {
    at_object_distance(o, unwind, at, o->sections[text].symbol, (int64_t)offset);
}

/* ---- The table of an image ---- */

/* A description that entries refer to: only its pointers matter here. LLVM writes version 1, "zR", three numbers of a
 * byte each, and how pointers are written. */
static bool has_relative_words(const unsigned char *record, uint32_t bytes) {
    return bytes >= 4 * WORD + 1 && record[2 * WORD] == 1 && !memcmp(record + 2 * WORD + 1, "zR", 3) &&
           record[4 * WORD] == RELATIVE_WORDS;
}

attune_status at_unwind_add(at_object *o, uint32_t unwind, uint32_t text, uint64_t code, const at_image_header *image,
                            at_error *err) {
    const unsigned char *const table = at_unwind_table(image);
    const uint64_t place = at_object_append(o, unwind, table, image->unwind_bytes, 8);
    at_unwind_record record;
    for (uint32_t at = 0; at < image->unwind_bytes; at += record.bytes) {
        if (!at_unwind_read(image, at, &record))
            return at_fail(err, ATTUNE_INTERNAL, "the unwind table of a kernel is damaged");
        if (!record.is_function && !has_relative_words(table + at, record.bytes))
            return at_fail(err, ATTUNE_INTERNAL, "the unwind table of a kernel has pointers of another kind");
        if (!record.is_function) continue;
        if (!o->sections[unwind].data.failed) memset(o->sections[unwind].data.data + place + record.field, 0, WORD);
        point_to_code(o, unwind, place + record.field, text, code + (uint64_t)record.begin);
    }
    return ATTUNE_OK;
}

/* ---- Functions that leave the stack as it is ---- */

/* The caller's frame begins after the return address on x86-64, and at the stack pointer on AArch64, which has its
 * return address in a register. */
static const unsigned char of_x86[] = {20,   0, 0, 0,    0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, RELATIVE_WORDS,
                                       0x0c, 7, 8, 0x90, 1, 0, 0};
static const unsigned char of_arm[] = {20,   0,  0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 30, 1, RELATIVE_WORDS,
                                       0x0c, 31, 0, 0, 0, 0, 0};

void at_unwind_add_plain(at_object *o, uint32_t unwind, uint32_t text, uint64_t offset, uint64_t bytes) {
    const bool is_arm = o->machine == EM_AARCH64;
    const uint64_t common = at_object_append(o, unwind, is_arm ? of_arm : of_x86, sizeof of_x86, 8);
    const uint64_t entry = common + sizeof of_x86;
    const uint32_t words[] = {20, (uint32_t)(entry + WORD - common), 0, (uint32_t)bytes, 0, 0};
    at_object_append(o, unwind, words, sizeof words, 8);
    point_to_code(o, unwind, entry + 2 * WORD, text, offset);
}
