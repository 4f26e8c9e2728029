/* Offsets in the index depend on the index's own length, so names and symbols are collected before anything is
 * written. */
#include "bundle/archive.h"

#include <ar.h>
#include <elf.h>
#include <stdio.h>
#include <string.h>

/* ---- The index: offsets of members, in the order of the names after them ---- */

typedef struct index_table {
    at_string names, members; /* NUL-terminated names; a uint32_t for each */
} index_table;

static void index_symbols(index_table *index, uint32_t member, const char *object, const Elf64_Shdr *table,
                          const Elf64_Shdr *strings) {
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= table->sh_size; at += sizeof(Elf64_Sym)) {
        Elf64_Sym symbol;
        memcpy(&symbol, object + table->sh_offset + at, sizeof symbol);
        if (ELF64_ST_BIND(symbol.st_info) == STB_LOCAL || symbol.st_shndx == SHN_UNDEF) continue;
        const char *name = object + strings->sh_offset + symbol.st_name;
        at_string_append(&index->names, name, strlen(name) + 1);
        at_string_append(&index->members, (const char *)&member, sizeof member);
    }
}

/* attune has written the object, or the compiler that built attune. */
static void index_member(index_table *index, uint32_t number, const at_string *object) {
    Elf64_Ehdr elf;
    memcpy(&elf, object->data, sizeof elf);
    for (uint16_t s = 0; s < elf.e_shnum; s++) {
        Elf64_Shdr section, strings;
        memcpy(&section, object->data + elf.e_shoff + s * sizeof section, sizeof section);
        if (section.sh_type != SHT_SYMTAB) continue;
        memcpy(&strings, object->data + elf.e_shoff + section.sh_link * sizeof strings, sizeof strings);
        index_symbols(index, number, object->data, &section, &strings);
    }
}

/* ---- Members ---- */

static void put_header(at_string *out, const char *name, uint64_t bytes) {
    at_string_printf(out, "%-16s%-12d%-6d%-6d%-8o%-10llu%s", name, 0, 0, 0, 0644u, (unsigned long long)bytes, ARFMAG);
}

static void put_end(at_string *out) {
    if (out->length % 2) at_string_puts(out, "\n");
}

static uint64_t padded(uint64_t bytes) { return bytes + bytes % 2; }

static void put_big_endian(at_string *out, uint64_t value) {
    const char bytes[4] = {(char)(value >> 24), (char)(value >> 16), (char)(value >> 8), (char)value};
    at_string_append(out, bytes, sizeof bytes);
}

/* Names are longer than a header has room for: a member of their own holds them, each with "/\n" after it. */
static void list_names(const at_archive_member *members, size_t count, at_string *names) {
    for (size_t i = 0; i < count; i++) at_string_printf(names, "%s/\n", members[i].name);
}

static void put_index(const index_table *index, const at_archive_member *members, size_t count, uint64_t first,
                      at_string *out) {
    const size_t entries = index->members.length / sizeof(uint32_t);
    put_header(out, "/", 4 + 4 * entries + index->names.length);
    put_big_endian(out, entries);
    for (size_t e = 0; e < entries; e++) {
        uint32_t number;
        uint64_t offset = first;
        memcpy(&number, index->members.data + e * sizeof number, sizeof number);
        for (uint32_t m = 0; m < number && m < count; m++)
            offset += sizeof(struct ar_hdr) + padded(members[m].object.length);
        put_big_endian(out, offset);
    }
    at_string_append(out, index->names.data, index->names.length);
    put_end(out);
}

static void put_members(const at_archive_member *members, size_t count, at_string *out) {
    size_t name = 0;
    for (size_t i = 0; i < count; i++) {
        char reference[24];
        snprintf(reference, sizeof reference, "/%zu", name);
        put_header(out, reference, members[i].object.length);
        at_string_append(out, members[i].object.data, members[i].object.length);
        put_end(out);
        name += strlen(members[i].name) + 2;
    }
}

attune_status at_archive_write(const at_archive_member *members, size_t count, at_string *out, at_error *err) {
    index_table index;
    at_string names;
    at_string_init(&index.names, out->allocator);
    at_string_init(&index.members, out->allocator);
    at_string_init(&names, out->allocator);
    for (size_t i = 0; i < count; i++) index_member(&index, (uint32_t)i, &members[i].object);
    list_names(members, count, &names);
    /* Both have even sizes: readelf looks for the next member right after them. */
    if ((4 + index.members.length + index.names.length) % 2) at_string_append(&index.names, "", 1);
    if (names.length % 2) at_string_puts(&names, "\n");
    bool failed = index.names.failed || index.members.failed || names.failed;
    if (!failed) {
        const uint64_t index_bytes = 4 + index.members.length + index.names.length;
        const uint64_t first = SARMAG + 2 * sizeof(struct ar_hdr) + padded(index_bytes) + padded(names.length);
        at_string_puts(out, ARMAG);
        put_index(&index, members, count, first, out);
        put_header(out, "//", names.length);
        at_string_append(out, names.data, names.length);
        put_end(out);
        put_members(members, count, out);
        failed = out->failed;
    }
    at_string_free(&index.names);
    at_string_free(&index.members);
    at_string_free(&names);
    return failed ? at_fail_memory(err, out->length) : ATTUNE_OK;
}
