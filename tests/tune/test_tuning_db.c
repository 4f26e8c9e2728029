/* What was tuned, found again: for the problem itself, for its neighbours, from a base. */

#include "schedule/schedule.h"
#include "support/engine/tuning_db.h"
#include "support/problems.h"
#include "tune/space.h"
#include "tune/tuning.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* The same with a text. */
static void plant_text(const attune_context *context, const char *problem, const char *schedule) {
    const attune_problem p = problem_canonical(problem);
    char problem_text[2048];
    tune_place place;
    at_error err = {0};
    at_tuning_place(context, at_attention_of(&p), problem_text, sizeof problem_text, &place);
    const tune_timing timing = {schedule, 1e-3, 0.5, 9};
    tune_database *d = open_database(own_db);
    if (tune_database_add(d, &place, "v1", &timing, 1, 0, &err)) fail_msg("%s", err.message);
    tune_database_close(d);
}

/* ---- Neighbours ---- */

static void only_lengths_and_heads_may_differ(void **state) {
    (void)state;
    attune_context *context = open_context(own_dir, "", 1);
    const mha_schedule s = unusual(context, 0);
    mha_schedule schedule;
    static const char *const alike[] = {THERE ",batch=3", "num_heads=2,seq_q=40,seq_kv=32,head_dim=16",
                                        "num_heads=7,seq_q=24,seq_kv=32,head_dim=16"};
    static const char *const unlike[] = {
        THERE ",is_causal=1",          THERE ",window_left=8",     THERE ",rotary_dim=16",
        THERE ",has_alibi_slopes=1",   THERE ",has_sinks=1",       THERE ",logits_soft_cap=30",
        THERE ",weights_mode=softmax", THERE ",has_lse=1",         THERE ",has_kv_lens=1",
        THERE ",kv_dtype=f16",         THERE ",reproducible=1",    THERE ",attn_mask_dims=qk",
        THERE ",attn_bias_dims=bhqk",  THERE ",softmax_scale=0.3", THERE ",kv_dtype=i8,kv_scales=head",
        THERE ",k_strides=1:1:1:7",    THERE ",seq_kv=dynamic"};
    plant(context, own_db, THERE, &s, 0.5);
    for (size_t i = 0; i < sizeof alike / sizeof *alike; i++) assert_finds(context, alike[i], &s);
    for (size_t i = 0; i < sizeof unlike / sizeof *unlike; i++)
        if (finds(context, unlike[i], &schedule)) fail_msg("%s", unlike[i]);
    assert_false(finds(context, "num_heads=2,seq_q=40,seq_kv=40,head_dim=16", &schedule)); /* 1.25 squared is far */
    attune_context_destroy(context);
}

/* Results of a version whose schedules had other fields are no error, here or for a neighbour. */
static void schedules_of_before_are_passed_over(void **state) {
    (void)state;
    attune_context *context = open_context(own_dir, "", 1);
    mha_schedule schedule;
    plant_text(context, THERE,
               "strategy=q_lanes,lanes=4,score_rows=6,score_vectors=2,score_unroll=4,value_rows=6,"
               "value_vectors=2,value_unroll=1,q_vectors=4,kv_tile=48,kv_chunk=0");
    assert_false(finds(context, THERE, &schedule));
    assert_false(finds(context, "num_heads=2,seq_q=40,seq_kv=32,head_dim=16", &schedule));
    assert_int_equal(messages, 0);
    const mha_schedule s = unusual(context, 0);
    plant(context, own_db, THERE, &s, 0.5);
    assert_finds(context, THERE, &s);
    attune_context_destroy(context);
}

/* Vectors of two lanes can have values by rows in one tile only: a neighbour with more keys takes columns. */
static void usual_choices_are_made_anew(void **state) {
    (void)state;
    attune_context *context = open_context(own_dir, "", 1);
    static const char there[] = "num_heads=2,seq_q=32,seq_kv=32,head_dim=16";
    static const char here[] = "num_heads=2,seq_q=32,seq_kv=36,head_dim=16";
    mha_schedule schedule;
    plant_text(context, there,
               "strategy=q_lanes,lanes=2,score_row_vectors=4,score_keys=2,score_columns=4,value_by=rows,"
               "value_row_vectors=4,value_columns=2,value_keys=2,task_row_vectors=4,kv_tile=32,kv_copy=converted,task_"
               "prefetch=none");
    assert_true(finds(context, there, &schedule));
    assert_int_equal(schedule.value_by, MHA_VALUE_BY_ROWS);
    assert_true(finds(context, here, &schedule));
    assert_int_equal(schedule.value_by, MHA_VALUE_BY_COLUMNS);
    attune_context_destroy(context);
}

