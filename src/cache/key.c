/* Inlined: a hit hashes two fixed sizes, and the compiler picks the branch for each. */
#define XXH_INLINE_ALL
#include "cache/key.h"

#include "generator_id.h"
#include "problem/problem_fields.h"
#include "target/kernel_abi.h"

#include <string.h>
#include <xxhash.h>

/* Appends data, and never writes beyond the capacity. Sizes are bounded by construction, so nothing is cut off. */
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
    const size_t n = strnlen(text, AT_KEY_TEXT);
    size = put_u32(bytes, size, capacity, (uint32_t)n);
    return put(bytes, size, capacity, text, n);
}

void at_machine_init(at_machine *machine, const at_target *target, const char *tuning_class) {
    const size_t cap = sizeof machine->bytes;
    memset(machine, 0, sizeof *machine);
    size_t n = put_text(machine->bytes, 0, cap, target->name);
    n = put_text(machine->bytes, n, cap, ATTUNE_LLVM_VERSION);
    n = put_text(machine->bytes, n, cap, ATTUNE_GENERATOR_ID);
    machine->shared = put_u32(machine->bytes, n, cap, AT_IMAGE_VERSION);
    machine->size = put_text(machine->bytes, machine->shared, cap, tuning_class);
}

/* All fields are 32 bits wide, so that a new one cannot be forgotten here. */
static size_t put_schedule(uint8_t *bytes, size_t size, size_t cap, const mha_schedule *s) {
    uint32_t fields[MHA_SCHEDULE_WORDS];
    _Static_assert(sizeof fields == sizeof *s, "fields of 32 bits");
    memcpy(fields, s, sizeof fields);
    size = put_u32(bytes, size, cap, MHA_SCHEDULE_WORDS);
    for (size_t i = 0; i < MHA_SCHEDULE_WORDS; i++) size = put_u32(bytes, size, cap, fields[i]);
    return size;
}

void at_key_make(at_key *key, at_operation operation, const mha_schedule *schedule, const at_machine *machine) {
    const size_t cap = sizeof key->bytes;
    uint8_t part[AT_OPERATION_KEY_BYTES];
    const size_t problem_bytes = operation.op->key(operation, part);
    size_t n = put_text(key->bytes, 0, cap, operation.op->name);
    n = put_u32(key->bytes, n, cap, (uint32_t)problem_bytes);
    n = put(key->bytes, n, cap, part, problem_bytes);
    n = schedule ? put_schedule(key->bytes, n, cap, schedule) : put_u32(key->bytes, n, cap, 0);
    n = put(key->bytes, n, cap, machine->bytes, machine->size);
    key->size = (uint32_t)n;
    const XXH128_hash_t hash = XXH3_128bits(key->bytes, n - (machine->size - machine->shared));
    key->high = hash.high64;
    key->low = hash.low64;
}

bool at_key_equal(const at_key *a, const at_key *b) {
    return a->low == b->low && a->high == b->high && a->size == b->size && !memcmp(a->bytes, b->bytes, a->size);
}

static void print_name(uint64_t high, uint64_t low, char name[AT_NAME_CHARS + 1]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        name[i] = digits[high >> (60 - 4 * i) & 15];
        name[16 + i] = digits[low >> (60 - 4 * i) & 15];
    }
    name[AT_NAME_CHARS] = '\0';
}

void at_key_name(const at_key *key, char name[AT_NAME_CHARS + 1]) { print_name(key->high, key->low, name); }

/* ---- Taking apart ---- */

typedef struct key_reader {
    const uint8_t *at;
    size_t left;
    bool failed;
} key_reader;

static const uint8_t *take(key_reader *r, size_t bytes) {
    const uint8_t *const taken = r->at;
    if (bytes > r->left) r->failed = true;
    if (r->failed) return NULL;
    r->at += bytes;
    r->left -= bytes;
    return taken;
}

static uint32_t take_u32(key_reader *r) {
    const uint8_t *le = take(r, 4);
    return le ? le[0] | (uint32_t)le[1] << 8 | (uint32_t)le[2] << 16 | (uint32_t)le[3] << 24 : 0;
}

static void take_text(key_reader *r, char text[AT_KEY_TEXT + 1]) {
    const uint32_t length = take_u32(r);
    if (length > AT_KEY_TEXT) r->failed = true;
    const uint8_t *const from = take(r, length);
    if (from) memcpy(text, from, length);
}

static bool can_be_in_a_name(const char *text) {
    return *text && !text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-")];
}

