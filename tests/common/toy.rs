//! A layer with a flag as its state, and visitors that record a walk.

use candle_dynquant::{
    Error, ErrorKind, Layer, LayerKind, QConfig, Quantizable, Result, WeightDType, WeightInfo,
};
use candle_dynquant::{Visitor, VisitorMut, Walk, WalkMut};

/// A layer with one weight of four elements; quantizing it flips a flag.
#[derive(Quantizable, Clone, Debug, PartialEq)]
#[quantizable(layer)]
pub struct Toy {
    pub kind: LayerKind,
    pub checkpoint_name: Option<String>,
    pub quantized: Option<QConfig>,
    /// Cannot be quantized.
    pub broken: bool,
}

impl Toy {
    pub fn new() -> Self {
        Self::of(LayerKind::Linear)
    }

    pub fn of(kind: LayerKind) -> Self {
        Self { kind, checkpoint_name: None, quantized: None, broken: false }
    }

    pub fn named(checkpoint_name: &str) -> Self {
        Self { checkpoint_name: Some(checkpoint_name.to_owned()), ..Self::new() }
    }

    pub fn broken() -> Self {
        Self { broken: true, ..Self::new() }
    }

    pub fn is_quantized(&self) -> bool {
        self.quantized.is_some()
    }
}

impl Layer for Toy {
    fn kind(&self) -> LayerKind {
        self.kind.clone()
    }

    fn checkpoint_name(&self) -> Option<&str> {
        self.checkpoint_name.as_deref()
    }

    fn weight_infos(&self) -> Vec<WeightInfo> {
        let (dtype, bytes) = match self.quantized {
            None => (WeightDType::F32, 16),
            Some(_) => (WeightDType::QInt8, 4),
        };
        vec![WeightInfo::new("weight", &[2, 2], dtype, bytes)]
    }

    fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        if self.broken {
            let message = format!("unsupported qconfig: expected nothing, got {qconfig}");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(Self { quantized: Some(qconfig.clone()), ..self.clone() })
    }
}

/// Not a module tree.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Plain(pub usize);

/// The calls of a walk, one per line.
#[derive(Default, Debug)]
pub struct Seen {
    pub lines: Vec<String>,
}

impl Visitor for Seen {
    fn layer(&mut self, path: &str, layer: &dyn Layer) -> Result<()> {
        self.lines.push(format!("{path}: {}", layer.kind()));
        Ok(())
    }

    fn opaque(&mut self, path: &str, type_name: &'static str, _is_copy: bool) {
        self.lines.push(format!("{path} ? {type_name}"));
    }

    fn shared(&mut self, path: &str, first: &str) {
        self.lines.push(format!("{path} = {first}"));
    }
}

/// A mutable walk shows layers only; nothing is changed.
impl VisitorMut for Seen {
    fn layer(&mut self, path: &str, layer: &mut dyn Layer) -> Result<bool> {
        Visitor::layer(self, path, layer).map(|()| false)
    }
}

/// Checks that both walks show `layers`, separated by `, `, and that the walk that looks also shows
/// `others`.
#[track_caller]
pub fn assert_walks<M: Quantizable>(case: &str, model: &mut M, layers: &str, others: &[&str]) {
    let mut seen = Seen::default();
    Walk::over(model, &mut seen).expect(case);
    let (seen_layers, seen_others): (Vec<_>, Vec<_>) =
        seen.lines.into_iter().partition(|line| line.contains(": "));
    assert_eq!(seen_layers.join(", "), layers, "{case}: layers of visit");
    assert_eq!(seen_others, others, "{case}: opaque fields and shared pointers");
    let mut seen = Seen::default();
    WalkMut::over(model, &mut seen).expect(case);
    assert_eq!(seen.lines.join(", "), layers, "{case}: layers of visit_mut");
}

/// Quantizes every layer at whose path `at` says so.
pub struct Quantize<F>(pub F);

impl<F: FnMut(&str) -> bool> VisitorMut for Quantize<F> {
    fn layer(&mut self, path: &str, layer: &mut dyn Layer) -> Result<bool> {
        if (self.0)(path) {
            let replacement = layer.quantize_boxed(&QConfig::int8())?;
            layer.install(replacement)?;
            return Ok(true);
        }
        Ok(false)
    }
}
