"""Packed weights of blocks: packed once, again when they change, and freed with the module."""

import copy
import gc
import os
import pickle
import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
at = pytest.importorskip("attune.torch", reason="attune.torch cannot be imported")
nn = torch.nn
from attune.torch import _block, _native  # noqa: E402  after the checks above

WIDTH, HEADS = 32, 4


@pytest.fixture(autouse=True)
def stock_afterwards():
    torch.manual_seed(0)
    gc.collect()
    at.refresh()
    with torch.no_grad():
        yield
    at.disable()


@pytest.fixture
def x():
    return torch.randn(2, 9, WIDTH)


def module():
    return nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()


def packed():
    return at.stats().get("block.packed", 0)


def check(m, x, packs, here=True):
    """Results are those of stock, and the weights were packed so often."""
    want, before, ran = m(x, x, x, need_weights=False)[0], packed(), at.stats().get("block.ran", 0)
    with at.enable(sdpa=False, block="verify" if here == "verify" else True):
        got = m(x, x, x, need_weights=False)[0]
    tight = x.dtype == torch.float32
    torch.testing.assert_close(got, want, **({} if tight else dict(rtol=1.6e-2, atol=1e-2)))
    assert packed() - before == packs
    assert at.stats().get("block.ran", 0) - ran == bool(here)


def test_weights_are_packed_once(x):
    m = module()
    check(m, x, 1)
    for length in (9, 3, 9, 17):
        check(m, torch.randn(1, length, WIDTH), 0)


def in_place(m):
    m.in_proj_weight.mul_(2)


def bias(m):
    m.out_proj.bias.add_(1)


def one_element(m):
    m.in_proj_weight[5, 7] = 3


def load(m):
    m.load_state_dict(module().state_dict())


def assign(m):
    m.load_state_dict(module().state_dict(), assign=True)


def new_data(m):
    m.in_proj_weight.data = torch.randn(3 * WIDTH, WIDTH)


def written_data(m):
    m.in_proj_weight.data.mul_(1.5)


def by_numpy(m):
    m.out_proj.weight.detach().numpy()[:] += 1


def there_and_back(m):
    m.bfloat16()
    m.float()


def share(m):
    m.share_memory()
    m.in_proj_weight.data.add_(0.5)


def optimizer(m):
    with torch.enable_grad():
        y = torch.randn(2, 3, WIDTH)
        m(y, y, y)[0].square().sum().backward()
    torch.optim.AdamW(m.parameters(), lr=0.1).step()


@pytest.mark.parametrize("change", [in_place, bias, one_element, load, assign, new_data, written_data, by_numpy,
                                    there_and_back, share, optimizer])
def test_changed_weights_are_packed_again(x, change):
    m = module()
    check(m, x, 1)
    change(m)
    check(m, x, 1)
    check(m, x, 0)
    at.refresh()
    assert _block.packed_bytes() == 0


def test_one_value_that_pytorch_does_not_see_needs_refresh_or_verify(x):
    m = module()
    check(m, x, 1)
    m.in_proj_weight.data[5, 7] = 3
    at.refresh(m)
    check(m, x, 1)
    check(m, x, 1, here="verify")  # its print is of all values
    m.in_proj_weight.data[5, 8] = 3
    check(m, x, 1, here="verify")
    check(m, x, 0, here="verify")


def test_weights_without_a_version_are_compared_as_a_whole(x):
    with torch.inference_mode():
        m = module()
        check(m, x, 1)
        check(m, x, 0)
        m.out_proj.weight[1, 2] += 1
        check(m, x, 1)


def test_parameters_of_inference_mode_with_new_data_have_no_version_either(x):
    with torch.inference_mode():
        m = module()
    m.in_proj_weight.data = torch.randn(3 * WIDTH, WIDTH)  # inference_mode leaves no trace but the missing version
    assert not m.in_proj_weight.is_inference()
    check(m, x, 1)
    check(m, x, 0)
    m.in_proj_weight.data[5, 7] = 3
    check(m, x, 1)


def test_other_dtypes_have_weights_of_their_own(x):
    m = module()
    check(m, x, 1)
    m.to(torch.bfloat16)
    check(m, x.bfloat16(), 1)


def test_copies_and_pickles_are_modules_of_their_own(x):
    m = module()
    check(m, x, 1)
    for other in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        check(other, x, 1)
        other.in_proj_weight.mul_(2)
        check(other, x, 1)
        check(m, x, 0)


def test_tied_weights_are_packed_once(x):
    m, other = module(), module()
    other.in_proj_weight, other.in_proj_bias, other.out_proj = m.in_proj_weight, m.in_proj_bias, m.out_proj
    check(m, x, 1)
    check(other, x, 0)


