//! Stand-ins for the functions of candle and gemm that the sources call.

pub mod utils {
    /// Miri is too slow for several: there the protocol's tests are run.
    pub fn get_num_threads() -> usize {
        if cfg!(miri) { 1 } else { 4 }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct DType;

#[derive(Debug)]
pub struct Error(String);

impl Error {
    pub fn wrap(error: impl std::error::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::wrap(error)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

pub enum Parallelism {
    None,
    Rayon(usize),
}

/// The product, by plain loops.
///
/// # Safety
/// As gemm's.
#[allow(clippy::too_many_arguments)]
pub unsafe fn gemm(
    m: usize,
    n: usize,
    k: usize,
    out: *mut f32,
    out_column: isize,
    out_row: isize,
    _: bool,
    lhs: *const f32,
    lhs_column: isize,
    lhs_row: isize,
    rhs: *const f32,
    rhs_column: isize,
    rhs_row: isize,
    _: f32,
    _: f32,
    _: bool,
    _: bool,
    _: bool,
    _: Parallelism,
) {
    for (i, j, l) in (0..m).flat_map(|i| (0..n).flat_map(move |j| (0..k).map(move |l| (i, j, l)))) {
        let [i, j, l] = [i, j, l].map(|index| index as isize);
        // SAFETY: each pointer leads to all elements that its sizes and strides reach.
        unsafe {
            let product = *lhs.offset(i * lhs_row + l * lhs_column)
                * *rhs.offset(l * rhs_row + j * rhs_column);
            *out.offset(i * out_row + j * out_column) += product;
        }
    }
}
