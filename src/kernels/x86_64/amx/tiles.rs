//! The tile instructions: 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights.

use std::arch::asm;
use std::mem::MaybeUninit;

/// Rows of a tile.
pub(super) const HEIGHT: usize = 16;

/// Groups of four codes in a row of a tile.
pub(super) const K_GROUPS: usize = 16;

/// Sums in a row of a tile.
pub(super) const LINE: usize = 16;

/// Bytes of a row of a tile.
const ROW: usize = 64;

/// The shape of each tile, as `ldtilecfg` reads it and `sttilecfg` writes it.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Configuration {
    /// 0 where no tiles are configured.
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row.
    row: [u16; 16],
    rows: [u8; 16],
}

/// The thread's tiles, configured for products until it is dropped.
///
/// The configuration is one of the thread, and others keep theirs there: what was found is put
/// back, and where nothing was, tiles are released, so that the system need not save them.
pub(super) struct Configured {
    before: Configuration,
}

impl Configured {
    /// Tiles of sums and of activations have `height` rows, 1 to 16.
    #[inline(always)]
    pub fn new(height: usize) -> Self {
        let mut tiles = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row: [0; 16],
            rows: [0; 16],
        };
        for tile in 0..8 {
            tiles.row[tile] = ROW as u16;
            tiles.rows[tile] = if tile < 6 { height as u8 } else { HEIGHT as u8 };
        }
        let mut before = MaybeUninit::<Configuration>::uninit();
        // SAFETY: the first writes the 64 bytes of a configuration, the second reads as many, which
        // are a valid one: palette 1, 1 to 16 rows, 64 bytes.
        unsafe {
            asm!(
                "sttilecfg [{before}]",
                "ldtilecfg [{tiles}]",
                before = in(reg) before.as_mut_ptr(),
                tiles = in(reg) &raw const tiles,
                options(nostack, preserves_flags),
            );
            Self {
                before: before.assume_init(),
            }
        }
    }
}

impl Drop for Configured {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: what is loaded was stored by this CPU.
        unsafe {
            match self.before.palette {
                0 => asm!("tilerelease", options(nomem, nostack, preserves_flags)),
                _ => asm!(
                    "ldtilecfg [{before}]",
                    before = in(reg) &raw const self.before,
                    options(nostack, preserves_flags, readonly),
                ),
            }
        }
    }
}

/// The sums of up to 2 x 2 tiles.
#[repr(C, align(64))]
pub(super) struct Sums([[[MaybeUninit<[i32; LINE]>; HEIGHT]; 2]; 2]);

impl Sums {
    #[inline(always)]
    pub fn uninit() -> Self {
        Self([[[MaybeUninit::uninit(); HEIGHT]; 2]; 2])
    }

    /// A row of the tile in row `i` and column `j` of tiles.
    ///
    /// # Safety
    /// It has been stored.
    #[inline(always)]
    pub unsafe fn row(&self, i: usize, j: usize, row: usize) -> &[i32; LINE] {
        // SAFETY: the caller's promise.
        unsafe { self.0[i][j][row].assume_init_ref() }
    }
}

