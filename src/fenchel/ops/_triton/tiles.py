"""Level sets of chains that no program can hold: rows in memory, tile by tile."""

import triton
import triton.language as tl

from .root import rounded
from .segments import (
    INF,
    START,
    add_within,
    compose,
    cuts,
    follow,
    latest,
    places,
    raised,
    relative,
    sides,
    steps,
)


@triton.jit
def at(o, place, value):
    """The entry of a block at a place of its last dimension."""
    return tl.sum(tl.where(o == place, value, tl.zeros_like(value)), -1)


@triton.jit
def regress_tiles(p_x, p_z, p_mark, p_side, d, down, up, tau, width):
    """`regress` of one row in memory, tile by tile: two passes forward and two backward a round.

    p_x, p_z: (d,); p_mark: (d,), weight + 2 start + 4 end; p_side: (d,), zeros.
    """
    o = tl.arange(0, width)
    tiles = tl.cdiv(d, width)
    none = tl.full((), 0, tl.int32)
    zero = tl.full((), 0, tl.float64)
    peak = zero
    cutting = tl.full((), 1, tl.int32)
    while cutting > 0:
        # Cut, and add up.
        total, n = zero, none
        for tile in range(tiles):
            i = tile * width + o
            m = i < d
            # (width,) each
            x = tl.load(p_x + i, m, 0.0)
            mark = tl.load(p_mark + i, m, 0).to(tl.int32)
            side = tl.load(p_side + i, m, 0).to(tl.int32)
            before = tl.load(p_side + i - 1, m & (i > 0), 0).to(tl.int32)
            after = tl.load(p_side + i + 1, i + 1 < d, 0).to(tl.int32)
            left, right = cuts(side, before, after, mark & 2, mark & 4)
            x -= down * (left + right)
            mark |= tl.where(left != 0, 2, 0) | tl.where(right != 0, 4, 0)
            tl.store(p_x + i, x, m)
            tl.store(p_mark + i, mark.to(tl.int8), m)
            weight = (mark & 1) + START * ((mark >> 1) & 1)
            within, entries = tl.associative_scan((x, weight), 0, add_within)
            within, entries = add_within(total, n, within, entries)
            tl.store(p_z + i, within / tl.maximum(entries & (START - 1), 1), m)
            total, n = at(o, width - 1, within), at(o, width - 1, entries)
        tl.debug_barrier()
        # Every entry learns the mean at the end of its segment.
        mean, peak, total, count = zero + float("nan"), zero - INF, zero, none
        for tile in range(tiles):
            i = (tiles - 1 - tile) * width + o
            m = i < d
            # (width,) each
            z = tl.load(p_z + i, m, 0.0)
            mark = tl.load(p_mark + i, m, 0).to(tl.int32)
            z = tl.where((mark & 4) > 0, z, float("nan"))
            z = latest(mean, tl.associative_scan(z, 0, latest, reverse=True))
            tl.store(p_z + i, z, m)
            mean = at(o, 0, z)
            peak = tl.maximum(peak, tl.max(tl.where((mark & 1) > 0, z, -INF), 0))
            above = ((mark & 1) > 0) & (z > tau)
            count += tl.sum(above.to(tl.int32), 0)
            total += tl.sum(tl.where(above, z, 0.0), 0)
        tau = raised(tau, total, count)
        tl.debug_barrier()
        # Gains.
        shift, low, high = zero, zero, zero
        for tile in range(tiles):
            i = tile * width + o
            m = i < d
            # (width,) each
            x = tl.load(p_x + i, m, 0.0)
            z = tl.load(p_z + i, m, 0.0)
            mark = tl.load(p_mark + i, m, 0).to(tl.int32)
            b_shift, b_low, b_high = steps(x, mark & 1, mark & 2, tl.maximum(z, tau), down, up)
            b_shift, b_low, b_high = tl.associative_scan((b_shift, b_low, b_high), 0, compose)
            b_shift, b_low, b_high = compose(shift, low, high, b_shift, b_low, b_high)
            tl.store(p_side + i, sides(b_low, mark & 4, down, up).to(tl.int8), m)
            shift, low = at(o, width - 1, b_shift), at(o, width - 1, b_low)
            high = at(o, width - 1, b_high)
        tl.debug_barrier()
        # Sides.
        carried = none
        cutting = tl.full((), 0, tl.int32)
        for tile in range(tiles):
            i = (tiles - 1 - tile) * width + o
            m = i < d
            # (width,) each
            code = tl.load(p_side + i, m, 0).to(tl.int32)
            mark = tl.load(p_mark + i, m, 0).to(tl.int32)
            code = follow(carried, tl.associative_scan(code, 0, follow, reverse=True))
            side, after = code & 3, code >> 2
            tl.store(p_side + i, side.to(tl.int8), m)
            _, right = cuts(side, side, after, mark & 2, mark & 4)
            cutting = tl.maximum(cutting, tl.max((right != 0).to(tl.int32), 0))
            carried = at(o, 0, code)
        tl.debug_barrier()
    return tau, peak


