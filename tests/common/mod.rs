//! Shared by the tests.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    missing_docs,
    reason = "each test file uses its part"
)]

pub mod fixture;
pub mod generator;
pub mod recurrent;
pub mod toy;

use std::fmt::Display;

pub use candle_core::{D, DType, Device, IndexOp, Module, Tensor, Var};
pub use candle_dynquant::{
    Checkpoint, ErrorKind, FusedActivation, Layer, LayerKind, LayerReport, Outcome, QConfig,
    QConfigSpec, Quantizable, Report, checkpoint, nn, quantize_dynamic,
};
pub use candle_nn::{VarBuilder, VarMap};

pub const CPU: &Device = &Device::Cpu;

/// Values in [-4, 4) that depend on nothing but the shape and the seed.
pub fn tensor(shape: &[usize], seed: u64) -> candle_core::Result<Tensor> {
    let values = candle_dynquant_support::random::values(shape.iter().product(), seed);
    Tensor::from_vec(values, shape, CPU)? * 4.
}

pub fn randn(shape: &[usize]) -> Tensor {
    // Zero-sized tensors cannot be drawn.
    match shape.iter().product() {
        0 => zeros(shape),
        _ => Tensor::randn(0f32, 1., shape, CPU).expect("a tensor"),
    }
}

pub fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, CPU).expect("a tensor")
}

pub fn ones(shape: &[usize]) -> Tensor {
    Tensor::ones(shape, DType::F32, CPU).expect("a tensor")
}

/// A layer without a bias, whose weight depends on nothing but its size.
pub fn linear(outputs: usize, inputs: usize) -> nn::Linear {
    nn::Linear::new(tensor(&[outputs, inputs], 1).expect("a weight"), None)
}

/// New variables, as layers ask for them.
pub fn variables() -> VarBuilder<'static> {
    VarBuilder::from_varmap(&VarMap::new(), DType::F32, CPU)
}

/// These tensors, as layers ask for them.
pub fn weights<N: Into<String>>(
    named: impl IntoIterator<Item = (N, Tensor)>,
) -> VarBuilder<'static> {
    let tensors = named.into_iter().map(|(name, tensor)| (name.into(), tensor)).collect();
    VarBuilder::from_tensors(tensors, DType::F32, CPU)
}

/// An LSTM with one layer, whose weights depend only on its sizes.
pub fn lstm(input: usize, hidden: usize) -> candle_core::Result<nn::LSTM> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, CPU);
    let lstm = nn::LSTM::new(input, hidden, Default::default(), vb)?;
    set_variables(&vars, 9, 0.1)?;
    Ok(lstm)
}

/// Gives variables values that depend on their names and shapes only.
pub fn set_variables(vars: &VarMap, seed: u64, scale: f64) -> candle_core::Result<()> {
    // The map's order differs between processes.
    let vars = vars.data().lock().expect("variables");
    let mut names: Vec<_> = vars.keys().collect();
    names.sort();
    for (i, name) in names.into_iter().enumerate() {
        vars[name].set(&(tensor(vars[name].dims(), seed + i as u64)? * scale)?)?;
    }
    Ok(())
}

/// The preset `int8` for layers of any size.
pub fn all_int8() -> QConfigSpec {
    QConfigSpec::int8().min_params(0)
}

/// Quantizes by [`all_int8`].
#[track_caller]
pub fn quantize<M: Quantizable>(model: &mut M) -> Report {
    quantize_dynamic(model, &all_int8()).expect("quantizes")
}

pub fn layer_at<'a>(report: &'a Report, path: &str) -> &'a LayerReport {
    let layer = report.layers.iter().find(|layer| layer.path == path);
    layer.unwrap_or_else(|| panic!("no layer {path}"))
}

pub fn swapped(report: &Report) -> Vec<&str> {
    report.swapped().map(|layer| &*layer.path).collect()
}

pub fn hidden(report: &Report) -> Vec<&str> {
    report.hidden.iter().map(|field| &*field.path).collect()
}

/// The elements of a tensor of floats, in row order.
pub fn values(tensor: &Tensor) -> Vec<f32> {
    let tensor = tensor.to_dtype(DType::F32).and_then(|tensor| tensor.flatten_all());
    tensor.and_then(|tensor| tensor.to_vec1()).expect("values")
}

/// The bits of a tensor of f32.
pub fn bits(tensor: &Tensor) -> Vec<u32> {
    assert_eq!(tensor.dtype(), DType::F32);
    values(tensor).into_iter().map(f32::to_bits).collect()
}

/// The SQNR in dB, in f64: the squares of small numbers are 0 in f32.
pub fn sqnr(expected: &Tensor, got: &Tensor) -> f64 {
    let f64s = |tensor: &Tensor| -> candle_core::Result<Vec<f64>> {
        tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
    };
    let (expected, got) = (f64s(expected).expect("floats"), f64s(got).expect("floats"));
    let signal: f64 = expected.iter().map(|x| x * x).sum();
    let noise: f64 = expected.iter().zip(&got).map(|(x, y)| (x - y) * (x - y)).sum();
    10. * (signal / noise).log10()
}

/// Checks dimensions and the SQNR in dB.
#[track_caller]
pub fn assert_near(expected: &Tensor, got: &Tensor, least: f64) {
    assert_eq!(got.dims(), expected.dims());
    let accuracy = sqnr(expected, got);
    assert!(accuracy > least, "{accuracy} dB");
}

/// Checks that elements are the same as f32; any two NaN are the same.
#[track_caller]
pub fn assert_same(got: &Tensor, expected: &Tensor, case: impl Display) {
    assert_eq!(fixture::difference(&values(got), &values(expected)), None, "{case}");
}

/// Checks that an error has all of these parts in its message, which is returned.
#[track_caller]
pub fn assert_fails<T, E: Display>(result: Result<T, E>, parts: &[&str]) -> String {
    let Err(error) = result else { panic!("no error, expected {parts:?}") };
    let message = error.to_string();
    assert_parts(&message, parts);
    message
}

/// As [`assert_fails`], of an error's whole chain.
#[track_caller]
pub fn assert_chain<T>(result: anyhow::Result<T>, parts: &[&str]) -> String {
    assert_fails(result.map_err(|error| format!("{error:#}")), parts)
}

/// As [`assert_fails`], of an error of this kind.
#[track_caller]
pub fn assert_kind<T>(
    result: candle_dynquant::Result<T>,
    kind: ErrorKind,
    parts: &[&str],
) -> String {
    assert_eq!(result.as_ref().err().map(candle_dynquant::Error::kind), Some(kind));
    assert_fails(result, parts)
}

/// Checks that a text has all of these parts.
#[track_caller]
pub fn assert_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "expected {part:?} in {text:?}");
    }
}

/// A value of a type that is defined for it: `model!(Name { field: Type = value, .. })`.
macro_rules! model {
    (
        $(#[$of_type:meta])*
        $name:ident { $($(#[$of_field:meta])* $field:ident: $type:ty = $value:expr),* $(,)? }
    ) => {{
        #[derive(Quantizable)]
        $(#[$of_type])*
        struct $name {
            $($(#[$of_field])* $field: $type),*
        }
        $name { $($field: $value),* }
    }};
}
pub(crate) use model;
