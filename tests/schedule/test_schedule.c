/* Schedules: text, which are legal, and that the one chosen without measuring is. */
#include "problem/mha.h"
#include "schedule/variant.h"
#include "schedule/choose.h"
#include "schedule/corrections.h"
#include "schedule/schedule.h"
#include "support/problems.h"
#include "target/target.h"
#include "target/tuning_class.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static mha_schedule parse(const char *text) {
    mha_schedule s = {0};
    at_error err = {0};
    if (mha_schedule_parse(text, &s, &err)) fail_msg("%s: %s", text, err.message);
    return s;
}

/* Legal on every target for head_dim 40. */
static const char *const q_lanes =
    "strategy=q_lanes,lanes=4,score_row_vectors=4,score_keys=6,score_columns=4,value_by=columns,value_row_vectors=4,"
    "value_columns=5,value_keys=1,task_row_vectors=8,kv_tile=96,kv_copy=converted,task_prefetch=none";
static const char *const d_lanes =
    "strategy=d_lanes,lanes=4,score_rows=2,score_keys=4,score_column_vectors=3,score_streams=4,value_rows=2,"
    "value_column_vectors=4,value_keys=4,value_streams=4,kv_tile=64,kv_chunk=512,kv_prefetch=none";

/* Every change of a legal schedule must be refused, with a sentence that says this. */
typedef struct wrong {
    const char *change, *says;
} wrong;

static void assert_refused(const attune_problem *p, const mha_schedule *legal, const at_target *target,
                           const wrong *cases, size_t count) {
    at_error none = {0};
    if (mha_schedule_check(p, legal, target, &none)) fail_msg("%s", none.message);
    for (size_t i = 0; i < count; i++) {
        mha_schedule s = *legal;
        at_error why = {0};
        attune_status status = mha_schedule_parse(cases[i].change, &s, &why);
        if (!status) status = mha_schedule_check(p, &s, target, &why);
        if (status != ATTUNE_INVALID_SCHEDULE) fail_msg("%s was accepted", cases[i].change);
        if (!strstr(why.message, cases[i].says)) fail_msg("%s: %s", cases[i].change, why.message);
    }
}

static void test_round_trip(void **state) {
    (void)state;
    char of_block[512];
    snprintf(of_block, sizeof of_block,
             "%s,gemm_rows=6,gemm_column_vectors=2,gemm_task_rows=12,gemm_depth=0,gemm_by=vectors,gemm_prefetch=64,"
             "gemm_groups=narrow,gemm_rest=own",
             q_lanes);
    const char *const left = "strategy=d_lanes,lanes=4,score_rows=2,score_keys=4,score_column_vectors=3,"
                             "score_streams=auto,value_rows=2,value_column_vectors=4,value_keys=4,value_streams=auto,"
                             "kv_tile=64,kv_chunk=512,kv_prefetch=auto";
    const char *const texts[] = {q_lanes, d_lanes, of_block, left};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const mha_schedule s = parse(texts[i]);
        char text[512];
        mha_schedule_print(&s, text, sizeof text);
        assert_string_equal(text, texts[i]);
    }
}

static void test_q_lanes(void **state) {
    (void)state;
    static const wrong cases[] = {
        {"lanes=3", "power of two"},
        {"lanes=32", "power of two"},
        {"lanes=0", "lanes is 0; it must be from 1"},
        {"score_keys=5,kv_tile=12", "score_keys must divide kv_tile"},
        {"score_keys=4,kv_tile=8192", "kv_tile must be at most 4096"},
        {"value_columns=41", "value_columns must not exceed head_dim_v"},
        {"task_row_vectors=65", "task_row_vectors must be at most 64"},
        {"score_row_vectors=7", "score_row_vectors must divide task_row_vectors"},
        {"score_keys=101", "score_keys * score_row_vectors must be at most 64"},
        {"value_row_vectors=3", "value_row_vectors must divide score_row_vectors"},
        {"score_columns=3", "score_columns must divide head_dim"},
        {"value_keys=17", "value_keys must be at most 16"},
        {"kv_chunk=64", "kv_chunk is for d_lanes, and the strategy is q_lanes: leave it out"},
        {"score_streams=4", "score_streams is for d_lanes, and the strategy is q_lanes: leave it out"},
        {"strategy=d_lanes", "score_rows is 0; it must be at least 1: strategy=d_lanes needs its numbers, too"},
        {"value_by=3", "value_by is '3'; it must be one of auto, columns, rows"},
        {"value_by=row", "value_by is 'row'; it must be one of auto, columns, rows; did you mean rows?"},
        {"kv_copy=0", "kv_copy is '0'; it must be one of auto, none, converted, all, once"},
        {"strategy=no", "strategy is 'no'; it must be q_lanes or d_lanes"},
        {"tiles=4", "'tiles' is not a field of a schedule; there are: strategy, lanes, score_row_vectors"},
        {"kvtile=4", "'kvtile' is not a field of a schedule; did you mean kv_tile?"},
        {"strategie=d_lanes", "; did you mean strategy?"},
        {"strategy=dlanes", "strategy is 'dlanes'; it must be q_lanes or d_lanes; did you mean d_lanes?"},
    };
    const attune_problem p = problem_canonical("num_heads=4,seq_q=100,head_dim=40");
    const mha_schedule s = parse(q_lanes);
    for (const at_target *target = at_targets(); target->name; target++)
        assert_refused(&p, &s, target, cases, sizeof cases / sizeof *cases);
}

