/* Makes an ELF object with the symbols of a kernel in memory for gdb, and writes lines for perf. */
#define _GNU_SOURCE
#include "engine/symbols.h"

#include "engine/image_functions.h"
#include "host/io.h"

#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- The interface that gdb defines (GDB manual, "JIT Compilation Interface"): names and layout are fixed ---- */

enum { JIT_NO_ACTION, JIT_REGISTER, JIT_UNREGISTER };

struct jit_code_entry {
    struct jit_code_entry *next, *previous;
    const char *file;
    uint64_t bytes;
};

struct jit_descriptor {
    uint32_t version, action;
    struct jit_code_entry *relevant, *first;
};

/* Hidden like all other symbols: gdb reads the full symbol table, and LLVM's own pair must not be bound to this one. */
struct jit_descriptor __jit_debug_descriptor = {.version = 1};
void __jit_debug_register_code(void);
__attribute__((noinline)) void __jit_debug_register_code(void) { __asm__ volatile("" ::: "memory"); }

static pthread_mutex_t jit_mutex = PTHREAD_MUTEX_INITIALIZER; /* the process has one descriptor */

static void jit_tell(struct jit_code_entry *entry, uint32_t action) {
    __jit_debug_descriptor.relevant = entry;
    __jit_debug_descriptor.action = action;
    __jit_debug_register_code();
    __jit_debug_descriptor.action = JIT_NO_ACTION;
}

/* ---- The object ---- */

enum { NAME_BYTES = 160 };
enum { SECTION_NULL, SECTION_TEXT, SECTION_SYMTAB, SECTION_STRTAB, NUM_SECTIONS };

struct at_symbol_handle {
    struct jit_code_entry entry;
    Elf64_Ehdr header; /* the object starts here */
    Elf64_Shdr sections[NUM_SECTIONS];
    Elf64_Sym symbols[]; /* after them the strings */
};

/* The code of a kernel and what it is made of. */
typedef struct named_code {
    const char *name; /* of the kernel */
    const void *begin;
    uint64_t bytes;
    at_image_functions functions;
} named_code;

static size_t function_name(const named_code *code, uint32_t i, char name[NAME_BYTES]) {
    return (size_t)snprintf(name, NAME_BYTES, "attune:%.127s:%s", code->name, code->functions.items[i].name);
}

static uint64_t offset_in(const at_symbol_handle *handle, const void *member) {
    return (uint64_t)((const char *)member - (const char *)&handle->header);
}

static void fill_sections(at_symbol_handle *h, const named_code *code, const char *strings, uint64_t string_bytes) {
    h->sections[SECTION_TEXT] = (Elf64_Shdr){.sh_type = SHT_NOBITS,
                                             .sh_flags = SHF_ALLOC | SHF_EXECINSTR,
                                             .sh_addr = (uint64_t)code->begin,
                                             .sh_size = code->bytes,
                                             .sh_addralign = 64};
    h->sections[SECTION_SYMTAB] = (Elf64_Shdr){.sh_type = SHT_SYMTAB,
                                               .sh_offset = offset_in(h, h->symbols),
                                               .sh_size = (code->functions.count + 1) * sizeof(Elf64_Sym),
                                               .sh_link = SECTION_STRTAB,
                                               .sh_info = 1,
                                               .sh_addralign = 8,
                                               .sh_entsize = sizeof(Elf64_Sym)};
    h->sections[SECTION_STRTAB] = (Elf64_Shdr){
        .sh_type = SHT_STRTAB, .sh_offset = offset_in(h, strings), .sh_size = string_bytes, .sh_addralign = 1};
    h->header = (Elf64_Ehdr){.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                             .e_type = ET_EXEC,
                             .e_version = EV_CURRENT,
                             .e_shoff = offset_in(h, h->sections),
#if defined(__aarch64__)
                             .e_machine = EM_AARCH64,
#else
                             .e_machine = EM_X86_64,
#endif
                             .e_ehsize = sizeof(Elf64_Ehdr),
                             .e_shentsize = sizeof(Elf64_Shdr),
                             .e_shnum = NUM_SECTIONS,
                             .e_shstrndx = SECTION_STRTAB};
}

