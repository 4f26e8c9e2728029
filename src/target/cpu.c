/* Asks the CPU once, and remembers its identity and names. */
#include "target/cpu.h"

#include "target/cpu_probe.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static at_cpu_identity identity;
static char name[49], description[160];

#if defined(__x86_64__)

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

static void read_name(void) { strcpy(name, "AArch64 CPU"); }

#else

static void read_name(void) { strcpy(name, "unknown CPU"); }

#endif

static void read_all(void) {
    identity = at_cpu_probe_identity();
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
