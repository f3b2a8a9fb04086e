//! A tree of layers and a spec for it: an error changes nothing, and the report is correct.

use candle_dynquant::{
    ErrorKind, Layer, LayerKind, LeftReason, Outcome, QConfig, QConfigSpec, Quantizable, Result,
    WeightDType, WeightInfo, quantize_dynamic,
};
use candle_dynquant::{Walk, WalkMut};

/// A flat tree of layers, whose paths the lines of the input give.
#[derive(Clone)]
struct Tree(Vec<(String, Leaf)>);

#[derive(Clone)]
struct Leaf {
    kind: LayerKind,
    checkpoint_name: Option<String>,
    elements: usize,
    quantized: bool,
}

impl Layer for Leaf {
    fn kind(&self) -> LayerKind {
        self.kind.clone()
    }

    fn checkpoint_name(&self) -> Option<&str> {
        self.checkpoint_name.as_deref()
    }

    fn weight_infos(&self) -> Vec<WeightInfo> {
        let dtype = if self.quantized { WeightDType::QInt8 } else { WeightDType::F32 };
        vec![WeightInfo::new("weight", &[self.elements, 1], dtype, 4)]
    }

    fn quantize(&self, _: &QConfig) -> Result<Self> {
        Ok(Self { quantized: true, ..self.clone() })
    }
}

impl Quantizable for Leaf {
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        walk.layer(self)
    }

    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
        walk.layer(self)
    }
}

impl Quantizable for Tree {
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        let mut leaves = self.0.iter();
        leaves.try_for_each(|(path, leaf)| walk.child(path, leaf))
    }

    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
        let mut leaves = self.0.iter_mut();
        leaves.try_for_each(|(path, leaf)| walk.child(path, leaf))
    }
}

/// `path kind elements [checkpoint name]` of each line.
fn tree(text: &str) -> Tree {
    let leaves = text.lines().take(50).map(|line| {
        let mut words = line.split(' ');
        let path = words.next().unwrap_or_default().to_owned();
        let kind = words.next().and_then(|word| word.parse().ok());
        let elements = words.next().and_then(|word| word.parse::<u16>().ok());
        let leaf = Leaf {
            kind: kind.unwrap_or(LayerKind::Linear),
            elements: elements.unwrap_or(0).into(),
            checkpoint_name: words.next().map(str::to_owned),
            quantized: line.ends_with('!'),
        };
        (path, leaf)
    });
    Tree(leaves.collect())
}

/// Runs the tree before an empty line against the spec in YAML after it.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Some((leaves, spec)) = text.split_once("\n\n") else {
        return;
    };
    let Ok(spec) = QConfigSpec::from_yaml(spec) else {
        return;
    };
    let before = tree(leaves);
    let mut model = before.clone();
    let result = quantize_dynamic(&mut model, &spec);
    let changed = |i: usize| model.0[i].1.quantized && !before.0[i].1.quantized;
    match result {
        Err(error) => {
            assert!((0..model.0.len()).all(|i| !changed(i)), "{error}");
            let known = matches!(error.kind(), ErrorKind::Unmatched | ErrorKind::InvalidModel);
            assert!(known, "{error:?}");
            // An error is about as long as the input, plus a few names of the model.
            assert!(error.to_string().len() < 10 * data.len() + 1_000);
        }
        Ok(report) => {
            assert_eq!(report.layers.len(), model.0.len());
            let _ = (report.to_string(), format!("{report:#}"));
            for (i, layer) in report.layers.iter().enumerate() {
                let (path, leaf) = &before.0[i];
                assert_eq!(&layer.path, path);
                assert_eq!(changed(i), matches!(layer.outcome, Outcome::Swapped { .. }));
                match &layer.outcome {
                    Outcome::Left { reason: LeftReason::AlreadyQuantized } => {
                        assert!(leaf.quantized)
                    }
                    Outcome::Left { reason: LeftReason::TooSmall { parameters, min_params } } => {
                        assert_eq!(*parameters, leaf.elements);
                        assert!(parameters < min_params);
                    }
                    Outcome::Swapped { .. } => assert!(!leaf.quantized),
                    _ => {}
                }
            }
            // Every layer that rules match is quantized, so that a second call does nothing.
            let again = quantize_dynamic(&mut model, &spec).expect("the rules match still");
            assert_eq!(again.swapped().count(), 0);
        }
    }
}
