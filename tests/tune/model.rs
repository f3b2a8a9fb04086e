//! A model whose accuracy is a sum of known losses, one per layer, and an evaluation that counts
//! its calls.

use std::cell::Cell;

use candle_dynquant::{Error, Result};

use crate::kit::*;

thread_local! {
    /// Calls of `Layer::quantize`.
    pub static QUANTIZED: Cell<usize> = const { Cell::new(0) };
}

/// A layer that loses `loss` accuracy in int8, and a hundredth of it in float16.
#[derive(Quantizable, Clone, Debug, PartialEq)]
#[quantizable(layer)]
pub struct Lossy {
    pub kind: LayerKind,
    pub loss: f64,
    pub elements: usize,
    /// The dtype while it is float.
    pub float: WeightDType,
    pub refuses: Option<QConfig>,
    pub to: Option<QConfig>,
}

impl Lossy {
    pub fn new(loss: f64) -> Self {
        Self {
            kind: LayerKind::Linear,
            loss,
            elements: 100,
            float: WeightDType::F32,
            refuses: None,
            to: None,
        }
    }

    pub fn is(&self) -> &'static str {
        match &self.to {
            None => "float",
            Some(to) if *to == QConfig::float16() => "float16",
            Some(_) => "int8",
        }
    }

    pub fn lost(&self) -> f64 {
        match self.is() {
            "float" => 0.,
            "float16" => self.loss / 100.,
            // Per tensor is twice as bad.
            _ if self.to == Some(QConfig::pytorch()) => 2. * self.loss,
            _ => self.loss,
        }
    }
}

impl Layer for Lossy {
    fn kind(&self) -> LayerKind {
        self.kind.clone()
    }

    fn weight_infos(&self) -> Vec<WeightInfo> {
        let (dtype, bytes) = match self.is() {
            "float" => (self.float, 4 * self.elements),
            "float16" => (WeightDType::F16, 2 * self.elements),
            _ if self.to == Some(QConfig::bfloat16()) => (WeightDType::BF16, 2 * self.elements),
            _ if matches!(self.to, Some(QConfig::Groups(_))) => {
                (WeightDType::Int4, self.elements / 2)
            }
            _ => (WeightDType::QInt8, self.elements),
        };
        let info = WeightInfo::new("weight", &[self.elements, 1], dtype, bytes);
        vec![if self.to.is_some() { info.quantized(0) } else { info }]
    }

    fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        QUANTIZED.set(QUANTIZED.get() + 1);
        if self.refuses.as_ref() == Some(qconfig) {
            let message = "invalid qconfig: expected another, got this one";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(Self { to: Some(qconfig.clone()), ..self.clone() })
    }
}

pub type Model = Vec<Lossy>;

pub fn model(losses: &[f64]) -> Model {
    losses.iter().map(|loss| Lossy::new(*loss)).collect()
}

pub fn accuracy(model: &Model) -> f64 {
    1. - model.iter().map(Lossy::lost).sum::<f64>()
}

pub fn becomes(model: &Model) -> Vec<&'static str> {
    model.iter().map(Lossy::is).collect()
}

/// The index of the best trial.
pub fn best_trial(outcome: &TuningOutcome) -> Option<usize> {
    let best = outcome.best()?;
    outcome.trials.iter().position(|trial| std::ptr::eq(trial, best))
}

/// Tunes, and returns the layers of each evaluation as their initials, such as `iih`, the float
/// model first.
pub fn search(model: &mut Model, config: &TuningConfig) -> Result<(TuningOutcome, Vec<String>)> {
    let mut seen = Vec::new();
    let outcome = tune(model, config, |model: &Model| {
        seen.push(initials(model));
        candle_core::Result::Ok(accuracy(model))
    })?;
    Ok((outcome, seen))
}

/// `i`nt8, `h`alf or `f`loat.
pub fn initials(model: &Model) -> String {
    let initial = |layer: &Lossy| match layer.is() {
        "int8" => 'i',
        "float16" => 'h',
        _ => 'f',
    };
    model.iter().map(initial).collect()
}