static void test_d_lanes(void **state) {
    (void)state;
    static const wrong cases[] = {
        {"lanes=3", "power of two"},
        {"lanes=32", "power of two"},
        {"score_keys=16,score_rows=3", "score_keys * score_rows must be at most 32"},
        {"value_rows=8,value_column_vectors=5", "value_rows * value_column_vectors must be at most 32"},
        {"value_rows=7,value_keys=5", "value_rows * value_keys must be at most 32"},
        {"score_keys=3", "score_keys must divide kv_tile"},
        {"score_keys=1,kv_tile=33,kv_chunk=66", "lanes must divide kv_tile"},
        {"kv_tile=8192,kv_chunk=8192", "kv_tile must be at most 4096"},
        {"kv_chunk=100", "kv_tile must divide kv_chunk"},
        {"kv_chunk=32", "kv_tile must divide kv_chunk"},
        {"kv_chunk=0", "kv_chunk is 0; it must be from 1"},
        {"task_row_vectors=2", "task_row_vectors is for q_lanes, and the strategy is d_lanes: leave it out"},
        {"kv_copy=all", "kv_copy is for q_lanes, and the strategy is d_lanes: leave it out"},
        {"strategy=q_lanes", "score_row_vectors is 0; it must be at least 1: strategy=q_lanes needs its numbers, too"},
        {"score_column_vectors=17", "score_column_vectors must be at most 16"},
        {"value_keys=17", "value_keys must be at most 16"},
        {"kv_chunk=-64", "kv_chunk is -64; it must be from 1"},
        {"score_streams=2", "score_streams must be 1 or 4"},
        {"score_streams=4,score_keys=2", "score_streams=4 needs at least 4 lanes"},
        {"score_streams=4,lanes=2", "score_streams=4 needs at least 4 lanes"},
        {"value_streams=3", "value_streams must divide value_keys"},
        {"value_streams=0", "value_streams is 0; it must be from 1 to 2147483647 or auto"},
        {"value_streams=none", "'none'"},
        {"score_streams=1,value_streams=1,kv_prefetch=512",
         "kv_prefetch must be none where keys are read in one stream"},
        {"kv_prefetch=65537", "kv_prefetch must be at most 65536"},
        {"kv_prefetch=-1", "kv_prefetch is -1; it must be from 1 to 2147483647, none or auto"},
    };
    const attune_problem p = problem_canonical("num_heads=4,seq_q=1,seq_kv=100,head_dim=40");
    const mha_schedule s = parse(d_lanes);
    for (const at_target *target = at_targets(); target->name; target++)
        assert_refused(&p, &s, target, cases, sizeof cases / sizeof *cases);
    const attune_problem weights = problem_canonical("op=weights,num_heads=4,seq_q=1,seq_kv=100,head_dim=40");
    const mha_schedule legal = parse(q_lanes);
    at_error err = {0};
    assert_int_equal(mha_schedule_check(&weights, &legal, at_targets(), &err), ATTUNE_OK);
    assert_int_equal(mha_schedule_check(&weights, &s, at_targets(), &err), ATTUNE_INVALID_SCHEDULE);
    assert_non_null(strstr(err.message, "d_lanes computes attention only"));
}

/* A vector of doubles has half as many lanes. */
static void test_lanes_of_f64(void **state) {
    (void)state;
    const attune_problem f32 = problem_canonical("seq_q=100,head_dim=40"),
                         f64 = problem_canonical("seq_q=100,head_dim=40,dtype=f64");
    for (const at_target *target = at_targets(); target->name; target++) {
        mha_schedule s = parse(q_lanes);
        s.lanes = target->vector_bytes / 4;
        assert_int_equal(mha_schedule_check(&f32, &s, target, NULL), ATTUNE_OK);
        assert_int_equal(mha_schedule_check(&f64, &s, target, NULL), ATTUNE_INVALID_SCHEDULE);
        s.lanes /= 2;
        assert_int_equal(mha_schedule_check(&f64, &s, target, NULL), ATTUNE_OK);
    }
}

