/* One row of the tables of problems that tests have; what is 0 is left out of it. */
#ifndef ATTUNE_TESTS_SAMPLE_H
#define ATTUNE_TESTS_SAMPLE_H

enum { SAMPLE_ENTRIES = 4 };

/* A problem with the run-time sizes of one call of it. */
typedef struct sample {
    const char *problem;
    const char *sizes;                         /* "seq_q=5,total_q=12": fields of attune_arguments; NULL: none */
    int q[SAMPLE_ENTRIES], kv[SAMPLE_ENTRIES]; /* lengths of batch entries, for cu_seqlens and kv_lens */
} sample;

#endif
