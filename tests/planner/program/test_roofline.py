"""The roofline on small scheduled programs, on a chip where a FLOP, a byte of memory and a byte
on a link take a second each.
"""

import dataclasses

import pytest

from grre_jax.models import attention, prefix_attention
from grre_jax.planner.hardware.chips import CHIPS
from grre_jax.planner.hardware.interconnect import Torus
from grre_jax.planner.program import roofline

CHIP = dataclasses.replace(CHIPS["v5e"], peak_flops=1.0, hbm_bandwidth=1.0, link_bandwidth=1.0)
TORUS = Torus(CHIP, (2, 1), ((0, 0), (1, 0)))  # one link between two chips

FUSIONS = """HloModule m, is_scheduled=true

%dot.c (a: bf16[4,8], b: bf16[8,2]) -> bf16[4,2] {
  %a = bf16[4,8]{1,0} parameter(0)
  %b = bf16[8,2]{1,0} parameter(1)
  ROOT %c = bf16[4,2]{1,0} convolution(%a, %b), dim_labels=bf_io->bf
}

%sum (x.s: f32[], y.s: f32[]) -> f32[] {
  %x.s = f32[] parameter(0)
  %y.s = f32[] parameter(1)
  ROOT %add.s = f32[] add(%x.s, %y.s)
}

%cond (p: (s32[], f32[10])) -> pred[] {
  %p = (s32[]{:S(1)}, f32[10]) parameter(0)
  %i = s32[]{:S(1)} get-tuple-element(%p), index=0
  %n = s32[]{:S(1)} constant(3)
  ROOT %less = pred[]{:S(1)} compare(%i, %n), direction=LT
}

%body (q: (s32[], f32[10])) -> (s32[], f32[10]) {
  %q = (s32[]{:S(1)}, f32[10]) parameter(0)
  %j = s32[]{:S(1)} get-tuple-element(%q), index=0
  %v = f32[10] get-tuple-element(%q), index=1
  %one = s32[]{:S(1)} constant(1)
  %k = s32[]{:S(1)} add(%j, %one)
  %w = f32[10] negate(%v)
  ROOT %t = (s32[]{:S(1)}, f32[10]) tuple(%k, %w)
}

%all-reduce-scatter.1 (input: bf16[8]) -> bf16[4] {
  %input = bf16[8]{0} parameter(0)
  %reduced = bf16[8]{0} all-reduce(%input), channel_id=9, replica_groups={{0,1}}, to_apply=%sum
  %at = s32[] constant(0)
  ROOT %part = bf16[4]{0} dynamic-slice(%reduced, %at), dynamic_slice_sizes={4}
}

%away (e: f32[10]) -> f32[10] {
  %e = f32[10]{0} parameter(0)
  ROOT %ne = f32[10]{0} negate(%e)
}

%start.c (h: f32[5]) -> (f32[5], f32[10], u32[]) {
  %h = f32[5]{0} parameter(0)
  %g = f32[10]{0:S(1)} all-gather(%h), channel_id=7, replica_groups={{0,1}}, dimensions={0}, backend_config={"async_collective_fusion_config":{}}
  ROOT %cs = (f32[5]{0}, f32[10]{0:S(1)}, u32[]{:S(2)}) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}

%beside (a.1: bf16[4,8], b.1: bf16[8,2], h.1: f32[5]) -> (bf16[4,2], f32[5]) {
  %a.1 = bf16[4,8]{1,0:S(1)} parameter(0)
  %b.1 = bf16[8,2]{1,0:S(1)} parameter(1)
  %h.1 = f32[5]{0} parameter(2)
  %c.1 = bf16[4,2]{1,0:S(1)} convolution(%a.1, %b.1), dim_labels=bf_io->bf
  %g.1 = f32[10]{0:S(1)} all-gather(%h.1), channel_id=7, replica_groups={{0,1}}, dimensions={0}, backend_config={"async_collective_fusion_config":{}}
  ROOT %both = (bf16[4,2]{1,0:S(1)}, f32[5]{0}) tuple(%c.1, %h.1)
}

%done.c (h.2: f32[5]) -> f32[10] {
  %h.2 = f32[5]{0} parameter(0)
  %g.2 = f32[10]{0:S(1)} all-gather(%h.2), channel_id=7, replica_groups={{0,1}}, dimensions={0}, backend_config={"async_collective_fusion_config":{}}
  ROOT %cd = f32[10]{0:S(1)} custom-call(%h.2, %g.2), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (l: bf16[4,8], r: bf16[8,2], u: f32[10], f: pred[]) -> f32[10] {
  %l = bf16[4,8]{1,0} parameter(0)
  %r = bf16[8,2]{1,0} parameter(1)
  %near.l = bf16[4,8]{1,0:S(1)} parameter(4)
  %near.r = bf16[8,2]{1,0:S(1)} parameter(5)
  %half = f32[5]{0} parameter(6)
  %eight = bf16[8]{0} parameter(7)
  %u = f32[10]{0} parameter(2)
  %f = pred[]{:S(1)} parameter(3)
  %zero = s32[]{:S(1)} constant(0)
PROGRAM
  ROOT %end = f32[10]{0:S(1)} bitcast(%u)
}
"""

