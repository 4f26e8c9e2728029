/* The canonical form of causality, windows, global tokens and alignment: it sees exactly the same keys, and counts them
 * right. Against the definition in attune.h, pair by pair. */
#include "problem/signature.h"
#include "support/problems.h"
#include "support/ir/random_ir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static random_ir source = {.state = 20250807};

static int64_t between(int64_t low, int64_t high) { return low + random_ir_below(&source, (int)(high - low + 1)); }
static bool once_in(int n) { return random_ir_below(&source, n) == 0; }

/* One batch entry. */
typedef struct entry {
    int64_t queries, keys, offset;
} entry;

static int64_t position(const attune_problem *p, const entry *e, int64_t i) {
    const int64_t base = p->causal_align == ATTUNE_BOTTOM_RIGHT ? e->keys - e->queries : 0;
    return i + base + p->causal_offset + (p->has_causal_offsets ? e->offset : 0);
}

static bool visible(const attune_problem *p, const entry *e, int64_t i, int64_t j) {
    const int64_t at = position(p, e, i);
    if (p->is_causal && j > at) return false;
    if (p->global_tokens && (j < p->global_tokens || at < p->global_tokens)) return true;
    return !(p->window_left >= 0 && j < at - p->window_left) && !(p->window_right >= 0 && j > at + p->window_right);
}

static bool keys_are_queries(const attune_problem *p) { return p->embed_dim && !p->is_cross; }

static void random_block(attune_problem *p) {
    p->embed_dim = 8;
    p->is_cross = once_in(3);
    if (p->is_cross) return;
    p->seq_kv = p->seq_q;
    if (p->seq_kv > 0) p->max_seq_kv = 0;
}

static attune_problem random_problem(void) {
    attune_problem p = ATTUNE_PROBLEM_INIT;
    p.batch = between(1, 3);
    p.num_heads = between(1, 3);
    p.head_dim = 8;
    p.seq_q = once_in(3) ? ATTUNE_DYNAMIC : between(1, 9);
    p.seq_kv = once_in(3) ? ATTUNE_DYNAMIC : between(1, 9);
    if (p.seq_q < 0 && once_in(2)) p.max_seq_q = between(1, 9);
    if (p.seq_kv < 0 && once_in(2)) p.max_seq_kv = between(1, 9);
    p.is_ragged = once_in(5);
    p.has_kv_lens = once_in(4);
    p.is_causal = once_in(2);
    p.causal_align = once_in(2) ? ATTUNE_BOTTOM_RIGHT : ATTUNE_TOP_LEFT;
    if (once_in(2)) p.causal_offset = between(-12, 12);
    p.has_causal_offsets = once_in(6);
    if (once_in(2)) p.window_left = between(0, 11);
    if (once_in(2)) p.window_right = between(0, 11);
    if (once_in(2)) p.global_tokens = between(0, 10);
    p.has_alibi_slopes = once_in(5);
    if (once_in(4)) random_block(&p);
    return p;
}

/* Lengths that the problem allows. */
static entry random_entry(const attune_problem *p) {
    const int64_t most_q = p->seq_q > 0 ? p->seq_q : p->max_seq_q ? p->max_seq_q : 12;
    const int64_t most_kv = p->seq_kv > 0 ? p->seq_kv : p->max_seq_kv ? p->max_seq_kv : 12;
    entry e = {most_q, most_kv, between(-5, 5)};
    if (p->seq_q < 0 || p->is_ragged)
        e.queries = between(0, keys_are_queries(p) && most_kv < most_q ? most_kv : most_q);
    if (keys_are_queries(p)) {
        e.keys = p->has_kv_lens ? between(0, e.queries) : e.queries;
        return e;
    }
    if (p->seq_kv < 0 || p->is_ragged || p->has_kv_lens) e.keys = between(0, most_kv);
    return e;
}

static void fail_problem(const char *what, const attune_problem *p, const entry *e) {
    char text[1024];
    mha_problem_print(p, text, sizeof text);
    fail_msg("%s: %s with %lld queries, %lld keys", what, text, (long long)e->queries, (long long)e->keys);
}

static void test_same_keys(void **state) {
    (void)state;
    int simpler = 0;
    for (int n = 0; n < 50000; n++) {
        const attune_problem p = random_problem();
        attune_problem c;
        at_error err = {0};
        if (mha_canonicalize(&p, &c, &err)) fail_msg("%s", err.message);
        simpler += p.is_causal > c.is_causal || (p.window_left >= 0 && c.window_left < 0);
        for (int k = 0; k < 3; k++) {
            const entry e = random_entry(&p);
            for (int64_t i = 0; i < e.queries; i++)
                for (int64_t j = 0; j < e.keys; j++)
                    if (visible(&p, &e, i, j) != visible(&c, &e, i, j)) fail_problem("other keys", &c, &e);
            /* ALiBi and the rotary embedding see the positions themselves. */
            if (p.has_alibi_slopes && e.queries && position(&p, &e, 0) != position(&c, &e, 0))
                fail_problem("other positions", &c, &e);
        }
    }
    assert_true(simpler > 5000);
}

