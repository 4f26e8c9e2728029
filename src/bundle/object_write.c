/* Sections, symbols and relocations are collected in growing strings, and laid out one after the other when the object
 * is finished. */
#include "bundle/object_write.h"

#include <elf.h>
#include <string.h>

void at_object_init(at_object *o, uint16_t machine, const attune_allocator *allocator) {
    *o = (at_object){.allocator = allocator, .machine = machine, .num_sections = 1};
    at_string_init(&o->symbols, allocator);
    at_string_init(&o->names, allocator);
    at_string_append(&o->symbols, (const char *)&(Elf64_Sym){0}, sizeof(Elf64_Sym));
    at_string_append(&o->names, "", 1);
}

void at_object_free(at_object *o) {
    for (uint32_t i = 1; i < o->num_sections; i++) {
        at_string_free(&o->sections[i].data);
        at_string_free(&o->sections[i].relocations);
    }
    at_string_free(&o->symbols);
    at_string_free(&o->names);
}

/* ---- Content ---- */

static void append_zeros(at_string *to, size_t count) {
    static const char zeros[64];
    for (; count > sizeof zeros; count -= sizeof zeros) at_string_append(to, zeros, sizeof zeros);
    at_string_append(to, zeros, count);
}

static void pad(at_string *to, uint64_t align) { append_zeros(to, (size_t)((align - to->length % align) % align)); }

uint32_t at_object_section_add(at_object *o, const char *name, uint32_t type, uint64_t flags, uint64_t align) {
    const uint32_t number = o->num_sections++;
    at_object_section *section = &o->sections[number];
    *section = (at_object_section){.name = name, .type = type, .flags = flags, .align = align};
    at_string_init(&section->data, o->allocator);
    at_string_init(&section->relocations, o->allocator);
    section->symbol = at_object_symbol_add(o, &(at_object_symbol){.name = "", .section = number, .type = STT_SECTION});
    return number;
}

uint64_t at_object_append(at_object *o, uint32_t number, const void *data, size_t bytes, uint64_t align) {
    at_object_section *section = &o->sections[number];
    if (align > section->align) section->align = align;
    pad(&section->data, align);
    const uint64_t offset = section->data.length;
    if (data)
        at_string_append(&section->data, data, bytes);
    else
        append_zeros(&section->data, bytes);
    return offset;
}

static uint32_t add_name(at_object *o, const char *name) {
    if (!*name) return 0;
    const size_t offset = o->names.length;
    at_string_append(&o->names, name, strlen(name) + 1);
    return (uint32_t)offset;
}

uint32_t at_object_symbol_add(at_object *o, const at_object_symbol *symbol) {
    const Elf64_Sym entry = {.st_name = add_name(o, symbol->name),
                             .st_info = ELF64_ST_INFO(symbol->binding, symbol->type),
                             .st_other = symbol->visibility,
                             .st_shndx = (uint16_t)symbol->section,
                             .st_value = symbol->offset,
                             .st_size = symbol->size};
    const uint32_t number = (uint32_t)(o->symbols.length / sizeof entry);
    at_string_append(&o->symbols, (const char *)&entry, sizeof entry);
    return number;
}

void at_object_relocate(at_object *o, uint32_t section, uint64_t offset, uint32_t type, uint32_t symbol,
                        int64_t addend) {
    const Elf64_Rela entry = {.r_offset = offset, .r_info = ELF64_R_INFO((uint64_t)symbol, type), .r_addend = addend};
    at_string_append(&o->sections[section].relocations, (const char *)&entry, sizeof entry);
}

void at_object_pointer(at_object *o, uint32_t section, uint64_t offset, uint32_t symbol, int64_t addend) {
    at_object_relocate(o, section, offset, o->machine == EM_AARCH64 ? R_AARCH64_ABS64 : R_X86_64_64, symbol, addend);
}

void at_object_distance(at_object *o, uint32_t section, uint64_t offset, uint32_t symbol, int64_t addend) {
    at_object_relocate(o, section, offset, o->machine == EM_AARCH64 ? R_AARCH64_PREL32 : R_X86_64_PC32, symbol, addend);
}

void at_object_add_notes(at_object *o) {
    const bool is_arm = o->machine == EM_AARCH64;
    const uint32_t feature = is_arm ? GNU_PROPERTY_AARCH64_FEATURE_1_AND : GNU_PROPERTY_X86_FEATURE_1_AND;
    const uint32_t bits =
        is_arm ? GNU_PROPERTY_AARCH64_FEATURE_1_BTI : GNU_PROPERTY_X86_FEATURE_1_IBT | GNU_PROPERTY_X86_FEATURE_1_SHSTK;
    const uint32_t note[] = {4, 16, NT_GNU_PROPERTY_TYPE_0, 0x554e47 /* "GNU" */, feature, 4, bits, 0};
    const uint32_t properties = at_object_section_add(o, ".note.gnu.property", SHT_NOTE, SHF_ALLOC, 8);
    at_object_append(o, properties, note, sizeof note, 8);
    at_object_section_add(o, ".note.GNU-stack", SHT_PROGBITS, 0, 1);
}

/* ---- The file ---- */

/* ELF wants local symbols before all others. order[i]: the new number of symbol i. */
static at_string sort_symbols(const at_object *o, uint32_t *order, uint32_t *num_local) {
    at_string sorted;
    uint32_t next = 0;
    at_string_init(&sorted, o->allocator);
    const size_t count = o->symbols.length / sizeof(Elf64_Sym);
    for (int global = 0; global <= 1; global++) {
        for (size_t i = 0; i < count; i++) {
            Elf64_Sym symbol;
            memcpy(&symbol, o->symbols.data + i * sizeof symbol, sizeof symbol);
            if ((ELF64_ST_BIND(symbol.st_info) != STB_LOCAL) != global) continue;
            at_string_append(&sorted, (const char *)&symbol, sizeof symbol);
            order[i] = next++;
        }
        if (!global) *num_local = next;
    }
    return sorted;
}