@triton.jit
def project_tiles(p_z, p_mark, p_order, p_y, row, d, tau, peak, has_nan, width):
    """`project` of one row in memory, p_z and p_mark: (d,), to p_y: (rows, d)."""
    o = tl.arange(0, width)
    tau = tl.where(tau < peak, tl.maximum(tau - peak, -1.0), -1.0)
    least = tl.full((), START, tl.int32)
    moving = tl.full((), 1, tl.int32)
    excess = tl.full((), 0, tl.float64)
    while moving > 0:
        # Lane by lane, so that a long sum is rounded less.
        b_count = tl.zeros((width,), tl.int32)
        b_total = tl.zeros((width,), tl.float64)
        b_excess, b_rounded = b_total, b_total
        for first in range(0, d, width):
            m = first + o < d
            # (width,) each
            z = tl.load(p_z + first + o, m, 0.0)
            mark = tl.load(p_mark + first + o, m, 0)
            above = ((mark & 1) > 0) & (z - peak > tau)
            b_count += above.to(tl.int32)
            b_total += tl.where(above, z - peak, 0.0)
            b_term = tl.where(above, (z - peak) - tau, 0.0) - b_rounded
            b_sum = b_excess + b_term  # as if in twice the precision
            b_rounded = (b_sum - b_excess) - b_term
            b_excess = b_sum
        count, total, excess = tl.sum(b_count, 0), tl.sum(b_total, 0), tl.sum(b_excess, 0)
        excess = (excess - 1.0) / tl.maximum(count, 1)
        fewer = count < least
        tau = tl.where(fewer, (total - 1.0) / tl.maximum(count, 1), tau)
        least = tl.minimum(count, least)
        moving = fewer.to(tl.int32)
    for first in range(0, d, width):
        m = first + o < d
        # (width,) each
        z = tl.load(p_z + first + o, m, 0.0)
        mark = tl.load(p_mark + first + o, m, 0)
        y = tl.where((mark & 1) > 0, (z - peak) - tau, 0.0)
        y = tl.where((y > 0) & (y > excess), y - excess, 0.0)
        y = tl.where(has_nan > 0, float("nan"), y)
        place = places(p_order, row * d, first + o, m)
        tl.store(p_y + place, rounded(y, p_y.dtype.element_ty), m)


@triton.jit
def solve_tiles(p_scores, p_order, p_y, scratch, floor, slope, down, up, bound, rows, d, width):
    """`solve` with the rows of one program in memory, one after another.

    scratch: p_x and p_z, (programs, d), float64; p_mark and p_side, (programs, d), int8.
    """
    o = tl.arange(0, width)
    program = tl.program_id(0).to(tl.int64)
    p_x, p_z = scratch[0] + program * d, scratch[1] + program * d
    p_mark, p_side = scratch[2] + program * d, scratch[3] + program * d
    for row in range(program, rows, tl.num_programs(0)):
        top = tl.full((), -INF, tl.float64)
        has_nan = tl.full((), 0, tl.int32)
        for first in range(0, d, width):
            i = first + o
            # (width,)
            x = tl.load(p_scores + row * d + i, i < d, -INF).to(tl.float64)
            has_nan = tl.maximum(has_nan, tl.max((x != x).to(tl.int32), 0))
            top = tl.maximum(top, tl.max(tl.where(x == x, x, -INF), 0))
        for first in range(0, d, width):
            i = first + o
            m = i < d
            # (width,)
            x = tl.load(p_scores + row * d + i, m, -INF).to(tl.float64)
            x, weight = relative(x, top, has_nan)
            x = tl.where(weight > 0, tl.maximum(x, floor) + slope * i, 0.0)
            mark = weight + tl.where(i == 0, 2, 0) + tl.where(i == d - 1, 4, 0)
            tl.store(p_x + i, x, m)
            tl.store(p_mark + i, mark.to(tl.int8), m)
            tl.store(p_side + i, tl.zeros_like(mark).to(tl.int8), m)
        tl.debug_barrier()
        tau, peak = regress_tiles(p_x, p_z, p_mark, p_side, d, down, up, bound, width)
        project_tiles(p_z, p_mark, p_order, p_y, row, d, tau, peak, has_nan, width)
        tl.debug_barrier()
