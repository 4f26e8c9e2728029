/* Conversion between rows of K or V and packed panels (docs/panels.md), which have the same elements in another order.
 */
#include "base/error.h"
#include "base/struct.h"
#include "engine/context.h"
#include "problem/mha.h"
#include "problem/problem_fields.h"

#include <string.h>

enum { TOKENS = ATTUNE_PANEL_TOKENS };

static const at_struct panels_struct = {"attune_panels", "start from ATTUNE_PANELS_INIT", sizeof(attune_panels), NULL,
                                        sizeof(attune_panels)};

/* ---- Checks ---- */

static attune_status check_number(const char *name, int64_t value, int64_t least, int64_t most, at_error *err) {
    if (value >= least && value <= most) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is %lld; it must be from %lld to %lld", name, (long long)value,
                   (long long)least, (long long)most);
}

/* Replaces strides of 0 by contiguous ones. */
static attune_status settle(attune_panels *p, at_error *err) {
    const int64_t most = INT64_C(1) << 40, panel = TOKENS * p->columns;
    const struct {
        const char *name;
        int64_t *stride, usual, least;
    } strides[] = {{"row_stride", &p->row_stride, p->columns, p->columns},
                   {"row_head_stride", &p->row_head_stride, p->columns * p->tokens, 0},
                   {"panel_stride", &p->panel_stride, panel, panel},
                   {"panel_head_stride", &p->panel_head_stride, panel * mha_panels(p->tokens), 0}};
    for (size_t i = 0; i < sizeof strides / sizeof *strides; i++) {
        if (!*strides[i].stride) *strides[i].stride = strides[i].usual;
        const attune_status status = check_number(strides[i].name, *strides[i].stride, strides[i].least, most, err);
        if (status) return status;
    }
    return ATTUNE_OK;
}

static attune_status take(const attune_panels *given, attune_panels *p, at_error *err) {
    attune_status status = at_copy_in(&panels_struct, given, p, err);
    if (status) return status;
    if (p->dtype != ATTUNE_F32 && p->dtype != ATTUNE_BF16 && p->dtype != ATTUNE_I8 && p->dtype != ATTUNE_I4)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "dtype of panels is %d; it must be f32, bf16, i8 or i4",
                       (int)p->dtype);
    status = check_number("is_value", p->is_value, 0, 1, err);
    if (!status) status = check_number("heads", p->heads, 0, MHA_MAX_SIZE, err);
    if (!status) status = check_number("tokens", p->tokens, 0, MHA_MAX_SIZE, err);
    if (!status) status = check_number("columns", p->columns, 1, MHA_MAX_HEAD_DIM, err);
    if (status) return status;
    if (p->dtype == ATTUNE_I4) {
        if (p->columns % MHA_BLOCK_COLUMNS)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "columns is %lld; rows of i4 need a multiple of %d",
                           (long long)p->columns, MHA_BLOCK_COLUMNS);
        p->columns /= 2; /* bytes, which panels store like i8 values */
        p->dtype = ATTUNE_I8;
    }
    if (!p->is_value && p->columns % mha_unit_of_dtype(p->dtype))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "columns is %lld; keys of %s in panels need %s",
                       (long long)p->columns, mha_dtype_name(p->dtype),
                       p->dtype == ATTUNE_I8 ? "a multiple of 4" : "an even number");
    if (p->heads && p->tokens && (!p->rows || !p->panels))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is NULL", p->rows ? "panels" : "rows");
    return settle(p, err);
}

/* ---- Places ---- */

/* Where a panel of these has column 0 of a token; as docs/panels.md says. */
static int64_t token_at(const attune_panels *p, int64_t unit, int64_t token) {
    if (!p->is_value) return token * unit;
    return token / unit * unit * p->columns + token % unit;
}

/* How many elements of a token are contiguous in a panel, and the distance from one such run to the next. */
static int64_t side_by_side(const attune_panels *p, int64_t unit) {
    if (!p->is_value) return unit;
    return unit == 1 ? p->columns : 1;
}

static int64_t apart(const attune_panels *p, int64_t unit) { return p->is_value ? unit : unit * TOKENS; }

/* ---- Copies ---- */

/* For a few bytes, a loop is faster than a call of memcpy. */
static void copy(char *to, const char *from, size_t bytes) {
    if (bytes == 1)
        *to = *from;
    else if (bytes == 2)
        memcpy(to, from, 2);
    else if (bytes == 4)
        memcpy(to, from, 4);
    else
        memcpy(to, from, bytes);
}

/* One token; `row` NULL: zeros into its place. */
static void copy_token(const attune_panels *p, int64_t unit, char *panel, char *row, int64_t token, bool to_rows) {
    const int64_t element = mha_dtype_bytes(p->dtype), run = side_by_side(p, unit);
    const int64_t bytes = run * element, step = apart(p, unit) * element, end = p->columns * element;
    char *in_panel = panel + token_at(p, unit, token) * element;
    for (int64_t at = 0; at < end; at += bytes, in_panel += step) {
        if (!row)
            memset(in_panel, 0, (size_t)bytes);
        else if (to_rows)
            copy(row + at, in_panel, (size_t)bytes);
        else
            copy(in_panel, row + at, (size_t)bytes);
    }
}

static void copy_head(const attune_panels *p, int64_t head, bool to_rows) {
    const int64_t unit = mha_unit_of_dtype(p->dtype), bytes = mha_dtype_bytes(p->dtype);
    char *const rows = (char *)p->rows + head * p->row_head_stride * bytes;
    char *const panels = (char *)p->panels + head * p->panel_head_stride * bytes;
    const int64_t tokens = to_rows ? p->tokens : TOKENS * mha_panels(p->tokens);
    for (int64_t token = 0; token < tokens; token++) {
        char *const panel = panels + token / TOKENS * p->panel_stride * bytes;
        copy_token(p, unit, panel, token < p->tokens ? rows + token * p->row_stride * bytes : NULL, token % TOKENS,
                   to_rows);
    }
}

static attune_status convert(const attune_panels *given, bool to_rows) {
    at_error err = {0};
    attune_panels p;
    if (!given)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_panels_%s was given NULL", to_rows ? "to_rows" : "from_rows");
    else if (take(given, &p, &err) == ATTUNE_OK)
        for (int64_t head = 0; head < p.heads; head++) copy_head(&p, head, to_rows);
    return at_report(&err);
}

attune_status attune_panels_from_rows(const attune_panels *panels) { return convert(panels, false); }
attune_status attune_panels_to_rows(const attune_panels *panels) { return convert(panels, true); }
