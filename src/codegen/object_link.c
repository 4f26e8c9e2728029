/* Concatenates the sections of all objects to the image's code, and then resolves each reference within the code:
 *
 *     object 0: .text .rodata       object 1: .text .rodata        unwind tables of all
 *     code:     [ .text | .rodata | .text | .rodata | .eh_frame ]
 *
 * A symbol is defined in a section of its object, or is a function of another object. All references are relative, so
 * the code may be loaded at any address. */
#include "codegen/object_link.h"

#include "codegen/asan.h"
#include "codegen/object_relocate.h"
#include "target/target.h"

#include <elf.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_CODE_BYTES = 64 << 20, NOT_PLACED = -1 };

/* One object, and its state; all objects are placed in the same code. */
typedef struct linker {
    struct linker *all; /* all objects of the image, including this one */
    size_t count;
    const unsigned char *object;
    size_t bytes;
    at_error *err;
    const attune_allocator *allocator;
    uint16_t machine; /* EM_* */
    Elf64_Ehdr elf;
    Elf64_Shdr *sections;
    int64_t *place;      /* offset of a section in the code, or NOT_PLACED */
    uint64_t code_bytes; /* up to the end of this object's */
    uint64_t thunks;     /* offset of the thunks, one for each symbol, if the object has any */
    unsigned char *code;
} linker;

static attune_status refuse(linker *l, const char *what) {
    return at_fail(l->err, ATTUNE_CODEGEN_FAILED, "linking: %s", what);
}

static attune_status refuse_named(linker *l, const char *what, const char *name) {
    return at_fail(l->err, ATTUNE_CODEGEN_FAILED, "linking: %s \"%.100s\"", what, name);
}

/* ---- Reading the object ---- */

static bool inside(const linker *l, uint64_t offset, uint64_t size) {
    return offset <= l->bytes && size <= l->bytes - offset;
}

static attune_status read_header(linker *l) {
    if (l->bytes < sizeof l->elf) return refuse(l, "the object is shorter than its header");
    memcpy(&l->elf, l->object, sizeof l->elf);
    const unsigned char *ident = l->elf.e_ident;
    if (memcmp(ident, ELFMAG, SELFMAG) != 0) return refuse(l, "the object is not ELF");
    if (ident[EI_CLASS] != ELFCLASS64 || ident[EI_DATA] != ELFDATA2LSB || l->elf.e_machine != l->machine)
        return refuse(l, l->machine == EM_AARCH64 ? "the object is not for AArch64" : "the object is not for x86-64");
    if (l->elf.e_type != ET_REL) return refuse(l, "the object is not relocatable");
    if (l->elf.e_shentsize != sizeof(Elf64_Shdr) || l->elf.e_shnum == 0)
        return refuse(l, "the object has no table of sections that attune knows");
    if (!inside(l, l->elf.e_shoff, (uint64_t)l->elf.e_shnum * sizeof(Elf64_Shdr)))
        return refuse(l, "the table of sections is outside the object");
    return ATTUNE_OK;
}

static attune_status read_sections(linker *l) {
    const size_t count = l->elf.e_shnum;
    l->sections = at_alloc(l->allocator, count * sizeof *l->sections);
    l->place = at_alloc(l->allocator, count * sizeof *l->place);
    if (!l->sections || !l->place) return at_fail_memory(l->err, count * sizeof *l->sections);
    memcpy(l->sections, l->object + l->elf.e_shoff, count * sizeof *l->sections);
    for (size_t s = 0; s < count; s++) {
        const Elf64_Shdr *section = &l->sections[s];
        l->place[s] = NOT_PLACED;
        if (section->sh_type != SHT_NOBITS && section->sh_type != SHT_NULL &&
            !inside(l, section->sh_offset, section->sh_size))
            return refuse(l, "a section is outside the object");
    }
    return ATTUNE_OK;
}

/* The string at `offset` of a string table, or "" if it does not end within the table. */
static const char *string_at(const linker *l, uint32_t table, uint64_t offset) {
    if (table >= l->elf.e_shnum || l->sections[table].sh_type != SHT_STRTAB) return "";
    const Elf64_Shdr *section = &l->sections[table];
    if (offset >= section->sh_size) return "";
    const char *text = (const char *)l->object + section->sh_offset + offset;
    return memchr(text, '\0', section->sh_size - offset) ? text : "";
}

static const char *section_name(const linker *l, const Elf64_Shdr *section) {
    return string_at(l, l->elf.e_shstrndx, section->sh_name);
}

static uint64_t num_symbols(const linker *l, uint32_t table) {
    if (table >= l->elf.e_shnum) return 0;
    const Elf64_Shdr *section = &l->sections[table];
    const bool readable = section->sh_type == SHT_SYMTAB && section->sh_entsize == sizeof(Elf64_Sym);
    return readable ? section->sh_size / sizeof(Elf64_Sym) : 0;
}

