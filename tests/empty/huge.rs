//! Shapes without elements that nevertheless have 2^40 rows: an error, or a result in bounded
//! memory and time. Otherwise the process is aborted, or does not end.

use candle_core::Result;
use candle_nn::RNN;

use super::{FLOATS, observers, prepared, qconfigs, stacked, too_many, zeros};
use crate::kit::*;

const HUGE: usize = 1 << 40;

/// Checks for an error that states how many elements come from an empty input.
#[track_caller]
fn too_many_from_none<T, E: std::fmt::Display>(result: std::result::Result<T, E>) {
    too_many("elements from an input without any", result);
}

#[test]
fn linear_layers() -> Result<()> {
    for dtype in FLOATS {
        for qconfig in qconfigs() {
            // Outputs without inputs.
            let bias = Tensor::ones(4, dtype, &Device::Cpu)?;
            let layer = nn::Linear::new(zeros(&[4, 0], dtype)?, Some(bias));
            let layer = prepared(&layer.with_activation(FusedActivation::Relu), &qconfig);
            for shape in [&[HUGE, 0][..], &[2, HUGE, 0], &[1 << 20, 1 << 20, 0]] {
                let xs = zeros(shape, dtype)?;
                too_many_from_none(layer.forward(&xs));
                too_many_from_none(nn::Linear::forward_each([&layer, &layer], &xs));
                too_many_from_none(layer.projection().try_forward(&xs));
            }
            let xs = zeros(&[HUGE, 0, 0], dtype)?;
            assert_eq!(layer.forward(&xs)?.dims(), [HUGE, 0, 4]);
            // Neither, and no outputs.
            for [n, k] in [[0, 0], [0, 3]] {
                let layer = nn::Linear::new(zeros(&[n, k], dtype)?, None);
                let layer = prepared(&layer, &qconfig);
                let xs = zeros(&[HUGE, 0, k], dtype)?;
                assert_eq!(layer.forward(&xs)?.dims(), [HUGE, 0, n]);
                let xs = zeros(&[HUGE, 0], dtype)?;
                match k {
                    0 => assert_eq!(layer.forward(&xs)?.dims(), [HUGE, 0]),
                    _ => assert!(layer.forward(&xs).is_err()),
                }
                nn::Linear::forward_each([&layer, &layer], &zeros(&[5, HUGE, 0, k], dtype)?)?;
            }
        }
    }
    Ok(())
}

#[test]
fn weights_and_tables() -> Result<()> {
    for shape in [[HUGE, 0], [0, HUGE], [0, 0]] {
        let weight = zeros(&shape, DType::F32)?;
        for qconfig in qconfigs().iter().flatten() {
            let result = QWeight::from_float(&weight, None, qconfig);
            match shape {
                [HUGE, 0] => too_many("rows without columns", result),
                _ => {
                    let qweight = result.expect("quantizes");
                    assert_eq!(qweight.dequantize()?.dims(), shape);
                    let layer = nn::Linear::new(weight.clone(), None);
                    let quantized = layer.quantize(qconfig)?;
                    quantized.projection().weight_error(layer.projection())?;
                    assert_eq!(quantized.weight().dims(), shape);
                    let xs = zeros(&[0, shape[1]], DType::F32)?;
                    assert_eq!(quantized.forward(&xs)?.dims(), [0, 0]);
                }
            }
        }
        for config in [QConfig::table(), QConfig::float16(), QConfig::bfloat16()] {
            let result = QTable::from_float(&weight, &config);
            match shape {
                [HUGE, 0] => too_many("rows without columns", result),
                _ => assert_eq!(result?.dequantize()?.dims(), shape),
            }
        }
        for config in observers() {
            // An error, or nothing to observe.
            _ = config.build()?.observe(&weight);
        }
    }
    Ok(())
}

