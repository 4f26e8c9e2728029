/* A good schedule without measuring. The figures behind the choices: docs/performance-lessons.md. */
#include "base/integers.h"
#include "problem/problem.h"
#include "schedule/choose.h"

/* Every number of keys that a vector or a register tile may have divides 48. */
int32_t mha_reproducible_kv_tile(const attune_problem *p) {
    enum { TILE_ELEMENTS = 6144, STEP = 48, MOST = 192 };
    if (p->integer == ATTUNE_INTEGER_ALL) return MHA_INTEGER_KEYS;
    const int64_t keys = TILE_ELEMENTS / max_of(p->head_dim, p->head_dim_v);
    return (int32_t)(max_of(STEP, min_of(keys, MOST)) / STEP * STEP);
}

void mha_choose(const attune_problem *p, const at_target *target, const at_description *machine, attune_schedule *s) {
    *s = (attune_schedule)ATTUNE_SCHEDULE_INIT;
    if (!mha_choose_d_lanes(p, target, machine, s)) mha_choose_q_lanes(p, target, machine, s);
    mha_choose_gemm(p, target, s);
    mha_schedule_settle(p, target, s);
}
