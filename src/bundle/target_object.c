/* The object of one target: the images of all kernels as they are, and an entry for each phase. An image has no landing
 * pads and needs none within itself; its entries are reached by pointers, so each gets one here. */
#include "bundle/bundle.h"
#include "engine/image_functions.h"

#include <elf.h>
#include <stdio.h>

enum { NAME_BYTES = 320 };

/* Each function by its name and exact size, so that profilers and debuggers show it. */
static bool name_functions(at_object *o, uint32_t text, uint64_t code, const char *prefix,
                           const at_image_header *image) {
    at_image_functions functions;
    char name[NAME_BYTES];
    if (!at_image_functions_list(&functions, image, o->allocator)) return false;
    for (uint32_t i = 0; i < functions.count; i++) {
        const at_image_function *function = &functions.items[i];
        snprintf(name, sizeof name, "%s.%s.code", prefix, function->name);
        at_object_symbol_add(o, &(at_object_symbol){.name = name,
                                                    .section = text,
                                                    .offset = code + function->begin,
                                                    .size = function->bytes,
                                                    .type = STT_FUNC});
    }
    at_image_functions_free(&functions, o->allocator);
    return true;
}

/* Returns the offset of the landing pad. */
static uint64_t add_pad(at_object *o, uint32_t text, uint64_t entry, const char *prefix, const char *what) {
    char name[NAME_BYTES];
    const uint64_t thunk = at_thunk_jump(o, text, entry);
    snprintf(name, sizeof name, "%s.%s", prefix, what);
    at_object_symbol_add(o, &(at_object_symbol){.name = name,
                                                .section = text,
                                                .offset = thunk,
                                                .size = AT_THUNK_BYTES,
                                                .type = STT_FUNC,
                                                .binding = STB_GLOBAL,
                                                .visibility = STV_HIDDEN});
    return thunk;
}

static attune_status add_code(at_object *o, uint32_t text, uint32_t unwind, const char *prefix,
                              const at_image_header *image, at_error *err) {
    char what[24];
    /* AArch64's code is placed within its page, x86-64's constants within cache lines. */
    const uint64_t align = o->machine == EM_AARCH64 ? AT_IMAGE_ALIGN : 64;
    const uint64_t bytes = image->unwind_bytes ? image->unwind_offset : image->code_bytes; /* the table comes last */
    const uint64_t code = at_object_append(o, text, (const char *)image + image->code_offset, bytes, align);
    if (!name_functions(o, text, code, prefix, image)) return at_fail_memory(err, image->unwind_bytes);
    const uint64_t first = add_pad(o, text, code + image->plan_entry, prefix, "plan");
    for (uint32_t p = 0; p < image->num_phases; p++) {
        snprintf(what, sizeof what, "phase%u", p);
        add_pad(o, text, code + at_image_phases(image)[p].entry, prefix, what);
    }
    at_unwind_add_plain(o, unwind, text, first, (image->num_phases + UINT64_C(1)) * AT_THUNK_BYTES);
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
