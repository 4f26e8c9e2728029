/* Random functions on scores, masks and probabilities. Those on numbers are continuous, and make at most twice as much
 * of an error of the score or probability: otherwise rounding would decide what comes out. Masks compare integers,
 * which are exact. */
#include "check/check_draft.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct text {
    char *at;
    size_t capacity, length;
} text;

static void put(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(t->at + t->length, t->capacity - t->length, format, args);
    va_end(args);
    if (length > 0) t->length += (size_t)length;
    if (t->length >= t->capacity) t->length = t->capacity - 1;
}

/* ---- Tensors ---- */

static const char *const vars[] = {"b", "h", "kv_h", "q", "kv"};

static void draw_tensors(draft *d) {
    static const attune_dtype types[] = {ATTUNE_F32,  ATTUNE_F32, ATTUNE_I32, ATTUNE_I32,
                                         ATTUNE_BF16, ATTUNE_F16, ATTUNE_I8,  ATTUNE_BOOL};
    const int64_t count = draft_between(d, 0, 3);
    for (int64_t i = 0; i < count; i++) {
        attune_user_tensor *t = &d->p->tensors[i];
        snprintf(t->name, sizeof t->name, "t%d", (int)i);
        t->dtype = types[draft_between(d, 0, 7)];
        t->rank = (int32_t)draft_between(d, 1, 3);
        for (int k = 0; k < t->rank; k++)
            t->dims[k] = draft_chance(d, 70) ? ATTUNE_DIM_BATCH - draft_between(d, 0, 4) : draft_between(d, 1, 20);
    }
}

/* ---- Integers and conditions ---- */

static void put_integer(const draft *d, text *t, int depth);

static void put_element(const draft *d, text *t, int number, int depth) {
    const attune_user_tensor *user = &d->p->tensors[number];
    put(t, "%s[", user->name);
    for (int k = 0; k < user->rank; k++) {
        const bool plain = user->dims[k] < 0 && draft_chance(d, 70);
        put(t, "%s", k ? ", " : "");
        if (plain) put(t, "%s", vars[ATTUNE_DIM_BATCH - user->dims[k]]);
        if (plain) continue;
        put(t, "clamp(");
        put_integer(d, t, depth - 1);
        put(t, ")");
    }
    put(t, "]");
}

static bool is_integer(attune_dtype dtype) { return dtype == ATTUNE_I32 || dtype == ATTUNE_I8; }

/* A tensor of the kind, or -1. */
static int pick_tensor(const draft *d, bool wants_integer) {
    const int number = (int)draft_between(d, 0, 3);
    const attune_user_tensor *t = &d->p->tensors[number];
    if (!t->rank || t->dtype == ATTUNE_BOOL || is_integer(t->dtype) != wants_integer) return -1;
    return number;
}

static void put_infix(const draft *d, text *t, const char *sign, int depth) {
    put(t, "(");
    put_integer(d, t, depth - 1);
    put(t, " %s ", sign);
    put_integer(d, t, depth - 1);
    put(t, ")");
}

static void put_condition(const draft *d, text *t, int depth);

