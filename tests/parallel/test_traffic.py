"""Bytes through main memory: slices touch a part, updates in place write a part, views and on-chip arrays cost nothing."""

import pytest

from grre_jax.parallel import hlo
from grre_jax.parallel.traffic import Traffic

ROW, STACK, SCALAR = 8 * 128 * 4, 10 * 8 * 128 * 4, 4

TEXT = """HloModule m, is_scheduled=true

%take (p0: f32[10,8,128], p1: s32[], p2: f32[8,128]) -> f32[8,128] {
  %p0 = f32[10,8,128]{2,1,0:T(8,128)} parameter(0)
  %p1 = s32[] parameter(1)
  %p2 = f32[8,128]{1,0:T(8,128)} parameter(2)
  %zero = s32[] constant(0)
  %ds = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,8,128}
  %row = f32[8,128]{1,0:T(8,128)} bitcast(%ds)
  ROOT %sum = f32[8,128]{1,0:T(8,128)} add(%row, %p2)
}

%put (q0: f32[10,8,128], q1: s32[], q2: f32[8,128]) -> f32[10,8,128] {
  %q0 = f32[10,8,128]{2,1,0:T(8,128)} parameter(0)
  %q1 = s32[] parameter(1)
  %q2 = f32[8,128]{1,0:T(8,128)} parameter(2)
  %zero.1 = s32[] constant(0)
  %one = f32[1,8,128]{2,1,0:T(8,128)} bitcast(%q2)
  ROOT %dus = f32[10,8,128]{2,1,0:T(8,128)} dynamic-update-slice(%q0, %one, %q1, %zero.1, %zero.1)
}

%whole (r0: f32[10,8,128]) -> f32[10,8,128] {
  %r0 = f32[10,8,128]{2,1,0:T(8,128)} parameter(0)
  ROOT %neg = f32[10,8,128]{2,1,0:T(8,128)} negate(%r0)
}

%nested (s0: f32[10,8,128], s1: s32[], s2: f32[8,128]) -> f32[8,128] {
  %s0 = f32[10,8,128]{2,1,0:T(8,128)} parameter(0)
  %s1 = s32[] parameter(1)
  %s2 = f32[8,128]{1,0:T(8,128)} parameter(2)
  ROOT %inner = f32[8,128]{1,0:T(8,128)} fusion(%s0, %s1, %s2), kind=kLoop, calls=%take
}

ENTRY %main (a: f32[10,8,128], i: s32[], b: f32[8,128]) -> f32[8,128] {
  %a = f32[10,8,128]{2,1,0:T(8,128)} parameter(0)
  %i = s32[] parameter(1)
  %b = f32[8,128]{1,0:T(8,128)} parameter(2)
  %sliced = f32[8,128]{1,0:T(8,128)} fusion(%a, %i, %b), kind=kLoop, calls=%take
  %deep = f32[8,128]{1,0:T(8,128)} fusion(%a, %i, %b), kind=kLoop, calls=%nested
  %updated = f32[10,8,128]{2,1,0:T(8,128)} fusion(%a, %i, %b), kind=kLoop, calls=%put
  %negated = f32[10,8,128]{2,1,0:T(8,128)} fusion(%a), kind=kLoop, calls=%whole
  %near = f32[8,128]{1,0:T(8,128)S(1)} copy(%b)
  %far = f32[8,128]{1,0:T(8,128)} negate(%near)
  %view = f32[80,128]{1,0:T(8,128)} bitcast(%a)
  %z = s32[] constant(0)
  %cut = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%a, %i, %z, %z), dynamic_slice_sizes={1,8,128}
  ROOT %end = f32[8,128]{1,0:T(8,128)} add(%sliced, %far)
}
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sliced", 3 * ROW + SCALAR),  # a row of the stack, the other operand, the result
        ("deep", 3 * ROW + SCALAR),  # the same through a fusion in a fusion
        ("updated", 2 * ROW + SCALAR),  # the new row is read and written; the stack stays where it is
        ("negated", 2 * STACK),
        ("near", ROW),  # the copy is read from main memory and written on the chip
        ("far", ROW),
        ("view", 0),
        ("cut", 2 * ROW + 3 * SCALAR),
        ("end", 3 * ROW),
    ],
)
def test_bytes_of_an_instruction(name, expected):
    module = hlo.parse(TEXT)
    main = module.computations["main"]
    assert Traffic(module.computations).bytes(main, main.instructions[name]) == expected
