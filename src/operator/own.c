/* Users' operators as rows of the table: a callback writes the loop IR; names and values of choices are the schedule.
 */
#define XXH_INLINE_ALL
#include "operator/own.h"

#include "base/fpenv.h"
#include "base/plain_text.h"
#include "ir/text.h"
#include "ir/verify.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const at_own *own_of(at_operation operation) { return (const at_own *)operation.op; }

static const char *problem_of(at_operation operation) { return operation.problem; }

/* ---- Key and text ---- */

/* Version, hash of the choices, problem. */
static size_t key(at_operation o, uint8_t bytes[AT_OPERATION_KEY_BYTES]) {
    enum { HEAD = 4 + 8 };
    _Static_assert(AT_OWN_PROBLEM_CHARS + HEAD <= AT_OPERATION_KEY_BYTES, "a key holds every problem");
    const size_t length = strlen(problem_of(o));
    for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(own_of(o)->version >> 8 * i);
    for (int i = 0; i < 8; i++) bytes[4 + i] = (uint8_t)(own_of(o)->choices_hash >> 8 * i);
    memcpy(bytes + HEAD, problem_of(o), length);
    return length + HEAD;
}

static size_t print(at_operation o, char *text, size_t capacity) {
    if (own_of(o)->find_general) return (size_t)snprintf(text, capacity, "%s", problem_of(o));
    return (size_t)snprintf(text, capacity, "%s.%u %s", own_of(o)->name, own_of(o)->version, problem_of(o));
}

static const char *source(at_operation o) {
    (void)o;
    return NULL;
}

/* ---- Schedules ---- */

static bool is_among(const attune_choice *choice, int32_t value) {
    for (size_t i = 0; i < choice->num_values; i++)
        if (choice->values[i] == value) return true;
    return false;
}

/* The values, as many as fit. */
static const char *list_values(const attune_choice *choice, char *text, size_t capacity) {
    size_t n = 0, i = 0;
    for (; i < choice->num_values && n + 24 < capacity; i++)
        n += (size_t)snprintf(text + n, capacity - n, "%s%d", i ? ", " : "", (int)choice->values[i]);
    if (i < choice->num_values) snprintf(text + n, capacity - n, ", …");
    return text;
}

static attune_status schedule_check(at_operation o, const mha_schedule *schedule, const at_target *target,
                                    at_error *err) {
    const at_own *const own = own_of(o);
    (void)target;
    for (size_t i = 0; i < own->num_choices; i++) {
        const int32_t value = at_own_numbers_of(schedule)[i];
        char values[200];
        if (!is_among(&own->choices[i], value))
            return at_fail(err, ATTUNE_INVALID_SCHEDULE, "%s of %s is %d; it must be one of %s", own->choices[i].name,
                           own->name, (int)value, list_values(&own->choices[i], values, sizeof values));
    }
    return ATTUNE_OK;
}

static void schedule_choose(at_operation o, const at_target *target, const at_description *machine,
                            mha_schedule *schedule) {
    (void)target;
    (void)machine;
    *schedule = (mha_schedule){0};
    for (size_t i = 0; i < own_of(o)->num_choices; i++) at_own_numbers(schedule)[i] = own_of(o)->choices[i].usual;
}

static size_t schedule_print(at_operation o, const mha_schedule *schedule, char *text, size_t capacity) {
    const at_own *const own = own_of(o);
    size_t n = 0;
    if (capacity) *text = '\0';
    for (size_t i = 0; i < own->num_choices; i++)
        n += (size_t)snprintf(n < capacity ? text + n : NULL, n < capacity ? capacity - n : 0, "%s%s=%d", i ? "," : "",
                              own->choices[i].name, (int)at_own_numbers_of(schedule)[i]);
    return n;
}

/* Parses a schedule as it was printed: all numbers in their order. */
static attune_status schedule_parse(at_operation o, const char *text, mha_schedule *schedule, at_error *err) {
    const at_own *const own = own_of(o);
    const char *at = text;
    for (size_t i = 0; i < own->num_choices; i++) {
        const size_t length = strlen(own->choices[i].name);
        char *end = NULL;
        if (i && *at == ',') at++;
        if (!strncmp(at, own->choices[i].name, length) && at[length] == '=')
            at_own_numbers(schedule)[i] = (int32_t)strtol(at + length + 1, &end, 10);
        if (!end) break;
        at = end;
    }
    char again[AT_SCHEDULE_TEXT];
    if (schedule_print(o, schedule, again, sizeof again) < sizeof again && !strcmp(text, again))
        return schedule_check(o, schedule, NULL, err);
    return at_fail(err, ATTUNE_INVALID_SCHEDULE, "'%.200s' is no schedule of %s", text, own->name);
}

/* ---- Building ---- */

