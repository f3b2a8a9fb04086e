//! The tile instructions: tiles 0 to 3 are sums, the others activations and weights.

use std::arch::asm;
use std::mem::MaybeUninit;

use crate::loops::product::Pair;

/// Rows of a tile.
pub const HEIGHT: usize = 16;

/// Groups of four codes, or of two bfloat16, in a row of a tile.
pub const K_GROUPS: usize = 16;

/// Sums in a row of a tile.
pub const LINE: usize = 16;

/// A row of sums, which are the bits of f32 where products are of bfloat16.
pub type Line = [i32; LINE];

/// Bytes of a row of a tile.
pub const ROW: usize = 64;

/// The shape of each tile, as `ldtilecfg` reads it and `sttilecfg` writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Configuration {
    /// 0 where no tiles are configured.
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row.
    row: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    /// The configuration of no tiles.
    pub const NONE: Self =
        Self { palette: 0, start_row: 0, reserved: [0; 14], row: [0; 16], rows: [0; 16] };

    /// The configuration for products: sums and the first tile of activations have `rows` rows, 1
    /// to 16.
    pub fn of_products(rows: usize) -> Self {
        let mut tiles = Self { palette: 1, ..Self::NONE };
        for tile in 0..8 {
            tiles.row[tile] = ROW as u16;
            tiles.rows[tile] = if tile < 5 { rows } else { HEIGHT } as u8;
        }
        tiles
    }

    /// The configuration for products of blocks of 32 inputs: 32 bytes of a row of activations, 8
    /// groups of weights.
    pub fn of_blocks() -> Self {
        let mut tiles = Self::of_products(HEIGHT);
        (tiles.row[4], tiles.rows[6]) = (ROW as u16 / 2, HEIGHT as u8 / 2);
        tiles
    }

    /// Rows of a tile, and bytes of a row.
    #[cfg(all(feature = "emulate-amx", target_os = "linux"))]
    pub fn shape(&self, tile: usize) -> (usize, usize) {
        (self.rows[tile].into(), self.row[tile].into())
    }

    /// Whether the CPU accepts this configuration.
    #[cfg(all(feature = "emulate-amx", target_os = "linux"))]
    pub fn is_valid(&self) -> bool {
        let fits = |tile: usize| self.rows[tile] <= 16 && self.row[tile] <= ROW as u16;
        self.palette == 1 && (0..8).all(fits) && self.reserved == [0; 14]
    }

    /// The configuration of this thread.
    ///
    /// # Safety
    /// The CPU has AMX.
    #[inline(always)]
    pub unsafe fn current() -> Self {
        let mut current = Self::NONE;
        // SAFETY: it writes the 64 bytes of a configuration.
        unsafe {
            asm!("sttilecfg [{to}]", to = in(reg) &raw mut current,
                options(nostack, preserves_flags));
        }
        current
    }

    /// Configures the tiles of this thread, or releases them for `NONE`.
    ///
    /// # Safety
    /// The CPU has AMX, and the configuration is `NONE`, for products, or was stored by the CPU.
    #[inline(always)]
    pub unsafe fn load(&self) {
        // SAFETY: the CPU has AMX and takes the configuration, the 64 bytes that are read.
        unsafe {
            match self.palette {
                0 => asm!("tilerelease", options(nomem, nostack, preserves_flags)),
                _ => asm!("ldtilecfg [{from}]", from = in(reg) &raw const *self,
                    options(nostack, preserves_flags, readonly)),
            }
        }
    }
}

/// The tiles of this thread, configured for products until this is dropped.
///
/// The configuration belongs to the thread, and other code may keep another there: what was found
/// is put back, and where nothing was, tiles are released, so that the system need not save them.
pub struct Configured {
    before: Configuration,
}

impl Configured {
    /// # Safety
    /// The CPU has AMX.
    #[inline(always)]
    pub unsafe fn new(tiles: Configuration) -> Self {
        // SAFETY: the CPU has AMX, and takes a configuration of products.
        unsafe {
            let before = Configuration::current();
            tiles.load();
            Self { before }
        }
    }
}