/* The count of pairs is exact where all sizes are known, whether to the compiler or at run time. */
static void test_flops(void **state) {
    (void)state;
    for (int n = 0; n < 20000; n++) {
        attune_problem p = random_problem(), c;
        p.is_ragged = p.has_causal_offsets = p.has_kv_lens = p.is_cross = 0;
        p.embed_dim = 0;
        at_error err = {0};
        if (mha_canonicalize(&p, &c, &err)) fail_msg("%s", err.message);
        const entry e = random_entry(&p);
        mha_sizes sizes;
        mha_compiled_sizes(&c, &sizes);
        sizes.of[MHA_BATCH] = c.batch;
        sizes.of[MHA_KV_HEADS] = c.num_kv_heads;
        sizes.of[MHA_SEQ_Q] = e.queries;
        sizes.of[MHA_SEQ_KV] = e.keys;
        mha_derive_sizes(&c, &sizes);
        int64_t pairs = 0;
        for (int64_t i = 0; i < e.queries; i++)
            for (int64_t j = 0; j < e.keys; j++) pairs += visible(&c, &e, i, j);
        const double expected = 2.0 * (8 + 8) * (double)(p.batch * p.num_heads * pairs);
        if (mha_call_flops(&c, &sizes) != expected) fail_problem("other count", &c, &e);
        const bool known = p.seq_q > 0 && p.seq_kv > 0;
        assert_true(mha_problem_flops(&c) == (known ? expected : 0));
    }
}

/* What queries begin … end - 1 see, pair by pair. */
static attune_sight expected_sight(const attune_problem *p, const entry *e, int64_t begin, int64_t end) {
    attune_sight s = {.struct_size = sizeof s, .all_end = begin < end ? e->keys : 0};
    for (int64_t j = 0; j < e->keys; j++) {
        int64_t count = 0;
        for (int64_t i = begin; i < end; i++) count += visible(p, e, i, j);
        s.pairs += (double)count;
        s.keys += count > 0;
        if (j < p->global_tokens && count) s.global_end = j + 1;
    }
    return s;
}

/* Every key of it is seen by all: `all` holds no others. And by some of it no key is left out. */
static bool is_tight(const attune_problem *p, const entry *e, const attune_sight *s, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < e->keys; j++) {
            const bool in_some = (j >= s->some_begin && j < s->some_end) || j < s->global_end;
            if (visible(p, e, i, j) ? !in_some : j >= s->all_begin && j < s->all_end) return false;
        }
    return true;
}

/* Of any queries of an entry, by the public function; all its keys if nothing hides one. */
static void test_sights(void **state) {
    (void)state;
    int empty = 0, wide = 0;
    for (int n = 0; n < 20000; n++) {
        const attune_problem p = random_problem();
        attune_problem c;
        at_error err = {0};
        if (mha_canonicalize(&p, &c, &err)) fail_msg("%s", err.message);
        const entry e = random_entry(&p);
        const int64_t end = between(0, e.queries), begin = between(0, end);
        const attune_sight expected = expected_sight(&c, &e, begin, end);
        attune_sight s = ATTUNE_SIGHT_INIT;
        const int64_t offset = c.has_causal_offsets ? e.offset : 0;
        if (attune_sight_of(&p, e.queries, e.keys, offset, begin, end, &s)) fail_msg("%s", attune_last_message());
        if (s.pairs != expected.pairs || s.keys != expected.keys || !is_tight(&c, &e, &s, begin, end))
            fail_problem("other keys in sight", &c, &e);
        if (s.global_end < expected.global_end) fail_problem("other global keys", &c, &e);
        const bool hides = c.is_causal || c.window_left >= 0 || c.window_right >= 0;
        if (!hides && begin < end && e.keys) assert_true(s.all_begin == 0 && s.all_end == e.keys);
        empty += s.keys == 0;
        wide += s.all_end > s.all_begin && hides;
    }
    assert_true(empty > 1000 && wide > 500);
}