static void put_integer(const draft *d, text *t, int depth) {
    static const char *const signs[] = {"+", "-", "-", "*"};
    const int number = pick_tensor(d, true);
    if (depth <= 0 || draft_chance(d, 30)) {
        static const char *const names[] = {"q", "kv", "q", "kv", "b", "h", "kv_h", "seq_q", "seq_kv"};
        if (draft_chance(d, 75))
            put(t, "%s", names[draft_between(d, 0, 8)]);
        else
            put(t, "%d", (int)draft_between(d, -9, 40));
        return;
    }
    if (number >= 0 && draft_chance(d, 60)) {
        put_element(d, t, number, depth);
        return;
    }
    switch (draft_between(d, 0, 4)) {
    case 0: /* by a number, or by what cannot be 0 */
        put(t, "(");
        put_integer(d, t, depth - 1);
        put(t, draft_chance(d, 50) ? " // " : " %% ");
        if (draft_chance(d, 60)) {
            put(t, "%d)", (int)(draft_chance(d, 85) ? draft_between(d, 1, 19) : draft_between(d, -7, -1)));
        } else {
            put(t, "max(1, ");
            put_integer(d, t, depth - 1);
            put(t, "))");
        }
        return;
    case 1:
        put(t, draft_chance(d, 50) ? "abs(" : "-(");
        put_integer(d, t, depth - 1);
        put(t, ")");
        return;
    case 2:
        put(t, draft_chance(d, 50) ? "min(" : "max(");
        put_integer(d, t, depth - 1);
        put(t, ", ");
        put_integer(d, t, depth - 1);
        put(t, ")");
        return;
    case 3:
        put(t, "select(");
        put_condition(d, t, depth - 1);
        put(t, ", ");
        put_integer(d, t, depth - 1);
        put(t, ", ");
        put_integer(d, t, depth - 1);
        put(t, ")");
        return;
    default: put_infix(d, t, signs[draft_between(d, 0, 3)], depth); return;
    }
}

static void put_condition(const draft *d, text *t, int depth) {
    static const char *const signs[] = {"<", "<=", ">", ">=", "==", "!="}, *const joins[] = {"&", "|", "&", "^"};
    for (int i = 0; i < ATTUNE_MAX_USER_TENSORS; i++)
        if (d->p->tensors[i].dtype == ATTUNE_BOOL && draft_chance(d, 40)) {
            put_element(d, t, i, depth);
            return;
        }
    if (depth <= 1 || draft_chance(d, 50)) {
        put_infix(d, t, signs[draft_between(d, 0, draft_chance(d, 70) ? 3 : 5)], depth);
        return;
    }
    put(t, draft_chance(d, 20) ? "!(" : "(");
    put_condition(d, t, depth - 1);
    put(t, " %s ", joins[draft_between(d, 0, 3)]);
    put_condition(d, t, depth - 1);
    put(t, ")");
}

/* A mask that hides whole tiles: documents, dilations, neighbours in a picture, branches on one stem. */
static void put_blocks(const draft *d, text *t) {
    const int size = (int)draft_between(d, 1, 40), reach = (int)draft_between(d, 0, 3);
    const int from = (int)draft_between(d, 0, 60);
    switch (draft_between(d, 0, 3)) {
    case 0: put(t, "(q + %d) // %d == kv // %d", from, size, size); return;
    case 1: put(t, "(q - kv) %% %d == %d & abs(q - kv) <= %d", 1 + size / 8, reach % (1 + size / 8), from); return;
    case 2:
        put(t, "abs(q // %d - kv // %d) <= %d & abs(q %% %d - kv %% %d) <= %d", size, size, reach, size, size, reach);
        return;
    default: put(t, "kv < %d | (q >= kv & q // %d == kv // %d)", from, size, size); return;
    }
}

/* ---- Scores ---- */

/* A number that does not depend on the score. */
static void put_number(const draft *d, text *t, int depth) {
    const int number = pick_tensor(d, false);
    if (number >= 0) {
        put_element(d, t, number, depth);
    } else if (draft_chance(d, 60)) {
        put(t, "%g", 0.125 * (double)draft_between(d, -16, 16));
    } else {
        static const char *const bounded[] = {"tanh", "sigmoid"};
        put(t, "%s(0.03125 * float((", bounded[draft_between(d, 0, 1)]);
        put_integer(d, t, depth - 1);
        put(t, ") %% 64))");
    }
}