impl Drop for Configured {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the CPU has AMX, as it had for `new`, and stored it.
        unsafe { self.before.load() }
    }
}

/// The sums of up to 4 tiles.
#[repr(C, align(64))]
pub struct Sums([[MaybeUninit<Line>; HEIGHT]; 4]);

impl Sums {
    #[inline(always)]
    pub fn uninit() -> Self {
        Self([[MaybeUninit::uninit(); HEIGHT]; 4])
    }

    /// Stores the sums of tiles of that shape.
    ///
    /// # Safety
    /// Tiles are configured, and there are at most 4.
    #[inline(always)]
    pub unsafe fn store(&mut self, shape: [usize; 2]) {
        let to = self.0.each_mut().map(|tile| tile.as_mut_ptr().cast());
        // SAFETY: tiles are configured, each of at most 1 KiB, and there is room for four.
        unsafe { store(shape, to, ROW) }
    }

    /// The first rows of a tile.
    ///
    /// # Safety
    /// They have been stored.
    #[inline(always)]
    pub unsafe fn rows(&self, tile: usize, count: usize) -> &[Line] {
        // SAFETY: the rows have been stored.
        unsafe { self.0[tile][..count].assume_init_ref() }
    }
}

/// Clears all sums.
///
/// # Safety
/// Tiles are configured.
#[inline(always)]
pub unsafe fn clear() {
    // SAFETY: tiles are configured; the instructions touch them alone.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            out("tmm0") _,
            out("tmm1") _,
            out("tmm2") _,
            out("tmm3") _,
            options(nomem, nostack, preserves_flags),
        );
    }
}

/// Stores the products of a block of 16 rows of i8 activations, from `lhs` on and `stride` bytes
/// apart, and of 16 channels of i8 weights.
///
/// # Safety
/// Tiles are configured for blocks, and there are 16 rows of 32 bytes.
#[inline(always)]
pub unsafe fn multiply_block(
    lhs: *const u8,
    stride: usize,
    rhs: &[[u8; ROW]; HEIGHT / 2],
    sums: &mut [Line; HEIGHT],
) {
    // SAFETY: there is a tile of activations and one of weights to read, and room for sums.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tileloadd tmm4, [{lhs} + {stride}]",
            "tileloadd tmm6, [{rhs} + {line}]",
            "tdpbssd tmm0, tmm4, tmm6",
            "tilestored [{sums} + {line}], tmm0",
            lhs = in(reg) lhs,
            stride = in(reg) stride,
            rhs = in(reg) rhs,
            sums = in(reg) sums,
            line = in(reg) ROW,
            out("tmm0") _,
            out("tmm4") _,
            out("tmm6") _,
            options(nostack, preserves_flags),
        );
    }
}

/// A loop over tiles of inputs, given the instructions of a step.
macro_rules! steps {
    ($operands:expr, $steps:expr, [$($instruction:expr),* $(,)?]) => {{
        let TileOperands { lhs, lhs_stride, rhs, rhs_stride, ahead, .. } = $operands;
        asm!(
            "2:",
            $($instruction,)*
            "add {a0}, 64",
            "add {a1}, 64",
            "add {b}, {b_step}",
            "add {ahead}, 512",
            "dec {steps}",
            "jnz 2b",
            a0 = inout(reg) lhs[0] => _,
            a1 = inout(reg) lhs[1] => _,
            b = inout(reg) rhs => _,
            a_stride = in(reg) lhs_stride,
            b_stride = in(reg) rhs_stride,
            b_step = in(reg) K_GROUPS * rhs_stride,
            ahead = inout(reg) ahead => _,
            steps = inout(reg) $steps => _,
            out("tmm0") _,
            out("tmm1") _,
            out("tmm2") _,
            out("tmm3") _,
            out("tmm4") _,
            out("tmm5") _,
            out("tmm6") _,
            out("tmm7") _,
            options(nostack, readonly),
        )
    }};
}

