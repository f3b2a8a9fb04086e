//! Which instruction set the kernels run on: detected once, narrowed by `DYNQUANT_ISA`.

#[cfg(target_arch = "x86_64")]
mod amx;
pub(crate) mod cpu;

use std::fmt;
use std::sync::OnceLock;

use crate::error::{Error, Result};

/// An instruction set that this CPU has; holding one is the proof that it does.
///
/// All give the same bits, only at different speeds. The environment variable `DYNQUANT_ISA`
/// chooses another than the best: `portable`; `avx2`, `avx512`, `avx_vnni`, `avx512_vnni`,
/// `avx512_bf16` or `amx_int8` on x86-64; `neon` or `dotprod` on AArch64; `simd128` or `relaxed_simd` on
/// WebAssembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(pub(crate) IsaKind);

/// Passes the table of all instruction sets, the slowest first, to the macro `$rows`, after the
/// other tokens given.
///
/// A row has the name in the code, the name in `DYNQUANT_ISA`, where it exists, its registers,
/// whether this CPU has it, and its module in `arch`.
macro_rules! instruction_sets {
    ($rows:ident $($before:tt)*) => {
        $rows! {
            $($before)*
            Portable "portable" (all()) { ..Registers::COMMON }
                true => portable;
            Avx2 "avx2" (target_arch = "x86_64") { saturates: true, ..Registers::COMMON }
                cpu::avx2() => x86_64::avx2;
            Avx512 "avx512" (target_arch = "x86_64")
                { lanes: 16, panel_width: 64, saturates: true, ..Registers::COMMON }
                cpu::avx512() => x86_64::avx512;
            AvxVnni "avx_vnni" (target_arch = "x86_64") { ..Registers::COMMON }
                cpu::avx_vnni() => x86_64::avx_vnni;
            Avx512Vnni "avx512_vnni" (target_arch = "x86_64")
                { lanes: 16, panel_width: 64, ..Registers::COMMON }
                cpu::avx512_vnni() => x86_64::avx512_vnni;
            Avx512Bf16 "avx512_bf16" (target_arch = "x86_64")
                { lanes: 16, panel_width: 64, alternate: true, ..Registers::COMMON }
                cpu::avx512_bf16() => x86_64::avx512_bf16;
            AmxInt8 "amx_int8" (target_arch = "x86_64")
                { lanes: 16, panel_width: 64, tile_rows: 32, ..Registers::COMMON }
                cpu::amx_int8_or_emulated() => x86_64::amx;
            Neon "neon" (target_arch = "aarch64") { lanes: 4, shift: 128, ..Registers::COMMON }
                cpu::neon() => aarch64::neon;
            Dotprod "dotprod" (target_arch = "aarch64")
                { lanes: 4, shift: 128, ..Registers::COMMON } cpu::dotprod() => aarch64::dotprod;
            Simd128 "simd128" (all(target_arch = "wasm32", target_feature = "simd128"))
                { lanes: 4, panel_width: 8, ..Registers::COMMON } true => wasm32::simd128;
            RelaxedSimd "relaxed_simd" (all(target_arch = "wasm32", target_feature = "relaxed-simd"))
                { lanes: 4, panel_width: 8, ..Registers::COMMON }
                cpu::relaxed_simd() => wasm32::relaxed_simd;
        }
    };
}
pub(crate) use instruction_sets;

/// The sizes that packed weights and parts of products have for an instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Registers {
    /// i32 lanes of a vector register.
    pub lanes: usize,
    /// Columns of a full panel of packed weights.
    pub panel_width: usize,
    /// Rows of the highest tile.
    pub tile_rows: usize,
    /// Added to the codes of int8 weights and to their zero points, so that an instruction set
    /// without products of u8 by i8 multiplies u8 by u8.
    pub shift: u8,
    /// Whether the two bfloat16 that one instruction multiplies are alternate inputs of a channel,
    /// 2 with 0 and 3 with 1 of four: their products belong to one sum, to which the product of the
    /// second, the earlier input, is added first. Else they are neighbours, whose products belong
    /// to two sums.
    pub alternate: bool,
    /// Whether products of bytes add up in i16, which some of 8 bits on both sides exceed.
    pub saturates: bool,
}