static void open_lengths_are_near_by_their_bounds(void **state) {
    (void)state;
    attune_context *context = open_context(own_dir, "", 1);
    const char *const there = "num_heads=2,seq_q=32,seq_kv=dynamic,max_seq_kv=512,head_dim=16";
    const mha_schedule s = unusual(context, 0);
    mha_schedule schedule;
    plant(context, own_db, there, &s, 0.5);
    assert_finds(context, "num_heads=2,seq_q=32,seq_kv=dynamic,max_seq_kv=640,head_dim=16", &s);
    assert_false(finds(context, "num_heads=2,seq_q=32,seq_kv=dynamic,max_seq_kv=1024,head_dim=16", &schedule));
    assert_false(finds(context, "num_heads=2,seq_q=32,seq_kv=dynamic,head_dim=16", &schedule));
    assert_false(finds(context, "num_heads=2,seq_q=32,seq_kv=512,head_dim=16", &schedule));
    attune_context_destroy(context);
}

/* Whether the usual choices of one problem are those of the other. */
static bool is_the_same_here(const attune_problem *there, const attune_problem *here, const attune_context *context,
                             const mha_schedule *s) {
    const at_description *const machine = &context->machine_class.description;
    mha_schedule carried = *s;
    mha_schedule_leave_usual(there, context->target, machine, &carried);
    mha_schedule_settle(here, context->target, machine, &carried);
    return mha_schedule_same(&carried, s);
}

/* What a neighbour won must be more than what the model sees it lose on the way. */
static void a_neighbour_has_to_suit(void **state) {
    enum { SPACE = 3000 };
    static tune_candidate list[SPACE];
    static const char there_text[] = "num_heads=2,seq_q=96,seq_kv=96,head_dim=64";
    static const char here_text[] = "num_heads=2,seq_q=65,seq_kv=96,head_dim=64";
    (void)state;
    attune_context *context = open_context(own_dir, "", 1);
    const attune_problem there = problem_canonical(there_text), here = problem_canonical(here_text);
    const mha_machine machine = tune_machine_of(context);
    const size_t count = tune_space(&there, &machine, list, SPACE);
    mha_schedule usual_there, usual_here, schedule;
    const mha_schedule *worse = NULL;
    double change = 1.03;
    mha_choose(mha_read(&there), context->target, &context->machine_class.description, &usual_there);
    mha_choose(mha_read(&here), context->target, &context->machine_class.description, &usual_here);
    for (size_t i = 0; i < count; i++) {
        if (mha_schedule_check(&here, &list[i].schedule, context->target, NULL)) continue;
        if (!is_the_same_here(&there, &here, context, &list[i].schedule)) continue;
        const double loss = mha_cost(&here, &machine, &list[i].schedule) / mha_cost(&here, &machine, &usual_here) /
                            (list[i].cost / mha_cost(&there, &machine, &usual_there));
        if (loss <= change) continue;
        worse = &list[i].schedule;
        change = loss;
    }
    assert_non_null(worse);
    plant(context, own_db, there_text, worse, 1.03 / change);
    assert_finds(context, there_text, worse);
    assert_false(finds(context, here_text, &schedule));
    plant(context, own_db, there_text, worse, 0.97 / change);
    assert_finds(context, here_text, worse);
    attune_context_destroy(context);
}

/* ---- Order ---- */

#define EARLIER "UPDATE search SET at = at - 100 WHERE id = (SELECT max(id) FROM search)"

static tune_place with_threads(uint32_t threads) {
    tune_place place = a_place;
    place.threads = threads;
    return place;
}

static tune_place of_lengths(int64_t queries, int64_t keys, int64_t heads) {
    tune_place place = a_place;
    place.key[0] += (uint64_t)(queries * 1000 + keys * 10 + heads);
    place.queries = queries;
    place.keys = keys;
    place.heads_per_kv_head = heads;
    return place;
}

static void the_nearest_number_of_threads_and_the_latest(void **state) {
    (void)state;
    tune_place elsewhere = a_place;
    add(own_db, with_threads(1), "one", NULL);
    add(own_db, with_threads(4), "four", NULL);
    add(own_db, with_threads(4), "older", EARLIER);
    add(own_db, with_threads(6), "six", NULL);
    add(own_db, with_threads(64), "many", NULL);
    elsewhere.machine = "another class";
    add(own_db, elsewhere, "elsewhere", NULL);
    assert_same("four older six one many");
}