static Elf64_Sym symbol_at(const linker *l, uint32_t table, uint64_t index) {
    Elf64_Sym symbol;
    memcpy(&symbol, l->object + l->sections[table].sh_offset + index * sizeof symbol, sizeof symbol);
    return symbol;
}

/* ---- Placing sections ---- */

static bool starts_with(const char *text, const char *prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }

static attune_status place_section(linker *l, size_t number) {
    const Elf64_Shdr *section = &l->sections[number];
    const uint64_t align = section->sh_addralign ? section->sh_addralign : 1;
    const char *name = section_name(l, section);
    const bool known = starts_with(name, ".text") || starts_with(name, ".rodata");
    if (!known || section->sh_type != SHT_PROGBITS || (section->sh_flags & (SHF_WRITE | SHF_TLS)))
        return refuse_named(l, "the code needs a section of a sort that an image cannot have:", name);
    if ((align & (align - 1)) || align > AT_IMAGE_ALIGN) return refuse_named(l, "bad alignment of section", name);
    const uint64_t start = (l->code_bytes + align - 1) & ~(align - 1);
    if (section->sh_size > MAX_CODE_BYTES - start) return refuse(l, "the code is too large");
    l->place[number] = (int64_t)start;
    l->code_bytes = start + section->sh_size;
    return ATTUNE_OK;
}

static void reserve_thunks(linker *l) {
    uint64_t most = 0;
    for (uint32_t table = 0; table < l->elf.e_shnum; table++)
        if (num_symbols(l, table) > most) most = num_symbols(l, table);
    l->thunks = (l->code_bytes + CG_ASAN_THUNK_BYTES - 1) / CG_ASAN_THUNK_BYTES * CG_ASAN_THUNK_BYTES;
    l->code_bytes = l->thunks + most * CG_ASAN_THUNK_BYTES;
}

/* Unwind tables come after all code, because an image has one such section. */
static bool is_unwind(const linker *l, const Elf64_Shdr *section) {
    return strcmp(section_name(l, section), ".eh_frame") == 0;
}

/* Code first, then constants. */
static attune_status place_sections(linker *l, uint64_t before) {
    l->code_bytes = before;
    for (int executable = 1; executable >= 0; executable--)
        for (size_t s = 0; s < l->elf.e_shnum; s++) {
            const Elf64_Shdr *section = &l->sections[s];
            if (!(section->sh_flags & SHF_ALLOC) || section->sh_size == 0 || is_unwind(l, section)) continue;
            if (((section->sh_flags & SHF_EXECINSTR) != 0) != executable) continue;
            const attune_status status = place_section(l, s);
            if (status) return status;
        }
    if (l->code_bytes == before) return refuse(l, "the object holds no code");
    if (cg_asan()) reserve_thunks(l);
    return ATTUNE_OK;
}

/* The unwind tables of all objects must be contiguous, as zeros between them would end the section. */
static attune_status place_unwind(linker *all, size_t count, at_image_header *header) {
    enum { ALIGN = 8 };
    uint64_t end = (all[count - 1].code_bytes + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
    const uint64_t begin = end;
    for (size_t i = 0; i < count; i++)
        for (size_t s = 0; s < all[i].elf.e_shnum; s++) {
            const Elf64_Shdr *section = &all[i].sections[s];
            if (!(section->sh_flags & SHF_ALLOC) || !is_unwind(&all[i], section)) continue;
            if (section->sh_type == SHT_NOBITS || section->sh_size % ALIGN || section->sh_size > MAX_CODE_BYTES - end)
                return refuse(&all[i], "the unwind table has a size that it cannot have");
            all[i].place[s] = (int64_t)end;
            end += section->sh_size;
        }
    if (end == begin) return ATTUNE_OK;
    header->unwind_offset = (uint32_t)begin;
    header->unwind_bytes = (uint32_t)(end - begin);
    all[count - 1].code_bytes = end;
    return ATTUNE_OK;
}

static void copy_sections(linker *l) {
    for (size_t s = 0; s < l->elf.e_shnum; s++)
        if (l->place[s] != NOT_PLACED)
            memcpy(l->code + l->place[s], l->object + l->sections[s].sh_offset, l->sections[s].sh_size);
}

/* ---- Relocations ---- */

/* A function that an object defines. */
static bool find_function(const linker *l, const char *name, int64_t *place) {
    for (uint32_t table = 0; table < l->elf.e_shnum; table++)
        for (uint64_t i = 0, count = num_symbols(l, table); i < count; i++) {
            const Elf64_Sym symbol = symbol_at(l, table, i);
            if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx >= l->elf.e_shnum) continue;
            if (l->place[symbol.st_shndx] == NOT_PLACED) continue;
            const Elf64_Shdr *section = &l->sections[symbol.st_shndx];
            if (!(section->sh_flags & SHF_EXECINSTR) || symbol.st_value >= section->sh_size) continue;
            if (strcmp(string_at(l, l->sections[table].sh_link, symbol.st_name), name) != 0) continue;
            *place = l->place[symbol.st_shndx] + (int64_t)symbol.st_value;
            return true;
        }
    return false;
}

