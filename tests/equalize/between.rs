//! Pairs of layers between which something is multiplied.

use crate::kit::*;
use crate::{HIDDEN, readers};

const INNER: usize = 48;

/// A block of a decoder, and a product of two layers.
#[derive(Quantizable, Clone)]
struct Block {
    norm: nn::RmsNorm,
    query: nn::Linear,
    value: nn::Linear,
    attention: nn::Attention,
    output: nn::Linear,
    post: nn::RmsNorm,
    gate: nn::Linear,
    up: nn::Linear,
    down: nn::Linear,
    /// Whether `up` is called before `gate`.
    up_first: bool,
}

#[derive(Quantizable, Clone)]
struct Model {
    blocks: Vec<Block>,
}

impl Block {
    fn load(vb: VarBuilder<'_>, up_first: bool) -> candle_core::Result<Self> {
        let linear = |inputs, outputs, name| nn::linear(inputs, outputs, vb.pp(name));
        Ok(Self {
            norm: nn::rms_norm(HIDDEN, 1e-6, vb.pp("norm"))?,
            query: linear(HIDDEN, HIDDEN, "query")?,
            value: linear(HIDDEN, HIDDEN, "value")?,
            attention: nn::Attention::load(0.35, vb.pp("attention")),
            output: linear(HIDDEN, HIDDEN, "output")?,
            post: nn::rms_norm(HIDDEN, 1e-6, vb.pp("post"))?,
            gate: linear(HIDDEN, INNER, "gate")?,
            up: linear(HIDDEN, INNER, "up")?,
            down: linear(INNER, HIDDEN, "down")?,
            up_first,
        })
    }

    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let normal = self.norm.forward(xs)?;
        let (batch, seq, _) = xs.dims3()?;
        let heads = |ys: Tensor| ys.reshape((batch, seq, 4, HIDDEN / 4))?.transpose(1, 2);
        let query = heads(self.query.forward(&normal)?)?;
        let value = heads(self.value.forward(&normal)?)?;
        let ys = self.attention.forward(&query, &query, &value, None)?;
        let ys = ys.transpose(1, 2)?.reshape(xs.shape())?;
        let xs = (xs + self.output.forward(&ys)?)?;
        let normal = self.post.forward(&xs)?;
        let (gate, up) = if self.up_first {
            let up = self.up.forward(&normal)?;
            (self.gate.forward(&normal)?, up)
        } else {
            (self.gate.forward(&normal)?, self.up.forward(&normal)?)
        };
        xs + self.down.forward(&(ops::silu(&gate)? * up)?)?
    }
}

impl Model {
    /// Two blocks, in whose up projections and values an output is large and its weights are small.
    fn new(up_first: bool) -> Result<(VarMap, Self)> {
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, candle_core::DType::F32, &Device::Cpu);
        let model = Self::load(vb, up_first)?;
        for (name, var) in vars.data().lock().expect("variables").iter() {
            // Rows of the first layer, columns of the second.
            let dim = match name {
                name if name.contains(".up.") || name.contains(".value.") => 0,
                name if name.ends_with("down.weight") || name.ends_with("output.weight") => 1,
                _ => continue,
            };
            let size = var.dim(dim)?;
            let mut factors = vec![1f32; size];
            factors[5] = [61., 1. / 61.][dim];
            let mut shape = vec![1; var.rank()];
            shape[dim] = size;
            let factors = Tensor::from_vec(factors, shape, &Device::Cpu)?;
            var.set(&var.broadcast_mul(&factors)?)?;
        }
        Ok((vars, model))
    }

    fn load(vb: VarBuilder<'_>, up_first: bool) -> Result<Self> {
        let blocks = (0..2).map(|i| Block::load(vb.pp("blocks").pp(i), up_first));
        Ok(Self { blocks: blocks.collect::<candle_core::Result<_>>()? })
    }

    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let mut blocks = self.blocks.iter();
        blocks.try_fold(xs.clone(), |xs, block| block.forward(&xs))
    }

    fn equalize(&mut self, config: &Equalization) -> Result<EqualizeReport> {
        let xs = random(&[4, 6, HIDDEN]);
        Ok(equalize(self, config, |model| model.forward(&xs))?)
    }
}

const EXPECTED: [[&str; 2]; 4] = [
    ["blocks.0.up", "blocks.0.down"],
    ["blocks.1.up", "blocks.1.down"],
    ["blocks.0.value", "blocks.0.output"],
    ["blocks.1.value", "blocks.1.output"],
];

fn pairs(report: &EqualizeReport) -> Vec<[&str; 2]> {
    let pairs = readers(report).into_iter();
    let between =
        pairs.filter(|(source, ..)| !source.ends_with("norm") && !source.ends_with("post"));
    let mut pairs: Vec<_> = between.map(|(source, layers, _)| [source, layers[0]]).collect();
    pairs.sort_by_key(|[source, _]| source.split('.').next_back());
    pairs
}

