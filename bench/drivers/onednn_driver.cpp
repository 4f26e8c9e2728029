/* oneDNN (version 3 or later) behind the protocol of docs/bench.md. usage: onednn_driver THREADS
 *
 * Methods: `at-once` and `blocks` are two batched products with a softmax between them, for all heads and rows, or for
 * so many that their scores stay in the cache; `graph` is the same as one partition of the graph API. Projections are
 * products with packed weights in all of them. The threads are as many as the CPUs to which the process is bound. */
#include "driver.h"

#include <oneapi/dnnl/dnnl.hpp>
#include <oneapi/dnnl/dnnl_graph.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <omp.h>
#include <string>
#include <vector>

namespace {

using dims = dnnl::memory::dims;
using dtype = dnnl::memory::data_type;
namespace graph = dnnl::graph;

struct refusal {
    std::string why;
};

int64_t all_threads = 1, threads = 1; /* threads: of the problem that is prepared */
dnnl::engine *engine;
dnnl::stream *stream;

/* What a call does, and what lives as long as it. */
struct state {
    driver_problem problem;
    std::vector<std::shared_ptr<void>> kept;
    std::vector<std::function<void()>> steps;
    void *out = nullptr;
};
std::unique_ptr<state> now;

dtype type() { return now->problem.is_bf16 ? dtype::bf16 : dtype::f32; }
size_t width() { return now->problem.is_bf16 ? 2 : 4; }

template <typename T> T *keep(T *memory, const char *text) {
    if (!memory) throw refusal{text};
    now->kept.emplace_back(memory, free);
    return memory;
}

void *input(const char *name, int64_t count) {
    char text[DRIVER_TEXT] = "";
    if (now->problem.is_bf16) return keep(driver_read_bf16(&now->problem, name, count, text), text);
    return keep(driver_read(&now->problem, name, count, text), text);
}

void *space(int64_t count, size_t bytes) {
    char text[DRIVER_TEXT] = "";
    return keep(driver_alloc((size_t)count * bytes, text), text);
}

/* One operand: [batch, heads, length, dim] anywhere in a buffer. */
struct tensor {
    void *data;
    dims shape, strides;
    dnnl::memory::desc desc(dtype t) const { return {shape, t, strides}; }
    tensor turned() const {
        return {data, {shape[0], shape[1], shape[3], shape[2]}, {strides[0], strides[1], strides[3], strides[2]}};
    }
};

tensor whole(void *data, dims s) { return {data, s, {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}}; }

/* ---- Attention by primitives ---- */

/* What a core keeps in its L2 of the scores of a block. */
constexpr int64_t block_bytes = 512 << 10;

void add(dnnl::primitive primitive, std::unordered_map<int, dnnl::memory> arguments) {
    now->steps.push_back([=] { primitive.execute(*stream, arguments); });
}

/* [rows, keys]: what is added to the scores of rows from `first`. */
float *causal_mask(int64_t first, int64_t rows, int64_t keys) {
    const driver_problem &p = now->problem;
    float *const mask = (float *)space(rows * keys, 4);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < keys; j++) mask[i * keys + j] = j > first + i + p.keys - p.rows ? -INFINITY : 0;
    return mask;
}

/* A part of an operand: heads from `head`, rows from `row`. */
tensor part(const tensor &t, int64_t b, int64_t head, int64_t heads, int64_t row, int64_t rows) {
    const int64_t offset = b * t.strides[0] + head * t.strides[1] + row * t.strides[2];
    return {(char *)t.data + (size_t)offset * width(), {1, heads, rows, t.shape[3]}, t.strides};
}

/* Two products and the softmax between them, for operands of one shape. */
struct attention_block {
    dnnl::matmul first, last;
    dnnl::softmax_forward middle;
    tensor scores, weights;
    dnnl::memory factor, mask;
    bool has_mask;

    static dnnl::memory memory(const tensor &t, dtype d) { return dnnl::memory(t.desc(d), *engine, t.data); }

