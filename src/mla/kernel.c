/* The kernels around MLA attention: phases of products (nest/gemm.h) whose rows are tokens.
 *
 * A product for each head is a single product whose column groups belong to one head each; the left factor of a group
 * is that of its head. So the parallel loop over groups, which every product has, is the batch over heads:
 *
 *     columns of C     | head 0: group 0, 1 | head 1: group 2, 3 | …         A of a group: [rows, columns of its head]
 */
#include "mla/kernel.h"

#include "attend/around/around.h"
#include "base/integers.h"
#include "described/described.h"
#include "ir/text.h"
#include "layer/block.h"
#include "schedule/choose.h"
#include "schedule/schedule.h"

#include <stdio.h>
#include <string.h>

/* ---- The problem ---- */

const int64_t mla_rows[MLA_NUM_SIZES] = {1, 4, 16, 512};

int64_t mla_heads_at_once(const attune_mla_desc *d) {
    enum { MOST = 16 };
    int64_t heads = min_of(d->num_heads, MOST);
    while (d->num_heads % heads) heads--;
    return heads;
}

static bool read_problem(const char *text, mla_kernel *k) {
    uint32_t which;
    if (!at_described_read(&mla_described, text, &k->desc, &which)) return false;
    k->kind = mla_kind_of(which), k->rows = mla_rows[which % MLA_NUM_SIZES], k->heads = mla_heads_at_once(&k->desc);
    return true;
}

void mla_section_of(const attune_mla_desc *d, mla_matrix which, mha_packed_section *s, int64_t *end) {
    const int64_t head = d->qk_nope_head_dim + d->qk_rope_head_dim, rank = d->kv_lora_rank;
    const int64_t q_depth = d->q_lora_rank ? d->q_lora_rank : d->embed_dim;
    switch (which) {
    case MLA_Q_LOW: mha_packed_place(s, d->dtype, d->embed_dim, d->q_lora_rank, 1, end); break;
    case MLA_Q: mha_packed_place(s, d->dtype, q_depth, d->num_heads, head, end); break;
    case MLA_KV_LOW: mha_packed_place(s, d->dtype, d->embed_dim, mla_width(d), 1, end); break;
    case MLA_UK: mha_packed_place(s, d->dtype, d->qk_nope_head_dim, rank, 1, end); break;
    case MLA_UK_BACK: mha_packed_place(s, d->dtype, rank, d->qk_nope_head_dim, 1, end); break;
    case MLA_UV: mha_packed_place(s, d->dtype, rank, d->v_head_dim, 1, end); break;
    default: mha_packed_place(s, d->dtype, d->num_heads * d->v_head_dim, d->out_dim, 1, end); break;
    }
}

/* ---- State of the builder ---- */

typedef struct writer {
    mha_context c;
    attune_problem p; /* the problem of c, which functions on rows read */
    mha_schedule s;
    const mla_kernel *k;
    const attune_mla_desc *d;
    const ir_expr *rows;
    const ir_buffer *places; /* [rows, 3]: page, row of the page, position */
    const ir_buffer *cache;  /* [pages, rows of a page, width] */
    const ir_expr *positions;
} writer;

typedef struct product product;
typedef void store_fn(writer *w, const product *p, const mha_gemm *g, const ir_expr *row, const mha_row *from);

struct product {
    writer *w;
    const char *name;
    mha_packed_section s; /* of all, or of each head */
    const ir_buffer *weights;
    const ir_buffer *left; /* [rows, depth], [rows, heads, depth …], or the cache */
    const ir_buffer *norm; /* norm of the rows; NULL: rows are not normalised */
    const ir_buffer *target;
    int64_t heads; /* 0: no product of heads */
    store_fn *store;
};

static ir_elem elem_of(const attune_mla_desc *d) {
    return d->dtype == ATTUNE_F16 ? IR_F16 : d->dtype == ATTUNE_BF16 ? IR_BF16 : IR_F32;
}

/* ---- Parameters ---- */

static const ir_expr *size_param(writer *w, const char *name, int64_t least) {
    const ir_expr *size = ir_param_scalar(w->c.b, name, IR_IDX);
    ir_kernel_assume(w->c.b, ir_ge(w->c.b, size, ir_idx(w->c.b, least)));
    return size;
}