static void the_nearest_neighbour(void **state) {
    (void)state;
    tune_place unlike = of_lengths(100, 101, 2), elsewhere = of_lengths(100, 101, 2), few = of_lengths(100, 101, 2);
    unlike.kind[1]++;
    elsewhere.isa = "avx512";
    few.threads = 2;
    add(own_db, of_lengths(120, 110, 2), "132", NULL);
    add(own_db, of_lengths(100, 90, 2), "111", NULL);
    add(own_db, of_lengths(90, 100, 2), "newer", NULL);
    add(own_db, of_lengths(100, 90, 2), "old", EARLIER);
    add(own_db, of_lengths(149, 100, 2), "149", NULL);
    add(own_db, of_lengths(151, 100, 2), "too-far", NULL);
    add(own_db, of_lengths(130, 130, 2), "too-far-both", NULL);
    add(own_db, of_lengths(100, 100, 4), "too-many-heads", NULL);
    add(own_db, unlike, "unlike", NULL);
    add(own_db, elsewhere, "elsewhere", NULL);
    add(own_db, few, "few-threads", NULL);
    assert_near("newer 111 old 132 149 few-threads");
}

static int count_visit(void *user, const tune_winner *winner) {
    (void)winner;
    return ++*(int *)user < 0;
}

/* Neighbours that do not suit cost a miss no more than sixteen looks. */
static void no_more_than_sixteen_are_asked(void **state) {
    (void)state;
    int visits = 0;
    for (int64_t i = 0; i < 20; i++) add(own_db, of_lengths(100 + i, 100, 2), "lanes=8", NULL);
    tune_database *d = open_database(own_db);
    assert_int_equal(tune_database_near(d, &a_place, 1.5, count_visit, &visits, NULL), ATTUNE_OK);
    tune_database_close(d);
    assert_int_equal(visits, 16);
}

/* A journal as SQLite writes it, whose super-journal is `victim`: SQLite deletes that file when it plays the journal
 * back. */
static void plant_journal(const char *path, const char *victim) {
    enum { SECTOR = 512, PAGE = 4096, PENDING_PAGE = 0x40000000 / PAGE + 1 };
    static const unsigned char magic[8] = {0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7};
    const uint32_t length = (uint32_t)strlen(victim), numbers[] = {0, 1, 1, SECTOR, PAGE};
    unsigned char head[SECTOR] = {0};
    uint32_t sum = 0;
    FILE *const file = fopen(path, "wb");
    assert_non_null(file);
    memcpy(head, magic, sizeof magic);
    for (int i = 0; i < 5; i++)
        for (int b = 0; b < 4; b++) head[8 + 4 * i + b] = (unsigned char)(numbers[i] >> (24 - 8 * b));
    for (uint32_t i = 0; i < length; i++) sum += (unsigned char)victim[i];
    const uint32_t tail[] = {length, sum};
    fwrite(head, 1, sizeof head, file);
    for (int b = 0; b < 4; b++) fputc(PENDING_PAGE >> (24 - 8 * b) & 0xff, file);
    fwrite(victim, 1, length, file);
    for (int i = 0; i < 2; i++)
        for (int b = 0; b < 4; b++) fputc((int)(tail[i] >> (24 - 8 * b) & 0xff), file);
    fwrite(magic, 1, sizeof magic, file);
    assert_int_equal(fclose(file), 0);
}

/* An archive that was unpacked may have any file beside the results. */
static void an_import_touches_nothing_beside_the_file(void **state) {
    (void)state;
    static const char *const endings[] = {"-journal", "-wal"};
    char beside[512], victim[512];
    uint64_t taken, of_here;
    snprintf(victim, sizeof victim, "%s.thesis", base_db);
    add(base_db, a_place, "imported", EARLIER);
    for (int i = 0; i < 2; i++) {
        at_error err = {0};
        tune_database *d = open_database(own_db);
        snprintf(beside, sizeof beside, "%s%s", base_db, endings[i]);
        FILE *const file = fopen(victim, "w");
        assert_true(file && fputs("years of work", file) > 0 && !fclose(file));
        plant_journal(beside, victim);
        assert_int_equal(tune_database_import(d, base_db, a_place.isa, a_place.machine, &taken, &of_here, &err),
                         ATTUNE_BAD_FILE);
        assert_non_null(strstr(err.message, endings[i]));
        assert_int_equal(access(victim, F_OK), 0);
        assert_int_equal(unlink(beside), 0);
        if (tune_database_import(d, base_db, a_place.isa, a_place.machine, &taken, &of_here, &err))
            fail_msg("%s", err.message);
        assert_int_equal(taken, !i);
        tune_database_close(d);
    }
    unlink(victim);
}

/* What is brought from elsewhere is as old as it was there. */
static void an_older_import_does_not_override(void **state) {
    (void)state;
    at_error err = {0};
    uint64_t taken, of_here;
    add(base_db, a_place, "imported", EARLIER);
    add(own_db, a_place, "own", NULL);
    tune_database *d = open_database(own_db);
    if (tune_database_import(d, base_db, a_place.isa, a_place.machine, &taken, &of_here, &err))
        fail_msg("%s", err.message);
    tune_database_close(d);
    assert_int_equal(of_here, 1);
    assert_same("own imported");
}

/* ---- The base ---- */

