/* The table, best instruction set first, and the choice: the first row whose features this CPU has, or the one that is
 * named. */
#include "target/target.h"

#include "target/cpu.h"
#include "target/cpu_probe.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NEEDS_AVX2 = AT_CPU_X86_64 | AT_CPU_AVX2 | AT_CPU_FMA | AT_CPU_F16C | AT_CPU_BMI2,
    NEEDS_AVX512 = NEEDS_AVX2 | AT_CPU_AVX512F | AT_CPU_AVX512BW | AT_CPU_AVX512DQ | AT_CPU_AVX512VL | AT_CPU_AVX512CD,
    NEEDS_AVX512_BF16 = NEEDS_AVX512 | AT_CPU_AVX512BF16 | AT_CPU_AVX512VNNI | AT_CPU_AVX512VBMI,
    NEEDS_AMX = NEEDS_AVX512_BF16 | AT_CPU_AMX_BF16
};

static const char X86_TRIPLE[] = "x86_64-unknown-linux-gnu";

/* The features repeat what the CPU name implies where kernels rely on it, so that a change of LLVM's idea of a CPU
 * cannot take an instruction away. */
static const at_target targets[] = {
    /* All CPUs with AVX512_BF16 have AVX512_VNNI, and all but the first of them (Cooper Lake) AVX512_VBMI. */
    {"avx512_bf16", X86_TRIPLE, "x86-64-v4",
     "+avx2,+fma,+f16c,+bmi2,+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512cd,+avx512vnni,+avx512vbmi,+avx512bf16",
     AT_TARGET_FMA | AT_TARGET_ROUND | AT_TARGET_SCALEF | AT_TARGET_LANE_MASK | AT_TARGET_BF16_DOT |
         AT_TARGET_BYTE_DOT | AT_TARGET_LOOKUP,
     NEEDS_AVX512_BF16, 64, 32},
    /* It comes after a target that does the same, so it is used only where it is named: it has run on no machine yet.
     */
    {"amx", X86_TRIPLE, "x86-64-v4",
     "+avx2,+fma,+f16c,+bmi2,+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512cd,+avx512vnni,+avx512vbmi,+avx512bf16,+amx-"
     "tile,+amx-bf16",
     AT_TARGET_FMA | AT_TARGET_ROUND | AT_TARGET_SCALEF | AT_TARGET_LANE_MASK | AT_TARGET_BF16_DOT |
         AT_TARGET_BYTE_DOT | AT_TARGET_LOOKUP | AT_TARGET_TILES,
     NEEDS_AMX, 64, 32},
    {"avx512", X86_TRIPLE, "x86-64-v4", "+avx2,+fma,+f16c,+bmi2,+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512cd",
     AT_TARGET_FMA | AT_TARGET_ROUND | AT_TARGET_SCALEF | AT_TARGET_LANE_MASK, NEEDS_AVX512, 64, 32},
    {"avx2", X86_TRIPLE, "x86-64-v3", "+avx2,+fma,+f16c,+bmi2", AT_TARGET_FMA | AT_TARGET_ROUND, NEEDS_AVX2, 32, 16},
    {"x86-64", X86_TRIPLE, "x86-64", "+sse2", 0, AT_CPU_X86_64, 16, 16},
    /* Armv8.0 alone, scheduled for an out-of-order processor: LLVM's generic one is in-order. */
    {"aarch64", "aarch64-unknown-linux-gnu", "cortex-a72", "+neon,+fp-armv8,-aes,-sha2,-crc",
     AT_TARGET_FMA | AT_TARGET_ROUND, AT_CPU_AARCH64, 16, 32},
    {0},
};

const at_target *at_targets(void) { return targets; }

const at_target *at_target_find(const char *name) {
    for (const at_target *target = targets; target->name; target++)
        if (name && strcmp(target->name, name) == 0) return target;
    return NULL;
}

/* ---- What this CPU has ---- */

static pthread_once_t probe_once = PTHREAD_ONCE_INIT;
static uint32_t probed_features;

static void probe(void) { probed_features = at_cpu_probe_features(); }

bool at_cpu_request(uint32_t features) {
    if (features & ~at_cpu_features()) return false;
    return !(features & AT_CPU_AMX_BF16) || at_cpu_request_tiles();
}

uint32_t at_cpu_features(void) {
    pthread_once(&probe_once, probe);
    return probed_features;
}

bool at_target_runs_here(const at_target *target) { return (target->required & ~at_cpu_features()) == 0; }

/* ---- Choosing ---- */

/* "avx2, x86-64": the names of all targets, or only of those that run here. */
static const char *target_list(char *text, size_t capacity, bool only_here) {
    size_t length = 0;
    text[0] = '\0';
    for (const at_target *target = targets; target->name; target++) {
        size_t name = strlen(target->name);
        if ((only_here && !at_target_runs_here(target)) || length + name + 3 > capacity) continue;
        if (length) {
            memcpy(text + length, ", ", 2);
            length += 2;
        }
        memcpy(text + length, target->name, name + 1);
        length += name;
    }
    return length ? text : "none";
}

/* where: " in ATTUNE_ISA", or "". */
static attune_status find(const char *name, const char *where, const at_target **target, at_error *err) {
    char list[128];
    *target = at_target_find(name);
    if (*target) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "unknown ISA '%.40s'%s; there are: %s", name, where,
                   target_list(list, sizeof list, false));
}

attune_status at_target_named(const char *name, const at_target **target, at_error *err) {
    return find(name, "", target, err);
}

attune_status at_target_select(const char *name, const at_target **target, at_error *err) {
    const char *const where = name ? "" : " in ATTUNE_ISA";
    char list[128];
    *target = NULL;
    if (!name) name = getenv("ATTUNE_ISA");
    if (name && name[0]) {
        const at_target *named;
        const attune_status status = find(name, where, &named, err);
        if (status) return status;
        if (!at_target_runs_here(named))
            return at_fail(err, ATTUNE_UNSUPPORTED, "this CPU (%s) cannot run ISA '%s'%s; it can run: %s",
                           at_cpu_name(), name, where, target_list(list, sizeof list, true));
        *target = named;
        return ATTUNE_OK;
    }
    for (const at_target *best = targets; best->name; best++)
        if (at_target_runs_here(best)) {
            *target = best;
            return ATTUNE_OK;
        }
    return at_fail(err, ATTUNE_UNSUPPORTED, "attune has no code generator for this CPU (%s)", at_cpu_name());
}

const char *at_cpu_feature_names(uint32_t features, char text[AT_CPU_FEATURES_TEXT]) {
    static const char *const names[] = {"x86-64",     "avx2",     "fma",      "f16c",     "bmi2",
                                        "avx512f",    "avx512bw", "avx512dq", "avx512vl", "avx512bf16",
                                        "avx512vnni", "avx512cd", "aarch64",  "amx-bf16", "avx512vbmi"};
    enum { COUNT = sizeof names / sizeof *names };
    _Static_assert(1u << (COUNT - 1) == AT_CPU_AVX512VBMI, "each bit has a name");
    size_t length = 0;
    text[0] = '\0';
    for (uint32_t bit = 0; bit < 32; bit++) {
        if (!(features >> bit & 1)) continue;
        const char *const name = bit < COUNT ? names[bit] : "unknown";
        length += (size_t)snprintf(text + length, AT_CPU_FEATURES_TEXT - length, "%s%s", length ? " " : "", name);
        if (length >= AT_CPU_FEATURES_TEXT) break;
    }
    return text;
}
