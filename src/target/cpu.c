#include "target/cpu.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static at_cpu_identity identity;
static char name[49], description[160];

#if defined(__x86_64__)

/* The display family and model, as makers print them: the extended parts count for some base families only. */
static void read_identity(void) {
    uint32_t a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d)) return;
    const uint32_t vendor[3] = {b, d, c};
    memcpy(identity.vendor, vendor, sizeof vendor);
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    const uint32_t family = a >> 8 & 15, model = a >> 4 & 15;
    identity.stepping = a & 15;
    identity.family = family + (family == 15 ? a >> 20 & 255 : 0);
    identity.model = model + (family == 15 || family == 6 ? (a >> 16 & 15) << 4 : 0);
}

static void read_name(void) {
    uint32_t words[12] = {0};
    for (uint32_t i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]);
    char text[49] = {0};
    memcpy(text, words, sizeof words);
    const char *start = text + strspn(text, " ");
    size_t length = strlen(start);
    while (length && start[length - 1] == ' ') length--;
    memcpy(name, start, length);
    if (!length) strcpy(name, "unknown x86-64 CPU");
}

#elif defined(__aarch64__)

/* Programs may not read this register; the kernel emulates the read if its hwcaps say so. */
static void read_identity(void) {
    uint64_t midr = 0;
    if (getauxval(AT_HWCAP) & HWCAP_CPUID) __asm__("mrs %0, midr_el1" : "=r"(midr));
    identity = (at_cpu_identity){.is_arm = true,
                                 .family = (uint32_t)(midr >> 24 & 0xff),
                                 .model = (uint32_t)(midr >> 4 & 0xfff),
                                 .stepping = (uint32_t)(midr >> 20 & 0xf)};
}

static void read_name(void) { strcpy(name, "AArch64 CPU"); }

#else

static void read_identity(void) {}
static void read_name(void) { strcpy(name, "unknown CPU"); }

#endif

static void read_all(void) {
    read_identity();
    read_name();
    const char *format =
        identity.is_arm ? "%s (implementer 0x%02x, part 0x%03x, variant %u)" : "%s (family %u, model %u, stepping %u)";
    snprintf(description, sizeof description, format, name, identity.family, identity.model, identity.stepping);
}

const at_cpu_identity *at_cpu_identity_here(void) {
    pthread_once(&once, read_all);
    return &identity;
}

const char *at_cpu_name(void) {
    pthread_once(&once, read_all);
    return name;
}

const char *at_cpu_description(void) {
    pthread_once(&once, read_all);
    return description;
}