static void test_products_of_a_block(void **state) {
    (void)state;
    static const wrong cases[] = {
        {"gemm_rows=0", "gemm_rows, gemm_column_vectors and gemm_task_rows must be at least 1 with embed_dim"},
        {"gemm_column_vectors=0",
         "gemm_rows, gemm_column_vectors and gemm_task_rows must be at least 1 with embed_dim"},
        {"gemm_task_rows=0", "gemm_rows, gemm_column_vectors and gemm_task_rows must be at least 1 with embed_dim"},
        {"gemm_rows=33,gemm_task_rows=33", "gemm_rows * gemm_column_vectors must be at most 64"},
        {"gemm_column_vectors=3", "gemm_column_vectors * lanes must divide 64"},
        {"gemm_column_vectors=32,gemm_rows=1", "gemm_column_vectors * lanes must divide 64"},
        {"gemm_rows=5", "gemm_rows must divide gemm_task_rows"},
        {"gemm_task_rows=4098", "gemm_task_rows must be at most 4096"},
        {"gemm_depth=-1", "gemm_depth is -1; it must be from 0"},
        {"gemm_by=tiles", "gemm_by=tiles needs an ISA with hardware tiles"},
        {"gemm_prefetch=65537", "gemm_prefetch must be at most 65536"},
        {"gemm_groups=wide", "gemm_groups is 'wide'; it must be one of auto, whole, narrow"},
        {"gemm_rest=none", "gemm_rest is 'none'; it must be one of auto, filled, own"},
    };
    const attune_problem block = problem_canonical("embed_dim=80,num_heads=2,seq_q=30");
    const attune_problem alone = problem_canonical("num_heads=2,seq_q=30,head_dim=40");
    mha_schedule s = parse(q_lanes);
    assert_int_equal(mha_schedule_check(&block, &s, at_targets(), NULL), ATTUNE_INVALID_SCHEDULE);
    assert_int_equal(mha_schedule_parse("gemm_rows=6,gemm_column_vectors=2,gemm_task_rows=12", &s, NULL), ATTUNE_OK);
    for (const at_target *target = at_targets(); target->name; target++)
        assert_refused(&block, &s, target, cases, sizeof cases / sizeof *cases);
    at_error err = {0};
    assert_int_equal(mha_schedule_check(&alone, &s, at_targets(), &err), ATTUNE_INVALID_SCHEDULE);
    assert_non_null(strstr(err.message, "gemm_rows and the other numbers of products must be 0 without embed_dim"));
}

/* Rows of the same bits need the same kv_tile in every schedule, of both strategies; a multiple will not do. */
static void test_kv_tile_of_reproducible_problems(void **state) {
    (void)state;
    const attune_problem p = problem_canonical("num_heads=4,seq_q=1,seq_kv=100,head_dim=40,reproducible=1");
    const attune_problem weights = problem_canonical("op=weights,seq_q=1,seq_kv=100,head_dim=40,reproducible=1");
    const char *const texts[] = {q_lanes, d_lanes};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        mha_schedule s = parse(texts[i]);
        at_error err = {0};
        s.kv_tile = 144;
        if (i) s.kv_chunk = 576;
        s.score_streams = s.value_streams = 0;
        if (mha_schedule_check(&p, &s, at_targets(), &err)) fail_msg("%s", err.message);
        for (int kv_tile = 48; kv_tile <= 288; kv_tile += 48) {
            if (kv_tile == 144 || (i && 576 % kv_tile)) continue;
            s.kv_tile = kv_tile;
            assert_int_equal(mha_schedule_check(&p, &s, at_targets(), &err), ATTUNE_INVALID_SCHEDULE);
            assert_non_null(strstr(err.message, "a reproducible problem of these head sizes needs 144"));
        }
        if (!i) assert_int_equal(mha_schedule_check(&weights, &s, at_targets(), &err), ATTUNE_OK);
    }
}

/* Where there are no tiles, only the lanes matter. */
static void test_ops_without_tiles(void **state) {
    (void)state;
    static const char *const ops[] = {"op=rotary,seq_q=5,head_dim=8,rotary_dim=8",
                                      "op=merge,seq_q=5,head_dim=8,num_parts=3"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        const attune_problem p = problem_canonical(ops[i]);
        mha_schedule s = parse("lanes=4,score_row_vectors=3,score_keys=99,score_columns=7,value_row_vectors=5,"
                               "value_columns=99,value_keys=99,task_row_vectors=99,kv_tile=1");
        assert_int_equal(mha_schedule_check(&p, &s, at_targets(), NULL), ATTUNE_OK);
        s.lanes = 3;
        assert_int_equal(mha_schedule_check(&p, &s, at_targets(), NULL), ATTUNE_INVALID_SCHEDULE);
        s.lanes = 4;
        s.strategy = MHA_D_LANES;
        assert_int_equal(mha_schedule_check(&p, &s, at_targets(), NULL), ATTUNE_INVALID_SCHEDULE);
    }
}

