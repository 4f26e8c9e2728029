// attune.hpp in use, by tests/install/test_install_layouts.sh: as C++11, 17 and 20, with ATTUNE_EXCEPTIONS and without.
#include <attune.hpp>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#if __cplusplus >= 202002L
#include <span>
#endif

static int failures;
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) std::printf("line %d: %s\n", __LINE__, #condition), failures++;                             \
    } while (0)

// FAILS(expression, code, words): it fails in this way, by a status or by an exception.
#ifdef ATTUNE_EXCEPTIONS
template <typename F> static bool fails(F call, attune_status code, const char *words) {
    try {
        call();
    } catch (const attune::exception &e) {
        if (e.code() != code || !std::strstr(e.what(), words)) std::printf("%s\n", e.what());
        return e.code() == code && std::strstr(e.what(), words);
    }
    return false;
}
#else
template <typename T> static const attune::status &status_of(const T &found) { return found.status(); }
static const attune::status &status_of(const attune::status &found) { return found; }
template <typename F> static bool fails(F call, attune_status code, const char *words) {
    const auto found = call();
    const attune::status &status = status_of(found);
    if (status || status.code() != code || !std::strstr(status.message(), words)) std::printf("%s\n", status.message());
    return !status && status.code() == code && std::strstr(status.message(), words);
}
#endif
#define FAILS(expression, code, words) CHECK(fails([&] { return expression; }, code, words))

enum { HEADS = 2, ROWS = 5, DIM = 8, COUNT = HEADS * ROWS * DIM };

static attune::problem small() {
    attune::problem problem;
    problem.num_heads = HEADS;
    problem.seq_q = ROWS;
    problem.head_dim = DIM;
    return problem;
}

static void kernels(attune::context &context) {
    std::vector<float> ones(COUNT, 1), out(COUNT);
    attune::result<attune::kernel> compiled = context.compile(small());
    attune::kernel kernel = std::move(compiled).value();
    attune::arguments arguments = kernel.arguments();
    const attune::kernel moved = std::move(kernel); // arguments refer to it
    CHECK(!kernel && moved && moved.get());
    arguments.bind("q", ones).bind("k", attune::span<const float>(ones.data(), ones.size()));
    const std::array<float, COUNT> values = {{3, 3, 3, 3}};
    arguments.bind("v", values).bind("out", out);
    CHECK(moved.run(arguments));
    CHECK(out[0] == 0.6f && out[4] == 0 && out[COUNT - 1] == 0);
#if __cplusplus >= 202002L
    arguments.bind("v", std::span<const float>(ones));
    CHECK(moved.run(arguments) && out[0] == 1 && out[COUNT - 1] == 1);
#endif
    static float array[COUNT];
    arguments.bind("out", array);
    arguments.bind("v", ones);
    CHECK(moved.run(arguments) && array[7] == 1);

    FAILS(moved.arguments().bind("q", std::vector<float>(3)), ATTUNE_INVALID_ARGUMENT, "q has another number");
    FAILS(moved.arguments().bind("q", std::vector<double>(COUNT)), ATTUNE_INVALID_ARGUMENT, "q");
    const std::vector<float> fixed(COUNT, -7);
    FAILS(moved.arguments().bind("out", fixed), ATTUNE_INVALID_ARGUMENT, "out is written by the call, and the memory");
    FAILS(moved.arguments().bind("out", attune::tensor<const float>(out, {1, HEADS, ROWS, DIM})),
          ATTUNE_INVALID_ARGUMENT, "out is written by the call, and the memory is const");
    FAILS(moved.arguments().bind("lse", ones), ATTUNE_INVALID_ARGUMENT, "lse is no tensor of this problem");
    FAILS(moved.arguments().set("rows", 3), ATTUNE_INVALID_ARGUMENT, "rows is no size of a call");
    FAILS(moved.run(moved.arguments()), ATTUNE_INVALID_ARGUMENT, "the pointer to q is NULL");
}

static void block_masks(attune::context &context) {
    enum { LONG = 80, ALL = LONG * DIM };
    attune::problem problem;
    problem.num_heads = 1;
    problem.seq_q = LONG;
    problem.head_dim = DIM;
    std::snprintf(problem.mask_mod, sizeof problem.mask_mod, "q %% 3 == kv %% 3");
    const attune::result<attune::kernel> kernel = context.compile(problem);
    std::vector<float> ones(ALL, 1), out(ALL);
    attune::arguments arguments = kernel->arguments();
    FAILS(kernel->make_block_mask(arguments), ATTUNE_INVALID_ARGUMENT, "the pointer to q is NULL");
    arguments.bind("q", ones).bind("k", ones).bind("v", ones).bind("out", out);
    attune::block_mask mask = kernel->make_block_mask(arguments).value();
    const attune::block_mask moved = std::move(mask);
    CHECK(!mask && moved && moved.get());
    arguments.block_mask = moved.get();
    CHECK(kernel->run(arguments) && out[0] == 1 && out[ALL - 1] == 1);
    FAILS(attune::kernel().make_block_mask(arguments), ATTUNE_INVALID_ARGUMENT, "the object is empty");
}