def test_weights_are_freed_with_the_module(x):
    m = module()
    check(m, x, 1)
    size = _block.packed_bytes()
    assert size > 4 * 4 * WIDTH * WIDTH
    del m
    gc.collect()
    assert _block.packed_bytes() == 0
    for _ in range(20):  # memory that comes back with other modules
        check(module(), x, 1)
        gc.collect()
        assert _block.packed_bytes() == 0
    assert not _block._watched


def test_weights_can_be_swapped(x):
    m = module()
    check(m, x, 1)
    torch.__future__.set_swap_module_params_on_conversion(True)  # swap_tensors refuses tensors with weak references
    try:
        m.bfloat16()
        check(m, x.bfloat16(), 1)
        m.load_state_dict(module().state_dict())
        check(m, x.bfloat16(), 1)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_weights_in_one_memory_go_with_it(x):
    flat = 0.1 * torch.randn(4 * WIDTH * WIDTH)
    m = module()
    m.in_proj_weight.data = flat[:3 * WIDTH * WIDTH].view(3 * WIDTH, WIDTH)
    m.out_proj.weight.data = flat[3 * WIDTH * WIDTH:].view(WIDTH, WIDTH)
    check(m, x, 1)
    m.in_proj_weight.data = m.in_proj_weight.data.clone()
    m.out_proj.weight.data = m.out_proj.weight.data.clone()
    check(m, x, 1)
    del flat  # which is nothing to the weights any more
    gc.collect()
    check(m, x, 0)
    assert len(_block._watched) == 4
    del m
    gc.collect()
    assert _block.packed_bytes() == 0 and not _block._watched


def test_weights_that_are_forgotten_while_they_are_packed_are_not_kept():
    width = 1536
    m, x = nn.MultiheadAttention(width, 8, batch_first=True).eval(), torch.randn(1, 4, width)

    def call():
        with torch.no_grad():
            m(x, x, x, need_weights=False)

    limit = _native.library().attune_torch_limit_packed
    with at.enable(sdpa=False):
        thread = threading.Thread(target=call)
        thread.start()
        while thread.is_alive() and not _block.packed_bytes():
            pass
        time.sleep(0.003)
        m.in_proj_weight.data[0, 1] = m.in_proj_weight.data[2 * width, 1] = 3  # two values, which no sample sees
        before = limit(0)
        at.refresh(m)
        call()  # is known again, with the state that the thread has seen, and not packed
        thread.join()
        limit(before)
    check(m, x, 1)


def test_changes_again_and_again_do_not_grow_and_are_soon_left_to_stock(x):
    m = module()
    check(m, x, 1)
    size, before = _block.packed_bytes(), packed()
    with at.enable(sdpa=False):
        for _ in range(200):
            m.in_proj_weight.add_(0.01)
            m(x, x, x, need_weights=False)
            assert _block.packed_bytes() <= size
        assert packed() - before < 10
        assert len(_block._watched) == 4
    for _ in range(70):
        with at.enable(sdpa=False):
            m(x, x, x, need_weights=False)
    assert _block.packed_bytes() == size
    check(m, x, 0)


def test_autocast_makes_weights_for_one_call(x):
    m, before = module(), packed()
    m.requires_grad_(False)  # so that autocast does not keep what it converts
    with at.enable(sdpa=False), torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(100):
            got = m(x, x, x, need_weights=False)[0]
    assert packed() - before < 12 and _block.packed_bytes() == 0
    torch.testing.assert_close(got.float(), m(x, x, x, need_weights=False)[0], rtol=3e-2, atol=3e-2)


def test_weights_of_one_call_do_not_keep_modules_waiting(x):
    m = module()
    with at.enable(sdpa=False):
        for _ in range(30):
            weights = {name: torch.randn_like(p) for name, p in m.named_parameters()}
            torch.func.functional_call(m, weights, (x, x, x))
            del weights
    for _ in range(3):
        check(module(), x, 1)


def test_the_memory_has_a_limit(x):
    first, second = module(), module()
    check(first, x, 1)
    limit = _native.library().attune_torch_limit_packed
    before = limit(_block.packed_bytes() + 100)
    try:
        check(second, x, 0, here=False)
        assert at.stats()["block.stock.weights_full"] >= 1
        check(first, x, 0)
    finally:
        limit(before)
    check(second, x, 1)


def test_a_child_of_fork_computes(x):
    m = module()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # GNU's OpenMP cannot go on with threads in a child
    try:
        check(m, x, 1)
        child = os.fork()
        if not child:
            try:
                check(m, x, 0)
                m.in_proj_weight.mul_(2)
                check(m, x, 1)
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        torch.set_num_threads(threads)