bool at_key_split(const uint8_t *bytes, size_t size, at_key_parts *parts) {
    char last[AT_KEY_TEXT + 1] = "";
    key_reader r = {bytes, size, false};
    *parts = (at_key_parts){0};
    take_text(&r, parts->op);
    parts->problem_bytes = take_u32(&r);
    parts->problem = take(&r, parts->problem_bytes);
    parts->schedule_bytes = (size_t)take_u32(&r) * sizeof(uint32_t);
    parts->schedule = take(&r, parts->schedule_bytes);
    take_text(&r, parts->isa);
    take_text(&r, parts->llvm);
    take_text(&r, parts->generator);
    parts->image_version = take_u32(&r);
    parts->shared_bytes = size - r.left;
    take_text(&r, last);
    if (!r.failed && !r.left && strlen(last) < sizeof parts->tuning_class && can_be_in_a_name(last)) {
        strcpy(parts->tuning_class, last);
        return true;
    }
    *parts = (at_key_parts){0};
    return false;
}

void at_key_name_of(const uint8_t *bytes, const at_key_parts *parts, char name[AT_NAME_CHARS + 1]) {
    const XXH128_hash_t hash = XXH3_128bits(bytes, parts->shared_bytes);
    print_name(hash.high64, hash.low64, name);
}

bool at_key_is_near(const at_key *key, const uint8_t *bytes, size_t size) {
    at_key_parts wanted, parts;
    return at_key_split(key->bytes, key->size, &wanted) && at_key_split(bytes, size, &parts) &&
           wanted.shared_bytes == parts.shared_bytes && !memcmp(key->bytes, bytes, parts.shared_bytes);
}

bool at_key_is_of_here(const at_key_parts *parts) {
    return !strncmp(parts->llvm, ATTUNE_LLVM_VERSION, AT_KEY_TEXT) &&
           !strncmp(parts->generator, ATTUNE_GENERATOR_ID, AT_KEY_TEXT) && parts->image_version == AT_IMAGE_VERSION;
}

/* Raw keys are hashed and compared as bytes. */
_Static_assert(sizeof(attune_problem) == MHA_PROBLEM_BYTES, "a problem has no padding, and each member has a field");

/* XXH3 is several times faster up to 128 bytes than just beyond, so a problem is hashed in parts of that size. After
 * the first part all defaults are 0, and most problems keep most of them. A part of zeros adds nothing. */
enum { PLAIN = AT_FUNCTIONS_BEGIN, PART = 128, NUM_PARTS = PLAIN / PART, REST = PLAIN % PART };
_Static_assert(REST % sizeof(uint64_t) == 0, "the rest is whole words");

typedef uint64_t word_pair __attribute__((vector_size(16)));

static inline bool is_zero(const char *bytes) {
    word_pair any = {0, 0}, pair;
#pragma GCC unroll 8
    for (size_t i = 0; i < PART; i += sizeof pair) {
        memcpy(&pair, bytes + i, sizeof pair);
        any |= pair;
    }
    return !(any[0] | any[1]);
}

static inline bool is_rest_zero(const char *bytes) {
    uint64_t any = 0, word;
    for (size_t i = 0; i < REST; i += sizeof word) {
        memcpy(&word, bytes + i, sizeof word);
        any |= word;
    }
    return !any;
}

static uint64_t mix(uint64_t hash, uint64_t part, uint64_t number) {
    return (hash + number) * UINT64_C(0x9e3779b97f4a7c15) + part;
}

uint64_t at_raw_key_hash(const attune_problem *problem) {
    const char *bytes = (const char *)problem;
    uint64_t hash = XXH3_64bits(bytes, PART);
    for (size_t i = 1; i < NUM_PARTS; i++)
        if (!is_zero(bytes + i * PART)) hash = mix(hash, XXH3_64bits(bytes + i * PART, PART), i);
    const char *rest = bytes + NUM_PARTS * PART;
    if (!is_rest_zero(rest)) hash = mix(hash, XXH3_64bits(rest, REST), NUM_PARTS);
    if (at_raw_has_functions(problem))
        hash = mix(hash, XXH3_64bits(bytes + AT_FUNCTIONS_BEGIN, AT_FUNCTIONS_BYTES), NUM_PARTS + 1);
    static const char none[AT_LATER_BYTES];
    if (memcmp(bytes + AT_FUNCTIONS_END, none, AT_LATER_BYTES))
        hash = mix(hash, XXH3_64bits(bytes + AT_FUNCTIONS_END, AT_LATER_BYTES), NUM_PARTS + 2);
    return hash ^ hash >> 32;
}
