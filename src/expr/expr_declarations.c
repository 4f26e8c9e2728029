/* Declarations of the tensors that functions read: "slope:f32[h], doc:i32[b, q]". */
#include "expr/expr.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    attune_dtype dtype;
} types[] = {{"f32", ATTUNE_F32}, {"f16", ATTUNE_F16}, {"bf16", ATTUNE_BF16}, {"f64", ATTUNE_F64},
             {"i32", ATTUNE_I32}, {"i8", ATTUNE_I8},   {"bool", ATTUNE_BOOL}};
enum { NUM_TYPES = sizeof types / sizeof *types };

static const int64_t MOST = INT32_MAX;

const char *ex_dtype_name(attune_dtype dtype) {
    for (int i = 0; i < NUM_TYPES; i++)
        if (types[i].dtype == dtype) return types[i].name;
    return NULL;
}

int ex_count_tensors(const attune_user_tensor tensors[ATTUNE_MAX_USER_TENSORS]) {
    int count = 0;
    while (count < ATTUNE_MAX_USER_TENSORS && tensors[count].name[0]) count++;
    return count;
}

/* ---- Text ---- */

typedef struct reader {
    const char *text, *at, *end;
    at_error *err;
} reader;

static attune_status fail_at(const reader *r, const char *at, const char *wanted) {
    const int left = (int)(r->end - at), shown = left > 40 ? 40 : left, column = (int)(at - r->text) + 1;
    if (!left)
        return at_fail(r->err, ATTUNE_INVALID_PROBLEM, "tensors, column %d: the text ends where %s is expected", column,
                       wanted);
    return at_fail(r->err, ATTUNE_INVALID_PROBLEM, "tensors, column %d: '%.*s' stands where %s is expected", column,
                   shown, at, wanted);
}

static void skip_blanks(reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r')) r->at++;
}

static bool take(reader *r, char c) {
    skip_blanks(r);
    if (r->at == r->end || *r->at != c) return false;
    r->at++;
    skip_blanks(r);
    return true;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/* The length of the next word. */
static size_t word_at(const reader *r) {
    const char *at = r->at;
    while (at < r->end && (is_letter(*at) || is_digit(*at))) at++;
    return (size_t)(at - r->at);
}

static bool is_word(const reader *r, size_t length, const char *word) {
    return length == strlen(word) && !memcmp(r->at, word, length);
}

static attune_status take_name(reader *r, attune_user_tensor *t) {
    const size_t length = word_at(r);
    if (!length || is_digit(*r->at)) return fail_at(r, r->at, "the name of a tensor");
    if (length >= sizeof t->name)
        return at_fail(r->err, ATTUNE_INVALID_PROBLEM,
                       "tensors, column %d: a name of %zu characters is too long; %zu fit", (int)(r->at - r->text) + 1,
                       length, sizeof t->name - 1);
    memcpy(t->name, r->at, length);
    r->at += length;
    return take(r, ':') ? ATTUNE_OK : fail_at(r, r->at, "':' and a type");
}

static attune_status take_type(reader *r, attune_user_tensor *t) {
    const size_t length = word_at(r);
    for (int i = 0; i < NUM_TYPES; i++)
        if (is_word(r, length, types[i].name)) t->dtype = types[i].dtype;
    if (!t->dtype) return fail_at(r, r->at, "one of the types f32, f16, bf16, f64, i32, i8 and bool");
    r->at += length;
    return take(r, '[') ? ATTUNE_OK : fail_at(r, r->at, "'[' and the dims");
}

static bool number_of(const reader *r, size_t length, int64_t *value) {
    *value = 0;
    for (size_t i = 0; i < length; i++) {
        if (!is_digit(r->at[i]) || *value > MOST) return false;
        *value = *value * 10 + (r->at[i] - '0');
    }
    return length > 0 && *value > 0 && *value <= MOST;
}

static attune_status take_dim(reader *r, int64_t *dim) {
    const size_t length = word_at(r);
    *dim = 0;
    for (int64_t code = ATTUNE_DIM_SEQ_KV; code <= ATTUNE_DIM_BATCH; code++)
        if (is_word(r, length, ex_var_name(ex_dim_var(code)))) *dim = code;
    if (!*dim && !number_of(r, length, dim))
        return fail_at(r, r->at, "a dim, which is b, h, kv_h, q, kv or a number from 1 to 2147483647,");
    r->at += length;
    skip_blanks(r);
    return ATTUNE_OK;
}

static attune_status take_tensor(reader *r, attune_user_tensor *t) {
    attune_status status = take_name(r, t);
    if (!status) status = take_type(r, t);
    while (!status) {
        if (t->rank == EX_MAX_RANK) return fail_at(r, r->at, "']', as four dims are the most,");
        status = take_dim(r, &t->dims[t->rank]);
        if (status) return status;
        t->rank++;
        if (take(r, ']')) return ATTUNE_OK;
        if (!take(r, ',')) return fail_at(r, r->at, "',' or ']'");
    }
    return status;
}

attune_status ex_parse_tensors(const char *text, size_t length, attune_user_tensor tensors[ATTUNE_MAX_USER_TENSORS],
                               at_error *err) {
    reader r = {text, text, text + length, err};
    memset(tensors, 0, ATTUNE_MAX_USER_TENSORS * sizeof *tensors);
    skip_blanks(&r);
    for (int i = 0; i < ATTUNE_MAX_USER_TENSORS; i++) {
        const attune_status status = take_tensor(&r, &tensors[i]);
        if (status) return status;
        if (r.at == r.end) return ATTUNE_OK;
        if (!take(&r, ',')) return fail_at(&r, r.at, "',' or the end");
    }
    return fail_at(&r, r.at, "the end, as eight tensors are the most,");
}

static size_t print_one(const attune_user_tensor *t, char *text, size_t capacity) {
    char dims[128] = "";
    size_t n = 0;
    for (int d = 0; d < t->rank && d < EX_MAX_RANK; d++) {
        const char *const before = d ? ", " : "";
        if (t->dims[d] <= ATTUNE_DIM_BATCH && t->dims[d] >= ATTUNE_DIM_SEQ_KV)
            n += (size_t)snprintf(dims + n, sizeof dims - n, "%s%s", before, ex_var_name(ex_dim_var(t->dims[d])));
        else
            n += (size_t)snprintf(dims + n, sizeof dims - n, "%s%lld", before, (long long)t->dims[d]);
    }
    /* Problems may be printed before they are checked. */
    const char *const dtype = ex_dtype_name(t->dtype);
    return (size_t)snprintf(text, capacity, "%.*s:%s[%s]", (int)sizeof t->name - 1, t->name, dtype ? dtype : "?", dims);
}

size_t ex_print_tensors(const attune_user_tensor tensors[ATTUNE_MAX_USER_TENSORS], char *text, size_t capacity) {
    const int count = ex_count_tensors(tensors);
    size_t n = 0;
    if (capacity) *text = '\0';
    for (int i = 0; i < count; i++) {
        char one[256];
        const size_t length = print_one(&tensors[i], one, sizeof one);
        const size_t room = n < capacity ? capacity - n : 0;
        snprintf(room ? text + n : NULL, room, "%s%s", i ? ", " : "", one);
        n += length + (i ? 2 : 0);
    }
    return n;
}

/* ---- Checks ---- */

static attune_status refuse(at_error *err, const attune_user_tensor *t, const char *what, int64_t value,
                            const char *wanted) {
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s of tensor '%s' is %lld; it must be %s", what, t->name,
                   (long long)value, wanted);
}