// Their memory was compared with the sizes of their own kernel.
static void other_arguments(attune::context &context) {
    std::vector<float> x(COUNT), out(COUNT);
    attune::problem larger = small();
    larger.seq_q = 4 * ROWS;
    const attune::result<attune::kernel> kernel = context.compile(small()), other = context.compile(larger);
    const attune::result<attune::plan> plan = context.make_plan(small()), second = context.make_plan(larger);
    attune::arguments arguments = kernel->arguments(), of_plan = plan->arguments();
    arguments.bind("q", x).bind("k", x).bind("v", x).bind("out", out);
    of_plan.bind("q", x).bind("k", x).bind("v", x).bind("out", out);
    CHECK(kernel->run(arguments) && plan->run(of_plan));
    FAILS(other->run(arguments), ATTUNE_INVALID_ARGUMENT, "the arguments are of another kernel");
    FAILS(second->run(of_plan), ATTUNE_INVALID_ARGUMENT, "the arguments are of another plan");
    FAILS(plan->run(arguments), ATTUNE_INVALID_ARGUMENT, "the arguments are of another plan");
    FAILS(kernel->run(of_plan), ATTUNE_INVALID_ARGUMENT, "the arguments are of another kernel");
    FAILS(kernel->run(attune::arguments()), ATTUNE_INVALID_ARGUMENT, "the arguments are of another kernel");
}

static void tensors(attune::context &context) {
    std::vector<float> q(COUNT, 1), out(COUNT);
    attune::problem problem = small();
    problem.seq_q = problem.seq_kv = ATTUNE_DYNAMIC;
    attune::result<attune::plan> plan = context.make_plan(problem);
    typedef attune::tensor<const float> view;
    attune::arguments arguments = plan->arguments();
    // [tokens, heads, columns], seen as [batch, heads, tokens, columns]
    const view rows(q, {1, HEADS, ROWS, DIM}, {COUNT, DIM, HEADS * DIM, 1});
    CHECK(rows.is_inside());
    arguments.bind("q", rows).bind("k", rows).bind("v", rows);
    arguments.bind("out", attune::tensor<float>(out, {1, HEADS, ROWS, DIM}));
    CHECK(plan->run(arguments) && out[COUNT - 1] == 1);
    CHECK(arguments.seq_q == ROWS && arguments.seq_kv == ROWS);
    FAILS(arguments.set("seq_kv", 4000), ATTUNE_INVALID_ARGUMENT, "seq_kv is set after a tensor is bound");
#ifndef ATTUNE_EXCEPTIONS
    FAILS(plan->run(arguments), ATTUNE_INVALID_ARGUMENT, "set sizes first");
#endif
    CHECK(plan->arguments().set("seq_q", 3).set("seq_kv", 4).bind("q", std::vector<float>(HEADS * 3 * DIM)).status());

    CHECK(!view(q, {1, HEADS, ROWS, DIM + 1}).is_inside());
    CHECK(!view(q, {1, HEADS, ROWS, DIM}, {COUNT, COUNT, DIM, 1}).is_inside());
    CHECK(!view(q, {1, HEADS, -1, DIM}).is_inside() && !view(q, {1, 1, 1, 1, 1}).is_inside());
    CHECK(!view(q, {int64_t(1) << 40, int64_t(1) << 40, 2, 2}).is_inside());
    CHECK(!view(q, {2, 2}, {1}).is_inside() && view(q, {HEADS, 0, DIM}).is_inside());
    const view large(q, {1, HEADS, 99, DIM});
    FAILS(plan->arguments().bind("q", large), ATTUNE_INVALID_ARGUMENT, "do not fit its elements");
    FAILS(plan->arguments().bind("q", view(q, {HEADS, ROWS, DIM})), ATTUNE_INVALID_ARGUMENT, "q has 3 dimensions");
}

