"""What Keras, Flax and JAX have in common: kernels [columns, heads, dim], masks that are True where a key is seen."""
import numpy

from case import Case


class Sizes:
    def __init__(self, d, grouped=False):
        self.heads = d.heads()
        self.kv_heads = d.pick([n for n in range(1, self.heads + 1) if self.heads % n == 0]) if grouped else self.heads
        self.dim = d.head_dim(self.heads)
        self.dim_v = self.dim
        self.batch, self.queries, self.keys = d.batch(), d.length(), d.length()
        self.columns = self.k_columns = self.v_columns = self.out = d.width()


def draw_source(d, s, source):
    """query, key and value; the same object where they are the same. Sets the sizes that follow."""
    query = d.normal(s.batch, s.queries, s.columns)
    if source in ("self", "values"):
        s.keys, s.k_columns = s.queries, s.columns
    else:
        s.k_columns = d.width()
    key = query if source in ("self", "values") else d.normal(s.batch, s.keys, s.k_columns)
    s.v_columns = s.k_columns if source in ("self", "cross") else d.width()
    value = key if source in ("self", "cross") else d.normal(s.batch, s.keys, s.v_columns)
    return query, key, value


def fill(d, weights):
    """Values for the weights of a framework, by name: sharper queries and keys, and biases that are not zero."""
    gain = d.sharpness() * 0.7  # about the scores that torch's own initial weights give
    filled = {}
    for name, shape in weights.items():
        if name.endswith("bias"):
            filled[name] = d.normal(*shape, scale=0.3)
            continue
        projection = name.split("/")[-2]
        inputs = numpy.prod(shape[:2]) if "out" in projection else shape[0]
        is_sharper = projection in ("query", "key")
        filled[name] = d.normal(*shape, scale=(gain if is_sharper else 1) / float(inputs) ** 0.5)
    return filled


def files_of(query, key, value, tensors):
    arrays = {"x": query}
    arrays |= {} if key is query else {"x_kv": key}
    arrays |= {} if value is key else {"x_v": value}
    return arrays | tensors


def put_mask(problem, tensors, mask):
    """A mask that broadcasts to [batch, heads, queries, keys]."""
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    problem["attn_mask_dims"] = ":".join(str(size) for size in mask.shape)
    tensors["attn_mask"] = mask


def spell(d, s, source, grouped, tensors):
    """Heads are in the shapes of the kernels; the text may name them all the same. Sizes of masks are not dynamic."""
    sizes = {"num_heads": s.heads, "embed_dim": s.columns, "head_dim": s.dim, "seq_q": s.queries, "batch": s.batch}
    sizes |= {"num_kv_heads": s.kv_heads} if grouped else {}
    sizes |= {"head_dim_v": s.dim_v} if s.dim_v != s.dim else {}
    sizes |= {} if source in ("self", "values") else {"is_cross": 1, "kv_embed_dim": s.k_columns, "seq_kv": s.keys}
    lengths = ["seq_q"] if source in ("self", "values") else ["seq_q", "seq_kv"]
    problem = d.spell(sizes, [] if tensors else lengths)
    if problem.keys() == {"num_heads"} and d.chance(0.5):
        problem = {}  # the kernels say it
    return problem


def make_case(d, family, call, problem, arrays, weights, expected, prefix=None):
    return Case(
        family=family,
        call=call,
        problem=problem,
        inputs=arrays,
        weights=weights,
        expected={name: numpy.asarray(array) for name, array in expected.items()},
        form=d.form(),
        prefix=prefix,
    )