static void a_base_is_found_and_not_touched(void **state) {
    (void)state;
    attune_context *context = open_context(base_dir, "", 1);
    const mha_schedule s = unusual(context, 0);
    mha_schedule schedule;
    plant(context, base_db, THERE, &s, 0.5);
    attune_context_destroy(context);
    assert_int_equal(chmod(base_dir, 0500), 0);
    obey_permissions(true);
    static const char *const own[] = {"", own_dir};
    for (int i = 0; i < 2; i++) {
        context = open_context(own[i], base_dir, 1);
        assert_finds(context, THERE, &s);
        assert_finds(context, "num_heads=2,seq_q=40,seq_kv=32,head_dim=16", &s);
        assert_false(finds(context, "num_heads=2,seq_q=80,head_dim=16", &schedule));
        attune_context_destroy(context);
    }
    obey_permissions(false);
    assert_int_equal(messages, 0);
    assert_int_equal(temp_dir_count(base_dir, "tuning.db", ""), 1);
    assert_int_equal(access(own_db, F_OK), -1);
}

static void an_exported_file_makes_a_base(void **state) {
    (void)state;
    attune_context *context = open_context(own_dir, "", 1);
    const mha_schedule s = unusual(context, 0);
    plant(context, own_db, THERE, &s, 0.5);
    if (attune_tuning_export(context, base_db)) fail_msg("%s", attune_last_message());
    attune_context_destroy(context);
    context = open_context("", base_dir, 1);
    assert_finds(context, THERE, &s);
    attune_context_destroy(context);
}

/* A directory of one's own on a disk that is only read. */
static void a_read_only_directory_is_read(void **state) {
    (void)state;
    attune_context *context = open_context(own_dir, "", 1);
    const mha_schedule s = unusual(context, 0);
    plant(context, own_db, THERE, &s, 0.5);
    attune_context_destroy(context);
    assert_int_equal(chmod(own_dir, 0500), 0);
    obey_permissions(true);
    context = open_context(own_dir, "", 1);
    assert_finds(context, THERE, &s);
    at_error err = {0};
    tune_database *d;
    assert_int_equal(tune_database_open(own_db, TUNE_CREATE, at_default_allocator(), &d, &err), ATTUNE_IO_ERROR);
    assert_non_null(strstr(err.message, "tuning.db cannot be written to: Permission denied"));
    attune_context_destroy(context);
    obey_permissions(false);
    assert_int_equal(messages, 0);
}

/* Who is asked first: for the problem itself both, then for neighbours. */
static void the_problem_itself_in_a_base_comes_before_neighbours(void **state) {
    (void)state;
    attune_context *context = open_context(own_dir, base_dir, 1);
    static const char near[] = "num_heads=2,seq_q=40,seq_kv=32,head_dim=16";
    const mha_schedule of_base = unusual(context, 0), of_own = unusual(context, 1), of_near = unusual(context, 2);
    plant(context, own_db, near, &of_near, 0.5);
    assert_finds(context, THERE, &of_near);
    plant(context, base_db, THERE, &of_base, 0.5);
    attune_context_destroy(context);
    context = open_context(own_dir, base_dir, 1);
    assert_finds(context, THERE, &of_base);
    assert_finds(context, near, &of_near);
    plant(context, own_db, THERE, &of_own, 0.5);
    assert_finds(context, THERE, &of_own);
    attune_context_destroy(context);
}

static void a_base_that_others_can_write_is_not_read(void **state) {
    (void)state;
    attune_context *context = open_context(base_dir, "", 1);
    const mha_schedule s = unusual(context, 0);
    mha_schedule schedule;
    plant(context, base_db, THERE, &s, 0.5);
    attune_context_destroy(context);
    assert_int_equal(chmod(base_db, 0666), 0);
    context = open_context(own_dir, base_dir, 1);
    assert_false(finds(context, THERE, &schedule));
    assert_false(finds(context, THERE, &schedule));
    assert_int_equal(messages, 1);
    assert_non_null(strstr(last_message, "it can be written by others"));
    attune_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(only_lengths_and_heads_may_differ),
        CASE(schedules_of_before_are_passed_over),
        CASE(usual_choices_are_made_anew),
        CASE(open_lengths_are_near_by_their_bounds),
        CASE(a_neighbour_has_to_suit),
        CASE(the_nearest_number_of_threads_and_the_latest),
        CASE(the_nearest_neighbour),
        CASE(no_more_than_sixteen_are_asked),
        CASE(an_import_touches_nothing_beside_the_file),
        CASE(an_older_import_does_not_override),
        CASE(a_base_is_found_and_not_touched),
        CASE(an_exported_file_makes_a_base),
        CASE(a_read_only_directory_is_read),
        CASE(the_problem_itself_in_a_base_comes_before_neighbours),
        CASE(a_base_that_others_can_write_is_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
