//! `nn::Linear` in every weight format against symmetric qint8 per channel, float16 and bfloat16
//! against candle's own f32 `Linear`, in one run.
//!
//! ```text
//! cargo bench --bench formats [-- --threads N] [--quick] [--json]
//! ```
//!
//! Activations have a scale per row, as in `int8()`, except in "both per tensor", where weights and
//! activations have one scale each. They are f32; the first format is also timed with input and
//! output in bf16 and f16. `DYNQUANT_ISA` chooses the instruction set. Every round times each
//! contender once; the table gives medians. Outputs are checked against f32 before anything is
//! timed.
#![allow(missing_docs)]

use std::process::ExitCode;

use anyhow::{Result, ensure};
use candle_core::{DType, Device, Module, Tensor};
use candle_dynquant::observer::{ObserverConfig, ObserverKind};
use candle_dynquant::{
    DynamicConfig, Granularity, LayerKind, QConfig, QConfigSpec, QDType, QScheme, nn,
    quantize_dynamic,
};
use candle_dynquant_support::bench::table::{self, Cell, cell, left};
use candle_dynquant_support::bench::{Args, interleaved, sqnr_db};
use serde::Serialize;

const SHAPES: [[usize; 3]; 6] = [
    [1, 768, 768],
    [1, 4096, 4096],
    [8, 768, 3072],
    [128, 768, 768],
    [128, 768, 3072],
    [1024, 768, 3072],
];

/// The median in microseconds, and the time of the first format divided by it.
#[derive(Serialize)]
struct Row {
    m: usize,
    k: usize,
    n: usize,
    format: &'static str,
    us: f64,
    ratio: f64,
    sqnr_db: f64,
}

/// The formats; the first is the baseline, the last is candle's f32.
const FORMATS: [&str; 11] = [
    "qint8 per channel",
    "the same, bf16 activations",
    "the same, f16 activations",
    "qint8 per tensor",
    "both per tensor",
    "qint8 affine per channel",
    "quint8 per channel",
    "quint8 affine per tensor",
    "float16",
    "bfloat16",
    "candle f32",
];

fn qconfigs() -> [QConfig; 8] {
    let with = |granularity, dtype, qscheme: QScheme| {
        let kind = if qscheme.is_per_channel() {
            ObserverKind::PerChannelMinMax
        } else {
            ObserverKind::MinMax
        };
        QConfig::Int8 {
            weight: ObserverConfig::new(kind, dtype, qscheme),
            activation: DynamicConfig::new(granularity, false),
        }
    };
    let int8 = |dtype, qscheme| with(Granularity::PerRow, dtype, qscheme);
    let symmetric = QScheme::PerTensorSymmetric;
    [
        int8(QDType::QInt8, QScheme::PerChannelSymmetric),
        int8(QDType::QInt8, symmetric),
        with(Granularity::PerTensor, QDType::QInt8, symmetric),
        int8(QDType::QInt8, QScheme::PerChannelAffine),
        int8(QDType::QUInt8, QScheme::PerChannelSymmetric),
        int8(QDType::QUInt8, QScheme::PerTensorAffine),
        QConfig::float16(),
        QConfig::bfloat16(),
    ]
}

impl table::Row for Row {
    fn cells(&self, _: &Args) -> Vec<Cell> {
        vec![
            cell("m, k, n", 16, format_args!("{}, {}, {}", self.m, self.k, self.n)),
            left("weights", 26, self.format),
            cell("us", 10, format_args!("{:.1}", self.us)),
            cell("x faster", 10, format_args!("{:.2}", self.ratio)),
            cell("SQNR dB", 8, format_args!("{:.1}", self.sqnr_db)),
        ]
    }
}

fn main() -> Result<ExitCode> {
    let title = "Linear, whole call, activations u8 per row (float16: f32; bfloat16: bf16)";
    table::run("Time nn::Linear in every weight format", title, |args, show| {
        for [m, k, n] in args.shapes(SHAPES) {
            measure(m, k, n, args.rounds())?.into_iter().for_each(&mut *show);
        }
        Ok(())
    })
}

/// A layer whose input and output are cast to another dtype.
struct Half<'a>(&'a nn::Linear, Tensor);

impl Module for Half<'_> {
    fn forward(&self, _: &Tensor) -> candle_core::Result<Tensor> {
        self.0.forward(&self.1)
    }
}

fn measure(m: usize, k: usize, n: usize, rounds: usize) -> Result<Vec<Row>> {
    let device = Device::Cpu;
    let weight = Tensor::randn(0f32, 1. / (k as f32).sqrt(), (n, k), &device)?;
    let bias = Tensor::randn(0f32, 0.1, n, &device)?;
    let xs = Tensor::randn(0f32, 1., (m, k), &device)?;
    let float = candle_nn::Linear::new(weight, Some(bias));
    let layers = qconfigs().map(|qconfig| {
        let mut layer = nn::Linear::from(float.clone());
        let spec = QConfigSpec::new().kind(LayerKind::Linear, qconfig);
        quantize_dynamic(&mut layer, &spec).map(|_| layer)
    });
    let [a, b, c, d, e, f, g, h] = layers;
    let (a, b, c, d, e, f, g, h) = (a?, b?, c?, d?, e?, f?, g?, h?);
    let bf16 = Half(&a, xs.to_dtype(DType::BF16)?);
    let f16 = Half(&a, xs.to_dtype(DType::F16)?);
    let contenders: [&dyn Module; 11] = [&a, &bf16, &f16, &b, &c, &d, &e, &f, &g, &h, &float];

    let expected = float.forward(&xs)?;
    let mut all_db = [0.; 11];
    for (db, module) in all_db.iter_mut().zip(contenders) {
        *db = sqnr_db(&expected, &module.forward(&xs)?.to_dtype(DType::F32)?)?;
        ensure!(*db > 30., "outputs disagree: {db} dB");
    }
    let us = interleaved(&contenders.map(|module| || module.forward(&xs)), rounds)?;
    let rows = FORMATS.into_iter().zip(&us).zip(all_db);
    let rows = rows.map(|((format, time), sqnr_db)| Row {
        m,
        k,
        n,
        format,
        us: *time,
        ratio: us[0] / time,
        sqnr_db,
    });
    Ok(rows.collect())
}
