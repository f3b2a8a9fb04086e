//! Tiles emulated on a CPU without them, for tests: each tile instruction raises SIGILL there, and
//! a handler carries it out on memory. Slow, but with the same bits. The other instructions of a
//! kernel are executed as they are where the CPU has AVX-512; elsewhere loops in plain Rust take
//! their place.
//!
//! Source of encodings and operations: Intel 64 and IA-32 Architectures Software Developer's
//! Manual, volume 2.

use std::cell::UnsafeCell;
use std::sync::OnceLock;

use half::f16;
use libc::{
    REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RAX, REG_RBP,
    REG_RBX, REG_RCX, REG_RDI, REG_RDX, REG_RSI, REG_RSP, c_int, c_void, siginfo_t, ucontext_t,
};

use super::attention::{self as on_tiles, OnTiles};
use super::blocks;
use super::nest::{self, FEW, Finish, Lines, fills_a_tile, multiply_on_tiles};
use super::tiles::{Configuration, Configured, HEIGHT, LINE};
use crate::arch::op::{Activate, Op};
use crate::arch::portable;
use crate::arch::x86_64::{avx2, avx512_vnni};
use crate::isa::cpu;
use crate::loops::activation::Activation;
use crate::loops::attention::{self, Attention, Precision, QueryBlock};
use crate::loops::blocks::RowBlock;
use crate::loops::buffer::RowsMut;
use crate::loops::factors;
use crate::loops::float_tile::{Left, Right};
use crate::loops::float_vector::{OfPairs, Register};
use crate::loops::product::{Pair, Part, Product, Row, Sink};
use crate::packed::Channels;

/// Calls a function of the best instruction set that this CPU has.
macro_rules! on_best {
    ($function:ident $(::<$care:ident>)? ($($argument:expr),*)) => {
        // SAFETY: `cpu` found the features, and the functions have one contract.
        unsafe {
            if cpu::avx512_vnni() {
                avx512_vnni::$function $(::<$care>)? ($($argument),*)
            } else if cpu::avx2() {
                avx2::$function $(::<$care>)? ($($argument),*)
            } else {
                portable::$function $(::<$care>)? ($($argument),*)
            }
        }
    };
}

pub fn run<O: Op>(op: O) -> O::Out {
    on_best!(run(op))
}

pub fn transpose(from: (&[f32], usize), to: RowsMut<'_>, size: [usize; 2]) {
    on_best!(transpose(from, to, size));
}

pub fn multiply_shifted<const EXACT: bool>(left: Left<'_>, right: Right<'_>, offsets: &[usize]) {
    on_best!(multiply_shifted::<EXACT>(left, right, offsets));
}

pub fn multiply_row<const EXACT: bool>(row: &[f32], weights: &[f32], out: &mut [f32]) {
    on_best!(multiply_row::<EXACT>(row, weights, out));
}

pub fn widen(halves: &[f16], out: &mut [f32]) {
    on_best!(widen(halves, out));
}

/// # Safety
/// No other thread computes a block that overlaps.
pub unsafe fn attend<const CAREFUL: bool>(
    attention: &Attention<'_>,
    block: QueryBlock,
    out: &Sink<'_>,
) -> bool {
    if cpu::avx512_bf16() {
        assert!(install(), "a handler of SIGILL");
        // SAFETY: the CPU has these features, and tiles or the handler; the contract is the same.
        return unsafe { on_tiles::attend::<CAREFUL>(attention, block, out) };
    }
    if attention.precision == Precision::BFloat16 && cpu::avx2() {
        // SAFETY: the CPU has these features; the contract is the same.
        return unsafe { attend_by_avx2::<CAREFUL>(attention, block, out) };
    }
    on_best!(attend::<CAREFUL>(attention, block, out))
}