#[test]
fn embeddings() -> Result<()> {
    let vb = new_vb();
    let huge = nn::embedding(HUGE, 0, vb.pp("huge"))?;
    let indexes = Tensor::new(&[3u32, 1 << 30], &Device::Cpu)?;
    assert_eq!(huge.forward(&indexes)?.dims(), [2, 0]);
    assert_eq!(huge.embeddings().dims(), [HUGE, 0]);
    let wide = nn::embedding(0, HUGE, vb.pp("wide"))?;
    let plain = nn::embedding(5, 3, vb.pp("plain"))?;
    for qconfig in [None, Some(QConfig::table()), Some(QConfig::float16())] {
        if let Some(qconfig) = &qconfig {
            too_many("rows without columns", huge.quantize(qconfig));
        }
        let (wide, plain) = (prepared(&wide, &qconfig), prepared(&plain, &qconfig));
        for dtype in [DType::U8, DType::U32, DType::I64] {
            let none = zeros(&[0], dtype)?;
            assert_eq!(wide.forward(&none)?.dims(), [0, HUGE]);
            for shape in [&[HUGE, 0][..], &[0, HUGE], &[2, HUGE, 0]] {
                let ys = plain.forward(&zeros(shape, dtype)?)?;
                assert_eq!(ys.dims(), [shape, &[3]].concat());
            }
        }
        // Rows without elements, of an index that a view repeats.
        let narrow = prepared(&nn::embedding(5, 0, vb.pp("narrow"))?, &qconfig);
        let index = |index: u32| Tensor::new(index, &Device::Cpu)?.broadcast_as((2, HUGE));
        assert_eq!(narrow.forward(&index(4)?)?.dims(), [2, HUGE, 0]);
        assert!(narrow.forward(&index(5)?).is_err());
        // Rows of a number and a length that no memory holds.
        let indexes = zeros(&[1 << 21, 0], DType::U32)?;
        assert!(wide.forward(&indexes).is_err(), "2^61 elements");
    }
    Ok(())
}

#[test]
fn recurrent_layers() -> Result<()> {
    let vb = new_vb();
    // Without inputs, and without units as well.
    let tanh = nn::Nonlinearity::Tanh;
    for (hidden, proj_size) in [(2, 0), (2, 1), (0, 0)] {
        let name = |layer: &str| vb.pp(format!("{layer}{hidden}{proj_size}"));
        let lstm = nn::LSTM::new(0, hidden, stacked(proj_size), name("lstm"))?;
        let gru = nn::GRU::new(0, hidden, stacked(0), name("gru"))?;
        let rnn = nn::RNN::new(0, hidden, tanh, stacked(0), name("rnn"))?;
        for qconfig in qconfigs() {
            let (lstm, gru) = (prepared(&lstm, &qconfig), prepared(&gru, &qconfig));
            let rnn = prepared(&rnn, &qconfig);
            for shape in [
                &[HUGE, 0][..],
                &[HUGE, 1, 0],
                &[1, HUGE, 0],
                &[0, HUGE, 0],
                &[1 << 20, 1 << 20, 0],
            ] {
                let xs = zeros(shape, DType::F32)?;
                too_many_from_none(lstm.forward(&xs, None));
                too_many_from_none(gru.forward(&xs, None));
                too_many_from_none(rnn.forward(&xs, None));
                if let [_, 1, _] = shape {
                    too_many_from_none(lstm.forward_lengths(&xs, &[3], None));
                }
            }
            let (ys, _) = gru.forward(&zeros(&[HUGE, 0, 0], DType::F32)?, None)?;
            assert_eq!(ys.dims(), [HUGE, 0, 2 * hidden]);
        }
    }
    // Gates take more memory than the result.
    let lstm = nn::LSTM::new(0, 2, Default::default(), vb.pp("gates"))?;
    let xs = zeros(&[1, (1 << 21) + 1, 0], DType::F32)?;
    for qconfig in qconfigs() {
        too_many_from_none(prepared(&lstm, &qconfig).forward(&xs, None));
    }
    // No steps, but many sequences: each has a state.
    let lstm = nn::LSTM::new(3, 2, stacked(0), vb.pp("inputs"))?;
    for qconfig in qconfigs() {
        let lstm = prepared(&lstm, &qconfig);
        too_many_from_none(lstm.forward(&zeros(&[0, HUGE, 3], DType::F32)?, None));
        lstm.forward(&zeros(&[HUGE, 0, 3], DType::F32)?, None)?;
    }
    Ok(())
}