/* Writes a function of `inside` that does not enlarge its error. */
static void wrap_score(const draft *d, text *t, const char *inside) {
    const int cap = (int)draft_between(d, 1, 40);
    switch (draft_between(d, 0, 8)) {
    case 0: put(t, "%d * tanh(%s / %d)", cap, inside, cap); return;
    case 1: put(t, "max(%d, %s)", -cap, inside); return;
    case 2: put(t, "min(%s, %d)", inside, cap); return;
    case 3: put(t, "abs(%s)", inside); return;
    case 4: put(t, "-(%s)", inside); return;
    case 5: put(t, "sqrt(1 + (%s) * (%s)) ", inside, inside); return;
    case 6: put(t, "0.5 * (%s) * sigmoid(%s)", inside, inside); return;
    case 7:
        put(t, "select(");
        put_condition(d, t, 2);
        put(t, ", %s, 0.5 * (%s))", inside, inside);
        return;
    default:
        put(t, "%s + ", inside);
        put_number(d, t, 2);
        return;
    }
}

static void draw_score(draft *d) {
    char now[ATTUNE_FUNCTION_BYTES] = "score", next[ATTUNE_FUNCTION_BYTES];
    const int64_t steps = draft_between(d, 1, 3);
    for (int64_t i = 0; i < steps && strlen(now) < 200; i++) {
        text t = {next, sizeof next, 0};
        wrap_score(d, &t, now);
        if (i + 1 < steps)
            snprintf(now, sizeof now, "(%.900s)", next);
        else
            memcpy(now, next, sizeof now);
    }
    memcpy(d->p->score_mod, now, strlen(now) + 1);
}

/* ---- Probabilities ---- */

static void draw_prob(draft *d) {
    text t = {d->p->prob_mod, ATTUNE_FUNCTION_BYTES, 0};
    const double factor = 0.25 * (double)draft_between(d, -8, 8);
    switch (draft_between(d, 0, 5)) {
    case 0: put(&t, "prob * %g", factor); return;
    case 1: put(&t, "min(prob, %g)", 0.125 * (double)draft_between(d, 1, 7)); return;
    case 2: put(&t, "2 * max(0, prob - %g)", 0.03125 * (double)draft_between(d, 0, 9)); return;
    case 3: put(&t, "prob * prob - prob"); return;
    case 4:
        put(&t, "select(");
        put_condition(d, &t, 2);
        put(&t, ", prob, %g * prob)", factor);
        return;
    default:
        put(&t, "prob + 0.03125 * ");
        put_number(d, &t, 2);
        return;
    }
}

/* ---- All ---- */

static bool is_named(const attune_problem *p, const char *name) {
    return strstr(p->mask_mod, name) || strstr(p->score_mod, name) || strstr(p->prob_mod, name);
}

/* Every tensor must be used: the mask reads one that no other function happens to name. */
static void use_tensors(draft *d) {
    text t = {d->p->mask_mod, ATTUNE_FUNCTION_BYTES, strlen(d->p->mask_mod)};
    for (int i = 0; i < ATTUNE_MAX_USER_TENSORS; i++) {
        const attune_user_tensor *user = &d->p->tensors[i];
        if (!user->rank || is_named(d->p, user->name)) continue;
        put(&t, "%s(", t.length ? " | " : "");
        put_element(d, &t, i, 1);
        put(&t, "%s)", user->dtype == ATTUNE_BOOL ? "" : is_integer(user->dtype) ? " >= 1" : " > -0.5");
    }
}

void draft_functions(draft *d) {
    attune_problem *const p = d->p;
    draw_tensors(d);
    if (draft_chance(d, 60)) draw_score(d);
    if (draft_chance(d, 60)) {
        text t = {d->p->mask_mod, ATTUNE_FUNCTION_BYTES, 0};
        if (draft_chance(d, 30))
            put_blocks(d, &t);
        else
            put_condition(d, &t, (int)draft_between(d, 1, 3));
    }
    if (p->op != ATTUNE_WEIGHTS && draft_chance(d, 20)) draw_prob(d);
    use_tensors(d);
    if (d->has_functions && !p->score_mod[0] && !p->mask_mod[0] && !p->prob_mod[0]) draw_score(d);
}