static void renumber(at_string *relocations, const uint32_t *order) {
    for (size_t at = 0; at < relocations->length; at += sizeof(Elf64_Rela)) {
        Elf64_Rela entry;
        memcpy(&entry, relocations->data + at, sizeof entry);
        entry.r_info = ELF64_R_INFO((uint64_t)order[ELF64_R_SYM(entry.r_info)], ELF64_R_TYPE(entry.r_info));
        memcpy(relocations->data + at, &entry, sizeof entry);
    }
}

typedef struct file {
    at_object *object;
    at_string *out;
    at_string names; /* of sections */
    Elf64_Shdr headers[2 * AT_OBJECT_SECTIONS + 4];
    uint16_t count;
} file;

static Elf64_Shdr *add_header(file *f, const char *prefix, const char *name, const at_string *data) {
    Elf64_Shdr *header = &f->headers[f->count++];
    *header = (Elf64_Shdr){.sh_name = (uint32_t)f->names.length, .sh_addralign = 1};
    at_string_puts(&f->names, prefix);
    at_string_append(&f->names, name, strlen(name) + 1);
    pad(f->out, 8);
    header->sh_offset = f->out->length;
    header->sh_size = data ? data->length : 0;
    if (data) at_string_append(f->out, data->data, data->length);
    return header;
}

static void write_section(file *f, const at_object_section *section) {
    const bool is_empty = section->type == SHT_NOBITS;
    pad(f->out, section->align);
    Elf64_Shdr *header = add_header(f, "", section->name, is_empty ? NULL : &section->data);
    header->sh_type = section->type;
    header->sh_flags = section->flags;
    header->sh_addralign = section->align;
    header->sh_entsize = section->flags & SHF_STRINGS ? 1 : 0;
    header->sh_size = section->data.length;
}

/* Sections keep their numbers: relocations and tables come after all of them. */
static void write_sections(file *f, const uint32_t *order, const at_string *symbols, uint32_t num_local) {
    at_object *o = f->object;
    f->count = 1;
    at_string_append(&f->names, "", 1);
    for (uint32_t i = 1; i < o->num_sections; i++) write_section(f, &o->sections[i]);
    const uint32_t table = f->count, strings = f->count + 1u;
    Elf64_Shdr *header = add_header(f, "", ".symtab", symbols);
    header->sh_type = SHT_SYMTAB;
    header->sh_link = strings;
    header->sh_info = num_local;
    header->sh_addralign = 8;
    header->sh_entsize = sizeof(Elf64_Sym);
    add_header(f, "", ".strtab", &o->names)->sh_type = SHT_STRTAB;
    for (uint32_t i = 1; i < o->num_sections; i++) {
        at_string *relocations = &o->sections[i].relocations;
        if (!relocations->length) continue;
        renumber(relocations, order);
        header = add_header(f, ".rela", o->sections[i].name, relocations);
        header->sh_type = SHT_RELA;
        header->sh_flags = SHF_INFO_LINK;
        header->sh_link = table;
        header->sh_info = i;
        header->sh_addralign = 8;
        header->sh_entsize = sizeof(Elf64_Rela);
    }
}

static void write_file(file *f, const uint32_t *order, const at_string *symbols, uint32_t num_local) {
    Elf64_Ehdr elf = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                      .e_type = ET_REL,
                      .e_machine = f->object->machine,
                      .e_version = EV_CURRENT,
                      .e_ehsize = sizeof(Elf64_Ehdr),
                      .e_shentsize = sizeof(Elf64_Shdr)};
    const size_t begin = f->out->length;
    at_string_append(f->out, (const char *)&elf, sizeof elf);
    write_sections(f, order, symbols, num_local);
    elf.e_shstrndx = f->count;
    Elf64_Shdr *header = add_header(f, "", ".shstrtab", NULL); /* the table has its own name, too */
    header->sh_type = SHT_STRTAB;
    header->sh_size = f->names.length;
    at_string_append(f->out, f->names.data, f->names.length);
    pad(f->out, 8);
    elf.e_shoff = f->out->length - begin;
    elf.e_shnum = f->count;
    at_string_append(f->out, (const char *)f->headers, f->count * sizeof *f->headers);
    if (!f->out->failed) memcpy(f->out->data + begin, &elf, sizeof elf);
}

static bool has_failed(const at_object *o) {
    bool failed = o->symbols.failed || o->names.failed;
    for (uint32_t i = 1; i < o->num_sections; i++)
        failed = failed || o->sections[i].data.failed || o->sections[i].relocations.failed;
    return failed;
}

/* `out` must be empty. */
attune_status at_object_finish(at_object *o, at_string *out, at_error *err) {
    const size_t count = o->symbols.length / sizeof(Elf64_Sym);
    if (has_failed(o)) return at_fail_memory(err, o->symbols.length);
    uint32_t num_local = 0, *order = at_alloc(o->allocator, count * sizeof *order);
    if (!order) return at_fail_memory(err, count * sizeof *order);
    file f = {.object = o, .out = out};
    at_string_init(&f.names, o->allocator);
    at_string symbols = sort_symbols(o, order, &num_local);
    if (!symbols.failed) write_file(&f, order, &symbols, num_local);
    const bool failed = symbols.failed || f.names.failed || out->failed;
    at_string_free(&symbols);
    at_string_free(&f.names);
    at_free(o->allocator, order);
    return failed ? at_fail_memory(err, out->length) : ATTUNE_OK;
}
