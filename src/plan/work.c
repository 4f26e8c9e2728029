/* The list of work of a ragged batch. */
#include "plan/work.h"

#include "base/integers.h"
#include "problem/problem.h"
#include "problem/problem_sight.h"
#include "schedule/variant.h"

#include <stdlib.h>
#include <string.h>

/* ---- Sequences ---- */

static int64_t queries_of(const attune_arguments *a, int64_t b) {
    return (int64_t)a->cu_seqlens_q[b + 1] - a->cu_seqlens_q[b];
}

static int64_t keys_of(const attune_plan *plan, const attune_arguments *a, int64_t b) {
    if (plan->signature.problem.has_kv_lens) return a->kv_lens[b];
    if (plan->signature.place[MHA_CU_SEQLENS_KV] >= 0) return (int64_t)a->cu_seqlens_kv[b + 1] - a->cu_seqlens_kv[b];
    return queries_of(a, b);
}

/* ---- Kernels ---- */

static void add_sequence_to(pl_choice *of, int64_t queries, int64_t keys) {
    if (queries > of->queries) of->queries = queries;
    if (keys > of->keys) of->keys = keys;
}

static void measure(const attune_plan *plan, const attune_arguments *a, pl_choice kinds[PL_NUM_KINDS]) {
    for (int64_t b = 0; b < a->batch; b++) {
        const int64_t queries = queries_of(a, b);
        if (queries) add_sequence_to(&kinds[pl_kind_of(plan, queries)], queries, keys_of(plan, a, b));
    }
}

/* Each kind with as many queries and keys as there may be. */
static void bound(const attune_plan *plan, const attune_arguments *a, int64_t keys, pl_choice kinds[PL_NUM_KINDS]) {
    for (pl_kind kind = PL_ONE; kind < PL_NUM_KINDS; kind++) {
        const int64_t most = plan->most[kind], given = a->seq_q == ATTUNE_NOT_SET ? a->total_q : a->seq_q;
        if (!plan->most[kind]) continue;
        add_sequence_to(&kinds[kind], most >= 0 ? min_of(most, given) : given, keys);
    }
}

/* Chooses the kernel of a kind, or, with `number`, one that ran before it. */
static attune_status kernel_of(attune_plan *plan, int number, pl_choice *choice, at_error *err) {
    const attune_status status = plan->deadline_us >= 0 ? pl_kernel_for(plan, &choice->kind, &choice->kernel, err)
                                                        : pl_kernel(plan, choice->kind, &choice->kernel, err);
    if (status || !number) return status;
    pl_kind kind = choice->kind;
    attune_kernel *const other = pl_before(plan, number - 1, &kind);
    if (!other) return ATTUNE_OK;
    choice->kernel = other;
    choice->kind = kind;
    return ATTUNE_OK;
}

attune_status pl_work_choose(attune_plan *plan, const attune_arguments *arguments, int64_t keys, bool is_bound,
                             int before, pl_choice choices[PL_NUM_KINDS], at_error *err) {
    for (pl_kind kind = PL_ONE; kind < PL_NUM_KINDS; kind++) choices[kind] = (pl_choice){.kind = kind};
    if (is_bound)
        bound(plan, arguments, keys, choices);
    else
        measure(plan, arguments, choices);
    for (pl_kind kind = PL_ONE; kind < PL_NUM_KINDS; kind++)
        if (choices[kind].queries && kernel_of(plan, before, &choices[kind], err)) return err->status;
    return ATTUNE_OK;
}

/* ---- Parts ---- */

void pl_bound_queries(const attune_plan *plan, const at_settled *settled, pl_kind kind, attune_arguments *a) {
    const at_signature *const s = &plan->signature;
    const int64_t most = plan->most[kind];
    if (most >= 0 && a->seq_q > most) a->seq_q = most;
    for (size_t i = 0; i < s->count; i++)
        if (s->tensors[i].has_strides)
            memcpy(mha_strides_in(a, &s->tensors[i]), settled->strides[i],
                   (size_t)s->tensors[i].rank * sizeof(int64_t));
}