#[test]
fn cells_and_single_layers() -> Result<()> {
    let vb = new_vb();
    let tanh = nn::Nonlinearity::Tanh;
    let zero = VarBuilder::zeros(DType::F32, &Device::Cpu);
    for hidden in [2, 0] {
        let name = |layer: &str| vb.pp(format!("{layer}{hidden}"));
        let lstm = nn::LSTMCell::new(0, hidden, true, name("lstm"))?;
        let gru = nn::GRUCell::new(0, hidden, true, name("gru"))?;
        let rnn = nn::RNNCell::new(0, hidden, true, tanh, name("rnn"))?;
        let single = nn::lstm(0, hidden, Default::default(), zero.clone())?;
        let single_gru = nn::gru(0, hidden, Default::default(), zero.clone())?;
        for qconfig in qconfigs() {
            let xs = zeros(&[HUGE, 0], DType::F32)?;
            let of_lstm = prepared(&lstm, &qconfig).forward(&xs, None);
            let of_gru = prepared(&gru, &qconfig).forward(&xs, None);
            let of_rnn = prepared(&rnn, &qconfig).forward(&xs, None);
            match hidden {
                0 => {
                    let state = of_lstm?;
                    assert_eq!((state.h.dims(), state.c.dims()), (&[HUGE, 0][..], &[HUGE, 0][..]));
                    assert_eq!((of_gru?.dims(), of_rnn?.dims()), (&[HUGE, 0][..], &[HUGE, 0][..]));
                }
                _ => {
                    too_many_from_none(of_lstm);
                    too_many_from_none(of_gru);
                    too_many_from_none(of_rnn);
                }
            }
            // A state for each step, of no sequence.
            let (single, single_gru) =
                (prepared(&single, &qconfig), prepared(&single_gru, &qconfig));
            let xs = zeros(&[0, HUGE, 0], DType::F32)?;
            too_many_from_none(single.seq(&xs));
            too_many_from_none(single_gru.seq(&xs));
            let xs = zeros(&[HUGE, 2, 0], DType::F32)?;
            let state =
                nn::LSTMState::new(zeros(&[HUGE, 0], DType::F32)?, zeros(&[HUGE, 0], DType::F32)?);
            too_many_from_none(single.seq_init(&xs, &state));
            if hidden == 0 {
                single.zero_state(HUGE)?;
            }
        }
    }
    Ok(())
}

#[test]
fn operations() -> Result<()> {
    for dtype in FLOATS {
        let none = zeros(&[0], dtype)?;
        for shape in [&[HUGE, 0][..], &[0, HUGE, 0], &[3, HUGE, 0]] {
            let xs = zeros(shape, dtype)?;
            let norm = nn::LayerNorm::new(none.clone(), none.clone(), 1e-5);
            let rms = nn::RmsNorm::new(none.clone(), 1e-5);
            let (normal, sum) = rms.forward_add(&xs, &xs)?;
            let all = [
                normal,
                sum,
                ops::layer_norm(&xs, &none, &none, 1e-5)?,
                ops::add_layer_norm(&xs, &xs, &none, None, 1e-5)?,
                ops::rms_norm(&xs, &none, 1e-5)?,
                norm.forward_add(&xs, &xs)?,
                norm.forward(&xs)?,
                rms.forward(&xs)?,
                rms.forward_diff(&xs)?,
                ops::softmax_last_dim(&xs)?,
                ops::softmax(&xs, 0)?,
                ops::gelu(&xs)?,
                ops::activate(&xs, FusedActivation::Tanh)?,
                ops::swiglu(&xs)?,
                nn::Activation::HardSwish.forward(&xs)?,
                nn::Activation::Relu2.forward(&xs)?,
                nn::seq().add(nn::Activation::Elu(1.)).forward(&xs)?,
            ];
            for ys in all {
                assert_eq!((ys.dims(), ys.dtype()), (shape, dtype));
            }
            let indexes = zeros(shape, DType::U32)?;
            assert_eq!(ops::gather(&xs, &indexes, D::Minus1)?.dims(), shape);
            assert_eq!(ops::gather(&xs, &indexes, 0)?.dims(), shape);
        }
    }
    Ok(())
}

