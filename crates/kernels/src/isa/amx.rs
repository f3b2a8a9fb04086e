//! Whether this CPU has AMX-INT8 and AMX-BF16, and the system lets the process use them.

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

/// Whether tiles can be used, asked once a process: the permission is for all its threads.
pub fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| cpu_has_tiles() && system_saves_tiles() && permission())
}

/// Whether the CPU has tiles, products of int8 and of bfloat16 on them, and a palette: some virtual
/// machines lack the palette, and the first tile instruction faults.
fn cpu_has_tiles() -> bool {
    const ALL: u32 = BF16 | TILE | INT8;
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    let has = |leaf| __cpuid(0).eax >= leaf;
    has(7) && __cpuid_count(7, 0).edx & ALL == ALL && has(0x1D) && __cpuid_count(0x1D, 0).eax >= 1
}

/// Whether the system saves the registers of tiles when it switches threads.
fn system_saves_tiles() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const TILES: u32 = 1 << 17 | 1 << 18;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let xcr0: u32;
    // SAFETY: by `OSXSAVE` the instruction is there; it reads a register that always exists.
    unsafe {
        std::arch::asm!(
            "xgetbv",
            in("ecx") 0,
            out("eax") xcr0,
            out("edx") _,
            options(nomem, nostack, preserves_flags),
        );
    }
    xcr0 & TILES == TILES
}

/// Asks Linux to save tiles for this process. It refuses where a thread has a signal stack that is
/// too small for them: then AMX is not used, which is not an error.
#[cfg(target_os = "linux")]
fn permission() -> bool {
    const ARCH_PRCTL: isize = 158;
    const REQUEST_PERMISSION: isize = 0x1023;
    const TILE_DATA: isize = 18;
    let result: isize;
    // SAFETY: the call reads and writes no memory of this process.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// Refuses: how other systems give the permission is not known here.
#[cfg(not(target_os = "linux"))]
fn permission() -> bool {
    false
}