static void test_sights_are_refused(void **state) {
    (void)state;
    const attune_problem p = problem_canonical("seq_q=5,head_dim=4,is_causal=1");
    static const struct {
        int64_t seq_q, seq_kv, offset, begin, end;
        const char *message;
    } cases[] = {
        {-1, 5, 0, 0, 0, "seq_q is -1; it must be from 0 to 2147483647"},
        {5, INT64_C(1) << 31, 0, 0, 5, "seq_kv is 2147483648; it must be from 0 to 2147483647"},
        {5, 5, INT64_C(1) << 31, 0, 5, "causal_offset is 2147483648; it must be from -2147483648 to 2147483647"},
        {5, 5, 0, 0, 6, "end is 6; it must be from 0 to 5"},
        {5, 5, 0, 4, 3, "begin is 4; it must be from 0 to 3"},
    };
    attune_sight s = ATTUNE_SIGHT_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(
            attune_sight_of(&p, cases[i].seq_q, cases[i].seq_kv, cases[i].offset, cases[i].begin, cases[i].end, &s),
            ATTUNE_INVALID_ARGUMENT);
        assert_string_equal(attune_last_message(), cases[i].message);
    }
    assert_int_equal(attune_sight_of(&p, 5, 5, 0, 0, 5, NULL), ATTUNE_INVALID_ARGUMENT);
    assert_int_equal(attune_sight_of(NULL, 5, 5, 0, 0, 5, &s), ATTUNE_INVALID_ARGUMENT);
    s.struct_size = 4;
    assert_int_equal(attune_sight_of(&p, 5, 5, 0, 0, 5, &s), ATTUNE_INVALID_ARGUMENT);
}

/* Sizes of billions are no loops of billions. */
static void test_flops_of_large_sizes(void **state) {
    (void)state;
    const attune_problem p =
        problem_canonical("seq_q=2000000000,head_dim=1,is_causal=1,window_left=999,global_tokens=0");
    assert_true(mha_problem_flops(&p) == 4.0 * (1000.0 * 2e9 - 999.0 * 1000.0 / 2));
}

static void test_flops_of_other_ops(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double flops;
    } cases[] = {
        {"op=weights,batch=2,num_heads=3,seq_q=5,seq_kv=7,head_dim=4", 2.0 * 4 * 2 * 3 * 5 * 7},
        {"op=weights,num_heads=3,seq_q=5,seq_kv=7,head_dim=4,has_row_ids=1,num_rows=2", 2.0 * 4 * 3 * 2 * 7},
        {"op=rotary,batch=2,num_heads=3,seq_q=5,head_dim=8,rotary_dim=4", 3.0 * 4 * 2 * 3 * 5},
        {"op=merge,batch=2,num_heads=3,seq_q=5,head_dim=8,num_parts=6", 2.0 * 6 * 8 * 2 * 3 * 5},
        {"is_ragged=1,batch=3,num_heads=2,head_dim=4", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const attune_problem p = problem_canonical(cases[i].text);
        if (mha_problem_flops(&p) != cases[i].flops) fail_msg("%s: %g", cases[i].text, mha_problem_flops(&p));
    }
}