#[test]
fn attention() -> Result<()> {
    for dtype in FLOATS {
        let attend = |shapes: [[usize; 4]; 3], mask: Mask<'_>| {
            let [q, k, v] = shapes.map(|shape| zeros(&shape, dtype));
            ops::scaled_dot_product_attention(&q?, &k?, &v?, mask, 1.)
        };
        let shapes = |[batch, heads, queries, keys]: [usize; 4], head_dim, value_dim| {
            [
                [batch, heads, queries, head_dim],
                [batch, heads, keys, head_dim],
                [batch, heads, keys, value_dim],
            ]
        };
        for mask in [Mask::All, Mask::Causal] {
            for (sizes, head_dim, value_dim) in [
                ([1, 1, HUGE, HUGE], 0, 0),
                ([HUGE, 1, 1, 1], 0, 0),
                ([1, HUGE, 1, 0], 0, 0),
                ([0, 2, HUGE, HUGE], 4, 4),
                ([HUGE, 2, 0, 0], 4, 4),
                ([1, 2, 0, HUGE], 0, 0),
            ] {
                let ys = attend(shapes(sizes, head_dim, value_dim), mask)?;
                let [batch, heads, queries, _] = sizes;
                assert_eq!(ys.dims(), [batch, heads, queries, value_dim]);
            }
            too_many_from_none(attend(shapes([1, 1, HUGE, 3], 0, 2), mask));
            // No key has a value: zeros.
            too_many_from_none(attend(shapes([1, HUGE, 1, 0], 0, 2), mask));
            too_many_from_none(attend(shapes([HUGE, 1, 1, 0], 0, 2), mask));
        }
    }
    Ok(())
}

/// A view that repeats one element has any number of rows.
#[test]
fn views_and_caches_that_no_memory_holds() -> Result<()> {
    let precisions = [Precision::Float32, Precision::BFloat16, Precision::Int8];
    let index = Tensor::ones((1, 1), DType::U32, &Device::Cpu)?;
    for dtype in FLOATS {
        let one = Tensor::ones((1, 1, 1, 4), dtype, &Device::Cpu)?;
        let xs = one.reshape(4)?.broadcast_as((HUGE, 4))?;
        for qconfig in qconfigs() {
            for n in [3, 0] {
                let layer = nn::Linear::new(zeros(&[n, 4], dtype)?, None);
                assert!(prepared(&layer, &qconfig).forward(&xs).is_err());
            }
        }
        let table = nn::Embedding::new(zeros(&[5, 4], dtype)?, 4);
        for ys in [
            ops::swiglu(&xs),
            ops::softmax(&xs, 0),
            ops::activate(&xs, FusedActivation::Tanh),
            ops::gather(&xs, &index.broadcast_as((HUGE, 1))?, D::Minus1),
            table.forward(&index.broadcast_as((HUGE, 1))?),
        ] {
            assert!(ys.is_err());
        }
        for precision in precisions {
            for [batch, queries, keys] in [[1, HUGE, 1], [HUGE, 1, 1], [1, 1, HUGE]] {
                let [q, k] = [queries, keys].map(|n| one.broadcast_as((batch, 1, n, 4)));
                let (q, k) = (q?, k?);
                let ys = ops::scaled_dot_product_attention_with(&q, &k, &k, None, 1., precision);
                assert!(ys.is_err(), "{dtype:?} {precision:?} {batch} {queries} {keys}");
            }
        }
    }
    for precision in precisions {
        for shape in [[HUGE, 0, 3, 4], [0, HUGE, 3, 4], [1, HUGE, 3, 0], [1, 1, HUGE, 0]] {
            let xs = zeros(&shape, DType::F32)?;
            let mut cache = nn::KvCache::new(precision);
            assert!(cache.append(&xs, &xs).is_err() && cache.is_empty(), "{shape:?}");
        }
        let xs = zeros(&[1, 2, 3, 4], DType::F32)?;
        for rows in [HUGE, 1 << 45, usize::MAX] {
            let ys = nn::KvCache::with_capacity(precision, rows).append(&xs, &xs);
            // A cache of codes has at most 65,536 rows; pages come with their rows.
            assert!(ys.is_ok(), "{precision:?}");
        }
    }
    let vb = VarBuilder::zeros(DType::F32, &Device::Cpu);
    let lstm = nn::lstm(3, 4, Default::default(), vb.clone())?;
    assert!(lstm.zero_state(HUGE).is_err());
    assert!(nn::linear(1 << 20, 1 << 20, vb.clone()).is_err());
    assert!(nn::embedding(HUGE, 4, vb).is_err());
    Ok(())
}