/* Code may call functions of other objects of the image. It may call nothing outside, except the sanitizer's runtime in
 * a build with it. */
static attune_status resolve_outside(linker *l, uint64_t index, const char *name, int64_t *place) {
    const uint64_t thunk = l->thunks + index * CG_ASAN_THUNK_BYTES;
    for (size_t i = 0; i < l->count; i++)
        if (&l->all[i] != l && find_function(&l->all[i], name, place)) return ATTUNE_OK;
    if (!cg_asan() || !cg_asan_thunk(name, l->code + thunk)) return refuse_named(l, "undefined symbol", name);
    *place = (int64_t)thunk;
    return ATTUNE_OK;
}

/* The offset of a symbol in the code. */
static attune_status resolve(linker *l, uint32_t table, uint64_t index, int64_t *place) {
    if (index >= num_symbols(l, table)) return refuse(l, "a relocation names a symbol that is not there");
    const Elf64_Sym symbol = symbol_at(l, table, index);
    const char *name = string_at(l, l->sections[table].sh_link, symbol.st_name);
    if (symbol.st_shndx == SHN_UNDEF) return resolve_outside(l, index, name, place);
    if (symbol.st_shndx >= l->elf.e_shnum || l->place[symbol.st_shndx] == NOT_PLACED)
        return refuse_named(l, "a relocation names a symbol that is in no section of the code:", name);
    if (symbol.st_value > l->sections[symbol.st_shndx].sh_size)
        return refuse_named(l, "a symbol lies outside its section:", name);
    *place = l->place[symbol.st_shndx] + (int64_t)symbol.st_value;
    return ATTUNE_OK;
}

static attune_status relocate(linker *l, uint32_t table, const Elf64_Rela *rela, size_t target) {
    const uint64_t type = ELF64_R_TYPE(rela->r_info), size = l->sections[target].sh_size;
    const cg_relocation *relocation = cg_relocation_find(l->machine, type);
    if (!relocation)
        return at_fail(l->err, ATTUNE_CODEGEN_FAILED, "linking: relocation of type %" PRIu64 " is not PC-relative",
                       type);
    const uint64_t width = cg_relocation_bytes(relocation);
    if (size < width || rela->r_offset > size - width) return refuse(l, "a relocation lies outside its section");
    int64_t symbol = 0;
    const attune_status status = resolve(l, table, ELF64_R_SYM(rela->r_info), &symbol);
    if (status) return status;
    const int64_t at = l->place[target] + (int64_t)rela->r_offset;
    if (!cg_relocation_apply(relocation, l->code + at, at, symbol, rela->r_addend))
        return refuse(l, "a relocation does not reach its symbol");
    return ATTUNE_OK;
}

static attune_status relocate_section(linker *l, const Elf64_Shdr *section) {
    const bool relevant = section->sh_info < l->elf.e_shnum && l->place[section->sh_info] != NOT_PLACED;
    if (!relevant) return ATTUNE_OK;
    if (section->sh_type == SHT_REL || section->sh_entsize != sizeof(Elf64_Rela))
        return refuse_named(l, "relocations of an unknown form:", section_name(l, section));
    for (uint64_t i = 0; i < section->sh_size / sizeof(Elf64_Rela); i++) {
        Elf64_Rela rela;
        memcpy(&rela, l->object + section->sh_offset + i * sizeof rela, sizeof rela);
        const attune_status status = relocate(l, section->sh_link, &rela, section->sh_info);
        if (status) return status;
    }
    return ATTUNE_OK;
}

static attune_status relocate_all(linker *l) {
    for (size_t s = 0; s < l->elf.e_shnum; s++) {
        const uint32_t type = l->sections[s].sh_type;
        if (type != SHT_RELA && type != SHT_REL) continue;
        const attune_status status = relocate_section(l, &l->sections[s]);
        if (status) return status;
    }
    return ATTUNE_OK;
}

/* ---- Entries ---- */

static bool find_entry(const linker *l, const char *name, uint32_t *entry) {
    int64_t place;
    for (size_t i = 0; i < l->count; i++) {
        if (!find_function(&l->all[i], name, &place)) continue;
        *entry = (uint32_t)place;
        return true;
    }
    return false;
}