static const ir_buffer *weights_param(writer *w, const char *name, mla_matrix which) {
    ir_builder *b = w->c.b;
    mha_packed_section s;
    int64_t end = 0;
    mla_section_of(w->d, which, &s, &end);
    const int64_t heads = !mla_is_of_heads(which) ? 1 : w->k->kind == MLA_EXPAND ? w->k->heads : w->d->num_heads;
    const ir_expr *const dims[] = {ir_idx(b, heads * end)};
    return ir_param_buffer(b, name, elem_of(w->d), 1, dims, NULL, IR_IN);
}

static const ir_buffer *vector_param(writer *w, const char *name, int64_t columns) {
    const ir_expr *const dims[] = {ir_idx(w->c.b, columns)};
    return ir_param_buffer(w->c.b, name, IR_F32, 1, dims, NULL, IR_IN);
}

/* A tensor [rows, columns] with its own stride. */
static const ir_buffer *rows_param(writer *w, const char *name, int64_t columns, int access) {
    ir_builder *b = w->c.b;
    char stride[32];
    snprintf(stride, sizeof stride, "%s_stride", name);
    const ir_expr *const dims[] = {w->rows, ir_idx(b, columns)};
    const ir_expr *const strides[] = {ir_param_scalar(b, stride, IR_IDX), ir_idx(b, 1)};
    return ir_param_buffer(b, name, elem_of(w->d), 2, dims, strides, access);
}

/* A contiguous tensor [rows, heads, columns]. */
static const ir_buffer *heads_param(writer *w, const char *name, int64_t heads, int64_t columns, int access) {
    const ir_expr *const dims[] = {w->rows, ir_idx(w->c.b, heads), ir_idx(w->c.b, columns)};
    return ir_param_buffer(w->c.b, name, elem_of(w->d), 3, dims, NULL, access);
}

static void place_params(writer *w, int access) {
    ir_builder *b = w->c.b;
    const ir_expr *const places[] = {w->rows, ir_idx(b, 3)};
    w->places = ir_param_buffer(b, "places", IR_I32, 2, places, NULL, IR_IN);
    const ir_expr *pages = size_param(w, "pages", 1), *page_rows = size_param(w, "page_rows", 1);
    const ir_expr *const dims[] = {pages, page_rows, ir_idx(b, mla_width(w->d))};
    const ir_expr *page = ir_param_scalar(b, "page_stride", IR_IDX), *row = ir_param_scalar(b, "row_stride", IR_IDX);
    const ir_expr *const strides[] = {page, row, ir_idx(b, 1)};
    w->cache = ir_param_buffer(b, "cache", elem_of(w->d), 3, dims, strides, access);
}

static void rotary_params(writer *w) {
    ir_builder *b = w->c.b;
    w->positions = size_param(w, "positions", 1);
    const ir_expr *const dims[] = {ir_idx(b, 1), w->positions, ir_idx(b, w->d->qk_rope_head_dim / 2)};
    w->c.params.tensor[MHA_COS] = ir_param_buffer(b, "cos", IR_F32, 3, dims, NULL, IR_IN);
    w->c.params.tensor[MHA_SIN] = ir_param_buffer(b, "sin", IR_F32, 3, dims, NULL, IR_IN);
}

/* ---- Rows ---- */

static const ir_expr *place(writer *w, const char *name, const ir_expr *row, int which, const ir_expr *size) {
    ir_builder *b = w->c.b;
    const ir_expr *number = ir_load(b, ir_at(b, w->places, 1, 2, row, ir_idx(b, which)));
    return ir_let_index(b, name, size, ir_cast(b, IR_IDX, number));
}

static mha_row cache_row(writer *w, const ir_expr *row) {
    const ir_expr *page = place(w, "page", row, 0, w->cache->dims[0]);
    return (mha_row){w->cache, {page, place(w, "slot", row, 1, w->cache->dims[1])}, NULL};
}

static const ir_expr *position_of(writer *w, const ir_expr *row) { return place(w, "position", row, 2, w->positions); }