void attune_ir_print(attune_ir_writer *writer, const char *format, ...) {
    AT_DEFAULT_FPENV;
    char few[512];
    va_list arguments;
    va_start(arguments, format);
    const int length = at_vprint(few, sizeof few, format, arguments);
    va_end(arguments);
    if (length >= 0 && (size_t)length < sizeof few) {
        at_string_append(&writer->text, few, (size_t)length);
        return;
    }
    char *const all = length < 0 ? NULL : at_alloc(writer->text.allocator, (size_t)length + 1);
    if (!all) {
        writer->text.failed = true;
        return;
    }
    va_start(arguments, format);
    at_vprint(all, (size_t)length + 1, format, arguments);
    va_end(arguments);
    at_string_append(&writer->text, all, (size_t)length);
    at_free(writer->text.allocator, all);
}

/* "matmul.1 m=3 with tile=8" */
static const char *describe(at_operation o, const mha_schedule *schedule, char *text, size_t capacity) {
    size_t n = print(o, text, capacity);
    if (own_of(o)->num_choices && n < capacity) n += (size_t)snprintf(text + n, capacity - n, " with ");
    if (own_of(o)->num_choices && n < capacity) schedule_print(o, schedule, text + n, capacity - n);
    return text;
}

static attune_status write(at_operation o, const mha_schedule *schedule, const at_target *target,
                           attune_ir_writer *writer, at_error *err) {
    const at_own *const own = own_of(o);
    char what[300];
    const attune_build_request request = {.struct_size = sizeof request,
                                          .problem = problem_of(o),
                                          .schedule = at_own_numbers_of(schedule),
                                          .isa = target->name,
                                          .vector_bytes = (int32_t)target->vector_bytes,
                                          .has_fma = (target->flags & AT_TARGET_FMA) != 0};
    const bool is_refused = own->build(own->user, &request, writer) != 0;
    if (writer->text.failed) return at_fail_memory(err, writer->text.capacity);
    const char *const text = writer->text.data ? writer->text.data : "";
    if (is_refused)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is refused: %s", describe(o, schedule, what, sizeof what),
                       *text ? text : "its operator gave no reason");
    if (*text) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_IR, "the operator wrote nothing for %s",
                   describe(o, schedule, what, sizeof what));
}

static ir_kernel *build(at_arena *arena, at_operation o, const mha_schedule *schedule, const at_target *target,
                        at_error *err) {
    attune_ir_writer writer;
    ir_kernel *kernel = NULL;
    at_error why = {0};
    char what[300];
    at_string_init(&writer.text, own_of(o)->allocator);
    if (!write(o, schedule, target, &writer, err)) {
        kernel = ir_parse(arena, writer.text.data, writer.text.length, &why);
        if (kernel && ir_verify(kernel, IR_SCHEDULED, target, &why)) kernel = NULL;
        if (!kernel)
            at_fail(err, why.status, "the loop IR of %s: %s", describe(o, schedule, what, sizeof what), why.message);
    }
    at_string_free(&writer.text);
    return kernel;
}

static attune_dtype arithmetic(at_operation o, const mha_schedule *schedule, const at_target *target) {
    (void)o;
    (void)schedule;
    (void)target;
    return ATTUNE_F32;
}

/* ---- Registering ---- */

static bool is_name(const char *text, size_t most) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    const size_t length = strlen(text);
    return length && length <= most && strspn(text, letters) == length && strcspn(text, letters + 53);
}

static attune_status check_choice(const attune_operator_options *o, const attune_choice *c, at_error *err) {
    char values[200];
    if (!c->name || !is_name(c->name, AT_OWN_NAME_CHARS))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "a choice of operator %s is named '%.60s'; a name has at most %d "
                       "letters, digits and '_'",
                       o->name, c->name ? c->name : "", AT_OWN_NAME_CHARS);
    for (const attune_choice *before = o->choices; before < c; before++)
        if (!strcmp(before->name, c->name))
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "operator %s has two choices named %s", o->name, c->name);
    if (!c->num_values || !c->values)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s of operator %s has no values to choose from", c->name,
                       o->name);
    if (c->num_values > AT_OWN_VALUES)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s of operator %s has %zu values; there may be at most %d",
                       c->name, o->name, c->num_values, AT_OWN_VALUES);
    if (c->reserved)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "reserved of %s of operator %s is %d; it must be 0", c->name,
                       o->name, (int)c->reserved);
    for (size_t i = 0; i < c->num_values; i++)
        if (is_among(&(attune_choice){.values = c->values, .num_values = i}, c->values[i]))
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s of operator %s has the value %d twice", c->name, o->name,
                           (int)c->values[i]);
    if (is_among(c, c->usual)) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the usual value of %s of operator %s is %d, which is none of %s",
                   c->name, o->name, (int)c->usual, list_values(c, values, sizeof values));
}

