"""The sweep as a kernel, in the driver's own assembly: every engine's image has a driver that compiles it, and no compiler.

One launch goes through one area, each thread from its own word on in steps of the whole grid. What was wrong is added up at `result`:
how many words, the lowest address, and all bits that differed. A turn above 63 stands for the pattern of addresses.
"""

from __future__ import annotations

from typing import Final

NAME: Final = b"sweep"
THREADS: Final = 256
BLOCKS: Final = 4096
"""Enough for every multiprocessor to have all the loads under way that it can."""
PTX: Final = b"""
.version 6.4
.target sm_60
.address_size 64

.visible .entry sweep(
    .param .u64 first,
    .param .u64 words,
    .param .u64 result,
    .param .u32 compares,
    .param .u32 expected_turn,
    .param .u64 expected_mask,
    .param .u32 writes,
    .param .u32 written_turn,
    .param .u64 written_mask
)
{
    .reg .pred  %done, %skips, %of_address, %right;
    .reg .b32   %block, %size, %thread, %blocks, %compares, %writes, %turn_e, %turn_w, %number, %place;
    .reg .b64   %first, %words, %result, %mask_e, %mask_w, %index, %lane, %stride;
    .reg .b64   %offset, %address, %wide, %one, %bit, %word, %found, %differs, %old;

    ld.param.u64 %first, [first];
    ld.param.u64 %words, [words];
    ld.param.u64 %result, [result];
    ld.param.u32 %compares, [compares];
    ld.param.u32 %turn_e, [expected_turn];
    ld.param.u64 %mask_e, [expected_mask];
    ld.param.u32 %writes, [writes];
    ld.param.u32 %turn_w, [written_turn];
    ld.param.u64 %mask_w, [written_mask];

    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %thread, %tid.x;
    mov.u32 %blocks, %nctaid.x;
    mul.wide.u32 %index, %block, %size;
    cvt.u64.u32 %lane, %thread;
    add.u64 %index, %index, %lane;
    mul.wide.u32 %stride, %blocks, %size;
    mov.u64 %one, 1;

NEXT:
    setp.ge.u64 %done, %index, %words;
    @%done bra END;
    shl.b64 %offset, %index, 3;
    add.u64 %address, %first, %offset;
    shr.u64 %wide, %address, 3;
    cvt.u32.u64 %number, %wide;

    setp.eq.u32 %skips, %compares, 0;
    @%skips bra WRITE;
    add.u32 %place, %number, %turn_e;
    and.b32 %place, %place, 63;
    shl.b64 %bit, %one, %place;
    setp.gt.u32 %of_address, %turn_e, 63;
    selp.b64 %word, %address, %bit, %of_address;
    xor.b64 %word, %word, %mask_e;
    ld.global.u64 %found, [%address];
    setp.eq.u64 %right, %found, %word;
    @%right bra WRITE;
    xor.b64 %differs, %found, %word;
    atom.global.add.u64 %old, [%result], 1;
    atom.global.min.u64 %old, [%result+8], %address;
    atom.global.or.b64 %old, [%result+16], %differs;

WRITE:
    setp.eq.u32 %skips, %writes, 0;
    @%skips bra STEP;
    add.u32 %place, %number, %turn_w;
    and.b32 %place, %place, 63;
    shl.b64 %bit, %one, %place;
    setp.gt.u32 %of_address, %turn_w, 63;
    selp.b64 %word, %address, %bit, %of_address;
    xor.b64 %word, %word, %mask_w;
    st.global.u64 [%address], %word;

STEP:
    add.u64 %index, %index, %stride;
    bra NEXT;

END:
    ret;
}
\0"""