static void normalise(writer *w, const ir_buffer *norm, int64_t columns, const mha_row *from, const mha_row *to) {
    w->p.head_dim = columns;
    w->c.params.tensor[MHA_K_NORM] = norm;
    mha_prepare_row(&w->c, MHA_K_NORM, NULL, NULL, from, to);
}

static void rotate(writer *w, const ir_expr *position, const mha_row *from, const mha_row *to) {
    w->p.head_dim = w->p.rotary_dim = w->d->qk_rope_head_dim;
    mha_prepare_row(&w->c, MHA_Q_NORM, ir_idx(w->c.b, 0), position, from, to);
}

/* ---- Products ---- */

static int64_t groups_of_head(const product *p) { return p->s.num_groups; }

static const ir_expr *head_of(const product *p, const mha_gemm *g) {
    ir_builder *b = p->w->c.b;
    return ir_let_index(b, "head", ir_idx(b, p->heads), ir_div(b, g->column_group, ir_idx(b, groups_of_head(p))));
}

/* The number of the group among those of its head, or among all. */
static const ir_expr *group_of(const product *p, const mha_gemm *g) {
    ir_builder *b = p->w->c.b;
    if (!p->heads) return g->column_group;
    const ir_expr *groups = ir_idx(b, groups_of_head(p));
    return ir_let_index(b, "group", groups, ir_mod(b, g->column_group, groups));
}

static void load_left(mha_context *c, const mha_gemm *g, const ir_expr *row, const mha_row *to) {
    const product *p = g->user;
    writer *w = p->w;
    mha_row from = {p->left, {row, NULL}, NULL};
    if (p->left == w->cache)
        from = cache_row(w, row);
    else if (p->left->num_dims == 3)
        from.index[1] = head_of(p, g);
    if (p->norm)
        normalise(w, p->norm, g->depth, &from, to);
    else
        mha_copy_row(c, &from, to, 0, g->depth);
}

static mha_token locate_left(mha_context *c, const mha_gemm *g, const ir_expr *row) {
    (void)g;
    return (mha_token){ir_idx(c->b, 0), row};
}

static const ir_access *left_at(mha_context *c, const mha_gemm *g, const mha_token *t, const ir_expr *k) {
    return ir_at(c->b, ((const product *)g->user)->left, 1, 2, t->token, k);
}

static void store_row(mha_context *c, const mha_gemm *g, const ir_expr *row, const mha_row *from) {
    const product *p = g->user;
    (void)c;
    p->store(p->w, p, g, row, from);
}

/* Stores the columns of a group in a row; the last group may have fewer. */
static void store_group(const product *p, const mha_gemm *g, const mha_row *from, mha_row to) {
    mha_context *c = &p->w->c;
    ir_builder *b = c->b;
    const int64_t whole = p->s.group_columns, rest = p->s.columns % whole;
    const ir_expr *group = group_of(p, g);
    to.first = ir_times(b, group, whole);
    IR_GUARD(b, rest, ir_lt(b, group, ir_idx(b, p->s.num_groups - 1))) mha_copy_row(c, from, &to, 0, whole);
    if (!rest) return;
    to.first = ir_idx(b, p->s.columns - rest);
    IR_ELSE(b) mha_copy_row(c, from, &to, 0, rest);
}

static void store_rows(writer *w, const product *p, const mha_gemm *g, const ir_expr *row, const mha_row *from) {
    (void)w;
    store_group(p, g, from, (mha_row){p->target, {row}, NULL});
}

static void store_head(writer *w, const product *p, const mha_gemm *g, const ir_expr *row, const mha_row *from) {
    (void)w;
    store_group(p, g, from, (mha_row){p->target, {row, head_of(p, g)}, NULL});
}

/* The same, and after the last columns of a head its rotated part, copied from a row. */
static void store_beside(const product *p, const mha_gemm *g, const ir_expr *row, const mha_row *from,
                         const mha_row *rotated) {
    writer *w = p->w;
    ir_builder *b = w->c.b;
    const ir_expr *head = head_of(p, g);
    store_group(p, g, from, (mha_row){p->target, {row, head}, NULL});
    IR_GUARD(b, p->s.num_groups > 1, ir_eq(b, group_of(p, g), ir_idx(b, 0))) {
        const mha_row to = {p->target, {row, head}, ir_idx(b, p->s.columns)};
        mha_copy_row(&w->c, rotated, &to, 0, w->d->qk_rope_head_dim);
    }
}