static attune_status find_entries(linker *l, at_image_header *header, at_image_phase *phases) {
    for (uint32_t p = 0; p < header->num_phases; p++) {
        char name[16];
        snprintf(name, sizeof name, "phase%" PRIu32, p);
        if (!find_entry(l, name, &phases[p].entry)) return refuse_named(l, "the object does not define", name);
    }
    if (!find_entry(l, "plan", &header->plan_entry)) return refuse_named(l, "the object does not define", "plan");
    return ATTUNE_OK;
}

/* ---- The image ---- */

static attune_status fill_code(linker *all, size_t count, unsigned char *code) {
    for (size_t i = 0; i < count; i++) {
        all[i].code = code;
        copy_sections(&all[i]);
    }
    attune_status status = ATTUNE_OK;
    for (size_t i = 0; i < count && !status; i++) status = relocate_all(&all[i]);
    return status;
}

/* `l` is the last object. */
static attune_status write_image(linker *l, const at_image_header *given, const uint64_t *scratch_bytes,
                                 unsigned char **image, size_t *bytes) {
    const size_t table_bytes = sizeof *given + given->num_phases * sizeof(at_image_phase);
    const size_t code_offset = (table_bytes + 63) & ~(size_t)63;
    *bytes = code_offset + l->code_bytes;
    *image = at_alloc_aligned(l->allocator, *bytes, 64);
    if (!*image) return at_fail_memory(l->err, *bytes);
    memset(*image, 0, *bytes);
    attune_status status = fill_code(l->all, l->count, *image + code_offset);
    if (status) return status;

    at_image_header *header = (at_image_header *)*image;
    at_image_phase *phases = (at_image_phase *)(header + 1);
    *header = (at_image_header){.version = AT_IMAGE_VERSION,
                                .required = given->required,
                                .num_phases = given->num_phases,
                                .num_buffers = given->num_buffers,
                                .num_shared = given->num_shared,
                                .num_scalars = given->num_scalars,
                                .code_offset = (uint32_t)code_offset,
                                .code_bytes = l->code_bytes,
                                .unwind_offset = given->unwind_offset,
                                .unwind_bytes = given->unwind_bytes};
    memcpy(header->magic, AT_IMAGE_MAGIC, sizeof header->magic);
    for (uint32_t p = 0; p < given->num_phases; p++) phases[p].scratch_bytes = (scratch_bytes[p] + 63) & ~UINT64_C(63);
    if ((status = find_entries(l, header, phases))) return status;
    const char *wrong = at_image_check(*image, *bytes);
    return wrong ? refuse(l, wrong) : ATTUNE_OK;
}

static attune_status place_object(linker *l, uint64_t before) {
    attune_status status = read_header(l);
    if (!status) status = read_sections(l);
    return status ? status : place_sections(l, before);
}

attune_status cg_link_objects(const cg_object *objects, size_t count, const at_image_header *header,
                              const uint64_t *scratch_bytes, const attune_allocator *allocator, void **image,
                              size_t *image_bytes, at_error *err) {
    at_error own = {0};
    linker all[CG_MAX_OBJECTS] = {{0}};
    unsigned char *result = NULL;
    size_t size = 0;
    attune_status status = ATTUNE_OK;
    *image = NULL;
    *image_bytes = 0;
    if (!count || count > CG_MAX_OBJECTS || header->num_phases > AT_MAX_PHASES)
        return at_fail(err, ATTUNE_CODEGEN_FAILED, "linking: the kernel has too many phases or objects");
    for (size_t i = 0; i < count && !status; i++) {
        all[i] = (linker){.all = all, .count = count, .object = objects[i].data, .bytes = objects[i].bytes};
        all[i].err = &own;
        all[i].allocator = allocator;
        all[i].machine = header->required & AT_CPU_AARCH64 ? EM_AARCH64 : EM_X86_64;
        status = place_object(&all[i], i ? all[i - 1].code_bytes : 0);
    }
    at_image_header whole = *header;
    if (!status) status = place_unwind(all, count, &whole);
    if (!status) status = write_image(&all[count - 1], &whole, scratch_bytes, &result, &size);
    for (size_t i = 0; i < count; i++) {
        at_free(allocator, all[i].sections);
        at_free(allocator, all[i].place);
    }
    if (status) {
        at_free(allocator, result);
        return at_fail(err, status, "%s", own.message);
    }
    *image = result;
    *image_bytes = size;
    return ATTUNE_OK;
}

attune_status cg_link_object(const void *object, size_t bytes, const at_image_header *header,
                             const uint64_t *scratch_bytes, const attune_allocator *allocator, void **image,
                             size_t *image_bytes, at_error *err) {
    const cg_object one = {object, bytes};
    return cg_link_objects(&one, 1, header, scratch_bytes, allocator, image, image_bytes, err);
}