/* Words of the language, which are no names for tensors. */
static bool is_taken(const char *name) {
    for (int i = 0; i < EX_NUM_VARS; i++)
        if (!strcmp(name, ex_var_name((ex_var)i))) return true;
    for (int i = 0; i < EX_OP_COUNT; i++)
        if (ex_op_get((ex_op)i)->level == EX_CALL && !strcmp(name, ex_op_get((ex_op)i)->text)) return true;
    return !strcmp(name, "clamp") || !strcmp(name, "inf") || !strcmp(name, "true") || !strcmp(name, "false");
}

static attune_status check_name(const attune_user_tensor *tensors, int number, at_error *err) {
    const attune_user_tensor *t = &tensors[number];
    bool is_word = is_letter(t->name[0]);
    size_t length = 0;
    while (length < sizeof t->name && t->name[length]) length++;
    for (size_t i = 0; i < length; i++) is_word = is_word && (is_letter(t->name[i]) || is_digit(t->name[i]));
    if (length == sizeof t->name || !is_word)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "'%.31s' is no name of a tensor: a letter, then letters, digits and '_', at most %zu", t->name,
                       sizeof t->name - 1);
    for (size_t i = length; i < sizeof t->name; i++)
        if (t->name[i])
            return at_fail(err, ATTUNE_INVALID_PROBLEM, "the name of tensor '%s' goes on after its NUL", t->name);
    if (is_taken(t->name))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "a tensor cannot be named '%s': that is a word of the functions",
                       t->name);
    for (int i = 0; i < number; i++)
        if (!strcmp(tensors[i].name, t->name))
            return at_fail(err, ATTUNE_INVALID_PROBLEM, "tensor '%s' is declared twice", t->name);
    return ATTUNE_OK;
}

static attune_status check_shape(const attune_user_tensor *t, at_error *err) {
    if (!ex_dtype_name(t->dtype)) return refuse(err, t, "the dtype", t->dtype, "f32, f16, bf16, f64, i32, i8 or bool");
    if (t->rank < 1 || t->rank > EX_MAX_RANK) return refuse(err, t, "the rank", t->rank, "from 1 to 4");
    for (int d = 0; d < t->rank; d++)
        if (t->dims[d] < ATTUNE_DIM_SEQ_KV || t->dims[d] > MOST || t->dims[d] == 0 || t->dims[d] == -1)
            return refuse(err, t, "a dim", t->dims[d], "b, h, kv_h, q, kv or from 1 to 2147483647");
    for (int d = t->rank; d < EX_MAX_RANK; d++)
        if (t->dims[d]) return refuse(err, t, "a dim beyond the rank", t->dims[d], "0");
    return ATTUNE_OK;
}

attune_status ex_check_tensors(const attune_user_tensor tensors[ATTUNE_MAX_USER_TENSORS], at_error *err) {
    static const attune_user_tensor none;
    const int count = ex_count_tensors(tensors);
    for (int i = 0; i < count; i++) {
        attune_status status = check_name(tensors, i, err);
        if (!status) status = check_shape(&tensors[i], err);
        if (status) return status;
    }
    for (int i = count; i < ATTUNE_MAX_USER_TENSORS; i++)
        if (memcmp(&tensors[i], &none, sizeof none))
            return at_fail(err, ATTUNE_INVALID_PROBLEM, "tensors[%d] is set, but tensors[%d] has no name", i, count);
    return ATTUNE_OK;
}