static void store_absorbed(writer *w, const product *p, const mha_gemm *g, const ir_expr *row, const mha_row *from) {
    const mha_row q = {p->left, {row, head_of(p, g)}, ir_idx(w->c.b, w->d->qk_nope_head_dim)};
    store_beside(p, g, row, from, &q);
}

static void store_keys(writer *w, const product *p, const mha_gemm *g, const ir_expr *row, const mha_row *from) {
    mha_row rotated = cache_row(w, row);
    rotated.first = ir_idx(w->c.b, w->d->kv_lora_rank);
    store_beside(p, g, row, from, &rotated);
}

/* Stores the queries of a group's heads. */
static void store_queries(writer *w, const product *p, const mha_gemm *g, const ir_expr *row, const mha_row *from) {
    ir_builder *b = w->c.b;
    const int64_t nope = w->d->qk_nope_head_dim, heads = w->d->num_heads;
    const ir_expr *first = ir_times(b, g->column_group, p->s.heads), *count = ir_idx(b, p->s.heads);
    const ir_expr *position = position_of(w, row);
    if (heads % p->s.heads) count = ir_min(b, count, ir_sub(b, ir_idx(b, heads), first));
    IR_FOR(b, n, ir_idx(b, 0), count, 1) {
        const ir_expr *head = ir_let_index(b, "head", ir_idx(b, heads), ir_add(b, first, n));
        mha_row to = {p->target, {row, head}, NULL};
        mha_row of = {from->buffer, {from->index[0]}, ir_times(b, n, nope + w->d->qk_rope_head_dim)};
        mha_copy_row(&w->c, &of, &to, 0, nope);
        of.first = ir_plus(b, of.first, nope);
        to.first = ir_idx(b, nope);
        rotate(w, position, &of, &to);
    }
}

/* Writes the phase of a product with matrix `which`. */
static void multiply(product *p, mla_matrix which) {
    mha_context *c = &p->w->c;
    int64_t end = 0;
    mla_section_of(p->w->d, which, &p->s, &end);
    mha_narrow_groups(c, &p->s);
    c->params.tensor[MHA_PACKED_WEIGHTS] = p->weights;
    const bool is_prefetched = p->left->num_dims == 2;
    mha_gemm g = {.name = p->name,
                  .rows = p->w->rows,
                  .depth = p->s.depth,
                  .inputs = mha_inputs_of_step(&p->s),
                  .num_groups = p->s.num_groups * (p->heads ? p->heads : 1),
                  .group_columns = p->s.panels * MHA_PANEL,
                  .user = p,
                  .packed = &p->s,
                  .load_row = load_left,
                  .locate = is_prefetched ? locate_left : NULL,
                  .left = is_prefetched ? left_at : NULL,
                  .start = mha_packed_bias,
                  .right = mha_packed_weight,
                  .store_row = store_row};
    mha_gemm_phase(c, &g);
}

/* ---- The kernels ---- */

/* Stores rows of the cache: normalised latents, and the rotated part. */
static void append(writer *w, const ir_buffer *kv_low, const ir_buffer *kv_norm) {
    ir_builder *b = w->c.b;
    const int64_t rank = w->d->kv_lora_rank;
    IR_PHASE(b) {
        const ir_expr *task = ir_parallel(b, "task", mha_row_tasks(&w->c, w->rows));
        MHA_ROWS(&w->c, row, task, w->rows) {
            mha_row from = {kv_low, {row}, NULL}, to = cache_row(w, row);
            normalise(w, kv_norm, rank, &from, &to);
            from.first = to.first = ir_idx(b, rank);
            rotate(w, position_of(w, row), &from, &to);
        }
    }
}

static const ir_buffer *share(writer *w, const char *name, int64_t columns) {
    const ir_expr *const dims[] = {w->rows, ir_idx(w->c.b, columns)};
    return ir_shared(w->c.b, name, IR_F32, 2, dims);
}

