//! Packing: codes and halves that tests give, and those made from floats, against plain loops.

use half::{bf16, f16};

use super::{PER_ROW, Pool, Random, some};
use crate::calls::pack::{
    OutOfRange, PanelValues, encode_rows, halve_rows, pack_codes, pack_floats, pack_halves,
    pack_int8,
};
use crate::error::Error;
use crate::isa::Isa;
use crate::loops::encode::Coding;
use crate::packed::Packed;
use crate::qparams::{Rounding, quantize};
use crate::reference::{Int8, round_bf16};

/// Numbers of threads of rayon pools that a weight is packed on.
const THREADS: [usize; 4] = [1, 2, 3, 7];

/// Outputs, inputs and gates: whole and broken panels, groups and blocks, and a few large enough
/// for several threads.
const SHAPES: [[usize; 3]; 16] = [
    [0, 5, 1],
    [5, 0, 1],
    [1, 1, 1],
    [3, 7, 1],
    [17, 33, 1],
    [16, 4, 4],
    [12, 9, 3],
    [64, 64, 1],
    [65, 31, 1],
    [100, 100, 1],
    [257, 131, 1],
    [130, 1027, 1],
    [20, 2_050, 4],
    [300, 257, 3],
    [48, 1_024, 1],
    [1, 40_000, 1],
];

/// Values at ties and far out of range, and ordinary ones.
fn values(len: usize, random: &mut Random) -> Vec<f32> {
    let value = |random: &mut Random| match random.next() % 16 {
        0 => 0.,
        1 => 0.5 + (random.next() % 9) as f32,
        2 => -0.5 - (random.next() % 9) as f32,
        3 => 3e38 * random.float(),
        4 => 1e-41,
        5 => 70_000. * random.float(),
        _ => random.float() * 120.,
    };
    (0..len).map(|_| value(random)).collect()
}

/// A coding for each channel: both roundings, narrow and wide ranges of i8, scales at which ties
/// are exact.
fn coding(random: &mut Random) -> Coding {
    let [low, high] =
        [(-128, 127), (-127, 127), (-64, 63)].map(|(a, b)| [a, b])[random.next() as usize % 3];
    Coding {
        scale: [1., 0.25, 0.37, 1e-30, 3e36][random.next() as usize % 5],
        offset: 0.,
        zero_point: low + (random.next() % (high - low) as u64) as i32,
        range: [low, high],
        rounding: [Rounding::Multiply, Rounding::Divide][random.next() as usize % 2],
    }
}

fn assert_same(got: &Packed, expected: &Packed, of: &str) {
    assert_eq!(got.bytes(), expected.bytes(), "{of}");
    assert_eq!(got.panels(), expected.panels(), "{of}");
    for index in 0..expected.panels() {
        let (got, expected) = (got.panel(index), expected.panel(index));
        assert_eq!(got.weights, expected.weights, "{of}: weights of {index}");
        assert_eq!(got.sums, expected.sums, "{of}: sums of {index}");
        assert_eq!(got.zero_points, expected.zero_points, "{of}: zeros of {index}");
        assert_eq!(got.scales, expected.scales, "{of}: scales of {index}");
        assert_eq!(got.bias, expected.bias, "{of}: bias of {index}");
    }
}