static at_symbol_handle *make_object(const named_code *code, const attune_allocator *allocator) {
    const size_t count = code->functions.count, symbol_bytes = (count + 1) * sizeof(Elf64_Sym);
    at_symbol_handle *h = at_alloc(allocator, sizeof *h + symbol_bytes + 1 + count * NAME_BYTES);
    if (!h) return NULL;
    char *const strings = (char *)(h->symbols + count + 1);
    uint64_t used = 1; /* offset 0 is the empty name */
    for (uint32_t i = 0; i < count; i++) {
        const at_image_function *function = &code->functions.items[i];
        h->symbols[i + 1] = (Elf64_Sym){.st_name = (uint32_t)used,
                                        .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                                        .st_shndx = SECTION_TEXT,
                                        .st_value = (uint64_t)code->begin + function->begin,
                                        .st_size = function->bytes};
        used += function_name(code, i, strings + used) + 1;
    }
    fill_sections(h, code, strings, used);
    h->entry.file = (const char *)&h->header;
    h->entry.bytes = offset_in(h, strings) + used;
    return h;
}

/* ---- perf ---- */

/* perf prescribes the path, where everybody can write. So the file is opened without following links or waiting for a
 * FIFO, and not written if another user owns it. */
static void write_perf_map(const named_code *code) {
    char path[64], name[NAME_BYTES];
    snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
    const int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    const int fd = at_io_open(at_default_io(), AT_FDCWD, path, flags, 0600);
    if (fd < 0) return;
    struct stat status;
    AT_HOLD_SIGNALS;
    if (!fstat(fd, &status) && S_ISREG(status.st_mode) && status.st_uid == geteuid())
        for (uint32_t i = 0; i < code->functions.count; i++) {
            const at_image_function *function = &code->functions.items[i];
            function_name(code, i, name);
            dprintf(fd, "%llx %x %s\n", (unsigned long long)(size_t)code->begin + function->begin, function->bytes,
                    name);
        }
    close(fd);
}

/* ---- Both ---- */

void at_symbols_init(at_symbols *symbols, const attune_allocator *allocator) {
    const char *wish = secure_getenv("ATTUNE_PERF");
    symbols->allocator = allocator;
    symbols->enabled = wish && !strcmp(wish, "1");
}

at_symbol_handle *at_symbols_add(at_symbols *symbols, const char *name, const void *code,
                                 const at_image_header *image) {
    if (!symbols->enabled) return NULL;
    named_code named = {.name = name, .begin = code, .bytes = image->code_bytes};
    if (!at_image_functions_list(&named.functions, image, symbols->allocator)) return NULL;
    write_perf_map(&named);
    at_symbol_handle *handle = make_object(&named, symbols->allocator);
    at_image_functions_free(&named.functions, symbols->allocator);
    if (!handle) return NULL;
    pthread_mutex_lock(&jit_mutex);
    handle->entry.next = __jit_debug_descriptor.first;
    if (handle->entry.next) handle->entry.next->previous = &handle->entry;
    __jit_debug_descriptor.first = &handle->entry;
    jit_tell(&handle->entry, JIT_REGISTER);
    pthread_mutex_unlock(&jit_mutex);
    return handle;
}

void at_symbols_remove(at_symbols *symbols, at_symbol_handle *handle) {
    if (!handle) return;
    pthread_mutex_lock(&jit_mutex);
    if (handle->entry.previous)
        handle->entry.previous->next = handle->entry.next;
    else
        __jit_debug_descriptor.first = handle->entry.next;
    if (handle->entry.next) handle->entry.next->previous = handle->entry.previous;
    jit_tell(&handle->entry, JIT_UNREGISTER);
    pthread_mutex_unlock(&jit_mutex);
    at_free(symbols->allocator, handle);
}

void at_symbols_before_fork(void) { pthread_mutex_lock(&jit_mutex); }

void at_symbols_after_fork(void) { pthread_mutex_unlock(&jit_mutex); }