/// Attention on emulated tiles, with factors made lane by lane.
///
/// # Safety
/// The CPU has these features, and no other thread computes a block that overlaps.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn attend_by_avx2<const CAREFUL: bool>(
    attention: &Attention<'_>,
    block: QueryBlock,
    out: &Sink<'_>,
) -> bool {
    const LANES: usize = 8;
    type Lanes = [f32; LANES];
    let register = avx2::register();
    let stored = |values| {
        let mut lanes: Lanes = [0.; LANES];
        register.store(values, &mut lanes);
        lanes
    };
    let pairs = |first: Lanes, second: Lanes| {
        let lanes: Lanes = std::array::from_fn(|i| factors::pair(first[i], second[i]));
        register.load(&lanes)
    };
    let register = OfPairs {
        register,
        // Tiles multiply, and have neighbours as pairs.
        dot: |_, _, acc| acc,
        alternate: |rounded| rounded,
        pair: |first, second| pairs(stored(first), stored(second)),
        round: |low, high| {
            let inputs = [stored(low), stored(high)];
            let at = |i| inputs.as_flattened()[i];
            let lanes = |odd| std::array::from_fn(|i| at(2 * i + odd));
            pairs(lanes(1), lanes(0))
        },
    };
    assert!(install(), "a handler of SIGILL");
    // SAFETY: the handler carries out tile instructions, and tiles are configured until the task is
    // done; blocks of attention are disjoint, and one thread computes each.
    unsafe {
        let _configured = Configured::new(Configuration::of_products(HEIGHT));
        let factors = OnTiles::new(register);
        attention::attend::<LANES, 2, f32, _, CAREFUL>(attention, block, out, factors)
    }
}

/// Whether the CPU has all but tiles, which the handler has in any case.
fn has_avx512() -> bool {
    assert!(install(), "a handler of SIGILL");
    cpu::avx512_vnni()
}

fn activate(activation: Activation, xs: &mut [f32]) {
    run(Activate { activation, xs });
}

/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply_f16(product: &Product<'_, f32>, out: &Sink<'_>, part: Part) {
    // SAFETY: `cpu` found the features; the contract is the same.
    unsafe {
        if cpu::avx512_vnni() {
            avx512_vnni::multiply_f16(product, out, part)
        } else {
            portable::multiply_f16_by::<LINE, 32, 4>(product, out, part)
        }
    }
}

/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply_blocks(product: &Product<'_, RowBlock>, out: &Sink<'_>, part: Part) {
    if has_avx512() {
        // SAFETY: as in `multiply`.
        return unsafe { blocks::multiply_blocks(product, out, part) };
    }
    // SAFETY: the contract is the same.
    unsafe { portable::multiply_blocks_by::<LINE, 64>(product, out, part) }
}

/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply(product: &Product<'_, [u8; 4]>, out: &Sink<'_>, part: Part) {
    if has_avx512() {
        // SAFETY: the CPU has these features, and tiles or the handler; the contract is the same.
        return unsafe { nest::multiply(product, out, part) };
    }
    if !fills_a_tile(product, &part) {
        // SAFETY: the contract is the same. Others have no registers for the panels of AMX.
        return unsafe { portable::multiply_by::<LINE, 64, 4>(product, out, part) };
    }
    // SAFETY: the handler carries out tile instructions; parts of a `Grid` are disjoint, and one
    // thread computes each.
    unsafe { multiply_on_tiles(product, out, part, DequantizeLanes, activate) }
}

/// # Safety
/// No other thread computes a part that overlaps.
pub unsafe fn multiply_bf16(product: &Product<'_, Pair>, out: &Sink<'_>, part: Part) {
    if has_avx512() {
        // SAFETY: as in `multiply`.
        return unsafe { nest::multiply_bf16(product, out, part) };
    }
    if part.rows.len() < FEW {
        // SAFETY: as in `multiply`.
        return unsafe { portable::multiply_bf16_by::<LINE, 64, 4>(product, out, part) };
    }
    // SAFETY: as in `multiply`.
    unsafe { multiply_on_tiles(product, out, part, AddBiasLanes, activate) }
}

/// Dequantizes sums of codes as the oracle says, lane by lane.
#[derive(Clone, Copy)]
struct DequantizeLanes;

impl Finish for DequantizeLanes {
    unsafe fn finish<const C: usize>(self, lines: Lines<'_, C>) {
        each_lane(lines, |sum, row, channels, lane| {
            let zero_point = channels.zero_points.map_or(0, |all| all[lane]);
            let lhs = row.zero_point.wrapping_mul(channels.sums[lane]);
            let rhs = row.sum.wrapping_mul(zero_point);
            let sum = sum.wrapping_sub(lhs).wrapping_sub(rhs);
            (sum as f32).mul_add(row.scale * channels.scales[lane], channels.bias[lane])
        });
    }
}