/// Clears all sums.
///
/// # Safety
/// Tiles are configured.
#[inline(always)]
pub(super) unsafe fn clear() {
    // SAFETY: the caller's promise.
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

/// A loop over tiles of inputs: the instructions of one step, and the pointers that go on.
macro_rules! steps {
    ([$($step:literal)*], $lhs:expr, $lhs_stride:expr, $rhs:expr, $rhs_stride:expr, $steps:expr) => {
        asm!(
            "2:",
            $($step,)*
            "add {a0}, 64",
            "add {a1}, 64",
            "add {b}, {next_b}",
            "dec {steps}",
            "jnz 2b",
            a0 = inout(reg) $lhs[0] => _,
            a1 = inout(reg) $lhs[$lhs.len() - 1] => _,
            b = inout(reg) $rhs => _,
            a_stride = in(reg) $lhs_stride,
            b_stride = in(reg) $rhs_stride,
            next_b = in(reg) K_GROUPS * $rhs_stride,
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
    };
}

/// Adds the products of `steps` tiles of inputs to the sums of `R` x `C` tiles.
///
/// Activations are loaded with a hint that they are used once from here: weights stay in L1.
///
/// # Safety
/// Tiles are configured, `R` and `C` are 1 or 2, `steps` is not 0, and there are so many tiles to
/// read from each of `lhs`, `ROW` bytes apart, and from `rhs`, `K_GROUPS` strides apart.
#[inline(always)]
pub(super) unsafe fn multiply<const R: usize, const C: usize>(
    lhs: [*const u8; R],
    lhs_stride: usize,
    rhs: *const u8,
    rhs_stride: usize,
    steps: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match (R, C) {
            (2, 2) => steps!(
                [
                    "tileloadd tmm6, [{b} + {b_stride}]"
                    "tileloaddt1 tmm4, [{a0} + {a_stride}]"
                    "tdpbusd tmm0, tmm4, tmm6"
                    "tileloadd tmm7, [{b} + {b_stride} + 64]"
                    "tdpbusd tmm1, tmm4, tmm7"
                    "tileloaddt1 tmm5, [{a1} + {a_stride}]"
                    "tdpbusd tmm2, tmm5, tmm6"
                    "tdpbusd tmm3, tmm5, tmm7"
                ],
                lhs,
                lhs_stride,
                rhs,
                rhs_stride,
                steps
            ),
            (2, _) => steps!(
                [
                    "tileloadd tmm6, [{b} + {b_stride}]"
                    "tileloaddt1 tmm4, [{a0} + {a_stride}]"
                    "tdpbusd tmm0, tmm4, tmm6"
                    "tileloaddt1 tmm5, [{a1} + {a_stride}]"
                    "tdpbusd tmm2, tmm5, tmm6"
                ],
                lhs,
                lhs_stride,
                rhs,
                rhs_stride,
                steps
            ),
            (_, 2) => steps!(
                [
                    "tileloaddt1 tmm4, [{a0} + {a_stride}]"
                    "tileloadd tmm6, [{b} + {b_stride}]"
                    "tdpbusd tmm0, tmm4, tmm6"
                    "tileloadd tmm7, [{b} + {b_stride} + 64]"
                    "tdpbusd tmm1, tmm4, tmm7"
                ],
                lhs,
                lhs_stride,
                rhs,
                rhs_stride,
                steps
            ),
            _ => steps!(
                [
                    "tileloaddt1 tmm4, [{a0} + {a_stride}]"
                    "tileloadd tmm6, [{b} + {b_stride}]"
                    "tdpbusd tmm0, tmm4, tmm6"
                ],
                lhs,
                lhs_stride,
                rhs,
                rhs_stride,
                steps
            ),
        }
    }
}

/// Stores the sums of `R` x `C` tiles.
///
/// # Safety
/// Tiles are configured, and `R` and `C` are 1 or 2.
#[inline(always)]
pub(super) unsafe fn store<const R: usize, const C: usize>(sums: &mut Sums) {
    let to = &raw mut *sums;
    // SAFETY: the caller's promise; each tile is at most 1 KiB, in one of the four of `sums`.
    unsafe {
        asm!("tilestored [{to} + {row}], tmm0", to = in(reg) to, row = in(reg) ROW,
            options(nostack, preserves_flags));
        if C == 2 {
            asm!("tilestored [{to} + {row} + 1024], tmm1", to = in(reg) to, row = in(reg) ROW,
                options(nostack, preserves_flags));
        }
        if R == 2 {
            asm!("tilestored [{to} + {row} + 2048], tmm2", to = in(reg) to, row = in(reg) ROW,
                options(nostack, preserves_flags));
        }
        if R == 2 && C == 2 {
            asm!("tilestored [{to} + {row} + 3072], tmm3", to = in(reg) to, row = in(reg) ROW,
                options(nostack, preserves_flags));
        }
    }
}