/* ---- Choices ---- */

/* What attune would choose, for numbers that it would not. */
static mha_schedule settled(const attune_problem *p, const char *target, const char *text) {
    mha_schedule s = parse(text), copy;
    const mha_schedule *whole = &s;
    at_error err = {0};
    if (mha_schedule_in(&whole, &copy, p, at_target_find(target), &err)) fail_msg("%s", err.message);
    return copy;
}

static void test_choices_follow_the_numbers(void **state) {
    (void)state;
    const attune_problem few = problem_canonical("num_heads=4,seq_q=8,seq_kv=90,head_dim=40");
    const attune_problem many = problem_canonical("num_heads=4,seq_q=100,head_dim=40");
    const attune_problem causal = problem_canonical("num_heads=4,seq_q=8,seq_kv=90,head_dim=40,is_causal=1");
    const attune_problem codes =
        problem_canonical("num_heads=4,seq_q=8,seq_kv=90,head_dim=40,kv_dtype=i8,kv_scales=token");
    static const char numbers[] = "strategy=q_lanes,lanes=4,score_row_vectors=4,score_keys=6,score_columns=4,"
                                  "value_row_vectors=4,value_columns=5,value_keys=1,task_row_vectors=8,kv_tile=96";
    assert_int_equal(settled(&few, "avx2", numbers).value_by, MHA_VALUE_BY_ROWS); /* one tile */
    assert_int_equal(settled(&many, "avx2", numbers).value_by, MHA_VALUE_BY_COLUMNS);
    assert_int_equal(settled(&many, "avx512", numbers).value_by, MHA_VALUE_BY_ROWS);
    assert_int_equal(settled(&causal, "avx512", numbers).value_by, MHA_VALUE_BY_ROWS);
    assert_int_equal(settled(&causal, "avx2", numbers).value_by, MHA_VALUE_BY_COLUMNS);
    assert_int_equal(settled(&codes, "avx512", numbers).value_by, MHA_VALUE_BY_COLUMNS);
    assert_int_equal(settled(&few, "avx2", numbers).kv_copy, MHA_COPY_CONVERTED);
    const attune_problem one_task = problem_canonical("num_heads=4,seq_q=32,seq_kv=90,head_dim=40,dtype=bf16");
    const attune_problem tasks = problem_canonical("num_heads=4,seq_q=33,seq_kv=90,head_dim=40,dtype=bf16");
    assert_int_equal(settled(&one_task, "avx512_bf16", numbers).kv_copy, MHA_COPY_CONVERTED);
    assert_int_equal(settled(&tasks, "avx512_bf16", numbers).kv_copy, MHA_COPY_ONCE);
    assert_int_equal(settled(&tasks, "avx512", numbers).kv_copy, MHA_COPY_CONVERTED);
    /* A call may have few queries, or see few of the keys, and V in pairs must not take more room than V. */
    static const char *const unshared[] = {
        "num_heads=4,seq_q=dynamic,seq_kv=90,head_dim=40,dtype=bf16",
        "num_heads=4,seq_q=99,seq_kv=dynamic,head_dim=40,dtype=bf16",
        "num_heads=4,seq_q=99,seq_kv=990,head_dim=40,dtype=bf16,window_left=12",
        "batch=64,num_heads=32,seq_q=99,seq_kv=990,head_dim=40,dtype=bf16",
        "batch=3,num_heads=4,seq_q=99,seq_kv=90,head_dim=40,dtype=bf16,v_strides=0:3600:40:1"};
    for (size_t i = 0; i < sizeof unshared / sizeof *unshared; i++) {
        const attune_problem one = problem_canonical(unshared[i]);
        if (settled(&one, "avx512_bf16", numbers).kv_copy != MHA_COPY_CONVERTED) fail_msg("%s", unshared[i]);
    }
    const attune_problem large = problem_canonical("num_heads=4,seq_q=1,seq_kv=100000,head_dim=40");
    const attune_problem small = problem_canonical("num_heads=4,seq_q=1,seq_kv=100,head_dim=40");
    const attune_problem serial = problem_canonical("num_heads=4,seq_q=1,seq_kv=100000,head_dim=40,reproducible=1");
    static const char four[] = "strategy=d_lanes,lanes=4,score_rows=2,score_keys=4,score_column_vectors=3,value_rows=2,"
                               "value_column_vectors=4,value_keys=4,kv_tile=144,kv_chunk=576";
    mha_schedule s = settled(&large, "avx512", four);
    assert_true(s.score_streams == 4 && s.value_streams == 4 && s.kv_prefetch == 1024);
    assert_int_equal(settled(&small, "avx512", four).kv_prefetch, -1);
    assert_int_equal(settled(&large, "avx2", four).kv_prefetch, -1);
    const attune_problem batch = problem_canonical("batch=70,num_heads=4,seq_q=1,seq_kv=100,head_dim=40");
    const attune_problem small_batch = problem_canonical("batch=60,num_heads=4,seq_q=1,seq_kv=100,head_dim=40");
    assert_int_equal(settled(&batch, "avx512", four).kv_prefetch, 1024);
    assert_int_equal(settled(&small_batch, "avx512", four).kv_prefetch, -1);
    const attune_problem short_pages = problem_canonical("num_heads=4,seq_q=1,seq_kv=100000,head_dim=64,page_size=16");
    const attune_problem long_pages = problem_canonical("num_heads=4,seq_q=1,seq_kv=100000,head_dim=65,page_size=16");
    assert_int_equal(settled(&short_pages, "avx2", four).kv_prefetch, 4096);
    assert_int_equal(settled(&long_pages, "avx2", four).kv_prefetch, -1);
    s = settled(&serial, "avx2", four);
    assert_true(s.score_streams == 1 && s.value_streams == 1 && s.kv_prefetch == -1);
}