/// Adds the bias to sums of products of bfloat16, which are f32.
#[derive(Clone, Copy)]
struct AddBiasLanes;

impl Finish for AddBiasLanes {
    unsafe fn finish<const C: usize>(self, lines: Lines<'_, C>) {
        each_lane(lines, |sum, _, channels, lane| {
            f32::from_bits(sum.cast_unsigned()) + channels.bias[lane]
        });
    }
}

/// Writes the value of each sum by the parameters of its row and of its tile's channels, and its
/// lane.
fn each_lane<const C: usize>(
    mut lines: Lines<'_, C>,
    value: impl Fn(i32, &Row, &Channels<'_, LINE>, usize) -> f32,
) {
    assert!(lines.out.has([lines.rows.len(), C * LINE]));
    for (r, row) in lines.rows.iter().enumerate() {
        // SAFETY: by the assertion there is that row.
        let out = unsafe { lines.out.row(r) };
        for (j, (sums, channels)) in lines.sums.iter().zip(&lines.channels).enumerate() {
            for (lane, sum) in sums[r].iter().enumerate() {
                out[j * LINE + lane].write(value(*sum, row, channels, lane));
            }
        }
    }
}

/// Installs the handler, once.
pub fn install() -> bool {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        // SAFETY: zeros are a valid `sigaction`; the handler touches this thread's context and
        // tiles alone, and allocates nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            // On the thread's stack: an alternate stack for signals may be too small.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()) == 0
        }
    })
}

const ROWS: usize = 16;
const ROW: usize = 64;

/// A thread's tiles.
struct EmulatedTiles {
    shapes: Configuration,
    bytes: [[[u8; ROW]; ROWS]; 8],
}

thread_local! {
    static TILES: UnsafeCell<EmulatedTiles> = const {
        UnsafeCell::new(EmulatedTiles {
            shapes: Configuration::NONE,
            bytes: [[[0; ROW]; ROWS]; 8],
        })
    };
}