    attention_block(const tensor &q, const tensor &k, const tensor &v, const tensor &out, void *scores_at,
                    void *weights_at, float *mask_at)
        : has_mask(mask_at != nullptr) {
        const dims shape = {q.shape[0], q.shape[1], q.shape[2], k.shape[2]};
        const dnnl::memory::desc factor_desc({1, 1, 1, 1}, dtype::f32, dnnl::memory::format_tag::abcd);
        float *const scale = (float *)space(1, 4);
        dnnl::post_ops after;
        dnnl::primitive_attr attributes;
        *scale = (float)driver_scale(&now->problem);
        factor = dnnl::memory(factor_desc, *engine, scale);
        after.append_binary(dnnl::algorithm::binary_mul, factor_desc);
        if (has_mask) {
            mask = memory(whole(mask_at, {1, 1, shape[2], shape[3]}), dtype::f32);
            after.append_binary(dnnl::algorithm::binary_add, mask.get_desc());
        }
        attributes.set_post_ops(after);
        scores = whole(scores_at, shape);
        weights = whole(weights_at, shape);
        first = dnnl::matmul({*engine, q.desc(type()), k.turned().desc(type()), scores.desc(dtype::f32), attributes});
        middle = dnnl::softmax_forward({*engine, dnnl::prop_kind::forward_inference, dnnl::algorithm::softmax_accurate,
                                        scores.desc(dtype::f32), weights.desc(type()), 3});
        last = dnnl::matmul({*engine, weights.desc(type()), v.desc(type()), out.desc(type())});
    }

    void add_steps(const tensor &q, const tensor &k, const tensor &v, const tensor &out) const {
        std::unordered_map<int, dnnl::memory> arguments = {
            {DNNL_ARG_SRC, memory(q, type())},
            {DNNL_ARG_WEIGHTS, memory(k.turned(), type())},
            {DNNL_ARG_DST, memory(scores, dtype::f32)},
            {DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, factor}};
        if (has_mask) arguments[DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1] = mask;
        add(first, arguments);
        add(middle, {{DNNL_ARG_SRC, memory(scores, dtype::f32)}, {DNNL_ARG_DST, memory(weights, type())}});
        add(last, {{DNNL_ARG_SRC, memory(weights, type())},
                   {DNNL_ARG_WEIGHTS, memory(v, type())},
                   {DNNL_ARG_DST, memory(out, type())}});
    }
};

/* Blocks of `rows` query rows of `heads` heads at a time; causal ones end at the last key that a row of theirs sees. */
void by_blocks(const tensor &q, const tensor &k, const tensor &v, const tensor &out, int64_t heads, int64_t rows) {
    const driver_problem &p = now->problem;
    const int64_t all_rows = q.shape[2], all_heads = q.shape[1];
    void *const scores = space(heads * rows * p.keys, 4), *const weights = space(heads * rows * p.keys, width());
    for (int64_t row = 0; row < all_rows; row += rows) {
        const int64_t count = std::min(rows, all_rows - row);
        const int64_t keys = p.is_causal ? std::min(p.keys, row + count + p.keys - p.rows) : p.keys;
        float *const mask = p.is_causal ? causal_mask(row, count, keys) : nullptr;
        std::unique_ptr<attention_block> block;
        for (int64_t b = 0; b < p.batch; b++)
            for (int64_t head = 0; head < all_heads; head += heads) {
                const int64_t n = std::min(heads, all_heads - head);
                const tensor bq = part(q, b, head, n, row, count), bk = part(k, b, head, n, 0, keys);
                const tensor bv = part(v, b, head, n, 0, keys), bo = part(out, b, head, n, row, count);
                if (!block || block->scores.shape[1] != n)
                    block = std::make_unique<attention_block>(bq, bk, bv, bo, scores, weights, mask);
                block->add_steps(bq, bk, bv, bo);
            }
    }
}

/* So many rows, or heads, that the scores stay in the cores' caches. */
void by_small_blocks(const tensor &q, const tensor &k, const tensor &v, const tensor &out) {
    const driver_problem &p = now->problem;
    const int64_t most = std::max<int64_t>(1, block_bytes / 4 / p.keys), least = p.is_causal ? 128 : 64;
    const int64_t rows = std::min(q.shape[2], p.is_causal ? least : std::max(least, most));
    by_blocks(q, k, v, out, std::min(q.shape[1], threads * std::max<int64_t>(1, most / rows)), rows);
}

/* Everything at once, which costs the least calls. */
void at_once(const tensor &q, const tensor &k, const tensor &v, const tensor &out) {
    const dims shape = {q.shape[0], q.shape[1], q.shape[2], k.shape[2]};
    const int64_t count = shape[0] * shape[1] * shape[2] * shape[3];
    const driver_problem &p = now->problem;
    float *const mask = p.is_causal ? causal_mask(0, p.rows, p.keys) : nullptr;
    attention_block(q, k, v, out, space(count, 4), space(count, width()), mask).add_steps(q, k, v, out);
}

/* ---- Attention by the graph ---- */

graph::logical_tensor logical(size_t id, const tensor &t, dtype d) {
    return {id, (graph::logical_tensor::data_type)(int)d, t.shape, t.strides};
}