static void blocks(attune::context &context) {
    attune::problem problem;
    problem.embed_dim = 4;
    problem.num_heads = 2;
    problem.seq_q = 3;
    const std::vector<float> identity = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
    const std::vector<float> x(12, 2);
    std::vector<float> out(12);
    attune::weights weights(problem, ATTUNE_OUT_IN);
    for (int id = ATTUNE_Q_WEIGHT; id <= ATTUNE_OUT_WEIGHT; id++)
        weights.set(static_cast<attune_weight_id>(id), identity);
    attune::result<attune::block> block = context.make_block(problem, weights);
    attune::arguments arguments = block->arguments();
    arguments.bind("x", x).bind("out", out);
    CHECK(block->run(arguments) && out[0] == 2 && out[11] == 2);
    const attune::result<attune::kernel> kernel = context.compile(small());
    FAILS(block->run(kernel->arguments()), ATTUNE_INVALID_ARGUMENT, "the arguments are of another block");
    FAILS(attune::weights(problem, ATTUNE_OUT_IN).set(ATTUNE_Q_BIAS, identity), ATTUNE_INVALID_ARGUMENT, "q_bias has");
    FAILS(context.make_block(problem, attune::weights(problem, ATTUNE_OUT_IN)), ATTUNE_INVALID_ARGUMENT, "weight");
}

static void problems(attune::context &context) {
    attune::result<attune::problem> parsed = attune::problem::parse("num_heads=2,seq_q=5,head_dim=8");
    CHECK(parsed && parsed->check() && parsed->text() == small().text() && parsed->flops() > 0);
    CHECK(parsed->text().find("head_dim=8") != std::string::npos);
    FAILS(attune::problem::parse("head_dims=8"), ATTUNE_INVALID_PROBLEM, "head_dim");
    FAILS(attune::problem().check(), ATTUNE_INVALID_PROBLEM, "seq_q");
    FAILS(context.compile(attune::problem()), ATTUNE_INVALID_PROBLEM, "seq_q");
    FAILS(context.make_plan(attune::problem()), ATTUNE_INVALID_PROBLEM, "seq_q");
    attune::context_options options;
    options.isa = "none";
    FAILS(attune::context::create(options), ATTUNE_INVALID_ARGUMENT, "none");
    FAILS(attune::context().compile(small()), ATTUNE_INVALID_ARGUMENT, "the object is empty");
    FAILS(attune::kernel().run(attune::arguments()), ATTUNE_INVALID_ARGUMENT, "the object is empty");
    FAILS(attune::plan().arguments(), ATTUNE_INVALID_ARGUMENT, "the object is empty");
    FAILS(attune::block().arguments(), ATTUNE_INVALID_ARGUMENT, "the object is empty");
}

// A chain of calls has the sentence of the first that failed.
static void chains(attune::context &context) {
#ifndef ATTUNE_EXCEPTIONS
    attune::problem bad = small();
    bad.head_dim = -3;
    const attune::result<attune::kernel> kernel = context.compile(bad);
    attune::arguments arguments = kernel->arguments();
    arguments.bind("q", std::vector<float>(3)).set("seq_q", 1);
    FAILS(kernel->run(arguments), ATTUNE_INVALID_PROBLEM, "head_dim is -3");
    FAILS(arguments, ATTUNE_INVALID_PROBLEM, "head_dim is -3");
    attune::context_options options;
    options.isa = "none";
    const attune::result<attune::context> none = attune::context::create(options);
    FAILS(none->compile(small())->run(attune::arguments()), ATTUNE_INVALID_ARGUMENT, "none");
    FAILS(none->make_plan(small())->arguments(), ATTUNE_INVALID_ARGUMENT, "none");
#else
    (void)context;
#endif
}