#[test]
fn projections_up_and_values_are_found_and_folded_bit_for_bit() -> Result<()> {
    for up_first in [false, true] {
        let (_, float) = Model::new(up_first)?;
        let mut model = float.clone();
        let report = model.equalize(&Equalization::default().between_layers())?;
        assert_eq!(pairs(&report), EXPECTED, "{report}");
        assert!(report.left.is_empty(), "{report}");
        let xs = random(&[3, 7, HIDDEN]);
        let expected = float.forward(&xs)?;
        assert_eq!(bits(&model.forward(&xs)?), bits(&expected));
        assert_ne!(bits(model.blocks[0].up.weight()), bits(float.blocks[0].up.weight()));

        // The int8 model is more accurate, since no output sets the scale of the others.
        let db = |mut model: Model| -> Result<f64> {
            quantize_dynamic(&mut model, &all_int8())?;
            Ok(decibels(&expected, &model.forward(&xs)?)?)
        };
        let mut only_norms = float.clone();
        only_norms.equalize(&Equalization::default())?;
        let (without, with) = (db(only_norms)?, db(model)?);
        assert!(with > without + 1., "{without} dB, {with} dB");
    }
    Ok(())
}

#[test]
fn they_are_found_if_asked_for_or_named() -> Result<()> {
    let (_, float) = Model::new(false)?;
    let report = float.clone().equalize(&Equalization::default())?;
    assert_eq!(pairs(&report), [[""; 2]; 0], "{report}");
    let named = Equalization::default().pair(r"(.*)\.up", r"$1\.down");
    let report = float.clone().equalize(&named)?;
    assert_eq!(pairs(&report), EXPECTED[..2], "{report}");
    // The gate does not scale the input that is read.
    let wrong = Equalization::default().pair(r"(.*)\.gate", r"$1\.down");
    let report = float.clone().equalize(&wrong)?;
    assert_eq!(pairs(&report), [[""; 2]; 0], "{report}");
    let changes = |reason: &str| reason.starts_with("would change the output by");
    assert_eq!(report.left.len(), 2, "{report}");
    assert!(report.left.iter().all(|left| changes(&left.reason)));
    fault(float.clone().equalize(&Equalization::default().pair("attention", ".*")))
        .has("a norm, or of a float Linear");
    Ok(())
}

/// Layers that are not proportional to each other are left with a reason.
#[test]
fn what_is_no_factor_is_left() -> Result<()> {
    #[derive(Quantizable, Clone)]
    struct Mlp {
        up: nn::Linear,
        down: nn::Linear,
    }
    let linear = |out, input| nn::Linear::new(random(&[out, input]), Some(random(&[out])));
    let mlp = Mlp { up: linear(INNER, HIDDEN), down: linear(HIDDEN, INNER) };
    let xs = random(&[5, HIDDEN]);
    let config = Equalization::default().between_layers();
    type Between = fn(&Tensor) -> candle_core::Result<Tensor>;
    let cases = [(ops::gelu as Between, false), (ops::relu, true), (|xs| Ok(xs.clone()), true)];
    for (between, is_factor) in cases {
        let forward = |mlp: &Mlp| mlp.down.forward(&between(&mlp.up.forward(&xs)?)?);
        let mut model = mlp.clone();
        let report = equalize(&mut model, &config, forward)?;
        assert_eq!(report.pairs.len(), usize::from(is_factor), "{report}");
        assert_eq!(report.left.len(), usize::from(!is_factor), "{report}");
        assert_eq!(bits(&forward(&model)?), bits(&forward(&mlp)?));
    }
    // A function that is applied within the layer is known not to scale.
    let mut fused = mlp.clone();
    fused.up = fused.up.with_activation(FusedActivation::Relu);
    let forward = |mlp: &Mlp| mlp.down.forward(&(mlp.up.forward(&xs)? * 2.)?);
    let report = equalize(&mut fused, &config, forward)?;
    assert!(report.pairs.is_empty() && report.left.is_empty(), "{report}");
    // A weight that another layer holds.
    #[derive(Quantizable, Clone)]
    struct Tied {
        mlp: Mlp,
        again: nn::Linear,
    }
    let again = nn::Linear::new(mlp.up.weight().clone(), None);
    let mut tied = Tied { mlp, again };
    let forward = |tied: &Tied| {
        let up = tied.mlp.up.forward(&xs)?;
        tied.mlp.down.forward(&(up * tied.again.forward(&xs)?)?)
    };
    let report = equalize(&mut tied, &config, forward)?;
    assert!(report.pairs.is_empty(), "{report}");
    let is_tied = |reason: &str| reason.ends_with("shares its weight");
    assert!(report.left.iter().any(|left| is_tied(&left.reason)), "{report}");
    Ok(())
}

/// Rows and biases that were divided are saved, in float and beside int8.
#[test]
fn they_load_back_bit_for_bit() -> Result<()> {
    let (dir, [float]) = paths(["float.safetensors"]);
    Model::new(false)?.0.save(&float)?;
    let source = Source::new(dir, float)?;
    let xs = random(&[2, 9, HIDDEN]);
    let some = all_int8().exclude(["blocks.0.up", "blocks.1.value"]);
    for spec in [None, Some(all_int8()), Some(some)] {
        let mut model = Model::load(source.vb.clone(), false)?;
        let report = model.equalize(&Equalization::default().between_layers())?;
        assert_eq!(pairs(&report), EXPECTED, "{report}");
        if let Some(spec) = &spec {
            quantize_dynamic(&mut model, spec)?;
        }
        let saved = source.save(&model)?;
        assert!(saved.unsaved.is_empty(), "{saved:?}");
        let loaded = Model::load(source.saved_vb()?, false)?;
        assert_eq!(bits(&loaded.forward(&xs)?), bits(&model.forward(&xs)?), "{spec:?}");
    }
    Ok(())
}
