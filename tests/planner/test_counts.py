"""Counts of programs: small ones written by hand, and one that XLA partitions over eight devices."""

import json
import os
import subprocess
import sys

import pytest

from grre_jax.planner import counts

PROGRAM = """HloModule m, is_scheduled=true

%dot.c (a: bf16[4,8], b: bf16[8,2]) -> bf16[4,2] {
  %a = bf16[4,8]{1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[8,2]{1,0} parameter(1)
  ROOT %c = bf16[4,2]{1,0} convolution(%a, %b), dim_labels=bf_io->bf
}

%sum (x.s: f32[], y.s: f32[]) -> f32[] {
  %x.s = f32[] parameter(0)
  %y.s = f32[] parameter(1)
  ROOT %add.s = f32[] add(%x.s, %y.s), backend_config={"estimated_cycles":"2"}
}

%cond (p: (s32[], f32[10])) -> pred[] {
  %p = (s32[]{:S(1)}, f32[10]) parameter(0)
  %i = s32[]{:S(1)} get-tuple-element(%p), index=0
  %n = s32[]{:S(1)} constant(3)
  ROOT %less = pred[]{:S(1)} compare(%i, %n), direction=LT
}

%open (p.o: (s32[], f32[10])) -> pred[] {
  %p.o = (s32[]{:S(1)}, f32[10]) parameter(0)
  %i.o = s32[]{:S(1)} get-tuple-element(%p.o), index=0
  ROOT %less.o = pred[]{:S(1)} compare(%i.o, %i.o), direction=LT
}

%body (q: (s32[], f32[10])) -> (s32[], f32[10]) {
  %q = (s32[]{:S(1)}, f32[10], /*index=5*/bf16[4,8], bf16[8,2]) parameter(0)
  %v = f32[10] get-tuple-element(%q), index=1
  %one = s32[]{:S(1)} constant(1)
  %l.q = bf16[4,8] get-tuple-element(%q), index=2
  %r.q = bf16[8,2] get-tuple-element(%q), index=3
  %d = bf16[4,2] fusion(%l.q, %r.q), kind=kOutput, calls=%dot.c, backend_config={"estimated_cycles":"7"}
  %w = f32[10] all-reduce(%v), replica_groups=[2,4]<=[8], to_apply=%sum
  ROOT %t = (s32[]{:S(1)}, f32[10]) tuple(%one, %w)
}

%all-reduce-scatter.1 (input: bf16[8]) -> bf16[2] {
  %input = bf16[8]{0} parameter(0)
  %reduced = bf16[8]{0} all-reduce(%input), channel_id=9, replica_groups=[2,4]<=[8], to_apply=%sum
  %at = s32[] constant(0)
  ROOT %part = bf16[2]{0} dynamic-slice(%reduced, %at), dynamic_slice_sizes={2}
}

%away (e: f32[10]) -> f32[40] {
  %e = f32[10]{0} parameter(0)
  ROOT %ge = f32[40]{0} all-gather(%e), replica_groups=[2,4]<=[8], dimensions={0}, backend_config={"estimated_cycles":"9"}
}

%start.c (h: f32[5]) -> (f32[5], f32[10], u32[]) {
  %h = f32[5]{0} parameter(0)
  %g = f32[10]{0:S(1)} all-gather(%h), channel_id=7, replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}, backend_config={"async_collective_fusion_config":{}}
  ROOT %cs = (f32[5]{0}, f32[10]{0:S(1)}, u32[]{:S(2)}) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}

%beside (a.1: bf16[4,8], b.1: bf16[8,2], h.1: f32[5]) -> (bf16[4,2], f32[5]) {
  %a.1 = bf16[4,8]{1,0:S(1)} parameter(0)
  %b.1 = bf16[8,2]{1,0:S(1)} parameter(1)
  %h.1 = f32[5]{0} parameter(2)
  %c.1 = bf16[4,2]{1,0:S(1)} convolution(%a.1, %b.1), dim_labels=bf_io->bf
  %g.1 = f32[10]{0:S(1)} all-gather(%h.1), channel_id=7, replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}, backend_config={"async_collective_fusion_config":{}}
  ROOT %both = (bf16[4,2]{1,0:S(1)}, f32[5]{0}) tuple(%c.1, %h.1)
}

%done.c (h.2: f32[5]) -> f32[10] {
  %h.2 = f32[5]{0} parameter(0)
  %g.2 = f32[10]{0:S(1)} all-gather(%h.2), channel_id=7, replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}, backend_config={"async_collective_fusion_config":{}}
  ROOT %cd = f32[10]{0:S(1)} custom-call(%h.2, %g.2), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (l: bf16[4,8], r: bf16[8,2], u: f32[10], f: pred[]) -> f32[10] {
  %l = bf16[4,8]{1,0} parameter(0)
  %r = bf16[8,2]{1,0} parameter(1)
  %u = f32[10]{0} parameter(2)
  %f = pred[]{:S(1)} parameter(3)
  %half = f32[5]{0} parameter(4)
  %eight = bf16[8]{0} parameter(5)
  %init = (s32[]{:S(1)}, f32[10]) tuple(%f, %u)
LINES
  ROOT %end = f32[10]{0:S(1)} bitcast(%u)
}
"""


