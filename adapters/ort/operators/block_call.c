/* A call of a block: x, masks and the result. */
#include "block.h"
#include "call.h"

static bool take_x(call *c, const block_shape *s) {
    tensor x;
    if (!call_input(c, (size_t)s->x, "x", false, &x) || !call_expect(c, "x", &x, 3, (int64_t[]){-1, -1, s->width}))
        return false;
    if (x.dtype != s->dtype) return call_fail(c, "x must have the type of the weights");
    const int64_t batch = x.dims[0], rows = x.dims[1];
    c->x = x.data;
    c->keys = rows;
    c->q = (heads){.dtype = s->dtype, .dims = {batch, s->num_heads, rows, s->head_width}};
    c->k = c->q;
    c->v = (heads){.dtype = s->dtype, .dims = {batch, s->num_heads, rows, s->v_head_width}};
    return true;
}

static bool take_masks(call *c, const block_shape *s) {
    tensor t;
    if (s->padding >= 0 &&
        (!call_input(c, (size_t)s->padding, s->padding_name, true, &t) || !call_padding(c, s->padding_name, &t)))
        return false;
    if (s->bias >= 0 && !call_input(c, (size_t)s->bias, s->bias_name, true, &t)) return false;
    if (s->bias < 0 || !t.is_given) return true;
    if (t.dtype != s->dtype) return call_fail(c, "%s must have the type of x", s->bias_name);
    return call_any_bias(c, s->bias_name, &t);
}

bool call_block(call *c) {
    const block_shape *const s = block_shape_of(c->n->block);
    if (!take_x(c, s) || !take_masks(c, s)) return false;
    const int64_t columns = s->out_width ? s->out_width : s->num_heads * s->v_head_width;
    return call_output(c, 0, 3, (int64_t[]){c->q.dims[0], c->q.dims[2], columns}, &c->out.data) && call_attend(c);
}