impl Registers {
    /// The sizes that most instruction sets have.
    const COMMON: Self = Self {
        lanes: 8,
        panel_width: 16,
        tile_rows: 6,
        shift: 0,
        alternate: false,
        saturates: false,
    };
}

/// The kinds, their names and registers, from the table.
macro_rules! kinds {
    ($($kind:ident $name:literal ($where:meta) $registers:tt $has:expr => $module:path;)*) => {
        /// The instruction sets, from the slowest to the fastest.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum IsaKind {
            $(#[cfg($where)] $kind,)*
        }

        /// Every name that means something on some CPU, available here or not.
        const NAMES: &[&str] = &[$($name),*];

        /// Each kind of this architecture, and whether this CPU has it.
        fn kinds() -> impl Iterator<Item = (IsaKind, bool)> {
            [$(#[cfg($where)] (IsaKind::$kind, $has)),*].into_iter()
        }

        impl IsaKind {
            fn name(self) -> &'static str {
                match self {
                    $(#[cfg($where)] Self::$kind => $name,)*
                }
            }

            fn registers(self) -> Registers {
                match self {
                    $(#[cfg($where)] Self::$kind => Registers $registers,)*
                }
            }
        }
    };
}
instruction_sets!(kinds);

impl Isa {
    /// The instruction sets of this CPU that have kernels, the slowest first.
    pub fn available() -> Vec<Self> {
        let available = kinds().filter(|(_, has)| *has);
        available.map(|(kind, _)| Self(kind)).collect()
    }

    /// The instruction set that newly quantized weights are packed for: the fastest, or the one
    /// that `DYNQUANT_ISA` names. The variable is read once, at the first call.
    ///
    /// # Errors
    /// When `DYNQUANT_ISA` names no instruction set, or an unavailable one.
    pub fn active() -> Result<Self> {
        static CHOICE: OnceLock<(Option<String>, Option<Isa>)> = OnceLock::new();
        let (asked, found) = CHOICE.get_or_init(|| {
            let asked = std::env::var_os("DYNQUANT_ISA");
            let asked = asked.map(|name| name.to_string_lossy().into_owned());
            let found = Self::find(asked.as_deref()).ok();
            (asked, found)
        });
        match found {
            Some(isa) => Ok(*isa),
            None => Self::find(asked.as_deref()),
        }
    }

    fn find(asked: Option<&str>) -> Result<Self> {
        let available = Self::available();
        let Some(name) = asked else {
            // `portable` is always there.
            return Ok(available.last().copied().unwrap_or(Self(IsaKind::Portable)));
        };
        let got = name.to_owned();
        let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
        match names.iter().position(|known| *known == name) {
            Some(index) => Ok(available[index]),
            None if NAMES.contains(&name) => {
                Err(Error::UnavailableIsa { got, expected: names.join(", ") })
            }
            None => Err(Error::UnknownIsa { got, expected: NAMES }),
        }
    }

    /// The name that `DYNQUANT_ISA` knows it by.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    pub(crate) fn registers(self) -> Registers {
        self.0.registers()
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_or_refused() {
        for isa in Isa::available() {
            assert_eq!(Isa::find(Some(isa.name())).unwrap(), isa);
        }
        let best = Isa::available().pop().unwrap();
        assert_eq!(Isa::find(None).unwrap(), best);
        let unknown = Isa::find(Some("mmx")).unwrap_err().to_string();
        assert!(unknown.contains("\"mmx\"") && unknown.contains("avx_vnni"), "{unknown}");
        for name in NAMES {
            if !Isa::available().iter().any(|isa| isa.name() == *name) {
                let message = Isa::find(Some(name)).unwrap_err().to_string();
                assert!(message.contains("not available"), "{message}");
            }
        }
    }
}
