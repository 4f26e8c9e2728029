/* The object of one target: the images of all kernels as they are, and an entry for each phase. An image has no landing
 * pads and needs none within itself; its entries are reached by pointers, so each gets one here. */
#include "bundle/bundle.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 320 };

typedef struct entry {
    uint32_t offset; /* in the code */
    char name[24];   /* "phase0", "plan" */
} entry;

static int by_offset(const void *a, const void *b) {
    const entry *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static uint32_t list_entries(const at_image_header *image, entry *entries) {
    uint32_t count = 0;
    for (uint32_t p = 0; p < image->num_phases; p++) {
        entries[count].offset = at_image_phases(image)[p].entry;
        snprintf(entries[count++].name, sizeof entries->name, "phase%u", p);
    }
    entries[count].offset = image->plan_entry;
    strcpy(entries[count++].name, "plan");
    qsort(entries, count, sizeof *entries, by_offset);
    return count;
}

/* Each ends where the next begins: profilers and debuggers show functions that an entry calls under its name. */
static attune_status add_code(at_object *o, uint32_t text, uint32_t unwind, const char *prefix,
                              const at_image_header *image, at_error *err) {
    entry entries[AT_MAX_PHASES + 1];
    char name[NAME_BYTES];
    const uint32_t count = list_entries(image, entries);
    /* AArch64's code is placed within its page, x86-64's constants within cache lines. */
    const uint64_t align = o->machine == EM_AARCH64 ? AT_IMAGE_ALIGN : 64;
    const uint64_t bytes = image->unwind_bytes ? image->unwind_offset : image->code_bytes; /* the table comes last */
    const uint64_t code = at_object_append(o, text, (const char *)image + image->code_offset, bytes, align);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t end = i + 1 < count ? entries[i + 1].offset : bytes;
        snprintf(name, sizeof name, "%s.%s.code", prefix, entries[i].name);
        at_object_symbol_add(o, &(at_object_symbol){.name = name,
                                                    .section = text,
                                                    .offset = code + entries[i].offset,
                                                    .size = end - entries[i].offset,
                                                    .type = STT_FUNC});
    }
    uint64_t first = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t thunk = at_thunk_jump(o, text, code + entries[i].offset);
        first = i ? first : thunk;
        snprintf(name, sizeof name, "%s.%s", prefix, entries[i].name);
        at_object_symbol_add(o, &(at_object_symbol){.name = name,
                                                    .section = text,
                                                    .offset = thunk,
                                                    .size = AT_THUNK_BYTES,
                                                    .type = STT_FUNC,
                                                    .binding = STB_GLOBAL,
                                                    .visibility = STV_HIDDEN});
    }
    at_unwind_add_plain(o, unwind, text, first, (uint64_t)count * AT_THUNK_BYTES);
    return at_unwind_add(o, unwind, text, code, image, err);
}

attune_status at_bundle_code_object(const at_bundle_plan *plan, size_t aim, at_string *out, at_error *err) {
    at_object o;
    at_object_init(&o, plan->machine, plan->allocator);
    const uint32_t text = at_object_section_add(&o, ".text", SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, 16);
    const uint32_t unwind = at_unwind_section_add(&o);
    attune_status status = ATTUNE_OK;
    for (size_t k = 0; k < plan->num_parts && !status; k++) {
        char prefix[NAME_BYTES - 32];
        snprintf(prefix, sizeof prefix, "%s.%s%s", plan->name, plan->parts[k].name, plan->aims[aim].suffix);
        status = add_code(&o, text, unwind, prefix, plan->parts[k].images[aim].image, err);
    }
    at_object_add_notes(&o);
    if (!status) status = at_object_finish(&o, out, err);
    at_object_free(&o);
    return status;
}