/* Lengths that the caller has not set are those of the part's own sequences. */
static attune_status settle_part(const attune_plan *plan, const attune_arguments *whole, const at_settled *settled,
                                 pl_part *part, at_error *err) {
    const at_signature *const s = &plan->signature, *const own = &part->of.kernel->signature;
    attune_arguments a = *whole;
    if (a.seq_q == ATTUNE_NOT_SET && plan->is_open[PL_SEQ_Q]) a.seq_q = part->of.queries;
    if (a.seq_kv == ATTUNE_NOT_SET && plan->is_open[PL_SEQ_KV]) a.seq_kv = part->of.keys;
    pl_bound_queries(plan, settled, part->of.kind, &a);
    if (at_call_settle(own, &a, &part->settled, err)) return err->status;
    if (s->problem.has_softmax_scale)
        part->settled.scalars[own->num_scalars - 1] = mha_scale_scalar(&s->problem, whole->softmax_scale);
    at_kernel_plan(part->of.kernel, part->settled.scalars, part->plan);
    return ATTUNE_OK;
}

/* Several kinds may share one kernel while another is being compiled. */
static void add_part(pl_work *work, pl_kind kind, const pl_choice *choice) {
    uint32_t i = 0;
    while (i < work->num_parts && work->parts[i].of.kernel != choice->kernel) i++;
    work->part_of[kind] = (uint8_t)i;
    if (i < work->num_parts)
        add_sequence_to(&work->parts[i].of, choice->queries, choice->keys);
    else
        work->parts[work->num_parts++].of = *choice;
}

attune_status pl_work_settle(attune_plan *plan, const attune_arguments *arguments, const at_settled *settled,
                             const pl_choice choices[PL_NUM_KINDS], pl_work *work, at_error *err) {
    work->plan = plan;
    work->arguments = arguments;
    work->num_parts = work->num_stages = 0;
    for (pl_kind kind = PL_ONE; kind < PL_NUM_KINDS; kind++)
        if (choices[kind].kernel) add_part(work, kind, &choices[kind]);
    for (uint32_t i = 0; i < work->num_parts; i++) {
        if (settle_part(plan, arguments, settled, &work->parts[i], err)) return err->status;
        const uint32_t phases = work->parts[i].of.kernel->num_phases;
        if (phases > work->num_stages) work->num_stages = phases;
    }
    return ATTUNE_OK;
}

/* ---- Memory ---- */

enum { PIECES = 4 /* of a prompt in a phase */ };

size_t pl_work_most_segments(const pl_work *work) {
    return (size_t)work->arguments->batch * (work->num_stages + PIECES - 1);
}

attune_status pl_work_bytes(const pl_work *work, uint32_t workers, size_t *bytes, at_error *err) {
    uint64_t scratch = 0;
    *bytes = 0;
    for (uint32_t i = 0; i < work->num_parts; i++) {
        const attune_kernel *const kernel = work->parts[i].of.kernel;
        const at_code_shape shape = {kernel->num_phases, kernel->num_shared, 0};
        size_t shared;
        if (at_code_size(&shape, 1, work->parts[i].plan, &shared, err)) return err->status;
        if (kernel->max_scratch > scratch) scratch = kernel->max_scratch;
        if (__builtin_add_overflow(*bytes, shared, bytes)) return at_fail_memory(err, SIZE_MAX);
    }
    if (__builtin_mul_overflow(scratch, workers, &scratch) || __builtin_add_overflow(*bytes, scratch, bytes))
        return at_fail_memory(err, SIZE_MAX);
    return ATTUNE_OK;
}

/* ---- Segments ---- */

/* A sequence of a part, and what its tasks in a phase are. */
typedef struct sequence {
    const pl_part *part;
    int64_t number, queries, keys;
    int64_t tasks; /* of a sequence */
    int64_t heads; /* of keys */
    int64_t group;
} sequence;

/* The phase that attends to keys; -1: unknown, because tier 0's code is for another problem. */
static int attention_phase(const attune_kernel *kernel) {
    const attune_problem *const p = &kernel->signature.problem;
    if (p->weights_mode) return -1;
    return (int)kernel->num_phases - 1 - at_kernel_merges(kernel);
}

