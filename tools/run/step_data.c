/* The arrays of a step: from files, or random. */
#include "run/step.h"

#include "common/table.h"
#include "ref_attention.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

static size_t bytes_of(const npy_array *a) { return a->header.count * npy_type_bytes(a->header.type); }

static int find(const step_call *c, const char *name) {
    for (size_t i = 0; i < c->of->num_tensors; i++)
        if (c->has[i] && !strcmp(c->of->tensors[i].name, name)) return (int)i;
    return -1;
}

const npy_array *step_array(const step_call *c, const char *name) {
    const int i = find(c, name);
    return i < 0 ? NULL : &c->arrays[i];
}

void *step_data(const step_call *c, const char *name) {
    const npy_array *const a = step_array(c, name);
    return a ? a->data : NULL;
}

const npy_array *step_before(const step_call *c, const char *name) {
    const int i = find(c, name);
    return i < 0 ? NULL : &c->first[i];
}

void step_reset_states(step_call *c) {
    for (size_t i = 0; i < c->of->num_tensors; i++)
        if (c->has[i] && c->of->tensors[i].role == STEP_STATE)
            memcpy(c->arrays[i].data, c->first[i].data, bytes_of(&c->first[i]));
}

/* ---- Random numbers ---- */

static double number(const step_call *c, step_fill fill, const npy_header *h, size_t i, tool_random *random) {
    const int64_t last = h->rank ? h->shape[h->rank - 1] : 1, row = (int64_t)i / last, column = (int64_t)i % last;
    const double share = (double)(tool_random_next(random) >> 11) * 0x1p-53;
    switch (fill) {
    case FILL_NORMAL: return (double)tool_random_normal(random);
    case FILL_UNIT_ROWS: return (double)tool_random_normal(random) / sqrt((double)last);
    case FILL_SHARE: return share;
    case FILL_DECAY: return -share;
    case FILL_NEAR_ONE: return 1 + 0.1 * (double)tool_random_normal(random);
    case FILL_PAGES: return (double)i;
    case FILL_KEYS: return (double)step_size_of(c, "seq_kv");
    case FILL_COS: return cos((double)row * pow(10000, -(double)column / (double)last));
    case FILL_SIN: return sin((double)row * pow(10000, -(double)column / (double)last));
    default: return 0;
    }
}

static void fill(const step_call *c, const step_tensor *t, npy_array *a, uint64_t seed) {
    enum { I8_SCALE = 32 };
    const attune_dtype dtype = run_types_dtype(a->header.type);
    tool_random random = {seed};
    for (size_t i = 0; t->fill != FILL_ZERO && i < a->header.count; i++) {
        const double one = number(c, t->fill, &a->header, i, &random);
        const double value = dtype == ATTUNE_I8 ? fmax(-127, fmin(127, rint(one * I8_SCALE))) : one;
        ref_store(dtype, a->data, (int64_t)i, value);
    }
}

/* ---- Arrays ---- */

/* Whether all arrays fit into memory; sizes are at most 2^31, and there are at most a few of them. */
static bool check_memory(const step_call *c) {
    const double has = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double all = 0;
    for (size_t i = 0; i < c->of->num_tensors; i++) {
        double bytes = c->has[i] ? (double)npy_type_bytes(c->arrays[i].header.type) : 0;
        for (size_t d = 0; d < c->arrays[i].header.rank; d++) bytes *= (double)c->arrays[i].header.shape[d];
        all += bytes * (c->of->tensors[i].role == STEP_STATE || c->of->tensors[i].role == STEP_OUTPUT ? 2 : 1);
    }
    if (all <= has * 0.75) return true;
    tool_error("the tensors of this step need %.1f GB, and the machine has %.1f GB: take smaller sizes", all * 1e-9,
               has * 1e-9);
    return false;
}

bool step_fill_arrays(step_call *c) {
    char message[ATTUNE_MESSAGE_BYTES];
    if (!check_memory(c)) return false;
    for (size_t i = 0; i < c->of->num_tensors; i++) {
        const step_tensor *const t = &c->of->tensors[i];
        const npy_header h = c->arrays[i].header;
        const npy_array *const file = step_file(c, t->name);
        const bool is_state = t->role == STEP_STATE;
        if (!c->has[i]) continue;
        if (!npy_create(h.type, h.rank, h.shape, &c->arrays[i], message) ||
            (is_state && !npy_create(h.type, h.rank, h.shape, &c->first[i], message))) {
            tool_error("%s", message);
            return false;
        }
        npy_array *const to = is_state ? &c->first[i] : &c->arrays[i];
        if (file && t->role != STEP_OUTPUT)
            memcpy(to->data, file->data, bytes_of(to));
        else if (!c->has_files)
            fill(c, t, to, i + 1);
    }
    step_reset_states(c);
    return true;
}

void step_free_arrays(step_call *c) {
    for (size_t i = 0; i < STEP_MOST_TENSORS; i++) npy_free(&c->arrays[i]), npy_free(&c->first[i]);
}