/* Each choice is refused where it would not be true. */
static void test_choices_that_cannot_be(void **state) {
    (void)state;
    static const struct {
        const char *problem, *target, *base, *change, *says;
    } cases[] = {
        {"seq_q=100,seq_kv=dynamic,head_dim=40,attn_mask_dims=k,short_masks=1", "avx512", "q", "value_by=rows",
         "value_by=rows needs K and V that are not quantised, no short masks"},
        {"seq_q=100,head_dim=40,kv_dtype=i8,kv_scales=token", "avx512", "q", "value_by=rows", "value_by=rows needs"},
        {"seq_q=100,head_dim=40", "avx512", "q", "value_by=rows,lanes=2", "value_by=rows needs"},
        {"op=weights,seq_q=100,head_dim=40", "avx512", "q", "value_by=rows", "value_by=rows needs"},
        {"seq_q=100,head_dim=40,dtype=bf16", "avx512_bf16", "q", "kv_copy=all", "kv_copy must be converted or once"},
        {"seq_q=100,head_dim=40,dtype=bf16", "avx512_bf16", "q", "kv_copy=none", "kv_copy must be converted or once"},
        {"seq_q=100,head_dim=40", "avx512_bf16", "q", "kv_copy=once", "kv_copy=once needs products of pairs"},
        {"seq_q=100,head_dim=40,dtype=bf16", "avx512", "q", "kv_copy=once", "kv_copy=once needs products of pairs"},
        {"seq_q=100,head_dim=40,dtype=bf16", "avx512_bf16", "q", "kv_copy=once,score_keys=5,kv_tile=45",
         "an even kv_tile"},
        {"batch=2,seq_q=dynamic,seq_kv=dynamic,head_dim=40,dtype=bf16,is_ragged=1", "avx512_bf16", "q", "kv_copy=once",
         "neither ragged nor paged"},
        {"seq_q=100,seq_kv=200,head_dim=40,dtype=bf16,page_size=8,has_kv_lens=1", "avx512_bf16", "q", "kv_copy=once",
         "neither ragged nor paged"},
        {"seq_q=1,seq_kv=100,head_dim=40,reproducible=1", "avx2", "d", "score_streams=4,kv_tile=144,kv_chunk=576",
         "score_streams and value_streams must be 1 with reproducible"},
        {"seq_q=1,seq_kv=100,head_dim=40,reproducible=1", "avx2", "d", "value_streams=4,kv_tile=144,kv_chunk=576",
         "score_streams and value_streams must be 1 with reproducible"},
        /* Codes of f8 are widened by tables there, whose builder takes one row of each stream. */
        {"num_heads=32,num_kv_heads=1,seq_q=1,seq_kv=100,head_dim=40,kv_dtype=f8", "avx512_bf16", "d",
         "kv_tile=144,kv_chunk=576,value_rows=32,value_column_vectors=1,value_keys=1,value_streams=4",
         "value_rows * value_streams must be at most 32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const attune_problem p = problem_canonical(cases[i].problem);
        mha_schedule s = parse(*cases[i].base == 'q' ? q_lanes : d_lanes);
        at_error err = {0};
        assert_int_equal(mha_schedule_parse(cases[i].change, &s, &err), ATTUNE_OK);
        assert_int_equal(mha_schedule_check(&p, &s, at_target_find(cases[i].target), &err), ATTUNE_INVALID_SCHEDULE);
        if (!strstr(err.message, cases[i].says)) fail_msg("%s, %s: %s", cases[i].problem, cases[i].change, err.message);
    }
}

/* A struct is not only made of text. */
static void test_members_out_of_range(void **state) {
    (void)state;
    const attune_problem p = problem_canonical("num_heads=4,seq_q=100,head_dim=40");
    mha_schedule s = parse(q_lanes);
    at_error err = {0};
    s.value_by = (mha_value_by)3;
    assert_int_equal(mha_schedule_check(&p, &s, at_targets(), &err), ATTUNE_INVALID_SCHEDULE);
    assert_string_equal(err.message, "value_by is 3, which is no mha_value_by");
    err = (at_error){0};
    s = parse(q_lanes);
    s.kv_copy = (mha_kv_copy)-1;
    assert_int_equal(mha_schedule_check(&p, &s, at_targets(), &err), ATTUNE_INVALID_SCHEDULE);
    assert_string_equal(err.message, "kv_copy is -1; it must be at least 0");
    err = (at_error){0};
    s = parse(d_lanes);
    s.kv_prefetch = -2;
    assert_int_equal(mha_schedule_check(&p, &s, at_targets(), &err), ATTUNE_INVALID_SCHEDULE);
    assert_string_equal(err.message, "kv_prefetch is -2; it must be at least -1");
}

/* What a text does not name: numbers stay, most choices are attune's again, and the other strategy's fields go. */
static void test_text_changes_a_schedule(void **state) {
    (void)state;
    mha_schedule s = parse(q_lanes);
    s.value_by = MHA_VALUE_BY_ROWS;
    assert_int_equal(mha_schedule_parse("kv_tile=48", &s, NULL), ATTUNE_OK);
    assert_int_equal(s.kv_tile, 48);
    assert_int_equal(s.score_keys, 6);
    assert_int_equal(s.kv_copy, MHA_COPY_AUTO);
    assert_int_equal(s.value_by, MHA_VALUE_BY_ROWS);
    assert_int_equal(mha_schedule_parse("value_keys=2,lanes=8", &s, NULL), ATTUNE_OK);
    assert_int_equal(s.value_by, MHA_VALUE_AUTO);
    assert_int_equal(mha_schedule_parse("strategy=d_lanes,score_rows=2", &s, NULL), ATTUNE_OK);
    assert_int_equal(s.score_keys, 6);
    assert_int_equal(s.score_rows, 2);
    assert_int_equal(s.score_row_vectors, 0);
}

/* Text that names a number as it is changes no choice that says what the numbers mean. */
static void test_text_that_changes_nothing(void **state) {
    static const char *const problems[] = {"num_heads=8,seq_q=512,head_dim=64,is_causal=1",
                                           "num_heads=8,seq_q=197,seq_kv=300,head_dim=80",
                                           "num_heads=16,num_kv_heads=4,seq_q=1,seq_kv=306,head_dim=48"};
    (void)state;
    for (size_t i = 0; i < 3 * (sizeof problems / sizeof *problems); i++) {
        static const char *const targets[] = {"avx2", "avx512", "aarch64"};
        const attune_problem p = problem_canonical(problems[i / 3]);
        const at_target *target = at_target_find(targets[i % 3]);
        mha_schedule chosen, named;
        char text[32];
        mha_choose(mha_read(&p), target, usual_machine(target), &chosen);
        named = chosen;
        snprintf(text, sizeof text, "score_keys=%d", (int)chosen.score_keys);
        assert_int_equal(mha_schedule_parse(text, &named, NULL), ATTUNE_OK);
        mha_schedule_settle(&p, target, usual_machine(target), &named);
        assert_int_equal(named.value_by, chosen.value_by);
        assert_int_equal(named.score_streams, chosen.score_streams);
        assert_int_equal(named.value_streams, chosen.value_streams);
    }
}

/* The choice is legal for every shape, odd and tiny ones too. */
static void test_choice_is_legal(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 3, 5, 7, 8, 13, 16, 31, 64, 100, 197, 1000};
    enum { N = sizeof sizes / sizeof *sizes };
    for (const at_target *target = at_targets(); target->name; target++)
        for (int q = 0; q < N; q++)
            for (int k = 0; k < N; k++)
                for (int d = 0; d < N; d++) {
                    attune_problem p = ATTUNE_PROBLEM_INIT, c;
                    p.seq_q = sizes[q], p.seq_kv = sizes[k], p.head_dim = 8, p.head_dim_v = sizes[d];
                    mha_schedule s;
                    at_error err = {0};
                    assert_int_equal(mha_canonicalize(&p, &c, &err), ATTUNE_OK);
                    mha_choose(mha_read(&c), target, usual_machine(target), &s);
                    if (mha_schedule_check(&c, &s, target, &err)) fail_msg("%s", err.message);
                }
}