static void build_project(writer *w) {
    const attune_mla_desc *d = w->d;
    const bool has_low = d->q_lora_rank > 0;
    const ir_buffer *x = rows_param(w, "x", d->embed_dim, IR_IN);
    const ir_buffer *w_low = has_low ? weights_param(w, "q_a_weights", MLA_Q_LOW) : NULL;
    const ir_buffer *w_q = weights_param(w, "q_weights", MLA_Q), *w_kv = weights_param(w, "kv_weights", MLA_KV_LOW);
    const ir_buffer *q_norm = has_low ? vector_param(w, "q_norm", d->q_lora_rank) : NULL;
    const ir_buffer *kv_norm = vector_param(w, "kv_norm", d->kv_lora_rank);
    rotary_params(w);
    place_params(w, IR_IN | IR_OUT);
    const ir_buffer *q = heads_param(w, "q", d->num_heads, d->qk_nope_head_dim + d->qk_rope_head_dim, IR_OUT);
    const ir_buffer *q_low = has_low ? share(w, "q_low", d->q_lora_rank) : NULL;
    const ir_buffer *kv_low = share(w, "kv_low", mla_width(d));
    product low = {w, "x", .weights = w_low, .left = x, .target = q_low, .store = store_rows};
    product kv = {w, "x_kv", .weights = w_kv, .left = x, .target = kv_low, .store = store_rows};
    if (has_low) multiply(&low, MLA_Q_LOW);
    multiply(&kv, MLA_KV_LOW);
    append(w, kv_low, kv_norm);
    product queries = {w, "low", .weights = w_q, .left = x, .target = q, .store = store_queries};
    if (has_low) queries.left = q_low, queries.norm = q_norm;
    multiply(&queries, MLA_Q);
}

static void build_absorb(writer *w) {
    const attune_mla_desc *d = w->d;
    const ir_buffer *weights = weights_param(w, "uk_weights", MLA_UK);
    const ir_buffer *q = heads_param(w, "q", d->num_heads, d->qk_nope_head_dim + d->qk_rope_head_dim, IR_IN);
    const ir_buffer *to = heads_param(w, "absorbed", d->num_heads, mla_width(d), IR_OUT);
    product p = {w, "q_nope", .weights = weights, .left = q, .target = to, .heads = d->num_heads};
    p.store = store_absorbed;
    multiply(&p, MLA_UK);
}

static void build_values(writer *w) {
    const attune_mla_desc *d = w->d;
    const ir_buffer *weights = weights_param(w, "uv_weights", MLA_UV);
    const ir_buffer *latent = heads_param(w, "latent", d->num_heads, d->kv_lora_rank, IR_IN);
    const ir_buffer *to = heads_param(w, "heads", d->num_heads, d->v_head_dim, IR_OUT);
    product p = {w, "latents", .weights = weights, .left = latent, .target = to, .heads = d->num_heads};
    p.store = store_head;
    multiply(&p, MLA_UV);
}

static void build_expand(writer *w) {
    const attune_mla_desc *d = w->d;
    const int64_t heads = w->k->heads;
    const ir_buffer *w_k = weights_param(w, "uk_weights", MLA_UK_BACK), *w_v = weights_param(w, "uv_weights", MLA_UV);
    place_params(w, IR_IN);
    const ir_buffer *k = heads_param(w, "keys", heads, d->qk_nope_head_dim + d->qk_rope_head_dim, IR_OUT);
    const ir_buffer *v = heads_param(w, "values", heads, d->v_head_dim, IR_OUT);
    product keys = {w, "rows", .weights = w_k, .left = w->cache, .target = k, .heads = heads, .store = store_keys};
    multiply(&keys, MLA_UK_BACK);
    product values = {w, "rows", .weights = w_v, .left = w->cache, .target = v, .heads = heads, .store = store_head};
    multiply(&values, MLA_UV);
}

