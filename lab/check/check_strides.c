/* Random strides: every order of the axes, with gaps or without. */
#include "check/check_draft.h"
#include "ref_codes.h"

#include <string.h>

/* Strides of dims in a random order of the inner axes, with gaps or without. */
static void draw_strides(tool_random *random, const attune_tensor *t, int64_t *strides) {
    static const int8_t orders[][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {1, 0, 2, 3}, {2, 0, 1, 3}};
    const int8_t *const order = orders[tool_random_range(random, 0, 3)];
    const bool has_gaps = tool_random_chance(random, 50);
    int64_t next = tool_random_chance(random, 15) ? tool_random_range(random, 2, 3) : 1;
    for (int at = 3; at >= 0; at--) {
        const int axis = order[at];
        if (axis >= t->rank) continue;
        strides[axis] = next;
        next *= t->dims[axis] > 1 ? t->dims[axis] : 1;
        if (has_gaps) next += tool_random_range(random, 0, 9);
    }
    /* One head or one sequence of an input may serve all. */
    if (!t->is_output && tool_random_chance(random, 10)) strides[tool_random_range(random, 0, 1)] = 0;
}

/* Whether a key has a row of scales: by group, or one scale with a minimum. */
static bool has_rows_of_scales(attune_scales scales) {
    return scales == ATTUNE_SCALES_GROUP || scales == ATTUNE_SCALES_GROUP_MIN || scales == ATTUNE_SCALES_TOKEN_MIN;
}

static int64_t *strides_of(attune_problem *p, const char *name) {
    const struct {
        const char *name;
        int64_t *strides;
    } all[] = {
        {"q", p->q_strides},
        {"k", p->k_strides},
        {"v", p->v_strides},
        {"out", p->out_strides},
        {"lse", p->lse_strides},
        {"attn_mask", p->attn_mask_strides},
        {"attn_bias", p->attn_bias_strides},
        {"k_new", p->k_new_strides},
        {"v_new", p->v_new_strides},
        {"weights", p->weights_strides},
        {"x", p->x_strides},
        {"x_kv", p->x_kv_strides},
        {"x_v", p->x_v_strides},
        {"k_scale", p->k_scale_strides},
        {"v_scale", p->v_scale_strides},
    };
    const bool is_k = !strcmp(name, "k_scale");
    if (is_k && has_rows_of_scales(p->k_scales)) return p->k_group_strides;
    if (!strcmp(name, "v_scale") && has_rows_of_scales(p->v_scales)) return p->v_group_strides;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, name) == 0) return all[i].strides;
    return NULL;
}

/* A cache whose rows are bytes, or which is in panels: its innermost stride is 1. */
static bool is_packed(const attune_problem *p, const char *name) {
    const bool is_k = !strcmp(name, "k");
    if (!is_k && strcmp(name, "v")) return false;
    const ref_format f = ref_format_of(p, is_k);
    return f.is_packed || f.unit;
}

bool check_draw_strides(tool_random *random, attune_problem *p, const call_sizes *sizes) {
    attune_tensor list[REF_MAX_TENSORS];
    attune_arguments arguments = {.struct_size = sizeof arguments};
    size_t count = 0;
    if (attune_arguments_init(&arguments, p) != ATTUNE_OK) return false;
    sizes_apply(sizes, &arguments);
    if (attune_tensors(p, &arguments, list, REF_MAX_TENSORS, &count) != ATTUNE_OK) return false;
    if (tool_random_chance(random, 50)) return true;
    for (size_t i = 0; i < count; i++) {
        int64_t *const strides = strides_of(p, list[i].name);
        if (!strides || list[i].rank < 2 || !tool_random_chance(random, 60)) continue;
        draw_strides(random, &list[i], strides);
        if (strides[list[i].rank - 1] != 1 && is_packed(p, list[i].name)) memset(strides, 0, 4 * sizeof *strides);
    }
    return true;
}