static void add(pl_work *work, bool for_many, pl_segment s) {
    pl_segment *const last = work->num_segments ? &work->segments[work->num_segments - 1] : NULL;
    if (!s.count) return;
    const bool follows = last && work->num_segments > work->stage_begin[s.phase] && last->part == s.part &&
                         last->run == last->leap && s.run == s.leap && last->first + last->count == s.first;
    if (follows && (!for_many || (last->cost <= s.cost && last->cost >= s.cost))) {
        last->cost = (last->cost * (double)last->count + s.cost * (double)s.count) / (double)(last->count + s.count);
        last->count += s.count;
        return;
    }
    work->segments[work->num_segments++] = s;
}

/* Chunks into which this many keys are cut. */
static int64_t chunks_of(const sequence *q, int64_t keys) {
    const attune_kernel *const kernel = q->part->of.kernel;
    return mha_most_chunks(&kernel->signature.problem, &kernel->schedule, keys, q->heads);
}

/* Chunks of keys, each of all heads: chunks beyond a sequence's end are skipped. All others cost the same; a single row
 * costs as much as reading them. */
static bool add_chunks(pl_work *work, const sequence *q, bool for_many, pl_segment s) {
    enum { ROWS_OF_READING = 8 };
    const attune_kernel *const kernel = q->part->of.kernel;
    const int64_t longest = q->part->settled.sizes.of[MHA_SEQ_KV];
    const bool is_whole = attention_phase(kernel) == (int)kernel->num_phases - 1;
    const int64_t all = is_whole ? 1 : chunks_of(q, longest);
    if (all < 1 || q->tasks % (q->heads * all)) return false;
    const int64_t of_chunk = q->tasks / all, chunks = is_whole ? 1 : chunks_of(q, q->keys);
    if (chunks > all) return false;
    s.run = s.leap = s.count = chunks * of_chunk;
    const double rows = (double)(q->queries * q->group);
    const double tasks = chunks ? (double)s.count / (double)q->heads : 1; /* of a head */
    s.cost = (double)q->keys * (rows > ROWS_OF_READING ? rows : ROWS_OF_READING) / tasks + 1;
    add(work, for_many, s);
    return true;
}

/* Pairs of a row and a key that some tasks of a head compute, per task. */
static double cost_of_rows(const sequence *q, int64_t first_row, int64_t end_row, int64_t tasks, int64_t task_rows) {
    const mha_queries of = {q->queries, q->keys, 0, first_row / q->group, ceil_div(end_row, q->group)};
    const attune_sight sight = mha_sight_of_queries(&q->part->of.kernel->signature.problem, &of);
    const double padding = (double)(tasks * task_rows) / (double)(end_row - first_row);
    return (sight.pairs * (double)q->group * padding) / (double)tasks + 1;
}

/* Rows of a prompt: the longest tasks of all heads, then shorter ones. */
static bool add_rows(pl_work *work, const sequence *q, bool for_many, pl_segment s) {
    const mha_schedule *const k = &q->part->of.kernel->schedule;
    if (k->score_row_vectors < 1) return false;
    const int64_t *const sizes = q->part->settled.sizes.of;
    const int64_t rows = q->queries * q->group, longest = sizes[MHA_SEQ_Q] * q->group;
    const int64_t stripe_rows = (int64_t)k->score_row_vectors * k->lanes;
    const int64_t task_rows = stripe_rows * mha_task_stripes(&q->part->of.kernel->signature.problem, k, q->heads,
                                                             ceil_div(longest, stripe_rows), sizes[MHA_SEQ_KV]);
    if (task_rows < 1 || q->tasks != q->heads * ceil_div(longest, task_rows)) return false;
    const int64_t all = q->tasks / q->heads, own = ceil_div(rows, task_rows);
    const bool falls = at_kernel_falls(q->part->of.kernel);
    const int64_t pieces = !for_many || !falls ? 1 : own < PIECES ? own : PIECES, first = s.first;
    for (int64_t i = 0; i < pieces; i++) {
        const int64_t begin = own * i / pieces, end = own * (i + 1) / pieces; /* in the order of the tasks */
        const int64_t first_row = falls ? (own - end) * task_rows : begin * task_rows;
        const int64_t end_row = min_of(rows, falls ? (own - begin) * task_rows : end * task_rows);
        s.first = first + (falls ? all - own : 0) + begin;
        s.run = end - begin;
        s.leap = all;
        s.count = q->heads * s.run;
        s.cost = cost_of_rows(q, first_row, end_row, s.run, task_rows);
        add(work, for_many, s);
    }
    return true;
}

