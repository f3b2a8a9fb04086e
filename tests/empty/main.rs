//! Tensors without elements: views that begin beyond their storage, which candle accepts, and
//! shapes whose output no memory holds.

mod huge;
#[path = "../common/kit.rs"]
mod kit;

use candle_core::Result;
use candle_nn::RNN;

use crate::kit::*;

const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

/// Every way to quantize a weight that is multiplied, and `None` for float.
fn qconfigs() -> [Option<QConfig>; 9] {
    [
        None,
        Some(QConfig::pytorch()),
        Some(QConfig::per_channel()),
        Some(QConfig::int8()),
        Some(QConfig::float16()),
        Some(QConfig::bfloat16()),
        Some(QConfig::onnxruntime(Default::default())),
        Some(QConfig::int4()),
        Some(QConfig::int8_groups()),
    ]
}

/// Observers of a tensor, of each channel, and of a distribution.
fn observers() -> [ObserverConfig; 3] {
    [
        (ObserverKind::MinMax, QScheme::PerTensorAffine),
        (ObserverKind::PerChannelMinMax, QScheme::PerChannelAffine),
        (ObserverKind::Histogram { bins: 8 }, QScheme::PerTensorAffine),
    ]
    .map(|(kind, qscheme)| ObserverConfig::new(kind, QDType::QInt8, qscheme))
}

fn zeros(shape: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::zeros(shape, dtype, &Device::Cpu)
}

/// A tensor of this shape, which has a 0, that begins beyond its storage.
fn beyond(shape: &[usize], dtype: DType) -> Result<Tensor> {
    let empty = shape.iter().position(|size| *size == 0).expect("a 0");
    let mut full: Vec<usize> = shape.iter().map(|size| size + 2).collect();
    full[empty] = 1;
    let mut view = Tensor::zeros(full, dtype, &Device::Cpu)?.narrow(empty, 1, 0)?;
    for (dim, size) in shape.iter().enumerate().filter(|(dim, _)| *dim != empty) {
        view = view.narrow(dim, 2, *size)?;
    }
    assert_eq!(view.dims(), shape);
    Ok(view)
}

/// The layer, quantized if there is a configuration.
fn prepared<L: Layer + Clone>(layer: &L, qconfig: &Option<QConfig>) -> L {
    match qconfig {
        None => layer.clone(),
        Some(qconfig) => layer.quantize(qconfig).expect("quantizes"),
    }
}

/// Two layers in both directions.
fn stacked(proj_size: usize) -> nn::RecurrentConfig {
    nn::RecurrentConfig { num_layers: 2, bidirectional: true, proj_size, ..Default::default() }
}

#[test]
fn linear_layers_take_empty_views() -> Result<()> {
    let layer = nn::Linear::new(random(&[4, 3]), Some(random(&[4])));
    let layer = layer.with_activation(FusedActivation::Gelu);
    // The shape of the reported fault.
    let view = Tensor::zeros((1, 3), DType::F32, &Device::Cpu)?.narrow(0, 1, 0)?.narrow(1, 2, 1)?;
    let narrow = nn::Linear::new(random(&[4, 1]), None);
    for qconfig in qconfigs() {
        assert_eq!(prepared(&narrow, &qconfig).forward(&view)?.dims(), [0, 4]);
        let layer = prepared(&layer, &qconfig);
        for dtype in FLOATS {
            for shape in [&[0, 3][..], &[2, 0, 3], &[0, 5, 3]] {
                let xs = beyond(shape, dtype)?;
                let expected = [&shape[..shape.len() - 1], &[4]].concat();
                let ys = layer.forward(&xs)?;
                assert_eq!((ys.dims(), ys.dtype()), (&expected[..], dtype));
                for ys in nn::Linear::forward_each([&layer, &layer], &xs)? {
                    assert_eq!((ys.dims(), ys.dtype()), (&expected[..], dtype));
                }
                let turned = xs.transpose(D::Minus1, 0)?.contiguous()?;
                assert!(layer.forward(&turned).is_err() || turned.dims().last() == Some(&3));
            }
        }
    }
    Ok(())
}

#[test]
fn weights_may_be_empty_views() -> Result<()> {
    for qconfig in qconfigs() {
        for dtype in FLOATS {
            // No inputs, and no outputs.
            let layer = nn::Linear::new(
                beyond(&[4, 0], dtype)?,
                Some(Tensor::ones(4, dtype, &Device::Cpu)?),
            );
            let ys = prepared(&layer, &qconfig).forward(&beyond(&[2, 0], dtype)?)?;
            assert_eq!(ys.to_dtype(DType::F32)?.to_vec2::<f32>()?, [[1.; 4]; 2]);
            let layer = nn::Linear::new(beyond(&[0, 3], dtype)?, Some(beyond(&[0], dtype)?));
            let layer = prepared(&layer, &qconfig);
            let ys = layer.forward(&Tensor::ones((2, 3), dtype, &Device::Cpu)?)?;
            assert_eq!(ys.dims(), [2, 0]);
            let (quantized, float) =
                (layer.projection(), nn::Projection::new(beyond(&[0, 3], dtype)?, None));
            quantized.weight_error(&float)?;
        }
    }
    for dtype in FLOATS {
        let weight = beyond(&[0, 3], dtype)?;
        let qweight = QWeight::from_float(&weight, None, &QConfig::int8())?;
        assert_eq!(qweight.dequantize()?.dims(), [0, 3]);
        let qconfig = QConfig::table();
        assert_eq!(QTable::from_float(&weight, &qconfig)?.shape(), [0, 3]);
        for config in observers() {
            config.build()?.observe(&weight)?;
        }
    }
    Ok(())
}

