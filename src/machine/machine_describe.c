/* From cycles that a probe has counted to a description. */
#include "machine/machine.h"

/* Bytes of a vector: 128, 256 and 512 bits. */
static const double BYTES[] = {16, 32, 64};

/* Units are whole, or one takes two or four cycles. */
static double round_rate(double rate, double otherwise) {
    enum { MOST = 8 };
    if (!(rate > 0)) return otherwise;
    if (rate < 0.75) return rate < 0.35 ? 0.25 : 0.5;
    return rate < MOST ? (double)(int)(rate + 0.5) : MOST;
}

/* The widest vectors whose multiply-adds take no longer than narrow ones. */
static int find_width(const at_core_cycles *c) {
    int width = 0;
    for (int w = 1; w < 3; w++)
        if (c->fma[w] > 0 && c->fma[w] < 1.5 * c->fma[0]) width = w;
    return width;
}

static double per_cycle(double cycles) { return cycles > 0 ? 1 / cycles : 0; }

/* Sizes that a virtual machine makes up may contradict each other. Then none of them counts. */
static void set_caches(at_description *d, int64_t l1, int64_t l2, int64_t l3) {
    static const int64_t KIB = 1024, MIB = 1024 * KIB, TIB = MIB * MIB;
    const bool is_sound = l1 >= 16 * KIB && l1 <= 16 * MIB && l2 >= l1 && l2 <= 1024 * MIB;
    if (!is_sound || (l3 && (l3 < l2 || l3 > TIB))) return;
    d->l1 = (double)l1;
    d->l2 = (double)l2;
    d->l3 = (double)l3;
}

at_description at_core_describe(const at_core_cycles *c, int64_t l1, int64_t l2, int64_t l3) {
    at_description d = *at_description_generic(false);
    const int w = find_width(c);
    const double slots = BYTES[2] / BYTES[w];
    d.width = BYTES[w];
    d.fma = round_rate(per_cycle(c->fma[w]), d.fma);
    d.load = round_rate(per_cycle(c->load[w]), d.load);
    d.store = round_rate(per_cycle(c->store[w]), d.store);
    d.shuffle = round_rate(per_cycle(c->shuffle[w]), d.shuffle);
    d.bf16 = round_rate(slots * per_cycle(c->bf16), d.bf16);
    d.i8 = round_rate(slots * per_cycle(c->i8), d.i8);
    if (c->latency >= 0.5 && c->latency < 32) d.latency = (double)(int)(c->latency + 0.5);
    d.l1_rate = d.load * d.width;
    set_caches(&d, l1, l2, l3);
    return d;
}
