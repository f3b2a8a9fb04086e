//! Which instruction set the kernels run on: detected once, narrowed by `DYNQUANT_ISA`.

use std::fmt;
use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::words::unknown_name;

/// An instruction set that this CPU has; holding one is the proof that it does.
///
/// All give the same bits, only at different speeds. The environment variable `DYNQUANT_ISA`
/// chooses a lesser one than the best: `portable`; `avx2`, `avx_vnni`, `avx512_vnni` or `amx_int8`
/// on x86-64; `neon` or `dotprod` on AArch64.
///
/// ```
/// use candle_dynquant::kernels::Isa;
///
/// assert!(Isa::available().iter().any(|isa| isa.to_string() == "portable"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(pub(super) Kind);

/// From the slowest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "x86_64")]
    AmxInt8,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "aarch64")]
    Dotprod,
}

/// Every name that means something on some CPU, available here or not.
const NAMES: [&str; 7] = [
    "portable",
    "avx2",
    "avx_vnni",
    "avx512_vnni",
    "amx_int8",
    "neon",
    "dotprod",
];

impl Isa {
    /// The instruction sets of this CPU that there are kernels for, the slowest first.
    pub fn available() -> Vec<Self> {
        let mut available = vec![Self(Kind::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            let avx512_vnni = avx2 && avx512 && is_x86_feature_detected!("avx512vnni");
            let emulated = cfg!(feature = "emulate-amx");
            let amx = (avx512_vnni || emulated) && super::x86_64::amx_available();
            let kinds = [
                (avx2, Kind::Avx2),
                (avx2 && is_x86_feature_detected!("avxvnni"), Kind::AvxVnni),
                (avx512_vnni, Kind::Avx512Vnni),
                (amx, Kind::AmxInt8),
            ];
            available.extend(kinds.iter().filter(|(has, _)| *has).map(|(_, k)| Self(*k)));
        }
        #[cfg(target_arch = "aarch64")]
        {
            use std::arch::is_aarch64_feature_detected;

            // Groups of codes are read as little-endian words.
            let neon = cfg!(target_endian = "little") && is_aarch64_feature_detected!("neon");
            let dotprod = neon && is_aarch64_feature_detected!("dotprod");
            let kinds = [(neon, Kind::Neon), (dotprod, Kind::Dotprod)];
            available.extend(kinds.iter().filter(|(has, _)| *has).map(|(_, k)| Self(*k)));
        }
        available
    }

    /// The one that newly quantized weights are packed for: the fastest, or what
    /// `DYNQUANT_ISA` names. The variable is read once, at the first call.
    ///
    /// # Errors
    /// When `DYNQUANT_ISA` is no name of an instruction set, or of one that is not available.
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
            return Ok(available.last().copied().unwrap_or(Self(Kind::Portable)));
        };
        let named = available.iter().find(|isa| isa.name() == name);
        named.copied().ok_or_else(|| match NAMES.contains(&name) {
            true => Error::UnavailableIsa {
                got: name.to_owned(),
                expected: available
                    .iter()
                    .map(|isa| isa.name())
                    .collect::<Vec<_>>()
                    .join(", "),
            },
            false => unknown_name("instruction set in DYNQUANT_ISA", name, &NAMES),
        })
    }

    /// The name that `DYNQUANT_ISA` knows it by.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => "avx_vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => "avx512_vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::AmxInt8 => "amx_int8",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Kind::Dotprod => "dotprod",
        }
    }

    /// i32 lanes of a vector register.
    pub(super) fn lanes(self) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni | Kind::AmxInt8 => 16,
            #[cfg(target_arch = "aarch64")]
            Kind::Neon | Kind::Dotprod => 4,
            _ => 8,
        }
    }

    /// Columns of a full panel of packed weights.
    pub(super) fn panel_width(self) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni | Kind::AmxInt8 => 64,
            _ => 16,
        }
    }

    /// Rows of the highest tile.
    pub(super) fn tile_rows(self) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::AmxInt8 => 32,
            _ => super::tile::MAX_ROWS,
        }
    }

    /// What is added to the codes of int8 weights and to their zero points, so that an
    /// instruction set without products of u8 by i8 multiplies u8 by u8.
    pub(super) fn shift(self) -> u8 {
        match self.0 {
            #[cfg(target_arch = "aarch64")]
            Kind::Neon | Kind::Dotprod => 128,
            _ => 0,
        }
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
        assert!(
            unknown.contains("\"mmx\"") && unknown.contains("avx_vnni"),
            "{unknown}"
        );
        for name in NAMES {
            if !Isa::available().iter().any(|isa| isa.name() == name) {
                let message = Isa::find(Some(name)).unwrap_err().to_string();
                assert!(message.contains("not available"), "{message}");
            }
        }
    }
}
