/* The key of a compiled kernel.
 *
 * The full key consists of the operator's name, the problem's canonical key, the explicit schedule if one was given,
 * and the machine part (target, LLVM version, generator id, image version, tuning class), each with its length in
 * front. The tuning class comes last. A kernel's name is XXH3-128 over everything before the class: its cache files for
 * several classes share that, and have the class in their files' names. Wherever a name is looked up the full key is
 * compared. */
#ifndef ATTUNE_CACHE_KEY_H
#define ATTUNE_CACHE_KEY_H

#include "operator/operator.h"
#include "target/target.h"
#include "target/tuning_class.h"

#include <string.h>

enum { AT_MACHINE_BYTES = 256, AT_KEY_BYTES = AT_OPERATION_KEY_BYTES + AT_MACHINE_BYTES + 256, AT_NAME_CHARS = 32 };

typedef struct at_machine {
    uint8_t bytes[AT_MACHINE_BYTES];
    size_t size;
    size_t shared; /* of these bytes, before the tuning class */
} at_machine;

typedef struct at_key {
    uint64_t high, low; /* XXH3-128 of the bytes before the tuning class */
    uint32_t size;
    uint8_t bytes[AT_KEY_BYTES];
} at_key;

/* The machine part for a target and a tuning class in this build. */
void at_machine_init(at_machine *machine, const at_target *target, const char *tuning_class);

/* schedule: the explicit one, or NULL. */
void at_key_make(at_key *key, at_operation operation, const mha_schedule *schedule, const at_machine *machine);

bool at_key_equal(const at_key *a, const at_key *b);

/* The kernel's name as 32 hex digits and a NUL. */
void at_key_name(const at_key *key, char name[AT_NAME_CHARS + 1]);

/* Whether a full key is this one, or this one for another tuning class. */
bool at_key_is_near(const at_key *key, const uint8_t *bytes, size_t size);

/* The parts of a full key, perhaps of a cache file of another machine or version. Points into its bytes. */
enum { AT_KEY_TEXT = 64 };
typedef struct at_key_parts {
    const uint8_t *problem, *schedule;
    size_t problem_bytes, schedule_bytes; /* no schedule: none was given */
    char op[AT_KEY_TEXT + 1], isa[AT_KEY_TEXT + 1], llvm[AT_KEY_TEXT + 1], generator[AT_KEY_TEXT + 1],
        tuning_class[AT_CLASS_BYTES];
    uint32_t image_version;
    size_t shared_bytes; /* all before the tuning class; the name is their hash */
} at_key_parts;

/* false, and all parts empty, if the bytes are no key. A tuning class that no file name can hold makes them no key. */
bool at_key_split(const uint8_t *bytes, size_t size, at_key_parts *parts);

/* The kernel's name, from the parts of its full key. */
void at_key_name_of(const uint8_t *bytes, const at_key_parts *parts, char name[AT_NAME_CHARS + 1]);

/* Whether the kernel was made by this build, for whichever machine. */
bool at_key_is_of_here(const at_key_parts *parts);

/* A problem as it lies in the caller's memory is a raw key. The first lookup of a kernel without a schedule uses it, so
 * that a hit need not canonicalise. Different raw keys may mean the same kernel, never the other way round. */

/* The functions of a problem and their tensors lie between the other members. They are long and most problems have
 * none, so their bytes are hashed and compared only where a problem has them. */
enum {
    AT_FUNCTIONS_BEGIN = offsetof(attune_problem, tensors),
    AT_FUNCTIONS_END = offsetof(attune_problem, prob_mod) + ATTUNE_FUNCTION_BYTES,
    AT_FUNCTIONS_BYTES = AT_FUNCTIONS_END - AT_FUNCTIONS_BEGIN,
    AT_LATER_BYTES = sizeof(attune_problem) - AT_FUNCTIONS_END /* of the members after them */
};

/* Whether there are functions, tensors, or bytes that canonicalisation would refuse. */
static inline bool at_raw_has_functions(const attune_problem *p) {
    return p->score_mod[0] || p->mask_mod[0] || p->prob_mod[0] || p->tensors[0].name[0];
}

/* false: the struct is not of this version's size. The slow path makes a whole one of it. */
static inline bool at_is_raw_key(const attune_problem *problem) { return problem->struct_size == sizeof *problem; }

uint64_t at_raw_key_hash(const attune_problem *problem);

/* Compares as bytes: -0.0 and 0.0, or two NaNs, may be two keys. */
static inline bool at_raw_key_equal(const attune_problem *a, const attune_problem *b) {
    const char *const x = (const char *)a, *const y = (const char *)b;
    if (memcmp(x, y, AT_FUNCTIONS_BEGIN) || memcmp(x + AT_FUNCTIONS_END, y + AT_FUNCTIONS_END, AT_LATER_BYTES))
        return false;
    return (!at_raw_has_functions(a) && !at_raw_has_functions(b)) ||
           !memcmp(x + AT_FUNCTIONS_BEGIN, y + AT_FUNCTIONS_BEGIN, AT_FUNCTIONS_BYTES);
}

#endif
