/* Linked into a plug-in that contains LLVM: functions of glibc 2.35 and 2.36 that Debian's archives of LLVM and GCC
 * call. With these, the plug-in loads with glibc 2.34. The version script hides them from other libraries. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>

uint32_t arc4random(void);

/* LLVM calls it to name temporary files, of which attune's use of LLVM creates none. */
uint32_t arc4random(void) {
    uint32_t word = 0;
    while (getrandom(&word, sizeof word, 0) != sizeof word) {
    }
    return word;
}

/* A glibc without this function has no such macro, and archives built with that glibc do not call it. */
#ifdef DLFO_STRUCT_HAS_EH_DBASE

typedef struct search {
    uintptr_t address;
    struct dl_find_object *result;
} search;

static int look(struct dl_phdr_info *info, size_t bytes, void *user) {
    const search *wanted = user;
    const ElfW(Phdr) *frames = NULL;
    uintptr_t first = 0, last = 0;
    (void)bytes;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_GNU_EH_FRAME) frames = header;
        if (header->p_type != PT_LOAD) continue;
        if (!last || begin < first) first = begin;
        if (begin + header->p_memsz > last) last = begin + header->p_memsz;
    }
    if (wanted->address < first || wanted->address >= last) return 0;
    if (!frames) return -1;
    memset(wanted->result, 0, sizeof *wanted->result);
    wanted->result->dlfo_map_start = (void *)first;
    wanted->result->dlfo_map_end = (void *)last;
    wanted->result->dlfo_eh_frame = (void *)(info->dlpi_addr + frames->p_vaddr);
    return 1;
}

/* GCC's unwinder calls it to find the object that contains an address. */
int _dl_find_object(void *address, struct dl_find_object *result) {
    search wanted = {(uintptr_t)address, result};
    return dl_iterate_phdr(look, &wanted) == 1 ? 0 : -1;
}

#endif
