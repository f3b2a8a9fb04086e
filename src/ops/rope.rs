//! Rotary position embeddings.

use candle_core::{Result, Tensor};
use candle_nn::rotary_emb;

use super::ours::fused;
use crate::kernels;
use crate::tensor::mismatch;
use crate::trace;

/// Rotates the pairs `(x[i], x[i + dim / 2])` of each head by the angle of its position: candle's
/// `rotary_emb::rope`, "rotate half" in other libraries.
///
/// # Shapes
/// - `xs`: `[batch, heads, positions, dim]`
/// - `cos`, `sin`: `[positions or more, dim / 2]`, or `[batch, positions or more, dim / 2]` for
///   positions of each sequence
/// - result: the shape of `xs`
///
/// The bits of f32 are candle's.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::ops;
///
/// let xs = Tensor::new(&[[[[1f32, 2.]]]], &Device::Cpu)?;
/// let (cos, sin) = (Tensor::new(&[[0f32]], &Device::Cpu)?, Tensor::new(&[[1f32]], &Device::Cpu)?);
/// assert_eq!(ops::rope(&xs, &cos, &sin)?.flatten_all()?.to_vec1::<f32>()?, [-2., 1.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// When a shape does not fit, or a dtype is not a float.
pub fn rope(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotate("rope", xs, [cos, sin], false, rotary_emb::rope)
}

/// [`rope`] of heads that lie side by side, as projections leave them: candle's
/// `rotary_emb::rope_thd`.
///
/// # Shapes
/// As [`rope`], but `xs`: `[batch, positions, heads, dim]`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_dynquant::ops;
///
/// let xs = Tensor::new(&[[[[1f32, 2.], [3., 4.]]]], &Device::Cpu)?;
/// let (cos, sin) = (Tensor::new(&[[0f32]], &Device::Cpu)?, Tensor::new(&[[1f32]], &Device::Cpu)?);
/// assert_eq!(ops::rope_thd(&xs, &cos, &sin)?.flatten_all()?.to_vec1::<f32>()?, [-2., 1., -4., 3.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`rope`].
pub fn rope_thd(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rotate("rope_thd", xs, [cos, sin], true, rotary_emb::rope_thd)
}

/// Rotates heads that lie side by side at each position, or the positions of which do in each head.
fn rotate(
    op: &'static str,
    xs: &Tensor,
    angles: [&Tensor; 2],
    side_by_side: bool,
    candle: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let (batch, outer, inner, dim) = xs.dims4()?;
    let positions = if side_by_side { outer } else { inner };
    trace::forward!("rope");
    let [cos, sin] = angles;
    for angle in angles {
        if !fits(angle, [batch, positions, dim]) {
            let expected = format!("[{positions}, {dim} / 2] or [{batch}, {positions}, {dim} / 2]");
            return Err(mismatch(op, expected, angle).into());
        }
    }
    if cos.dims() != sin.dims() {
        return Err(mismatch(op, format!("{:?}", cos.dims()), sin).into());
    }
    // The angles of a sequence; where they have two dimensions, all sequences share them.
    let of_a_sequence = match *cos.dims() {
        [_, positions, pairs] => positions * pairs,
        _ => 0,
    };
    let (heads_of_a_row, rows_of_a_sequence) =
        if side_by_side { (inner, outer) } else { (1, outer * inner) };
    let (half, length) = (dim / 2, heads_of_a_row * dim);
    let candle = || candle(&xs.contiguous()?, &cos.contiguous()?, &sin.contiguous()?);
    fused(op, [xs, cos, sin], candle, |_, [xs, cos, sin]| {
        let mut ys = vec![0.; xs.len()];
        kernels::for_each_row(&mut ys, length, |row, ys| {
            let at = row / rows_of_a_sequence * of_a_sequence + row % positions * half;
            let (cos, sin) = (&cos[at..][..half], &sin[at..][..half]);
            let heads = xs[row * length..][..length].chunks_exact(dim);
            for (xs, ys) in heads.zip(ys.chunks_exact_mut(dim)) {
                rotate_head(xs, cos, sin, ys);
            }
        });
        ys
    })
}

/// Whether there are cosines or sines for each pair of each position.
fn fits(angle: &Tensor, [batch, positions, dim]: [usize; 3]) -> bool {
    let is_half = |pairs| dim % 2 == 0 && pairs == dim / 2;
    match *angle.dims() {
        [count, pairs] => count >= positions && is_half(pairs),
        [sequences, count, pairs] => sequences == batch && count >= positions && is_half(pairs),
        _ => false,
    }
}

fn rotate_head(xs: &[f32], cos: &[f32], sin: &[f32], ys: &mut [f32]) {
    let half = cos.len();
    let (low, high) = xs.split_at(half);
    let (to_low, to_high) = ys.split_at_mut(half);
    let pairs = low.iter().zip(high).zip(cos.iter().zip(sin));
    for (((a, b), (cos, sin)), (to_a, to_b)) in pairs.zip(to_low.iter_mut().zip(to_high)) {
        *to_a = a * cos - b * sin;
        *to_b = a * sin + b * cos;
    }
}