/* The tasks of a sequence in a phase. */
static void add_sequence(pl_work *work, const sequence *q, uint32_t stage, bool for_many) {
    enum { COST_OF_ROW = 8 };
    const attune_kernel *const kernel = q->part->of.kernel;
    pl_segment s = {.part = (uint16_t)(q->part - work->parts), .phase = (uint16_t)stage};
    s.first = q->number * q->tasks;
    if (attention_phase(kernel) == (int)stage &&
        (kernel->schedule.strategy == MHA_D_LANES ? add_chunks : add_rows)(work, q, for_many, s))
        return;
    s.run = s.leap = s.count = q->tasks;
    /* What comes after attention merges the chunks of each row. */
    const bool merges = attention_phase(kernel) >= 0 && (int)stage > attention_phase(kernel);
    const double of_row = merges ? (double)chunks_of(q, q->keys) : COST_OF_ROW;
    s.cost = of_row * (double)(q->queries * q->heads * q->group) / (double)q->tasks + 1;
    add(work, for_many, s);
}

static int compare(const void *first, const void *second) {
    const pl_segment *const a = first, *const b = second;
    if (a->cost < b->cost || a->cost > b->cost) return a->cost < b->cost ? 1 : -1;
    if (a->part != b->part) return a->part - b->part;
    return a->first < b->first ? -1 : a->first > b->first;
}

/* Sorts the longest first. Then each segment stores what comes before it and after it. */
static void close_stage(pl_work *work, uint32_t stage, bool for_many) {
    pl_segment *const begin = work->segments + work->stage_begin[stage];
    const size_t count = work->num_segments - work->stage_begin[stage];
    if (for_many) qsort(begin, count, sizeof *begin, compare);
    int64_t tasks = 0;
    double cost = 0;
    for (size_t i = 0; i < count; i++) {
        begin[i].begin = tasks;
        tasks += begin[i].count;
    }
    for (size_t i = count; i-- > 0;) {
        begin[i].cost_after = cost;
        cost += begin[i].cost * (double)begin[i].count;
    }
    work->stage_begin[stage + 1] = work->num_segments;
}

void pl_work_list(pl_work *work, bool for_many, pl_segment *memory) {
    const attune_arguments *const a = work->arguments;
    work->segments = memory;
    work->num_segments = work->stage_begin[0] = 0;
    for (uint32_t stage = 0; stage < work->num_stages; stage++) {
        for (int64_t b = 0; b < a->batch; b++) {
            const int64_t queries = queries_of(a, b);
            if (!queries) continue;
            const pl_part *const part = &work->parts[work->part_of[pl_kind_of(work->plan, queries)]];
            if (stage >= part->of.kernel->num_phases || part->plan[stage] <= 0) continue;
            const int64_t *const sizes = part->settled.sizes.of;
            const sequence q = {.part = part,
                                .number = b,
                                .queries = queries,
                                .keys = keys_of(work->plan, a, b),
                                .tasks = part->plan[stage] / a->batch,
                                .heads = sizes[MHA_KV_HEADS],
                                .group = sizes[MHA_HEADS] / sizes[MHA_KV_HEADS]};
            add_sequence(work, &q, stage, for_many);
        }
        close_stage(work, stage, for_many);
    }
}

/* ---- Idle time ---- */

pl_idle pl_work_simulate(const pl_work *work, uint32_t workers) {
    pl_idle idle = {0, 0};
    double *const busy = calloc(workers, sizeof *busy);
    for (uint32_t stage = 0; busy && stage < work->num_stages; stage++) {
        const pl_segment *segment = work->segments + work->stage_begin[stage];
        const int64_t tasks = pl_stage_tasks(work, stage);
        for (uint32_t w = 0; w < workers; w++) busy[w] = idle.time;
        for (int64_t task = 0; task < tasks;) {
            segment = pl_segment_at(segment, task);
            uint32_t next = 0;
            for (uint32_t w = 1; w < workers; w++)
                if (busy[w] < busy[next]) next = w;
            const int64_t count = pl_tasks_at_once(segment, task, workers);
            busy[next] += segment->cost * (double)count;
            idle.cost += segment->cost * (double)count;
            task += count;
        }
        for (uint32_t w = 0; w < workers; w++)
            if (busy[w] > idle.time) idle.time = busy[w];
    }
    free(busy);
    return idle;
}