PRODUCT = (  # 128 FLOPs, nothing in main memory
    "%p1 = bf16[4,2]{1,0:S(1)} fusion(%near.l, %near.r), kind=kOutput, calls=%dot.c"
)
NEGATE = "%m1 = f32[10]{0} negate(%u)"  # 80 bytes


def cost(*lines):
    return roofline.analyse(
        FUSIONS.replace("PROGRAM", "\n".join("  " + line for line in lines)), TORUS
    )


def test_an_instruction_takes_the_longer_of_arithmetic_and_memory():
    in_memory = "%p2 = bf16[4,2]{1,0} fusion(%l, %r), kind=kOutput, calls=%dot.c"
    assert cost(PRODUCT).seconds == 2 * 4 * 8 * 2 and cost(PRODUCT).bound == {"products": 128}
    found = cost(in_memory, NEGATE)
    assert (
        found.seconds == 128 + 80
        and found.flops == 128
        and found.hbm_bytes == (32 + 16 + 8) * 2 + 80
    )
    assert found.bound == {"products": 128, "memory": 80}


def test_a_loop_counts_as_often_as_it_runs():
    found = cost(
        "%init = (s32[]{:S(1)}, f32[10]) tuple(%zero, %u)",
        "%loop = (s32[], f32[10]) while(%init), condition=%cond, body=%body",
    )
    assert found.seconds == 3 * 80 and found.hbm_bytes == 3 * 80 and not found.problems


def test_of_a_conditional_the_dearest_branch_counts():
    found = cost("%choice = f32[10] conditional(%f, %u, %u), branch_computations={%sum, %body}")
    assert found.seconds == 80  # `sum` moves 12 bytes


def test_a_collective_that_nothing_hides_is_waited_for():
    found = cost(
        "%g1 = f32[10]{0:S(1)} all-gather(%half), channel_id=1, replica_groups={{0,1}},"
        " dimensions={0}"
    )
    assert (
        found.seconds == 20
        and found.bound == {"interconnect": 20}
        and found.collectives == {"all-gather": (1, 40.0, 20.0)}
    )


@pytest.mark.parametrize(("between", "expected"), [((), 20), ((NEGATE,), 80), ((PRODUCT,), 128)])
def test_an_asynchronous_collective_overlaps_with_what_is_between(between, expected):
    start = (
        "%s1 = (f32[5]{0}, f32[10]{0:S(1)}) all-gather-start(%half), channel_id=1,"
        " replica_groups={{0,1}}, dimensions={0}"
    )
    assert cost(start, *between, "%d1 = f32[10]{0:S(1)} all-gather-done(%s1)").seconds == expected


def test_asynchronous_collectives_follow_each_other_in_the_order_of_their_starts():
    """Both have 20 s to go, on the same links."""
    first, second = (
        f"%s{n} = (f32[5]{{0}}, f32[10]{{0:S(1)}}) all-gather-start(%half), channel_id={n},"
        " replica_groups={{0,1}}, dimensions={0}"
        for n in (1, 2)
    )
    done = {n: f"%d{n} = f32[10]{{0:S(1)}} all-gather-done(%s{n})" for n in (1, 2)}
    assert cost(first, second, done[1]).seconds == 40  # the second is waited for at the end
    assert cost(first, second, done[1], PRODUCT, done[2]).seconds == 20 + 128
    assert cost(first, second, done[2], PRODUCT, done[1]).seconds == 40 + 128
    small = (
        "%p3 = bf16[1,2]{1,0:S(1)} dot(%near.v, %near.w), lhs_contracting_dims={1},"
        " rhs_contracting_dims={0}"
    )
    inputs = (
        "%near.v = bf16[1,1]{1,0:S(1)} parameter(8)",
        "%near.w = bf16[1,2]{1,0:S(1)} parameter(9)",
    )
    assert cost(*inputs, first, second, small, done[1], done[2]).seconds == 40