/* Blocks of any number of rows and either precision; where a few rows are all, no more than those are computed. */
/* A call that is cancelled ends after the tasks that have begun: these must not take long, however many the keys. */
static void test_tasks_are_short(void **state) {
    (void)state;
    static const char *const texts[] = {
        "num_heads=32,seq_q=2048,head_dim=128", "num_heads=32,seq_q=2048,head_dim=128,dtype=bf16",
        "num_heads=16,seq_q=8192,head_dim=64,is_causal=1", "num_heads=2,seq_q=300000,head_dim=64"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (const at_target *target = at_targets(); target->name; target++) {
            const attune_problem p = problem_canonical(texts[i]);
            mha_schedule s;
            mha_choose(mha_read(&p), target, usual_machine(target), &s);
            const double most = mha_attends_by_pairs(&p, target) ? 400e6 : 200e6;
            const double row = 2.0 * (double)p.seq_kv * (double)(p.head_dim + p.head_dim_v);
            if (row * s.lanes * s.task_row_vectors > most && s.task_row_vectors > s.score_row_vectors)
                fail_msg("%s for %s: a task has %d rows", texts[i], target->name, s.lanes * s.task_row_vectors);
        }
}

static void test_choice_for_blocks_is_legal(void **state) {
    (void)state;
    for (const at_target *target = at_targets(); target->name; target++)
        for (int rows = 1; rows <= 300; rows++)
            for (int wide = 0; wide <= 1; wide++) {
                char text[128];
                snprintf(text, sizeof text, "embed_dim=24,num_heads=3,batch=%d,seq_q=%d,dtype=%s", rows % 7 ? 1 : 7,
                         rows % 7 ? rows : rows / 7, wide ? "f64" : "f32");
                const attune_problem p = problem_canonical(text);
                mha_schedule s;
                at_error err = {0};
                mha_choose(mha_read(&p), target, usual_machine(target), &s);
                if (mha_schedule_check(&p, &s, target, &err)) fail_msg("%s: %s", text, err.message);
                if (rows <= 4) assert_int_equal(s.gemm_rows, rows);
            }
}

/* Whatever the machine, and the same for the same description. */
static void test_choice_follows_the_machine(void **state) {
    static const char *const texts[] = {"num_heads=12,seq_q=512,head_dim=64",
                                        "num_heads=12,seq_q=197,head_dim=64",
                                        "num_heads=32,seq_q=512,head_dim=128",
                                        "num_heads=4,seq_q=17,head_dim=40",
                                        "num_heads=9,seq_q=700,head_dim=80,is_causal=1",
                                        "num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=900,head_dim=128",
                                        "embed_dim=96,num_heads=6,seq_q=200"};
    const char *order[AT_MAX_CLASSES];
    const size_t count = at_class_neighbours("generic", order);
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (const at_target *target = at_targets(); target->name; target++)
            for (size_t k = 0; k < count; k++) {
                const bool is_arm = target->required & AT_CPU_AARCH64;
                const attune_problem p = problem_canonical(texts[i]);
                mha_schedule s;
                at_error err = {0};
                if (!at_class_is_of(order[k], is_arm)) continue;
                mha_choose(mha_read(&p), target, at_description_of(order[k], is_arm), &s);
                if (mha_schedule_check(&p, &s, target, &err))
                    fail_msg("%s, %s, %s: %s", order[k], target->name, texts[i], err.message);
            }
}

/* A core that begins two multiply-adds of 512 bits in a cycle loads too seldom for a tile of one vector, and needs more
 * than eight sums. */
static void test_tiles_follow_the_machine(void **state) {
    static const char *const texts[] = {"num_heads=12,seq_q=512,head_dim=64", "num_heads=12,seq_q=197,head_dim=64",
                                        "num_heads=16,seq_q=1024,head_dim=64,is_causal=1"};
    const at_target *avx512 = at_target_find("avx512");
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const attune_problem p = problem_canonical(texts[i]);
        mha_schedule zen4, zen5;
        mha_choose(mha_read(&p), avx512, at_description_of("zen4", false), &zen4);
        mha_choose(mha_read(&p), avx512, at_description_of("zen5", false), &zen5);
        assert_int_equal(zen4.score_row_vectors, 1);
        assert_in_range(zen4.score_keys, 6, 16);
        assert_in_range(zen5.score_row_vectors, 2, 4);
        assert_in_range(zen5.score_row_vectors * zen5.score_keys, 12, 24);
    }
}