/// Loads a tile of weights and adds its products with the only tile of activations.
macro_rules! column {
    ($dot:literal, 0) => {
        column!($dot, "tmm5", "", "tmm0")
    };
    ($dot:literal, 1) => {
        column!($dot, "tmm6", " + 64", "tmm1")
    };
    ($dot:literal, 2) => {
        column!($dot, "tmm7", " + 128", "tmm2")
    };
    ($dot:literal, 3) => {
        column!($dot, "tmm5", " + 192", "tmm3")
    };
    ($dot:literal, $weights:literal, $offset:literal, $sums:literal) => {
        concat!(
            "tileloadd ",
            $weights,
            ", [{b} + {b_stride}",
            $offset,
            "]\n",
            $dot,
            " ",
            $sums,
            ", tmm4, ",
            $weights
        )
    };
}

/// The loop of one tile of activations by these of weights.
macro_rules! single {
    ($dot:literal, $operands:expr, $steps:expr, [$($column:tt),*]) => {
        steps!(
            $operands,
            $steps,
            ["tileloadd tmm4, [{a0} + {a_stride}]", $(column!($dot, $column)),*]
        )
    };
}

/// The loop of 2 x 2 tiles, given the instruction that loads activations.
macro_rules! square {
    ($dot:literal, $load:literal, $operands:expr, $steps:expr) => {
        if $operands.ahead.is_null() {
            square!($dot, $load, $operands, $steps, [], [])
        } else {
            square!(
                $dot,
                $load,
                $operands,
                $steps,
                [
                    "prefetcht1 [{ahead}]",
                    "prefetcht1 [{ahead} + 64]",
                    "prefetcht1 [{ahead} + 128]",
                    "prefetcht1 [{ahead} + 192]"
                ],
                [
                    "prefetcht1 [{ahead} + 256]",
                    "prefetcht1 [{ahead} + 320]",
                    "prefetcht1 [{ahead} + 384]",
                    "prefetcht1 [{ahead} + 448]"
                ]
            )
        }
    };
    // With other instructions behind the loads of each tile of activations.
    ($dot:literal, $load:literal, $operands:expr, $steps:expr, [$($first:literal),*], [$($second:literal),*]) => {
        steps!(
            $operands,
            $steps,
            [
                "tileloadd tmm6, [{b} + {b_stride}]",
                concat!($load, " tmm4, [{a0} + {a_stride}]"),
                $($first,)*
                concat!($dot, " tmm0, tmm4, tmm6"),
                "tileloadd tmm7, [{b} + {b_stride} + 64]",
                concat!($dot, " tmm1, tmm4, tmm7"),
                concat!($load, " tmm5, [{a1} + {a_stride}]"),
                $($second,)*
                concat!($dot, " tmm2, tmm5, tmm6"),
                concat!($dot, " tmm3, tmm5, tmm7"),
            ]
        )
    };
}

/// The memory that tiles are loaded from.
#[derive(Clone, Copy)]
pub struct TileOperands {
    /// The first activations of one or two tiles of rows; twice the same for one tile.
    pub lhs: [*const u8; 2],
    /// Bytes between two rows.
    pub lhs_stride: usize,
    /// Whether activations stay in L1 for the next weights. If not, they are loaded with a hint
    /// that they are not used again soon, and weights stay.
    pub lhs_stays: bool,
    /// The first weights.
    pub rhs: *const u8,
    /// Bytes between two groups.
    pub rhs_stride: usize,
    /// Weights that come next, or null: with 2 x 2 tiles each step brings eight lines of them to
    /// L2. Any address may be given.
    pub ahead: *const u8,
}

/// Lines that are brought to L2 a step, in bytes.
pub const AHEAD: usize = 512;

