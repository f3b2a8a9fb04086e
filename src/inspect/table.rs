//! An inspection as text.

use std::fmt;

use super::codes::WeightInspection;
use super::run::{Inspection, LayerInspection};
use crate::deviation::Deviation;
use crate::quantize::text::{shown, table};

pub(super) const HEADER: [&str; 13] = [
    "layer",
    "kind",
    "bits",
    "weight dB",
    "clipped",
    "unused",
    "input range",
    "clipped",
    "unused",
    "output dB",
    "cosine",
    "max error",
    "along dB",
];

impl Inspection {
    /// Layers with figures.
    pub(super) fn measured(&self) -> impl Iterator<Item = &LayerInspection> {
        let layers = self.layers.iter();
        layers.filter(|layer| layer.quantized || layer.along.is_some())
    }

    pub(super) fn end_to_end(&self) -> String {
        let (db, cosine) = (decibels(&self.output), self.output.cosine());
        format!("end to end: {db} dB, cosine {cosine:.5}, max error {:.2e}", self.output.max_abs())
    }
}

/// The table has a row for each layer that is quantized or was called; figures in decibels are
/// SQNR.
impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.measured().map(cells);
        let right: Vec<_> = (2..HEADER.len()).collect();
        writeln!(f, "{}", table(HEADER, rows, &right))?;
        f.write_str(&self.end_to_end())
    }
}

pub(super) fn cells(layer: &LayerInspection) -> [String; 13] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let weights = &layer.weights;
    let some = |share: &dyn Fn(&WeightInspection) -> Option<f64>| {
        let all: Vec<f64> = weights.iter().filter_map(share).collect();
        (!all.is_empty()).then(|| percent(all.iter().sum::<f64>() / all.len() as f64))
    };
    let mut error = Deviation::default();
    weights.iter().for_each(|weight| error.merge(&weight.error));
    let (input, output) = (layer.input.as_ref(), layer.output.as_ref());
    [
        shown(&layer.path).to_owned(),
        layer.kind.to_string(),
        or_dash(layer.bits.map(|bits| format!("{bits:.1}"))),
        or_dash((!weights.is_empty()).then(|| decibels(&error))),
        or_dash(some(&|weight| Some(weight.clipped))),
        or_dash(some(&|weight| weight.unused_codes)),
        or_dash(input.map(|input| format!("{:.3} .. {:.3}", input.min, input.max))),
        or_dash(input.and_then(|input| input.clipped).map(percent)),
        or_dash(input.and_then(|input| input.unused_codes).map(percent)),
        or_dash(output.map(decibels)),
        or_dash(output.map(|output| format!("{:.5}", output.cosine()))),
        or_dash(output.map(|output| format!("{:.2e}", output.max_abs()))),
        or_dash(layer.along.as_ref().map(decibels)),
    ]
}

pub(super) fn decibels(deviation: &Deviation) -> String {
    match deviation.sqnr_db() {
        f64::INFINITY => "exact".to_owned(),
        f64::NEG_INFINITY => "not finite".to_owned(),
        db => format!("{db:.1}"),
    }
}

fn percent(share: f64) -> String {
    match share {
        0. => "0 %".to_owned(),
        share => format!("{:.2} %", 100. * share),
    }
}