graph::logical_tensor between(size_t id, dtype d) {
    return {id, (graph::logical_tensor::data_type)(int)d, graph::logical_tensor::layout_type::strided};
}

void by_graph(const tensor &q, const tensor &k, const tensor &v, const tensor &out) {
    using kind = graph::op::kind;
    const driver_problem &p = now->problem;
    float *const factor = (float *)space(1, 4);
    *factor = (float)driver_scale(&p);
    const tensor scale = whole(factor, {1, 1, 1, 1});
    const tensor mask = p.is_causal ? whole(causal_mask(0, p.rows, p.keys), {1, 1, p.rows, p.keys}) : scale;
    const auto lq = logical(0, q, type()), lk = logical(1, k, type()), lv = logical(2, v, type());
    const auto ls = logical(3, scale, dtype::f32), lm = logical(4, mask, dtype::f32), lo = logical(5, out, type());
    const auto scores = between(6, dtype::f32), scaled = between(7, dtype::f32), masked = between(8, dtype::f32);
    const auto weights = between(9, type());
    graph::op first(0, kind::MatMul, {lq, lk}, {scores}, "scores"),
        multiply(1, kind::Multiply, {scores, ls}, {scaled}, "scale");
    graph::op add_mask(2, kind::Add, {scaled, lm}, {masked}, "mask");
    graph::op softmax(3, kind::SoftMax, {p.is_causal ? masked : scaled}, {weights}, "softmax");
    graph::op last(4, kind::MatMul, {weights, lv}, {lo}, "out");
    first.set_attr<bool>(graph::op::attr::transpose_b, true);
    softmax.set_attr<int64_t>(graph::op::attr::axis, -1);
    graph::graph g(dnnl::engine::kind::cpu);
    g.add_op(first);
    g.add_op(multiply);
    if (p.is_causal) g.add_op(add_mask);
    g.add_op(softmax);
    g.add_op(last);
    g.finalize();
    const auto partitions = g.get_partitions();
    if (partitions.size() != 1 || !partitions[0].is_supported())
        throw refusal{"the graph does not become one partition"};
    const auto compiled = partitions[0].compile(partitions[0].get_input_ports(), {lo}, *engine);
    std::vector<graph::tensor> arguments;
    for (const auto &port : partitions[0].get_input_ports()) {
        void *const data[] = {q.data, k.data, v.data, factor, mask.data};
        arguments.emplace_back(port, *engine, data[port.get_id()]);
    }
    const std::vector<graph::tensor> results = {{lo, *engine, out.data}};
    now->steps.push_back([=] { compiled.execute(*stream, arguments, results); });
}

void attend(const tensor &q, const tensor &k, const tensor &v, const tensor &out) {
    const std::string method = now->problem.method;
    if (method == "graph")
        by_graph(q, k, v, out);
    else if (method == "blocks")
        by_small_blocks(q, k, v, out);
    else
        at_once(q, k, v, out);
}

/* ---- Products ---- */

/* out = x W^T + b with the weights in the order that the product wants. */
void project(void *x, int64_t rows, int64_t inputs, int64_t outputs, const char *name, void *out) {
    using tag = dnnl::memory::format_tag;
    const dnnl::memory::desc x_desc({rows, inputs}, type(), tag::ab), out_desc({rows, outputs}, type(), tag::ab);
    const dnnl::memory::desc bias_desc({1, outputs}, type(), tag::ab), given({inputs, outputs}, type(), tag::ba);
    const dnnl::memory::desc any({inputs, outputs}, type(), tag::any);
    const dnnl::matmul::primitive_desc desc(*engine, x_desc, any, bias_desc, out_desc);
    dnnl::memory unpacked(given, *engine, input((std::string(name) + "_weight").c_str(), inputs * outputs));
    dnnl::memory packed(desc.weights_desc(), *engine);
    dnnl::reorder(unpacked, packed).execute(*stream, unpacked, packed);
    stream->wait();
    add(dnnl::matmul(desc),
        {{DNNL_ARG_SRC, dnnl::memory(x_desc, *engine, x)},
         {DNNL_ARG_WEIGHTS, packed},
         {DNNL_ARG_BIAS, dnnl::memory(bias_desc, *engine, input((std::string(name) + "_bias").c_str(), outputs))},
         {DNNL_ARG_DST, dnnl::memory(out_desc, *engine, out)}});
}

/* ---- The driver ---- */

