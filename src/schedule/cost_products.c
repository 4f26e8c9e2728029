/* The cost of a block's products: src/nest/gemm.c in numbers.
 *
 * Register tiles of the same rows follow each other along a group of columns. Each iteration of their loop reads a row
 * of B, the weights, for as many columns. The first rows find the group in memory, since the weights of a model do not
 * stay in a cache; the next ones in the second cache, or in the third if the group is too large. So a tile of few rows
 * waits for B, however fast it multiplies. */
#include "problem/weights_layout.h"
#include "problem/problem.h"
#include "schedule/cost_parts.h"
#include "schedule/variant.h"

enum { LINE = 64 };

/* A projection, or several with inputs as deep. */
typedef struct product {
    const mha_cost_context *c;
    const mha_schedule *s;
    cost_vector v;
    double inputs;     /* of an iteration: 2 by pairs */
    double iterations; /* of a register tile */
    double bytes;      /* of B for a column, in an iteration */
    double columns;    /* of all groups */
    double group;      /* columns of one */
    bool by_pairs;
} product;

/* Vectors of bf16 and f16 are converted as they are loaded, in addition to the multiplications. */
static double converting(const product *p) {
    const bool is_lane = (double)mha_dtype_bytes(p->c->p->w_dtype) == p->c->lane_bytes;
    if (p->by_pairs || is_lane || mha_has_quantised_weights(p->c->p)) return 0;
    return p->s->gemm_column_vectors * COST_OF(widen) * p->v.shuffle;
}

/* Vectors of quantised weights are multiplied by their scales, too. */
static double multiplying(const product *p) {
    const double vectors = p->s->gemm_column_vectors, sums = p->s->gemm_rows * vectors;
    const double scaled = mha_has_quantised_weights(p->c->p) ? vectors * COST_OF(gemm_codes) * p->v.shuffle : 0;
    return sums * (p->by_pairs ? p->v.dot : p->v.multiply) + scaled;
}

/* Cache lines that an iteration prefetches: lines of B for some iterations later, and of the next rows of A or C. */
static double lines_asked(const product *p) {
    enum { MOST_NEXT = 2 };
    const mha_schedule *s = p->s;
    const double columns = (double)s->gemm_column_vectors * s->lanes;
    const double next = cost_smaller(MOST_NEXT, cost_steps(s->gemm_rows, cost_larger(1, p->group / columns)));
    return next + (s->gemm_prefetch > 0 ? cost_steps(columns * p->c->lane_bytes, LINE) : 0);
}

/* An iteration whose A and B are in the first cache. A sum without a register waits in each iteration until the stored
 * value can be loaded again. With 32 registers an element that is multiplied by one vector is a memory operand. */
static double iteration_of(const product *p) {
    const at_description *d = p->c->machine.description;
    const double rows = p->s->gemm_rows, vectors = p->s->gemm_column_vectors, sums = rows * vectors;
    const double registers = p->c->machine.target->vector_registers, asked = lines_asked(p);
    const bool has_operands = registers >= 32 && vectors == 1 && !p->by_pairs;
    const double latency = d->latency * (p->by_pairs ? COST_OF(dot_latency) : 1);
    const double others = (has_operands ? 0 : 1) + (p->c->machine.target->flags & AT_TARGET_FMA ? 0 : 1);
    const double spilled = cost_larger(0, sums + vectors + others - registers);
    const double loads = (rows + asked) / d->load + vectors * p->v.load;
    const double begun = (sums + vectors + (has_operands ? 0 : rows) + asked) / COST_OF(issue);
    const double busy = cost_limit(cost_limit(multiplying(p), cost_larger(loads, converting(p))), begun);
    const double waits = latency + (spilled > 0 ? COST_OF(forward) : 0);
    return cost_limit(busy + spilled * COST_OF(spill) * (p->v.load + p->v.store), waits) + COST_OF(iteration) +
           rows * COST_OF(gemm_element) * p->v.multiply;
}

/* An iteration that reads so many bytes of B, at a rate. */
static double reading(double iteration, double bytes, double rate) {
    return cost_limit(iteration, bytes / rate) + bytes / rate * COST_OF(gemm_from);
}