def test_a_collective_cut_into_fusions_is_counted_once_and_overlaps():
    start = (
        "%s2 = (f32[5]{0}, f32[10]{0:S(1)}, u32[]{:S(2)}) fusion(%half), kind=kCustom,"
        " calls=%start.c"
    )
    beside = (
        "%b2 = (bf16[4,2]{1,0:S(1)}, f32[5]{0}) fusion(%near.l, %near.r, %half), kind=kCustom,"
        " calls=%beside"
    )
    done = "%d2 = f32[10]{0:S(1)} fusion(%half), kind=kCustom, calls=%done.c"
    found = cost(start, beside, done)
    assert found.seconds == 128 and found.collectives == {"all-gather": (1, 40.0, 20.0)}
    assert cost(start, done).seconds == 20


def test_a_fused_reduce_scatter_is_no_all_reduce():
    found = cost("%rs = bf16[4]{0} fusion(%eight), kind=kCustom, calls=%all-reduce-scatter.1")
    assert found.collectives == {"reduce-scatter": (1, 16.0, 8.0)}


def test_a_copy_that_is_waited_for_leaves_no_bandwidth_to_the_next():
    first, second = (
        f"%c{n} = (f32[10]{{0:S(1)}}, f32[10]{{0}}, u32[]{{:S(2)}}) copy-start(%u)" for n in (1, 2)
    )
    done = [f"%e{n} = f32[10]{{0:S(1)}} copy-done(%c{n})" for n in (1, 2)]
    assert cost(first, second, *done).seconds == 80


@pytest.mark.parametrize(("between", "expected"), [((), 40), ((PRODUCT,), 128), ((NEGATE,), 120)])
def test_asynchronous_copies_take_the_bandwidth_that_is_left(between, expected):
    start = "%c1 = (f32[10]{0:S(1)}, f32[10]{0}, u32[]{:S(2)}) copy-start(%u)"
    found = cost(start, *between, "%c2 = f32[10]{0:S(1)} copy-done(%c1)")
    assert found.seconds == expected


@pytest.mark.parametrize(("between", "expected"), [((), 80), ((PRODUCT,), 128)])
def test_a_computation_on_another_core_runs_beside(between, expected):
    """`away` negates ten numbers in main memory."""
    start = (
        "%a1 = ((f32[10]{0}), f32[10]{0}, u32[]{:S(8)}) call-start(%u),"
        ' async_execution_thread="sparsecore", to_apply=%away'
    )
    found = cost(start, *between, "%a2 = f32[10]{0} call-done(%a1)")
    assert found.seconds == expected and found.hbm_bytes == 80


def test_a_kernel_that_is_not_known_is_a_problem_and_not_nothing():
    found = cost(
        '%k1 = f32[10]{0} custom-call(%u), custom_call_target="tpu_custom_call",'
        ' metadata={op_name="jit(f)/mystery"}'
    )
    assert (
        found.seconds == 80
        and len(found.problems) == 1
        and "jit(f)/mystery" in found.problems.pop()
    )


@pytest.mark.parametrize(
    "name, block, products",
    [
        ("splash_mha_fwd_residuals", attention.SPLASH_BLOCK, 2),
        ("prefix_attention_dkv", prefix_attention.KEYS, 4),
    ],
)
def test_attention_on_tpu_costs_the_blocks_of_the_causal_triangle(name, block, products):
    heads, length, width = 4, 2048, 128
    array = f"bf16[{heads},{length},{width}]{{2,1,0:T(8,128)(2,1)S(1)}}"
    call = (
        f'%s = {array} custom-call(%q, %k, %v), custom_call_target="tpu_custom_call",'
        f' metadata={{op_name="jit(f)/{name}"}}'
    )
    inputs = "\n".join(f"  %{name} = {array} parameter({8 + i})" for i, name in enumerate("qkv"))
    square = products * 2 * heads * length * length * width
    blocks = length // block
    assert cost(inputs, call).flops == square * (blocks + 1) / (2 * blocks)


def test_an_instruction_in_a_loop_without_a_known_count_is_named():
    text = (
        "%init = (s32[], f32[10]) tuple(%late, %u)\n  %loop.7 = (s32[], f32[10]) while(%init),"
        " condition=%cond, body=%body"
    )
    found = cost("%late = s32[] parameter(9)", text)
    assert any("loop.7" in problem for problem in found.problems)