/* Whether each strategy multiplies pairs of bf16 where the instruction set has them; never where it has none. */
static void test_factors_rounded_to_bf16(void **state) {
    (void)state;
    static const struct {
        const char *problem;
        bool prefill, decode;
    } cases[] = {
        {"dtype=bf16", true, true},
        {"dtype=bf16,matmul_precision=f32", false, false},
        {"dtype=bf16,reproducible=1", false, false},
        {"dtype=bf16,kv_dtype=f16", true, false},
        {"dtype=bf16,kv_dtype=i8,kv_scales=inline", false, false},
        {"dtype=bf16,kv_dtype=i8,kv_scales=inline,matmul_precision=bf16", true, false},
        {"dtype=bf16,kv_dtype=i4,kv_scales=inline,matmul_precision=bf16", true, false},
        {"dtype=bf16,kv_dtype=i8,integer=all", false, false},
        {"dtype=bf16,kv_dtype=f16,weights_mode=softmax", false, false},
        {"dtype=f32", false, false},
        {"kv_dtype=f16", false, false},
        {"matmul_precision=bf16", true, false},
        {"kv_dtype=f16,matmul_precision=bf16", true, false},
        {"kv_dtype=i8,kv_scales=token,matmul_precision=bf16", true, false},
        {"kv_dtype=i4,kv_scales=inline,matmul_precision=bf16", true, false},
        {"dtype=f16,matmul_precision=bf16,page_size=16,has_kv_lens=1,seq_new=1", true, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        snprintf(text, sizeof text, "num_heads=4,seq_q=64,seq_kv=64,head_dim=64,%s", cases[i].problem);
        const attune_problem p = problem_canonical(text);
        const at_target *const pairs = at_target_find("avx512_bf16"), *const none = at_target_find("avx512");
        mha_schedule prefill, decode;
        mha_choose_by(MHA_Q_LANES, mha_read(&p), pairs, usual_machine(pairs), &prefill);
        decode = prefill;
        decode.strategy = MHA_D_LANES;
        assert_int_equal(mha_variant_of(&p, &prefill, pairs).by_pairs, cases[i].prefill);
        assert_int_equal(mha_variant_of(&p, &decode, pairs).by_pairs, cases[i].decode);
        assert_false(mha_variant_of(&p, &prefill, none).by_pairs);
        assert_false(mha_variant_of(&p, &decode, none).by_pairs);
    }
}

/* On a Zen 4 a multiply-add of 64 bytes takes a cycle, so wider stripes have to promise more; on a Zen 5 half of one.
 */
static void test_wider_stripes_by_machine(void **state) {
    (void)state;
    const attune_problem p = problem_canonical("num_heads=12,seq_q=512,head_dim=64");
    const mha_schedule s = {.strategy = MHA_Q_LANES};
    const at_target *const target = at_target_find("avx512");
    const mha_cost_context zen4 = mha_cost_context_of(&p, &(mha_machine){target, at_description_of("zen4", false)});
    const mha_cost_context zen5 = mha_cost_context_of(&p, &(mha_machine){target, at_description_of("zen5", false)});
    assert_true(mha_correction(MHA_WIDER_STRIPE, &zen4, &s, NULL) < 1);
    assert_true(mha_correction(MHA_WIDER_STRIPE, &zen5, &s, NULL) == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_factors_rounded_to_bf16),
        cmocka_unit_test(test_choice_follows_the_machine),
        cmocka_unit_test(test_wider_stripes_by_machine),
        cmocka_unit_test(test_tiles_follow_the_machine),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_q_lanes),
        cmocka_unit_test(test_d_lanes),
        cmocka_unit_test(test_lanes_of_f64),
        cmocka_unit_test(test_ops_without_tiles),
        cmocka_unit_test(test_choices_follow_the_numbers),
        cmocka_unit_test(test_choices_that_cannot_be),
        cmocka_unit_test(test_members_out_of_range),
        cmocka_unit_test(test_text_changes_a_schedule),
        cmocka_unit_test(test_text_that_changes_nothing),
        cmocka_unit_test(test_choice_is_legal),
        cmocka_unit_test(test_tasks_are_short),
        cmocka_unit_test(test_kv_tile_of_reproducible_problems),
        cmocka_unit_test(test_products_of_a_block),
        cmocka_unit_test(test_choice_for_blocks_is_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
