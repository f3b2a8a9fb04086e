//! Pooling against plain loops.

use super::{Random, some};
use crate::calls::pool::max_pool2d;
use crate::isa::Isa;

#[test]
fn windows_give_their_greatest_elements() {
    let mut random = Random(5);
    for (height, width, kernel, stride) in some(
        [
            (7, 9, [3, 3], [2, 2]),
            (1, 40, [1, 5], [1, 3]),
            (20, 33, [5, 5], [1, 1]),
            (4, 4, [4, 4], [9, 9]),
            (6, 5, [2, 1], [3, 2]),
        ],
        &[4],
    ) {
        let mut xs = random.floats(3 * height * width);
        xs[height * width / 2] = f32::NAN;
        xs[0] = f32::NEG_INFINITY;
        let outputs = |size: usize, axis: usize| (size - kernel[axis]) / stride[axis] + 1;
        let mut expected = Vec::new();
        for (plane, y, x) in (0..3).flat_map(|plane| {
            (0..outputs(height, 0))
                .flat_map(move |y| (0..outputs(width, 1)).map(move |x| (plane, y, x)))
        }) {
            let of_window = (0..kernel[0] * kernel[1]).map(|i| {
                let (row, column) = (y * stride[0] + i / kernel[1], x * stride[1] + i % kernel[1]);
                xs[(plane * height + row) * width + column]
            });
            let values: Vec<f32> = of_window.collect();
            let has_nan = values.iter().any(|x| x.is_nan());
            let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            expected.push(if has_nan { f32::NAN } else { most });
        }
        for isa in Isa::available() {
            let got = max_pool2d(isa, &xs, [3, height, width], kernel, stride);
            let bits = |xs: &[f32]| -> Vec<u32> {
                xs.iter().map(|x| if x.is_nan() { 1 } else { x.to_bits() }).collect()
            };
            assert_eq!(bits(&got), bits(&expected), "{isa} {kernel:?}");
        }
    }
}