#[test]
fn embeddings_take_empty_views() -> Result<()> {
    let layer = nn::Embedding::new(random(&[5, 3]), 3);
    let empty = nn::Embedding::new(beyond(&[0, 3], DType::F16)?, 3);
    for qconfig in [None, Some(QConfig::table()), Some(QConfig::float16())] {
        for dtype in [DType::U8, DType::U32, DType::I64] {
            for shape in [&[0][..], &[2, 0], &[0, 4, 2]] {
                let indexes = beyond(shape, dtype)?;
                for layer in [&layer, &empty] {
                    let ys = prepared(layer, &qconfig).forward(&indexes)?;
                    assert_eq!(ys.dims(), [shape, &[3]].concat());
                    let turned = indexes.transpose(0, D::Minus1)?;
                    prepared(layer, &qconfig).forward(&turned)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn recurrent_layers_take_empty_views() -> Result<()> {
    let vb = new_vb();
    let config = stacked(0);
    let lstms = [
        nn::LSTM::new(3, 4, config, vb.pp("lstm"))?,
        nn::LSTM::new(3, 4, stacked(2), vb.pp("projected"))?,
    ];
    let gru = nn::GRU::new(3, 4, config, vb.pp("gru"))?;
    let rnn = nn::RNN::new(3, 4, nn::Nonlinearity::Tanh, config, vb.pp("rnn"))?;
    let cell = nn::LSTMCell::new(3, 4, true, vb.pp("lstm_cell"))?;
    let gru_cell = nn::GRUCell::new(3, 4, true, vb.pp("gru_cell"))?;
    let single = nn::lstm(3, 4, Default::default(), vb.pp("single"))?;
    for qconfig in qconfigs() {
        for dtype in FLOATS {
            // No sequences, no steps, neither.
            for (steps, batch) in [(5, 0), (0, 2), (0, 0), (1 << 40, 0)] {
                let xs = match steps {
                    0..10 => beyond(&[steps, batch, 3], dtype)?,
                    _ => Tensor::zeros((steps, batch, 3), dtype, &Device::Cpu)?,
                };
                for (lstm, size) in lstms.iter().zip([4, 2]) {
                    let lstm = prepared(lstm, &qconfig);
                    let (ys, state) = lstm.forward(&xs, None)?;
                    assert_eq!(ys.dims(), [steps, batch, 2 * size]);
                    assert_eq!(state.c.dims(), [4, batch, 4]);
                    let (ys, _) = lstm.forward(&xs, Some(&state))?;
                    assert_eq!(ys.dtype(), dtype);
                }
                let h = match batch {
                    0 => Some(beyond(&[4, 0, 4], dtype)?),
                    _ => None,
                };
                let (ys, _) = prepared(&gru, &qconfig).forward(&xs, h.as_ref())?;
                assert_eq!(ys.dims(), [steps, batch, 8]);
                let (_, h) = prepared(&rnn, &qconfig).forward(&xs, h.as_ref())?;
                assert_eq!(h.dims(), [4, batch, 4]);
            }
            let xs = beyond(&[0, 3], dtype)?;
            let state = prepared(&cell, &qconfig).forward(&xs, None)?;
            let state = prepared(&cell, &qconfig).forward(&xs, Some(&state))?;
            assert_eq!((state.h.dims(), state.c.dims()), (&[0, 4][..], &[0, 4][..]));
            let h = beyond(&[0, 4], dtype)?;
            let h = prepared(&gru_cell, &qconfig).forward(&xs, Some(&h))?;
            assert_eq!(h.dims(), [0, 4]);
            let single = prepared(&single, &qconfig);
            let state = single.zero_state(0)?;
            let states = single.seq_init(&beyond(&[0, 2, 3], dtype)?, &state)?;
            single.step(&xs, &states[1])?;
        }
    }
    Ok(())
}

#[test]
fn operations_take_empty_views() -> Result<()> {
    for dtype in FLOATS {
        let weight = Tensor::ones(3, dtype, &Device::Cpu)?;
        for shape in [&[0, 3][..], &[2, 0, 3]] {
            let xs = beyond(shape, dtype)?;
            let (normal, sum) = ops::add_rms_norm(&xs, &xs, &weight, 1e-5)?;
            let all = [
                normal,
                sum,
                ops::layer_norm(&xs, &weight, Some(&weight), 1e-5)?,
                ops::add_layer_norm(&xs, &xs, &weight, None, 1e-5)?,
                ops::softmax_last_dim(&xs)?,
                ops::gelu(&xs)?,
                ops::activate(&xs, FusedActivation::Sigmoid)?,
            ];
            for ys in all {
                assert_eq!((ys.dims(), ys.dtype()), (shape, dtype));
            }
        }
        let attend = |queries: usize, keys: usize, head_dim: usize, value_dim: usize| {
            let empty_or_ones = |rows: usize, columns: usize| match rows * columns {
                0 => beyond(&[1, 2, rows, columns], dtype),
                _ => Tensor::ones((1, 2, rows, columns), dtype, &Device::Cpu),
            };
            let (q, k, v) = (
                empty_or_ones(queries, head_dim)?,
                empty_or_ones(keys, head_dim)?,
                empty_or_ones(keys, value_dim)?,
            );
            let mask = empty_or_ones(queries, keys)?;
            let ys = ops::scaled_dot_product_attention(&q, &k, &v, Some(&mask), 1.)?;
            assert_eq!((ys.dims(), ys.dtype()), (&[1, 2, queries, value_dim][..], dtype));
            ys.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()
        };
        assert_eq!(attend(0, 3, 4, 5)?, 0.);
        assert_eq!(attend(2, 0, 4, 5)?, 0.);
        // All keys have one score: the mean of values that are 1.
        assert_eq!(attend(2, 3, 0, 5)?, 20.);
        assert_eq!(attend(2, 3, 4, 0)?, 0.);
    }
    Ok(())
}

/// Checks for an error that names the limit, a number of `what`.
#[track_caller]
fn too_many<T, E: std::fmt::Display>(what: &str, result: std::result::Result<T, E>) {
    fault(result).has("at most").has(what);
}

#[track_caller]
fn too_large<T, E: std::fmt::Display>(result: std::result::Result<T, E>) {
    too_many("elements", result)
}

#[test]
fn what_no_memory_holds_is_refused() -> Result<()> {
    const HUGE: usize = 1 << 62;
    let zeros = |shape: &[usize]| zeros(shape, DType::F32);
    let vb = new_vb();
    let linear = nn::Linear::new(zeros(&[4, 0])?, None);
    let lstm = nn::LSTM::new(0, 2, Default::default(), vb.pp("lstm"))?;
    let cell = nn::RNNCell::new(0, 2, true, nn::Nonlinearity::Relu, vb.pp("cell"))?;
    for qconfig in qconfigs() {
        let linear = prepared(&linear, &qconfig);
        for shape in [&[HUGE, 0][..], &[1 << 33, 1 << 29, 0]] {
            too_large(linear.forward(&zeros(shape)?));
            too_large(nn::Linear::forward_each([&linear, &linear], &zeros(shape)?));
        }
        let lstm = prepared(&lstm, &qconfig);
        for shape in [&[HUGE, 1, 0][..], &[1, HUGE, 0], &[HUGE, 0]] {
            too_large(lstm.forward(&zeros(shape)?, None));
        }
        too_large(prepared(&cell, &qconfig).forward(&zeros(&[HUGE, 0])?, None));
    }
    // No byte of a file stands for such rows: a header may claim 2^33 rows.
    for rows in [HUGE, 1 << 33, (1 << 24) + 1] {
        let huge = nn::Linear::new(zeros(&[rows, 0])?, None);
        for qconfig in qconfigs().iter().flatten() {
            too_many("rows without columns", huge.quantize(qconfig));
        }
        too_many(
            "rows without columns",
            QTable::from_float(&zeros(&[rows, 0])?, &QConfig::float16()),
        );
    }
    let qs = zeros(&[HUGE, 1, 1, 0])?;
    let v = zeros(&[1, 1, 1, 1])?.broadcast_as((HUGE, 1, 1, 1))?;
    too_large(ops::scaled_dot_product_attention(&qs, &qs, &v, None, 1.));

    let half = usize::MAX / 2;
    too_large(nn::linear(half, 4, vb.pp("a")));
    too_large(nn::embedding(half, 4, vb.pp("b")));
    too_large(nn::LSTM::new(1, half, Default::default(), vb.pp("c")));
    too_large(nn::GRUCell::new(half, 2, true, vb.pp("d")));
    too_large(nn::gru(2, 2, Default::default(), vb.pp("e"))?.zero_state(HUGE));
    Ok(())
}

/// A checkpoint whose tensors have an extra row.
struct Longer;

impl candle_nn::var_builder::SimpleBackend for Longer {
    fn get(
        &self,
        shape: candle_core::Shape,
        _: &str,
        _: candle_nn::Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let mut shape = shape.dims().to_vec();
        shape[0] += 1;
        Tensor::zeros(shape, dtype, device)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name}")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

#[test]
fn weights_of_another_shape_than_was_asked_for_are_refused() {
    let vb = || VarBuilder::from_backend(Box::new(Longer), DType::F32, Device::Cpu).pp("x");
    let check = |fault: Fault| fault.has("x.weight_ih").has("expected [");
    check(fault(nn::LSTM::new(3, 4, Default::default(), vb())));
    check(fault(nn::GRUCell::new(3, 4, true, vb())));
    check(fault(nn::gru(3, 4, Default::default(), vb())));
}
