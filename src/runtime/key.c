/* Inlined: the hit path hashes two fixed sizes, for which the compiler picks the branch. */
#define XXH_INLINE_ALL
#include "runtime/key.h"

#include "generator_id.h"
#include "target/kernel_abi.h"

#include <string.h>
#include <xxhash.h>

/* Appends to `bytes` what fits; sizes are bounded by construction, so nothing is ever cut off in practice. */
static size_t put(uint8_t *bytes, size_t size, size_t capacity, const void *data, size_t n) {
    if (n > capacity - size) n = capacity - size;
    memcpy(bytes + size, data, n);
    return size + n;
}

static size_t put_u32(uint8_t *bytes, size_t size, size_t capacity, uint32_t value) {
    const uint8_t le[4] = {(uint8_t)value, (uint8_t)(value >> 8), (uint8_t)(value >> 16), (uint8_t)(value >> 24)};
    return put(bytes, size, capacity, le, sizeof le);
}

static size_t put_text(uint8_t *bytes, size_t size, size_t capacity, const char *text) {
    const size_t n = strnlen(text, 64);
    size = put_u32(bytes, size, capacity, (uint32_t)n);
    return put(bytes, size, capacity, text, n);
}

void at_machine_init(at_machine *machine, const at_target *target) {
    const size_t cap = sizeof machine->bytes;
    memset(machine, 0, sizeof *machine);
    size_t n = put_text(machine->bytes, 0, cap, target->name);
    n = put_text(machine->bytes, n, cap, at_cpu_name());
    n = put_text(machine->bytes, n, cap, ATTUNE_LLVM_VERSION);
    n = put_text(machine->bytes, n, cap, ATTUNE_GENERATOR_ID);
    machine->size = put_u32(machine->bytes, n, cap, AT_IMAGE_VERSION);
}

/* All fields are 32 bits wide and follow struct_size without a gap (asserted below), so that a new one cannot be
 * forgotten here. */
static size_t put_schedule(uint8_t *bytes, size_t size, size_t cap, const attune_schedule *s) {
    enum { COUNT = (sizeof *s - sizeof s->struct_size) / sizeof(uint32_t) };
    uint32_t fields[COUNT];
    memcpy(fields, &s->strategy, sizeof fields);
    size = put_u32(bytes, size, cap, COUNT);
    for (size_t i = 0; i < COUNT; i++) size = put_u32(bytes, size, cap, fields[i]);
    return size;
}

void at_key_make(at_key *key, const attune_problem *canonical, const attune_schedule *schedule,
                 const at_machine *machine) {
    const size_t cap = sizeof key->bytes;
    uint8_t part[MHA_KEY_BYTES];
    const size_t problem_bytes = mha_key(canonical, part);
    size_t n = put_u32(key->bytes, 0, cap, (uint32_t)problem_bytes);
    n = put(key->bytes, n, cap, part, problem_bytes);
    n = schedule ? put_schedule(key->bytes, n, cap, schedule) : put_u32(key->bytes, n, cap, 0);
    n = put(key->bytes, n, cap, machine->bytes, machine->size);
    key->size = (uint32_t)n;
    const XXH128_hash_t hash = XXH3_128bits(key->bytes, n);
    key->high = hash.high64;
    key->low = hash.low64;
}

bool at_key_equal(const at_key *a, const at_key *b) {
    return a->low == b->low && a->high == b->high && a->size == b->size && !memcmp(a->bytes, b->bytes, a->size);
}

void at_key_name(const at_key *key, char name[AT_NAME_CHARS + 1]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        name[i] = digits[key->high >> (60 - 4 * i) & 15];
        name[16 + i] = digits[key->low >> (60 - 4 * i) & 15];
    }
    name[AT_NAME_CHARS] = '\0';
}

/* Writes a 32-bit member and the padding behind it as one zero-extended word: reading the word back does not have to
 * wait for two stores to be merged, which would cost a hit several nanoseconds. */
#define CLEAR_PADDING(object, type, member)                                                                            \
    do {                                                                                                               \
        const uint64_t word = (uint32_t)(object)->member;                                                              \
        memcpy((char *)(object) + offsetof(type, member), &word, sizeof word);                                         \
    } while (0)

bool at_raw_key_make(at_raw_key *raw, const attune_problem *problem, const attune_schedule *schedule) {
    if (problem->struct_size != sizeof *problem) return false;
    raw->problem = *problem;
    CLEAR_PADDING(&raw->problem, attune_problem, dtype);
    CLEAR_PADDING(&raw->problem, attune_problem, has_lse);
    if (!schedule) {
        memset(&raw->schedule, 0, sizeof raw->schedule);
        return true;
    }
    if (schedule->struct_size != sizeof *schedule) return false;
    raw->schedule = *schedule;
    return true;
}

_Static_assert(offsetof(attune_schedule, strategy) == sizeof(size_t) &&
                   offsetof(attune_schedule, kv_tile) + 4 == sizeof(attune_schedule),
               "a schedule has no padding");
_Static_assert(offsetof(attune_problem, batch) == offsetof(attune_problem, dtype) + 8 &&
                   offsetof(attune_problem, causal_offset) == offsetof(attune_problem, causal_align) + 4 &&
                   offsetof(attune_problem, q_strides) == offsetof(attune_problem, has_lse) + 8,
               "the padding of a problem is where at_raw_key_make clears it");
_Static_assert(sizeof(attune_problem) == 256, "a new field: see to its padding above, and to the halves of 128 bytes");

/* XXH3 is several times faster up to 128 bytes than just beyond, so the problem is hashed as two halves. */
uint64_t at_raw_key_hash(const at_raw_key *raw) {
    const char *bytes = (const char *)&raw->problem;
    uint64_t hash = XXH3_64bits(bytes, 128) + XXH3_64bits(bytes + 128, 128) * 0x9e3779b97f4a7c15u;
    if (raw->schedule.struct_size) hash ^= XXH3_64bits(&raw->schedule, sizeof raw->schedule);
    return hash ^ hash >> 32;
}