static void build_out(writer *w) {
    const attune_mla_desc *d = w->d;
    const ir_buffer *weights = weights_param(w, "out_weights", MLA_O);
    const ir_buffer *heads = rows_param(w, "heads", d->num_heads * d->v_head_dim, IR_IN);
    const ir_buffer *out = rows_param(w, "o", d->out_dim, IR_OUT);
    multiply(&(product){w, "heads_row", .weights = weights, .left = heads, .target = out, .store = store_rows}, MLA_O);
}

static void build_phases(void *user) {
    static void (*const builds[MLA_NUM_KINDS])(writer *) = {build_project, build_absorb, build_values, build_expand,
                                                            build_out};
    writer *w = user;
    w->rows = w->k->rows == 1 ? ir_idx(w->c.b, 1) : size_param(w, "rows", 1);
    builds[w->k->kind](w);
}

/* ---- The schedule ---- */

/* Chooses register tiles as for a block whose only product is the largest product of the kernel. */
static attune_status choose(writer *w, const at_target *target, const at_description *machine, at_error *err) {
    static const mla_matrix largest[MLA_NUM_KINDS] = {MLA_Q, MLA_UK, MLA_UV, MLA_UV, MLA_O};
    mha_packed_section s;
    int64_t end = 0;
    mla_section_of(w->d, largest[w->k->kind], &s, &end);
    attune_problem like = ATTUNE_PROBLEM_INIT;
    like.dtype = like.w_dtype = w->d->dtype;
    like.embed_dim = s.depth, like.head_dim = s.panels * MHA_PANEL;
    like.num_heads = s.num_groups * (mla_is_of_heads(largest[w->k->kind]) ? w->d->num_heads : 1);
    like.seq_q = like.seq_kv = w->k->rows;
    like.kv_projected = like.no_out_projection = 1;
    like.reproducible = w->d->reproducible;
    if (mha_canonicalize(&like, &w->p, err)) return err->status;
    const mha_machine on = {target, machine};
    mha_choose(mha_read(&w->p), target, machine, &w->s);
    w->s.lanes = target->vector_bytes / 4;
    w->s.gemm_by = 0, w->s.gemm_prefetch = 0, w->s.gemm_groups = 0, w->s.gemm_rest = 0;
    const mha_cost_context cost = mha_cost_context_of(&w->p, &on);
    mha_choose_products(&cost, &w->s);
    mha_schedule_settle(&w->p, target, machine, &w->s);
    w->c.variant = mha_variant_of(&w->p, &w->s, target);
    return ATTUNE_OK;
}

static ir_kernel *build(at_arena *arena, writer *w, const at_target *target, at_error *err) {
    static const char *const names[MLA_NUM_KINDS] = {"mla_project", "mla_absorb", "mla_values", "mla_expand",
                                                     "mla_out"};
    w->c.p = &w->p, w->c.s = &w->s, w->c.target = target;
    w->c.elem = IR_F32, w->c.lanes = w->s.lanes;
    w->c.has_fma = target->flags & AT_TARGET_FMA;
    w->p.rotary_interleaved = w->d->rope_interleaved;
    w->p.qk_norm_eps = w->d->norm_eps;
    w->c.b = ir_builder_new(arena, names[w->k->kind]);
    if (!w->c.b) {
        at_fail_memory(err, sizeof(ir_kernel));
        return NULL;
    }
    ir_builder_run(w->c.b, build_phases, w);
    return ir_builder_finish(w->c.b, err);
}

int mla_build(void *user, const attune_build_request *request, attune_ir_writer *text) {
    const attune_context *context = user;
    const at_target *target = at_target_find(request->isa);
    at_error err = {0};
    at_arena arena;
    mla_kernel k = {.kind = MLA_PROJECT};
    if (!target || !read_problem(request->problem, &k)) {
        attune_ir_print(text, "%s is no problem of an MLA block", request->problem);
        return 1;
    }
    writer w = {.k = &k, .d = &k.desc};
    at_arena_init(&arena, &context->allocator);
    const ir_kernel *kernel = NULL;
    if (!choose(&w, target, &context->machine_class.description, &err)) kernel = build(&arena, &w, target, &err);
    if (kernel)
        ir_print(kernel, &text->text);
    else
        attune_ir_print(text, "%s", err.message);
    at_arena_free(&arena);
    return kernel == NULL;
}
