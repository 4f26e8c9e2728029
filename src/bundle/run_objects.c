/* The run time (src/bundle_run), which the build compiles for each architecture. The library carries it, so that making
 * a bundle takes no compiler. */
#include "bundle/bundle.h"

#include <elf.h>
#include <string.h>

/* The object of an architecture, or nothing: the build had no compiler for it. */
#ifdef ATTUNE_RUN_x86_64
#define RUN_X86_64 ".incbin \"" ATTUNE_BUNDLE_RUN "/x86_64.o\"\n"
#else
#define RUN_X86_64 "\n"
#endif
#ifdef ATTUNE_RUN_aarch64
#define RUN_AARCH64 ".incbin \"" ATTUNE_BUNDLE_RUN "/aarch64.o\"\n"
#else
#define RUN_AARCH64 "\n"
#endif
__asm__(".pushsection .rodata\n"
        ".balign 16\n"
        "at_run_x86_64: " RUN_X86_64 "at_run_x86_64_end: .byte 0\n"
        ".balign 16\n"
        "at_run_aarch64: " RUN_AARCH64 "at_run_aarch64_end: .byte 0\n"
        ".popsection\n");
extern const char at_run_x86_64[], at_run_x86_64_end[], at_run_aarch64[], at_run_aarch64_end[];

enum { PREFIX_CHARS = sizeof "at_bundle_" - 1 }; // of the names in run.c

/* Its global names begin with the bundle's name: "model.run.begin". They are hidden, because a shared library exports
 * the functions of the header alone. */
static void rename_symbols(const at_bundle_plan *plan, at_string *object, const Elf64_Shdr *table, uint64_t old_names,
                           at_string *names) {
    for (uint64_t at = 0; at < table->sh_size; at += sizeof(Elf64_Sym)) {
        Elf64_Sym symbol;
        char *const place = object->data + table->sh_offset + at;
        memcpy(&symbol, place, sizeof symbol);
        const char *const name = object->data + old_names + symbol.st_name;
        if (ELF64_ST_BIND(symbol.st_info) == STB_LOCAL || symbol.st_shndx == SHN_UNDEF) continue;
        symbol.st_name = (uint32_t)names->length;
        symbol.st_other = STV_HIDDEN;
        at_string_printf(names, "%s.run.%s", plan->name, name + PREFIX_CHARS);
        at_string_append(names, "", 1);
        memcpy(place, &symbol, sizeof symbol);
    }
}

/* Names get a new table at the end of the file, which the table of symbols then uses. */
static void rename_all(const at_bundle_plan *plan, at_string *object) {
    Elf64_Ehdr elf;
    memcpy(&elf, object->data, sizeof elf);
    for (uint16_t s = 0; s < elf.e_shnum; s++) {
        Elf64_Shdr table, strings;
        at_string names;
        memcpy(&table, object->data + elf.e_shoff + s * sizeof table, sizeof table);
        if (table.sh_type != SHT_SYMTAB) continue;
        const uint64_t place = elf.e_shoff + table.sh_link * sizeof strings;
        memcpy(&strings, object->data + place, sizeof strings);
        at_string_init(&names, plan->allocator);
        at_string_append(&names, object->data + strings.sh_offset, strings.sh_size);
        rename_symbols(plan, object, &table, strings.sh_offset, &names);
        strings.sh_offset = object->length;
        strings.sh_size = names.length;
        memcpy(object->data + place, &strings, sizeof strings);
        at_string_append(object, names.data, names.length);
        object->failed = object->failed || names.failed;
        at_string_free(&names);
    }
}

attune_status at_bundle_run_object(const at_bundle_plan *plan, at_string *out, at_error *err) {
    const bool is_arm = plan->machine == EM_AARCH64;
    const char *const begin = is_arm ? at_run_aarch64 : at_run_x86_64;
    const char *const end = is_arm ? at_run_aarch64_end : at_run_x86_64_end;
    if (begin == end)
        return at_fail(err, ATTUNE_UNSUPPORTED,
                       "this attune makes no bundles for %s: it was built without a compiler for it",
                       is_arm ? "AArch64" : "x86-64");
    at_string_append(out, begin, (size_t)(end - begin));
    if (!out->failed) rename_all(plan, out);
    return out->failed ? at_fail_memory(err, (size_t)(end - begin)) : ATTUNE_OK;
}