static attune_status check_options(const attune_operator_options *o, at_error *err) {
    if (!o->name || !is_name(o->name, AT_OWN_NAME_CHARS))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "an operator is named '%.60s'; a name has at most %d letters, "
                       "digits and '_'",
                       o->name ? o->name : "", AT_OWN_NAME_CHARS);
    if (!o->build) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "operator %s has no build function", o->name);
    if (!o->version)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "the version of operator %s is 0; it begins with 1 and changes with the text that build writes",
                       o->name);
    if (o->reserved)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "reserved of operator %s is %u; it must be 0", o->name,
                       o->reserved);
    if (o->num_choices > AT_OWN_CHOICES || (o->num_choices && !o->choices))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "operator %s has %zu choices%s; there may be at most %d", o->name,
                       o->num_choices, o->choices ? "" : ", but no array of them", AT_OWN_CHOICES);
    for (size_t i = 0; i < o->num_choices; i++)
        if (check_choice(o, &o->choices[i], err)) return err->status;
    return ATTUNE_OK;
}

/* A hash of names and values, as a schedule's numbers are indices into them. */
static uint64_t hash_choices(const at_own *own) {
    uint64_t hash = own->num_choices;
    for (size_t i = 0; i < own->num_choices; i++) {
        const attune_choice *const c = &own->choices[i];
        hash = XXH3_64bits_withSeed(c->name, strlen(c->name), hash);
        hash = XXH3_64bits_withSeed(c->values, c->num_values * sizeof *c->values, hash);
    }
    return hash;
}

/* Names and values go into one block. */
static attune_status copy_choices(at_own *own, const attune_operator_options *o, at_error *err) {
    size_t bytes = 1;
    for (size_t i = 0; i < o->num_choices; i++)
        bytes += o->choices[i].num_values * sizeof(int32_t) + strlen(o->choices[i].name) + 1;
    own->block = at_alloc(own->allocator, bytes);
    if (!own->block) return at_fail_memory(err, bytes);
    int32_t *values = own->block;
    for (size_t i = 0; i < o->num_choices; i++) {
        own->choices[i] = o->choices[i];
        own->choices[i].values = memcpy(values, o->choices[i].values, o->choices[i].num_values * sizeof *values);
        values += o->choices[i].num_values;
    }
    char *names = (char *)values;
    for (size_t i = 0; i < o->num_choices; i++) {
        own->choices[i].name = strcpy(names, o->choices[i].name);
        names += strlen(names) + 1;
    }
    own->num_choices = o->num_choices;
    own->choices_hash = hash_choices(own);
    return ATTUNE_OK;
}

attune_status at_own_init(at_own *own, const attune_operator_options *options, const attune_allocator *allocator,
                          at_error *err) {
    if (check_options(options, err)) return err->status;
    *own = (at_own){.row = {.keeps_ir = true, AT_OPERATOR_FUNCTIONS},
                    .version = options->version,
                    .build = options->build,
                    .user = options->user,
                    .allocator = allocator};
    strcpy(own->name, options->name);
    own->row.name = own->name;
    return copy_choices(own, options, err);
}

void at_own_free(at_own *own) { at_free(own->allocator, own->block); }

const at_own *at_own_of(const at_operator *row) { return row && row->build == build ? (const at_own *)row : NULL; }

/* The bytes of a UTF-8 character; 0 if it is not valid. The text ends with NUL, which cannot continue a character. */
static size_t read_character(const unsigned char *text, uint32_t *code) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t bytes = *text < 0x80   ? 1
                         : *text < 0xc0 ? 0
                         : *text < 0xe0 ? 2
                         : *text < 0xf0 ? 3
                         : *text < 0xf8 ? 4
                                        : 0;
    if (bytes < 2) {
        *code = *text;
        return bytes;
    }
    *code = *text & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
        *code = *code << 6 | (text[i] & 0x3f);
    }
    const bool is_surrogate = *code >= 0xd800 && *code < 0xe000;
    return *code < least[bytes] || *code > 0x10ffff || is_surrogate ? 0 : bytes;
}

attune_status at_own_check_problem(const at_own *own, const char *problem, at_error *err) {
    const size_t length = strlen(problem);
    if (length > AT_OWN_PROBLEM_CHARS)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "the problem for %s has %zu bytes; it may have at most %d: %.60s…",
                       own->name, length, AT_OWN_PROBLEM_CHARS, problem);
    for (size_t at = 0; at < length;) {
        uint32_t code;
        const size_t bytes = read_character((const unsigned char *)problem + at, &code);
        if (!bytes)
            return at_fail(err, ATTUNE_INVALID_PROBLEM, "the problem for %s is not UTF-8: byte %zu is 0x%02x",
                           own->name, at, (unsigned char)problem[at]);
        if (code < ' ' || (code >= 0x7f && code < 0xa0))
            return at_fail(err, ATTUNE_INVALID_PROBLEM, "the problem for %s has a control character (%u) at byte %zu",
                           own->name, code, at);
        at += bytes;
    }
    return ATTUNE_OK;
}