extern "C" fn handle(signal: c_int, _info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the system calls a handler of `SA_SIGINFO` with a context of this thread; the
    // instruction at its address was being executed; no tile instruction is emulated within this
    // handler, so the thread's tiles are borrowed once.
    unsafe {
        let registers = &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs;
        let executed = TILES.with(|tiles| execute(&mut *tiles.get(), registers));
        if executed.is_none() {
            // Another instruction: it is executed again, and ends the process.
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// The general registers in the order of their numbers in instructions.
const NUMBERED: [c_int; 16] = [
    REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI, REG_R8, REG_R9,
    REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
];

/// The operand of an instruction in memory: its address, the index register's value and the
/// scale with it, and the length of what says so.
struct Memory {
    start: usize,
    stride: usize,
    length: usize,
}

/// Carries out the instruction at the context's address and goes on to the next; `None` if the
/// kernels use no such tile instruction, or the CPU would refuse it.
///
/// # Safety
/// The context belongs to an instruction of this thread, and so do the memory operands.
unsafe fn execute(tiles: &mut EmulatedTiles, registers: &mut [i64; 23]) -> Option<()> {
    // SAFETY: instruction pointer and memory operands belong to an instruction of this thread.
    unsafe {
        let at = registers[libc::REG_RIP as usize] as *const u8;
        let byte = |i: usize| *at.add(i);
        // A three-byte VEX prefix, map 0F38, 128 bits.
        if byte(0) != 0xC4 || byte(1) & 0x1F != 2 || byte(2) & 0x84 != 0 {
            return None;
        }
        let (prefix, opcode, operand) = (byte(2) & 3, byte(3), byte(4));
        let register = usize::from(operand >> 3 & 7);
        let direct = operand >> 6 == 3;
        let (mut start, mut stride, mut length) = (0, 0, 5);
        if !direct {
            Memory { start, stride, length } = memory(at, registers)?;
        }
        // The other two operands of a product.
        let (lhs, rhs) = (usize::from(operand & 7), usize::from(!byte(2) >> 3 & 15));
        match (opcode, prefix, direct) {
            (0x49, 0, false) => {
                let shapes = *(start as *const Configuration);
                if !shapes.is_valid() {
                    return None;
                }
                tiles.shapes = shapes;
                tiles.bytes.fill([[0; ROW]; ROWS]);
            }
            (0x49, 1, false) => *(start as *mut Configuration) = tiles.shapes,
            (0x49, 0, true) => tiles.shapes = Configuration::NONE,
            (0x49, 3, true) => {
                tiles.shape(register)?;
                tiles.bytes[register] = [[0; ROW]; ROWS];
            }
            (0x4B, 1 | 3, false) => {
                let (rows, row) = tiles.shape(register)?;
                tiles.bytes[register] = [[0; ROW]; ROWS];
                for (i, to) in tiles.bytes[register].iter_mut().enumerate().take(rows) {
                    let from = (start + i * stride) as *const u8;
                    to[..row].copy_from_slice(std::slice::from_raw_parts(from, row));
                }
            }
            (0x4B, 2, false) => {
                let (rows, row) = tiles.shape(register)?;
                for (i, from) in tiles.bytes[register].iter().enumerate().take(rows) {
                    let to = (start + i * stride) as *mut u8;
                    to.copy_from_nonoverlapping(from.as_ptr(), row);
                }
            }
            (0x5E, 1, true) => tiles.multiply(register, lhs, rhs, i32::from)?,
            (0x5E, 3, true) => {
                tiles.multiply(register, lhs, rhs, |byte| byte.cast_signed().into())?;
            }
            (0x5C, 2, true) => tiles.multiply_bf16(register, lhs, rhs)?,
            _ => return None,
        }
        registers[libc::REG_RIP as usize] += length as i64;
        Some(())
    }
}

/// The memory operand of the instruction at `at`.
///
/// # Safety
/// There is an instruction with a three-byte VEX prefix.
unsafe fn memory(at: *const u8, registers: &[i64; 23]) -> Option<Memory> {
    // SAFETY: an instruction with such a prefix has these bytes.
    let byte = |i: usize| unsafe { *at.add(i) };
    let value = |number: u8| registers[NUMBERED[usize::from(number)] as usize] as usize;
    // The prefix has the fourth bits of the numbers of registers, inverted.
    let (extra_index, extra_base) = (!byte(1) >> 3 & 8, !byte(1) >> 2 & 8);
    let (mode, low) = (byte(4) >> 6, byte(4) & 7);
    let (mut next, stride, base);
    if low == 4 {
        let sib = byte(5);
        next = 6;
        let index = sib >> 3 & 7 | extra_index;
        stride = if index == 4 { 0 } else { value(index) << (sib >> 6) };
        if sib & 7 == 5 && mode == 0 {
            return None;
        }
        base = value(sib & 7 | extra_base);
    } else if low == 5 && mode == 0 {
        // Relative to the next instruction: the compiler uses no such operand here.
        return None;
    } else {
        (next, stride) = (5, 0);
        base = value(low | extra_base);
    }
    let offset = match mode {
        0 => 0,
        1 => {
            next += 1;
            isize::from(byte(next - 1).cast_signed())
        }
        _ => {
            next += 4;
            let bytes = std::array::from_fn(|i| byte(next - 4 + i));
            i32::from_le_bytes(bytes) as isize
        }
    };
    Some(Memory { start: base.wrapping_add_signed(offset), stride, length: next })
}

impl EmulatedTiles {
    /// Rows of a configured tile and bytes of a row.
    fn shape(&self, tile: usize) -> Option<(usize, usize)> {
        let (rows, row) = self.shapes.shape(tile);
        (self.shapes != Configuration::NONE && rows > 0 && row > 0).then_some((rows, row))
    }

    /// The rows of `sums`, and the bytes of one and of a row of `lhs`, if they fit together.
    fn shapes(&self, sums: usize, lhs: usize, rhs: usize) -> Option<[usize; 3]> {
        let (rows, row) = self.shape(sums)?;
        let (lhs_rows, lhs_row) = self.shape(lhs)?;
        let (rhs_rows, rhs_row) = self.shape(rhs)?;
        let differ = sums != lhs && sums != rhs && lhs != rhs;
        let fit = lhs_rows == rows && rhs_row == row && lhs_row == 4 * rhs_rows;
        (differ && fit).then_some([rows, row, lhs_row])
    }

    /// Adds the products of the bfloat16 `lhs` and `rhs` to the f32 `sums`: of even and of odd
    /// inputs apart, then both.
    fn multiply_bf16(&mut self, sums: usize, lhs: usize, rhs: usize) -> Option<()> {
        let [rows, row, lhs_row] = self.shapes(sums, lhs, rhs)?;
        let value = |bytes: &[u8]| f32::from_bits(u32::from_le_bytes([0, 0, bytes[0], bytes[1]]));
        for i in 0..rows {
            for sum in (0..row).step_by(4) {
                let mut sides = [0f32; 2];
                for (k, a) in self.bytes[lhs][i][..lhs_row].chunks_exact(2).enumerate() {
                    let b = &self.bytes[rhs][k / 2][sum + 2 * (k % 2)..];
                    sides[k % 2] = value(a).mul_add(value(b), sides[k % 2]);
                }
                let to = self.bytes[sums][i][sum..].first_chunk_mut()?;
                let total = f32::from_le_bytes(*to) + (sides[0] + sides[1]);
                *to = total.to_le_bytes();
            }
        }
        Some(())
    }

    /// Adds the products of `lhs`, whose bytes have a `value`, and i8 `rhs` to the i32 `sums`.
    fn multiply(
        &mut self,
        sums: usize,
        lhs: usize,
        rhs: usize,
        value: fn(u8) -> i32,
    ) -> Option<()> {
        let [rows, row, lhs_row] = self.shapes(sums, lhs, rhs)?;
        for i in 0..rows {
            for (j, sum) in (0..row).step_by(4).enumerate() {
                let before = self.bytes[sums][i][sum..].first_chunk()?;
                let mut total = i32::from_le_bytes(*before);
                for (k, a) in self.bytes[lhs][i][..lhs_row].iter().enumerate() {
                    let b = self.bytes[rhs][k / 4][4 * j + k % 4].cast_signed();
                    total = total.wrapping_add(value(*a) * i32::from(b));
                }
                self.bytes[sums][i][sum..sum + 4].copy_from_slice(&total.to_le_bytes());
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries out one instruction whose operand is at `address`, in RAX or R9.
    fn run(tiles: &mut EmulatedTiles, instruction: &[u8], address: usize) -> Option<usize> {
        let start = instruction.as_ptr() as usize;
        let mut registers = [0; 23];
        registers[libc::REG_RIP as usize] = start as i64;
        registers[libc::REG_RAX as usize] = address as i64;
        registers[libc::REG_R9 as usize] = address as i64;
        // SAFETY: the instruction lies there, and a configuration at the address.
        unsafe { execute(tiles, &mut registers)? };
        Some(registers[libc::REG_RIP as usize] as usize - start)
    }

    #[test]
    fn configurations_are_loaded_stored_and_released() {
        let mut tiles = EmulatedTiles { shapes: Configuration::NONE, bytes: [[[1; ROW]; ROWS]; 8] };
        let ours = Configuration::of_products(5);
        let load = [0xC4, 0xE2, 0x78, 0x49, 0x00];
        assert_eq!(run(&mut tiles, &load, &raw const ours as usize), Some(5));
        assert!(tiles.shapes == ours && tiles.bytes == [[[0; ROW]; ROWS]; 8]);
        // sttilecfg [r9 + 64], with an offset of one byte and of four.
        let mut stored = [Configuration::NONE; 2];
        let to = &raw mut stored as usize;
        let store = [0xC4, 0xC2, 0x79, 0x49, 0x41, 64];
        assert_eq!(run(&mut tiles, &store, to), Some(6));
        let store = [0xC4, 0xC2, 0x79, 0x49, 0x81, 0, 0, 0, 0];
        assert_eq!(run(&mut tiles, &store, to), Some(9));
        assert_eq!(stored, [ours; 2]);
        let release = [0xC4, 0xE2, 0x78, 0x49, 0xC0];
        assert_eq!(run(&mut tiles, &release, 0), Some(5));
        assert_eq!(tiles.shapes, Configuration::NONE);
        // As the CPU does: no tile is used before it is configured, and no configuration is taken
        // that it does not know.
        let clear = [0xC4, 0xE2, 0x7B, 0x49, 0xC0];
        assert_eq!(run(&mut tiles, &clear, 0), None);
        let unknown = Configuration::of_products(17);
        assert_eq!(run(&mut tiles, &load, &raw const unknown as usize), None);
        // `ud2` is not a tile instruction.
        assert_eq!(run(&mut tiles, &[0x0F, 0x0B, 0, 0, 0], 0), None);
    }
}