/* The first rows of a group: from memory, where each panel of the tile is a stream. */
static double first_iteration(const product *p, double iteration) {
    enum { STREAMS = 4 };
    const double columns = (double)p->s->gemm_column_vectors * p->s->lanes;
    const double lacking = cost_larger(0, STREAMS - cost_larger(1, columns / MHA_PANEL));
    const double rate = p->c->machine.description->memory_rate / (1 + lacking * COST_OF(gemm_streams));
    return reading(iteration, columns * p->bytes, rate);
}

/* The next rows. A part of A that is larger than the first cache comes from the second, too. */
static double next_iteration(const product *p, double iteration, double beyond) {
    const at_description *d = p->c->machine.description;
    const double bytes = (double)p->s->gemm_column_vectors * p->s->lanes * p->bytes;
    const double far = d->l3 > 0 ? d->l3_rate : d->memory_rate;
    return reading(iteration, bytes, 1 / (beyond / far + (1 - beyond) / d->l2_rate));
}

static double product_cost(const product *p) {
    enum { TILE_ROWS = 16, PASS = 20 };
    const mha_cost_context *c = p->c;
    const at_description *d = c->machine.description;
    const mha_schedule *s = p->s;
    const double rows = s->gemm_rows, sums = rows * s->gemm_column_vectors, of_pass = s->gemm_depth / p->inputs;
    const double tiles = cost_steps(mha_product_rows(c->p, MHA_USUAL_LENGTH), rows), groups = p->columns / p->group;
    const double columns = p->columns / (s->gemm_column_vectors * s->lanes), moved = p->v.load + p->v.store;
    const double a = rows * (p->by_pairs ? 4 : c->lane_bytes), held = a * p->iterations;
    const bool by_tiles = s->gemm_by == MHA_GEMM_BY_TILES;
    /* By hardware tiles one of 16 x 16 takes a cycle. */
    double iteration = by_tiles ? rows / TILE_ROWS * s->gemm_column_vectors : iteration_of(p);
    iteration += cost_beyond(held, d->l1) * a / d->l2_rate * COST_OF(row_from_l2);
    const double depth = of_pass > 0 ? cost_smaller(of_pass, p->iterations) : p->iterations;
    const double next = next_iteration(p, iteration, cost_beyond(depth * p->group * p->bytes, d->l2));
    const double iterations = p->iterations * (first_iteration(p, iteration) + (tiles - 1) * next);
    const double ends =
        (of_pass > 0 ? cost_steps(p->iterations, of_pass) : 1) * (PASS + sums * (moved + p->v.multiply));
    const double copied = rows * p->iterations * p->inputs / s->lanes * moved;
    return columns * (iterations + tiles * ends) + groups * tiles * (copied + rows / s->gemm_task_rows * COST_OF(task));
}

mha_products mha_products_of(const attune_problem *p) {
    mha_products all = {.count = 0};
    mha_packed_layout layout;
    mha_packed_layout_of(p, &layout);
    for (int i = 0; i < MHA_NUM_PROJECTIONS; i++) {
        const mha_packed_section *s = &layout.section[i];
        if (!s->exists) continue;
        const int64_t group = s->panels * MHA_PANEL, columns = s->num_groups * group;
        int n = 0;
        while (n < all.count && (all.of[n].depth != s->depth || all.of[n].group != group)) n++;
        all.of[n] = (mha_depth){s->depth, group, columns + (n < all.count ? all.of[n].columns : 0)};
        if (n == all.count) all.count++;
    }
    return all;
}

double mha_cost_products(const mha_cost_context *c, const mha_products *all, const mha_schedule *s) {
    const attune_problem *p = c->p;
    const bool by_pairs = mha_projects_by_pairs(p, c->machine.target);
    const double inputs = by_pairs ? 2 : 1;
    const double weight = p->w_dtype == ATTUNE_I4 ? 0.5 : (double)mha_dtype_bytes(p->w_dtype);
    double cost = 0;
    for (int i = 0; i < all->count; i++) {
        const mha_depth *of = &all->of[i];
        const bool is_narrow = s->gemm_groups == MHA_GROUPS_NARROW;
        const product one = {.c = c,
                             .s = s,
                             .v = mha_cost_vector(&c->machine, s->lanes * c->lane_bytes),
                             .inputs = inputs,
                             .iterations = (double)of->depth / inputs,
                             .bytes = weight * inputs,
                             .columns = (double)of->columns,
                             .group = is_narrow ? MHA_PANEL_TILE : (double)of->group,
                             .by_pairs = by_pairs};
        cost += product_cost(&one);
    }
    return cost;
}