#[test]
fn weights_packed_from_floats_are_those_of_plain_loops_on_any_number_of_threads() {
    let pools: Vec<_> = some(THREADS, &[1]).map(Pool::new).collect();
    for [n, k, gates] in some(SHAPES, &[3, 6]) {
        let mut random = Random((n * 1_009 + k) as u64);
        let values = values(n * k, &mut random);
        let codings: Vec<_> = (0..n).map(|_| coding(&mut random)).collect();
        let bias = random.floats(n);
        let codes = codings.iter().enumerate().flat_map(|(channel, coding)| {
            let (row, zero_point) = (&values[channel * k..][..k], coding.zero_point);
            quantize(row, coding.scale, zero_point, coding.range, coding.rounding)
        });
        let codes: Vec<i8> = codes.map(|code| code as i8).collect();
        let scales: Vec<_> = codings.iter().map(|coding| coding.scale).collect();
        let zero_points: Vec<_> = codings.iter().map(|coding| coding.zero_point).collect();
        let int8 = Int8::new(&codes, &scales, &zero_points);
        let max = f16::MAX.to_f32();
        let halves: Vec<_> = values.iter().map(|x| f16::from_f32(x.clamp(-max, max))).collect();
        let out_of_range = OutOfRange {
            saturated: values.iter().filter(|x| x.abs() > max).count(),
            underflowed: 0,
        };
        let bfloats: Vec<_> = values.iter().map(|x| bf16::from_f32(*x)).collect();
        let flushed = bfloats.iter().map(|x| round_bf16(x.to_f32()));
        let flushed: Vec<_> = flushed.collect();
        for isa in Isa::available() {
            let codes_of = int8;
            let int8 = pack_codes(isa, k, gates, int8, &bias, PER_ROW);
            let float16 = pack_halves(isa, k, gates, &halves, &bias);
            let bfloat16 = pack_halves(isa, k, gates, &flushed, &bias);
            for pool in &pools {
                let of =
                    format!("{isa}, {n} x {k} on {}", pool.install(rayon::current_num_threads));
                pool.install(|| {
                    let got = pack_codes(isa, k, gates, codes_of, &bias, PER_ROW);
                    assert_same(&got, &int8, &format!("{of}, codes"));
                    let got = pack_halves(isa, k, gates, &halves, &bias);
                    assert_same(&got, &float16, &format!("{of}, halves"));
                    let of_panel =
                        |channels: &PanelValues<'_>| Ok(codings[channels.range.clone()].to_vec());
                    match pack_int8(isa, k, gates, &values, &bias, PER_ROW, of_panel) {
                        Ok(got) => assert_same(&got, &int8, &of),
                        Err(Error::AccumulatorOverflow { .. }) => assert!(k > 33_000, "{of}"),
                        Err(error) => panic!("{of}: {error}"),
                    }
                    let (got, saturated) =
                        pack_floats::<f16>(isa, k, gates, &values, &bias).expect("finite values");
                    assert_same(&got, &float16, &of);
                    assert_eq!(saturated, out_of_range, "{of}");
                    let (got, saturated) =
                        pack_floats::<bf16>(isa, k, gates, &values, &bias).expect("finite values");
                    assert_same(&got, &bfloat16, &format!("{of}, bfloat16"));
                    assert_eq!(saturated, OutOfRange::default(), "{of}");
                    let got = pack_halves(isa, k, gates, &bfloats, &bias);
                    assert_same(&got, &bfloat16, &format!("{of}, bfloats"));
                    assert_eq!(
                        halve_rows(k, &values),
                        (bfloats.clone(), OutOfRange::default()),
                        "{of}"
                    );
                    let rows = encode_rows(isa, k, &values, |row| codings[row].moved(128));
                    let expected = codes.iter().map(|code| code.cast_unsigned() ^ 128);
                    assert!(rows.into_iter().eq(expected), "{of}: rows");
                    assert_eq!(halve_rows(k, &values), (halves.clone(), out_of_range), "{of}");
                });
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "as the others, but for 4 million weights")]
fn the_first_channel_at_fault_is_named_on_any_number_of_threads() {
    let (n, k) = (130, 34_000);
    let mut values = vec![1f32; n * k];
    let coding = Coding {
        scale: 1.,
        offset: 0.,
        zero_point: -128,
        range: [-128, 127],
        rounding: Rounding::Multiply,
    };
    // This number of distances of 255 exceeds i32.
    for channel in [77, 78, 129] {
        values[channel * k..][..k].fill(255.);
    }
    let bias = vec![0.; n];
    let isa = Isa::available()[0];
    for threads in some([1, 3], &[1]) {
        Pool::new(threads).install(|| {
            let codings = |channels: &PanelValues<'_>| Ok(vec![coding; channels.range.len()]);
            match pack_int8(isa, k, 1, &values, &bias, PER_ROW, codings) {
                Err(Error::AccumulatorOverflow { channel, got }) => {
                    assert_eq!((channel, got), (77, 255 * 255 * k as i64), "{threads}");
                }
                other => panic!("{threads}: {other:?}"),
            }
            let mut values = values.clone();
            values[77 * k + 3] = f32::NAN;
            values[129 * k] = f32::INFINITY;
            let of_f16 = pack_floats::<f16>(isa, k, 1, &values, &bias).err();
            let of_bf16 = pack_floats::<bf16>(isa, k, 1, &values, &bias).err();
            for error in [of_f16, of_bf16] {
                match error {
                    Some(Error::NonFiniteWeight { index, .. }) => assert_eq!(index, [77, 3]),
                    other => panic!("{threads}: {other:?}"),
                }
            }
        });
    }
}

/// Beyond the maximum of bfloat16 by less than half a step, and by more, at which f32 ends.
#[test]
fn floats_beyond_bfloat16_are_clamped_and_counted() {
    let max = bf16::MAX.to_f32();
    let values = [max, f32::MAX, -f32::MAX, 3.39e38, f32::MIN_POSITIVE / 2., -1e-45];
    for isa in Isa::available() {
        let packed = pack_floats::<bf16>(isa, 3, 1, &values, &[0.; 2]);
        let (packed, out_of_range) = packed.expect("finite values");
        let expected = [bf16::MAX, bf16::MAX, bf16::MIN, bf16::MAX, bf16::ZERO, bf16::NEG_ZERO];
        assert_eq!(packed.bfloats(), expected, "{isa}");
        let expected = OutOfRange { saturated: 3, underflowed: 0 };
        assert_eq!(out_of_range, expected, "{isa}");
    }
}