/// The products of tiles of a shape by an instruction.
macro_rules! multiply {
    ($dot:literal, $shape:expr, $operands:expr, $steps:expr) => {
        match $shape {
            [2, 2] if $operands.lhs_stays => square!($dot, "tileloadd", $operands, $steps),
            [2, 2] => square!($dot, "tileloaddt1", $operands, $steps),
            [2, _] => steps!(
                $operands,
                $steps,
                [
                    "tileloadd tmm6, [{b} + {b_stride}]",
                    "tileloaddt1 tmm4, [{a0} + {a_stride}]",
                    concat!($dot, " tmm0, tmm4, tmm6"),
                    "tileloaddt1 tmm5, [{a1} + {a_stride}]",
                    concat!($dot, " tmm1, tmm5, tmm6"),
                ]
            ),
            [_, 4] => single!($dot, $operands, $steps, [0, 1, 2, 3]),
            [_, 3] => single!($dot, $operands, $steps, [0, 1, 2]),
            [_, 2] => single!($dot, $operands, $steps, [0, 1]),
            _ => single!($dot, $operands, $steps, [0]),
        }
    };
}

/// Groups that tiles multiply: of u8 and i8 codes, or of bfloat16.
pub trait Tiled: Copy {
    /// Adds the products of `steps` tiles of inputs to the sums of tiles of that shape.
    ///
    /// # Safety
    /// Tiles are configured, the shape is 2 x 1, 2 x 2 or 1 x 1 to 4, `steps` is not 0, and there
    /// are so many tiles to read from each of `lhs`, [`ROW`] bytes apart, and from `rhs`,
    /// `K_GROUPS` strides apart.
    unsafe fn multiply(shape: [usize; 2], operands: TileOperands, steps: usize);
}

impl Tiled for [u8; 4] {
    #[inline(always)]
    unsafe fn multiply(shape: [usize; 2], operands: TileOperands, steps: usize) {
        // SAFETY: tiles are configured, and there is a tile to read at each step of each operand.
        unsafe { multiply!("tdpbusd", shape, operands, steps) }
    }
}

impl Tiled for Pair {
    #[inline(always)]
    unsafe fn multiply(shape: [usize; 2], operands: TileOperands, steps: usize) {
        // SAFETY: tiles are configured, and there is a tile to read at each step of each operand.
        unsafe { multiply!("tdpbf16ps", shape, operands, steps) }
    }
}

/// Moves the sums of tiles of a shape to or from where each begins, by the instruction before and
/// after the tile.
macro_rules! move_sums {
    ([$before:literal, $after:literal], $shape:expr, $at:expr, $stride:expr) => {
        let [rows, columns] = $shape;
        move_sums!($before, $after, 0, "tmm0", $at, $stride);
        if rows * columns > 1 {
            move_sums!($before, $after, 1, "tmm1", $at, $stride);
        }
        if rows * columns > 2 {
            move_sums!($before, $after, 2, "tmm2", $at, $stride);
        }
        if rows * columns > 3 {
            move_sums!($before, $after, 3, "tmm3", $at, $stride);
        }
    };
    ($before:literal, $after:literal, $tile:literal, $register:tt, $at:expr, $stride:expr) => {
        asm!(concat!($before, $register, $after), at = in(reg) $at[$tile], stride = in(reg) $stride,
            out($register) _, options(nostack, preserves_flags))
    };
}

/// Loads the sums of tiles of a shape from where each begins, rows being `stride` bytes apart.
///
/// # Safety
/// Tiles are configured, there are at most 4, and there is one to read from each place.
#[inline(always)]
pub unsafe fn load(shape: [usize; 2], from: [*mut u8; 4], stride: usize) {
    // SAFETY: tiles are configured, and there is one to read.
    unsafe {
        move_sums!(["tileloadd ", ", [{at} + {stride}]"], shape, from, stride);
    }
}

/// Stores the sums of tiles of a shape where each begins, rows being `stride` bytes apart.
///
/// # Safety
/// Tiles are configured, there are at most 4, and there is room for one at each place.
#[inline(always)]
pub unsafe fn store(shape: [usize; 2], to: [*mut u8; 4], stride: usize) {
    // SAFETY: tiles are configured, and there is room for one.
    unsafe {
        move_sums!(["tilestored [{at} + {stride}], ", ""], shape, to, stride);
    }
}