def counted(*lines, idle=()):
    return counts.count(PROGRAM.replace("LINES", "\n".join(f"  {line}" for line in lines)), idle)


@pytest.mark.parametrize(
    ("annotation", "trips"), [("", 3), (', backend_config={"known_trip_count":{"n":"5"}}', 5)]
)
def test_a_loop_counts_as_often_as_it_runs(annotation, trips):
    found = counted(
        f"%loop = (s32[], f32[10]) while(%init), condition=%cond, body=%body{annotation}"
    )
    assert found.cycles == trips * 7
    assert found.collectives == {"all-reduce": trips}
    assert found.moved == {"all-reduce": trips * 40}
    assert not found.unbounded


def test_a_loop_without_a_limit_counts_once_and_is_named():
    found = counted("%loop = (s32[], f32[10]) while(%init), condition=%open, body=%body")
    assert (found.cycles, found.unbounded) == (7, {"loop"})


@pytest.mark.parametrize(
    "branches",
    ["branch_computations={%sum, %body}", "true_computation=%sum, false_computation=%body"],
)
def test_a_conditional_counts_its_most_expensive_branch_unless_it_is_idle(branches):
    line = f'%c = f32[10] conditional(%f, %u, %u), {branches}, metadata={{op_name="a/cut/cond"}}'
    assert counted(line).cycles == 7
    assert counted(line, idle=("cut",)).cycles == 2


@pytest.mark.parametrize(
    ("lines", "key", "size"),
    [
        (
            ["%g = f32[10] all-gather(%half), replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}"],
            "all-gather",
            40,
        ),
        (
            [
                "%s = (f32[5]{0}, f32[10]{0}) all-gather-start(%half),"
                " replica_groups={{0,4},{1,5},{2,6},{3,7}}, dimensions={0}",
                "%e = f32[10]{0} all-gather-done(%s)",
            ],
            "all-gather",
            40,
        ),
        (
            ["%p = bf16[2] reduce-scatter(%eight), replica_groups=[2,4]<=[8], to_apply=%sum"],
            "reduce-scatter",
            16,
        ),
        (
            ["%p = bf16[2] fusion(%eight), kind=kCustom, calls=%all-reduce-scatter.1"],
            "reduce-scatter",
            16,
        ),
        (
            [
                "%s = (f32[5], f32[10], u32[]) fusion(%half), kind=kCustom, calls=%start.c",
                "%b = (bf16[4,2], f32[5]) fusion(%l, %r, %half), kind=kCustom, calls=%beside",
                "%d = f32[10] fusion(%half), kind=kCustom, calls=%done.c",
            ],
            "all-gather",
            40,
        ),
        (
            ["%a = ((f32[10]), f32[40], u32[]) async-start(%u), calls=%away"],
            "all-gather",
            160,
        ),
        (
            [
                "%s = (f32[10]{0}, f32[10]{0}, u32[], u32[]) collective-permute-start(%u),"
                " source_target_pairs={{0,4},{4,0}}",
            ],
            "collective-permute",
            40,
        ),
        (
            ["%a = f32[10] all-reduce(%u), replica_groups={}, to_apply=%sum"],
            "all-reduce",
            40,
        ),
    ],
)
def test_collectives_in_every_printed_form_count_once(lines, key, size):
    found = counted(*lines)
    assert (found.collectives, found.moved) == ({key: 1}, {key: size})
    assert found.cycles == 0


EIGHT = """
import json
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from grre_jax.planner.counts import count
mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "tensor"))
def array(shape, *axes):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*axes)))
def layer(x, w):
    return jax.lax.with_sharding_constraint(jnp.tanh(x @ w), NamedSharding(mesh, P("data", "tensor"))), None
program = jax.jit(lambda x, w: jax.lax.scan(layer, x, w)[0])
compiled = program.lower(array((16, 32), "data", "tensor"), array((5, 32, 32), None, "tensor")).compile()
found = count(compiled.as_text())
print(json.dumps([[[key, n, found.moved[key]] for key, n in sorted(found.collectives.items())], sorted(found.unbounded)]))
"""


def test_a_program_of_eight_devices_by_hand():
    """Five products of [8, 8] by [8, 32] on each of 2 x 4 devices, each reduced over four."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", EIGHT], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    collectives, unbounded = json.loads(done.stdout)
    assert collectives == [["all-reduce", 5, 5 * 8 * 32 * 4]] and not unbounded
