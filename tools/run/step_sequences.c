/* What the steps of linear attention and of its convolution share: sequences of one length or of lengths in cu_seqlens,
 * each with a state. */
#include "common/tool.h"
#include "run/step.h"

/* The number of tokens is that of a batch with cu_seqlens, and seq that of one without. */
static bool check_tokens(const step_call *c) {
    const int64_t tokens = step_size_of(c, "tokens"), seq = step_size_of(c, "seq");
    const bool has_starts = step_file(c, "cu_seqlens");
    if (has_starts && seq >= 0) {
        tool_error("seq is %lld, but cu_seqlens has the length of each sequence: leave seq out", (long long)seq);
        return false;
    }
    if (!has_starts && tokens >= 0) {
        tool_error("tokens is %lld, which is a size of batches with cu_seqlens; say seq=N, or give --tensor "
                   "cu_seqlens=F.npy",
                   (long long)tokens);
        return false;
    }
    return true;
}

/* Whether the last start is within the tokens that files have. */
static bool check_starts(step_call *c) {
    const npy_array *const starts = step_file(c, "cu_seqlens");
    if (!starts) return true;
    const int64_t batch = step_size_of(c, "batch"), end = (int64_t)npy_element(starts, (size_t)batch);
    *step_size(c, "seq") = 0;
    if (end <= step_size_of(c, "tokens")) return true;
    tool_error("cu_seqlens ends at %lld, but the files have %lld tokens", (long long)end,
               (long long)step_size_of(c, "tokens"));
    return false;
}

/* Whether there are states for all sequences. The library would read 0 as the batch, and write as many. */
static bool check_states(const step_call *c) {
    const int64_t batch = step_size_of(c, "batch"), states = step_size_of(c, "num_states");
    const bool has_ids = step_file(c, "state_ids") != NULL;
    const int64_t least = has_ids && batch > 1 ? 1 : batch;
    if (states >= least) return true;
    tool_error("num_states is %lld; for a batch of %lld %s state_ids it must be at least %lld", (long long)states,
               (long long)batch, has_ids ? "with" : "without", (long long)least);
    return false;
}

bool step_derive_sequences(step_call *c) {
    step_set_default(c, "batch", 1);
    step_set_default(c, "num_states", step_size_of(c, "batch"));
    return check_tokens(c) && check_states(c) && check_starts(c);
}

int64_t step_tokens(const step_call *c) {
    return step_data(c, "cu_seqlens") ? step_size_of(c, "tokens") : step_size_of(c, "batch") * step_size_of(c, "seq");
}

bool step_judge_sequences(step_call *c, bool (*judge)(step_call *c, int64_t first, int64_t tokens, int64_t state)) {
    const int32_t *const starts = step_data(c, "cu_seqlens"), *const ids = step_data(c, "state_ids");
    const int64_t seq = step_size_of(c, "seq");
    bool good = true;
    for (int64_t b = 0; b < step_size_of(c, "batch") && good; b++)
        good = judge(c, starts ? starts[b] : b * seq, starts ? starts[b + 1] - starts[b] : seq, ids ? ids[b] : b);
    return good;
}