/* The purpose of each normalisation. */
static void test_normal_forms(void **state) {
    (void)state;
    static const struct {
        const char *text, *canonical;
    } cases[] = {
        /* The last query is at the last key, unless the first is to be at the first. */
        {"seq_q=5,seq_kv=9,is_causal=1", "num_heads=1,seq_q=5,seq_kv=9,head_dim=4,is_causal=1"},
        {"seq_q=5,seq_kv=9,is_causal=1,causal_align=top_left",
         "num_heads=1,seq_q=5,seq_kv=9,head_dim=4,is_causal=1,causal_offset=-4"},
        {"seq_q=5,seq_kv=9,is_causal=1,causal_align=top_left,causal_offset=8",
         "num_heads=1,seq_q=5,seq_kv=9,head_dim=4"},
        {"seq_q=5,seq_kv=9,is_causal=1,causal_align=top_left,causal_offset=-70",
         "num_heads=1,seq_q=5,seq_kv=9,head_dim=4,is_causal=1,causal_offset=-9"},
        {"seq_q=9,seq_kv=9,is_causal=1,causal_align=top_left", "num_heads=1,seq_q=9,seq_kv=9,head_dim=4,is_causal=1"},
        {"seq_q=5,seq_kv=dynamic,is_causal=1,causal_align=top_left",
         "num_heads=1,seq_q=5,seq_kv=dynamic,head_dim=4,is_causal=1,causal_align=top_left"},
        {"seq_q=5,seq_kv=9,causal_align=top_left", "num_heads=1,seq_q=5,seq_kv=9,head_dim=4"},
        {"seq_q=5,seq_kv=9,causal_offset=3,has_causal_offsets=1", "num_heads=1,seq_q=5,seq_kv=9,head_dim=4"},
        /* The offset of the default alignment would be out of range. */
        {"seq_q=5,seq_kv=3,window_left=1,causal_align=top_left,causal_offset=2147483647",
         "num_heads=1,seq_q=5,seq_kv=3,head_dim=4,causal_align=top_left,causal_offset=2147483647,window_left=1"},
        /* The one query of a decode step sees all there is. */
        {"seq_q=1,seq_kv=9,is_causal=1", "num_heads=1,seq_q=1,seq_kv=9,head_dim=4"},
        {"seq_q=1,seq_kv=9,has_kv_lens=1,is_causal=1", "num_heads=1,seq_q=1,seq_kv=9,head_dim=4,has_kv_lens=1"},
        {"seq_q=2,seq_kv=9,has_kv_lens=1,is_causal=1",
         "num_heads=1,seq_q=2,seq_kv=9,head_dim=4,is_causal=1,has_kv_lens=1"},
        {"seq_q=2,seq_kv=9,has_kv_lens=1,is_causal=1,causal_align=top_left",
         "num_heads=1,seq_q=2,seq_kv=9,head_dim=4,is_causal=1,causal_align=top_left,has_kv_lens=1"},
        {"seq_q=5,seq_kv=9,window_left=8,window_right=4", "num_heads=1,seq_q=5,seq_kv=9,head_dim=4"},
        {"seq_q=5,seq_kv=9,window_left=7,window_right=3,global_tokens=2",
         "num_heads=1,seq_q=5,seq_kv=9,head_dim=4,window_left=7,window_right=3,global_tokens=2"},
        {"seq_q=5,seq_kv=9,window_left=1,global_tokens=9", "num_heads=1,seq_q=5,seq_kv=9,head_dim=4"},
        {"seq_q=5,seq_kv=9,is_causal=1,window_left=1,window_right=0",
         "num_heads=1,seq_q=5,seq_kv=9,head_dim=4,is_causal=1,window_left=1"},
        {"seq_q=5,seq_kv=9,causal_offset=3,has_alibi_slopes=1",
         "num_heads=1,seq_q=5,seq_kv=9,head_dim=4,causal_offset=3,has_alibi_slopes=1"},
        {"seq_q=9,causal_offset=3,rotary_dim=2",
         "num_heads=1,seq_q=9,seq_kv=9,head_dim=4,causal_offset=3,rotary_dim=2"},
        {"seq_q=9,causal_offset=3,rotary_dim=2,has_position_ids=1",
         "num_heads=1,seq_q=9,seq_kv=9,head_dim=4,rotary_dim=2,has_position_ids=1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char full[256], text[512];
        snprintf(full, sizeof full, "head_dim=4,%s", cases[i].text);
        const attune_problem p = problem_canonical(full);
        mha_problem_print(&p, text, sizeof text);
        assert_string_equal(text, cases[i].canonical);
    }
}

/* A step of decoding: the new query is at the place of the new key, unless the first one is to be at the first key. */
static void test_decoding_needs_no_alignment(void **state) {
    (void)state;
    static const char *const steps[] = {
        "seq_q=1,seq_kv=64,seq_new=1,has_kv_lens=1,head_dim=8,rotary_dim=8",
        "seq_q=1,seq_kv=64,seq_new=1,has_kv_lens=1,head_dim=8,window_left=3",
        "seq_q=1,seq_kv=dynamic,page_size=16,has_kv_lens=1,head_dim=8,has_alibi_slopes=1",
        "seq_q=2,seq_kv=64,head_dim=8,is_causal=1,window_left=9",
        "is_ragged=1,batch=3,seq_new=dynamic,has_kv_lens=1,page_size=16,head_dim=8,is_causal=1",
        "embed_dim=8,seq_q=1,seq_kv=64,seq_new=1,has_kv_lens=1,rotary_dim=8,window_left=3",
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char text[256];
        const attune_problem step = problem_canonical(steps[i]);
        snprintf(text, sizeof text, "%s,causal_align=bottom_right", steps[i]);
        const attune_problem said = problem_canonical(text);
        snprintf(text, sizeof text, "%s,causal_align=top_left", steps[i]);
        const attune_problem other = problem_canonical(text);
        assert_memory_equal(&step, &said, sizeof step);
        assert_memory_not_equal(&step, &other, sizeof step);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_keys),
        cmocka_unit_test(test_flops),
        cmocka_unit_test(test_sights),
        cmocka_unit_test(test_sights_are_refused),
        cmocka_unit_test(test_flops_of_large_sizes),
        cmocka_unit_test(test_flops_of_other_ops),
        cmocka_unit_test(test_normal_forms),
        cmocka_unit_test(test_decoding_needs_no_alignment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