void open_attention() {
    const driver_problem &p = now->problem;
    /* One row of each head: the heads of a group are rows of one matrix. */
    const bool is_grouped = p.heads != p.kv_heads;
    if (is_grouped && p.rows != 1) throw refusal{"groups of heads with one row only"};
    const dims rows = {p.batch, p.kv_heads, is_grouped ? p.heads / p.kv_heads : p.rows, p.dim};
    const dims keys = {p.batch, p.kv_heads, p.keys, p.dim};
    attend(whole(input("q", p.batch * p.heads * p.rows * p.dim), rows),
           whole(input("k", p.batch * p.kv_heads * p.keys * p.dim), keys),
           whole(input("v", p.batch * p.kv_heads * p.keys * p.dim), keys), whole(now->out, rows));
}

void open_block() {
    const driver_problem &p = now->problem;
    const int64_t tokens = p.batch * p.rows, e = p.embed;
    char *const qkv = (char *)space(tokens * 3 * e, width());
    void *const heads = space(tokens * e, width());
    const dims shape = {p.batch, p.heads, p.rows, p.dim};
    const dims in = {p.rows * 3 * e, p.dim, 3 * e, 1}, out = {p.rows * e, p.dim, e, 1};
    project(input("x", tokens * e), tokens, e, 3 * e, "qkv", qkv);
    attend({qkv, shape, in}, {qkv + (size_t)e * width(), shape, in}, {qkv + 2 * (size_t)e * width(), shape, in},
           {heads, shape, out});
    project(heads, tokens, e, e, "out", now->out);
}

void open_products() {
    const driver_problem &p = now->problem;
    const int64_t tokens = p.batch * p.rows;
    void *const middle = space(tokens * p.embed, width());
    project(input("x", tokens * p.embed), tokens, p.embed, p.embed, "q", middle);
    project(middle, tokens, p.embed, p.embed, "out", now->out);
}

bool tell(char text[DRIVER_TEXT], const char *why) {
    snprintf(text, DRIVER_TEXT, "%s", why);
    return false;
}

bool guarded(char text[DRIVER_TEXT], const std::function<void()> &what) {
    try {
        what();
        return true;
    } catch (const refusal &r) {
        return tell(text, r.why.c_str());
    } catch (const std::exception &e) {
        return tell(text, e.what());
    }
}

/* A runtime of OpenMP takes as many threads as that says. */
void take_threads(int64_t count) {
    if (dnnl_version()->cpu_runtime == DNNL_RUNTIME_OMP) {
        threads = count ? count : all_threads;
        omp_set_num_threads((int)threads);
    } else if (count && count < all_threads) {
        throw refusal{"this build has as many threads as CPUs"};
    }
}

bool prepare(const driver_problem *p, char text[DRIVER_TEXT]) {
    return guarded(text, [&] {
        if (*p->kv && strcmp(p->kv, "bf16")) throw refusal{"operands of one dtype, f32 or bf16"};
        take_threads(p->threads);
        now = std::make_unique<state>();
        now->problem = *p;
        now->problem.is_bf16 = p->is_bf16 || *p->kv;
        now->problem.is_causal = p->is_causal && p->rows > 1; /* a lone row is the last, which sees all */
        now->out = space(driver_out_count(p), width());
        if (p->kind == DRIVER_ATTENTION) open_attention();
        if (p->kind == DRIVER_BLOCK) open_block();
        if (p->kind == DRIVER_PRODUCTS) {
            if (strcmp(p->method, "at-once")) throw refusal{"products have one method"};
            open_products();
        }
    });
}

bool call(char text[DRIVER_TEXT]) {
    return guarded(text, [] {
        for (const auto &step : now->steps) step();
        stream->wait();
    });
}

void output(float *out) {
    const int64_t count = driver_out_count(&now->problem);
    for (int64_t i = 0; i < count; i++)
        out[i] = now->problem.is_bf16 ? driver_from_bf16(((uint16_t *)now->out)[i]) : ((float *)now->out)[i];
}

void drop() { now.reset(); }

} // namespace

int main(int argc, char **argv) {
#ifdef OPENCL_DRIVER /* for a build whose CPU is a device of SYCL */
    setenv("OCL_ICD_FILENAMES", OPENCL_DRIVER, 0);
#endif
    char text[DRIVER_TEXT] = "", version[DRIVER_TEXT];
    const dnnl_version_t *const v = dnnl_version();
    if (argc == 2) threads = all_threads = std::max(1, atoi(argv[1]));
    snprintf(version, sizeof version, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    if (!guarded(text, [] {
            engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
            stream = new dnnl::stream(*engine);
        })) {
        fprintf(stderr, "%s\n", text);
        return 1;
    }
    const driver d = {"at-once,blocks,graph", version, prepare, call, output, drop, nullptr};
    return driver_serve(&d);
}