// One query after five, by a step and by a plan of it.
// Linear attention, a convolution, latent attention, the index and blocks of keys: one step of each.
static void steps() {
    const std::vector<float> ones(64, 1);
    std::vector<float> out(64), state(64);
    attune::linear_desc linear_desc;
    linear_desc.num_heads = 1, linear_desc.head_dim = 8;
    const attune::result<attune::linear> linear = attune::linear::create(linear_desc);
    attune::linear_step l;
    l.batch = 1, l.seq = 3;
    l.q.data = l.k.data = l.v.data = ones.data(), l.out.data = out.data(), l.state.data = state.data();
    CHECK(linear && linear->prepare() && linear->run(l) && state[0] == 3 && linear->get());

    attune::conv_desc conv_desc;
    conv_desc.channels = 4, conv_desc.taps = 2;
    attune::conv_step c;
    c.batch = 1, c.seq = 3;
    std::vector<float> before(4);
    c.x.data = c.weights = ones.data(), c.out.data = out.data(), c.state.data = before.data();
    CHECK(attune::conv::create(conv_desc)->run(c) && out[0] == 1 && out[4] == 2 && before[0] == 1);

    attune::mla_desc mla_desc;
    mla_desc.embed_dim = 8, mla_desc.num_heads = 1, mla_desc.kv_lora_rank = 16;
    mla_desc.qk_nope_head_dim = 8, mla_desc.qk_rope_head_dim = 2;
    const std::vector<float> weight(1024, 1);
    attune::mla_weights weights;
    weights.q_proj = weights.kv_a_proj = weights.kv_a_layernorm = weights.kv_b_proj = weights.o_proj = weight.data();
    attune::result<attune::mla> made = attune::mla::create(mla_desc, weights);
    const attune::mla mla = std::move(made).value();
    attune::mla_step m;
    m.batch = m.seq = m.cache_rows = m.num_positions = 1;
    std::vector<float> cache(18), zero(1);
    m.x.data = ones.data(), m.out.data = out.data(), m.cache.data = cache.data();
    m.cos = ones.data(), m.sin = zero.data();
    CHECK(mla.run(m) && out[0] > 100 && out[0] == out[7]); // all columns are the same sum

    attune::index_desc index_desc;
    index_desc.num_heads = 1, index_desc.head_dim = 8, index_desc.num_ids = 2;
    attune::index_step i;
    i.batch = i.seq_q = 1, i.seq_kv = 3;
    std::vector<int32_t> ids(2, -7);
    i.q.data = i.k.data = i.w.data = ones.data(), i.ids = ids.data();
    const attune::result<attune::index> index = attune::index::create(index_desc);
    CHECK(index->prepare() && index->run(i) && ids[0] == 0 && ids[1] == 1); // of equal keys the first ones

    attune::blocks_desc blocks_desc;
    blocks_desc.num_heads = 1, blocks_desc.head_dim = 4, blocks_desc.block_size = 4, blocks_desc.stride = 2;
    attune::blocks_step b;
    b.batch = 1, b.seq_q = b.seq_kv = 8;
    b.q.data = b.k.data = ones.data(), b.shares = out.data();
    const attune::result<attune::blocks> blocks = attune::blocks::create(blocks_desc);
    CHECK(blocks->prepare(8) && blocks->run(b) && out[0] == 0.5f && out[3] == 0.5f);

    conv_desc.taps = -3;
    FAILS(attune::conv::create(conv_desc), ATTUNE_INVALID_ARGUMENT, "-3");
    FAILS(attune::conv::create(conv_desc)->run(c), ATTUNE_INVALID_ARGUMENT, "-3");
}

static void attentions() {
    std::vector<float> ones(COUNT, 1), out(COUNT), again(COUNT);
    attune::attention_desc desc;
    desc.num_heads = HEADS;
    desc.head_dim = DIM;
    desc.layout = ATTUNE_BHSD;
    attune::result<attune::attention> created = attune::attention::create(desc);
    attune::attention attention = std::move(created).value();
    CHECK(attention && !*created && attention.get());
    attune::step step;
    step.batch = 1;
    step.seq_q = step.seq_kv = ROWS;
    step.q.data = step.k.data = step.v.data = ones.data();
    step.out.data = out.data();
    CHECK(attention.prepare());
    CHECK(attention.run(step));
    CHECK(out == ones);
    const attune::result<attune::step_plan> plan = attention.plan(step);
    step.out.data = again.data();
    CHECK(plan && plan->run(step));
    CHECK(again == ones);
    CHECK(attention.info()->compiled_calls == 2 && attention.info()->is_ready);
    step.q.data = nullptr;
    FAILS(attention.run(step), ATTUNE_INVALID_ARGUMENT, "q");
    desc.head_dim = -3;
    FAILS(attune::attention::create(desc), ATTUNE_INVALID_PROBLEM, "-3");
#ifndef ATTUNE_EXCEPTIONS
    FAILS(attune::attention::create(desc)->plan(step)->run(step), ATTUNE_INVALID_PROBLEM, "-3");
#endif
    attune_context *common = nullptr;
    {
        const attune::result<attune::context> shared = attune::context::shared();
        CHECK(shared && shared->compile(small()));
        common = shared->get();
    }
    CHECK(attune::context::shared()->get() == common); /* it outlives its owners */
    step.q.data = ones.data();
    CHECK(attention.run(step));
}

int main() {
    attune::result<attune::context> made = attune::context::create();
    attune::context context;
    context = std::move(made).value();
    CHECK(context && context.get() && !*made);
    attentions();
    steps();
    kernels(context);
    block_masks(context);
    other_arguments(context);
    tensors(context);
    blocks(context);
    problems(context);
    chains(context);
    attune_context *const handle = context.get();
    attune::context other = std::move(context);
    CHECK(other.get() == handle && !context);
    std::puts(failures ? "failed" : "passed");
    return failures != 0;
}
