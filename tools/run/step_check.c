/* The results of a step against an f64 reference, and the interpreter's bits. */
#include "run/step.h"

#include "ref_attention.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- Errors ---- */

/* The largest number of a type of out. */
static double largest_of(attune_dtype dtype) {
    return dtype == ATTUNE_F16 ? 65504 : dtype == ATTUNE_BF16 ? 0x1.fep127 : (double)FLT_MAX;
}

double step_limit(attune_dtype dtype, double wanted, double error) {
    const double relative = dtype == ATTUNE_BF16 ? 0x1p-8 : dtype == ATTUNE_F16 ? 0x1p-11 : 0x1p-24;
    return error + relative * fabs(wanted) + (dtype == ATTUNE_F16 ? 0x1p-24 : (double)FLT_MIN);
}

/* The error as a share of its limit. Where NaN or an infinity is expected, any such number is right, and so is an
 * infinity where the expected number may be beyond the type's range within the limit. */
static double share_of_limit(double have, double wanted, double limit, attune_dtype dtype) {
    if (have == wanted || isinf(limit)) return 0;
    if (!isfinite(wanted)) return isfinite(have) ? INFINITY : 0;
    const bool overflows = fabs(wanted) + limit >= largest_of(dtype) && signbit(have) == signbit(wanted);
    if (isinf(have)) return overflows ? 0 : INFINITY;
    const double share = fabs(have - wanted) / limit;
    return isnan(share) ? INFINITY : share;
}

void step_compare(step_call *c, const char *name, int64_t from, const double *wanted, const double *limits,
                  int64_t count) {
    step_errors *const e = &c->errors;
    const npy_array *const a = step_array(c, name);
    const attune_dtype dtype = run_types_dtype(a->header.type);
    for (int64_t i = 0; i < count; i++) {
        const double have = npy_element(a, (size_t)(from + i)), off = fabs(have - wanted[i]);
        const double share = share_of_limit(have, wanted[i], limits[i], dtype);
        const double error = isfinite(off) ? off : share > 0 ? INFINITY : 0;
        e->max = fmax(e->max, error);
        e->squares += error * error;
        if (share <= e->share) continue;
        e->share = share;
        snprintf(e->worst, sizeof e->worst,
                 "number %lld of %s is %.9g; the reference has %.9g, and rounding explains %.2g", (long long)(from + i),
                 name, have, wanted[i], limits[i]);
    }
    e->count += count;
}

bool step_fault(step_call *c, const char *format, ...) {
    va_list arguments;
    if (isinf(c->errors.share)) return false; /* the first one is told */
    va_start(arguments, format);
    vsnprintf(c->errors.worst, sizeof c->errors.worst, format, arguments);
    va_end(arguments);
    c->errors.share = INFINITY;
    return false;
}

/* ---- Checks ---- */

static size_t bytes_of(const npy_array *a) { return a->header.count * npy_type_bytes(a->header.type); }

static bool is_written(const step_call *c, size_t i) {
    return c->has[i] && (c->of->tensors[i].role == STEP_STATE || c->of->tensors[i].role == STEP_OUTPUT);
}

/* A run whose outputs hold this byte before it, and whose states are as they were at first. */
static bool run_on(step_call *c, int byte, bool is_interpreted) {
    for (size_t i = 0; i < c->of->num_tensors; i++)
        if (c->has[i] && c->of->tensors[i].role == STEP_OUTPUT)
            memset(c->arrays[i].data, byte, bytes_of(&c->arrays[i]));
    step_reset_states(c);
    if (!c->of->run(c, is_interpreted)) return true;
    tool_library_error(is_interpreted ? "the interpreter failed" : NULL);
    return false;
}

static bool copy_written(const step_call *c, void *copies[STEP_MOST_TENSORS]) {
    for (size_t i = 0; i < c->of->num_tensors; i++) {
        if (!is_written(c, i)) continue;
        copies[i] = malloc(bytes_of(&c->arrays[i]) + 1);
        if (!copies[i]) {
            tool_error("out of memory for the check");
            return false;
        }
        memcpy(copies[i], c->arrays[i].data, bytes_of(&c->arrays[i]));
    }
    return true;
}

/* Machine code and the interpreter begin with the same bytes, which no result is likely to have, so that what only one
 * of them writes differs. Then a run of machine code makes again what is shown and written. */
static bool check_bits(step_call *c) {
    enum { NOBODYS = 0xa5 };
    void *copies[STEP_MOST_TENSORS] = {NULL};
    const bool good = run_on(c, NOBODYS, false) && copy_written(c, copies) && run_on(c, NOBODYS, true);
    c->same_bits = good;
    for (size_t i = 0; i < c->of->num_tensors; i++) {
        if (good && is_written(c, i)) c->same_bits &= !memcmp(copies[i], c->arrays[i].data, bytes_of(&c->arrays[i]));
        free(copies[i]);
    }
    return good && run_on(c, 0, false);
}

bool step_compares_bits(const step_call *c) { return c->o->engine != ATTUNE_ENGINE_INTERPRETER; }

bool step_check(step_call *c) {
    if (step_compares_bits(c) && !check_bits(c)) return false;
    if (c->of->judge(c)) return true;
    tool_error("out of memory for the check");
    return false;
}

bool step_compare_expected(step_call *c) {
    char message[ATTUNE_MESSAGE_BYTES];
    npy_array expected;
    size_t out = 0;
    while (c->of->tensors[out].role != STEP_OUTPUT) out++;
    if (!npy_read(c->o->expect, &expected, message)) {
        tool_error("%s", message);
        return false;
    }
    const npy_header *const have = &c->arrays[out].header, *const want = &expected.header;
    const bool fits = have->rank == want->rank && !memcmp(have->shape, want->shape, have->rank * sizeof *have->shape);
    if (!fits) tool_error("%s has another shape than the result", c->o->expect);
    for (size_t i = 0; fits && i < have->count; i++) {
        const double one = npy_element(&c->arrays[out], i), other = npy_element(&expected, i);
        const double error = one == other || (isnan(one) && isnan(other)) ? 0 : fabs(one - other);
        if (!(error <= c->expect_max)) c->expect_max = isnan(error) ? INFINITY : error;
    }
    npy_free(&expected);
    return fits;
}
