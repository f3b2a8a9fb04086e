//! Mixtures of experts: results, bits, checkpoints, gradients, mistakes.

mod common;

use anyhow::Result;
use candle_dynquant::{GptqConfig, LeftReason, gptq};
use common::*;

const INPUTS: usize = 64;
const INNER: usize = 96;
const COUNT: usize = 19;

#[derive(Quantizable, Clone)]
struct Mixture {
    gate: nn::Router,
    experts: nn::Experts,
}

impl Mixture {
    fn load(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        Ok(Self {
            gate: nn::router(INPUTS, COUNT, vb.pp("gate"))?,
            experts: nn::experts(COUNT, INPUTS, INNER, vb.pp("experts"))?,
        })
    }

    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let (chosen, weights) = self.gate.choose(xs, 4, true)?;
        self.experts.forward(xs, &chosen, &weights)
    }
}

/// The weights of a mixture by their names.
fn new_variables() -> Result<VarMap> {
    let variables = VarMap::new();
    Mixture::load(VarBuilder::from_varmap(&variables, DType::F32, CPU))?;
    set_variables(&variables, 0, 0.05)?;
    Ok(variables)
}

fn mixture(variables: &VarMap) -> Result<Mixture> {
    let vb = VarBuilder::from_varmap(variables, DType::F32, CPU);
    Ok(Mixture::load(vb)?)
}

/// The mixture of these weights without gates, by GELU.
fn plain(variables: &VarMap) -> Result<Mixture> {
    let vb = VarBuilder::from_varmap(variables, DType::F32, CPU);
    let expert = |index| {
        let vb = vb.pp("experts").pp(index);
        let up = nn::linear_no_bias(INPUTS, INNER, vb.pp("up_proj"))?;
        let expert = nn::Expert::plain(up, nn::linear_no_bias(INNER, INPUTS, vb.pp("down_proj"))?);
        Ok(expert.with_activation(FusedActivation::Gelu))
    };
    let experts: Result<_> = (0..COUNT).map(expert).collect();
    Ok(Mixture { experts: nn::Experts::new(experts?), ..mixture(variables)? })
}

/// The bits of each element as f32.
fn bits(xs: &Tensor) -> Vec<u32> {
    values(xs).into_iter().map(f32::to_bits).collect()
}

/// Checks that the greatest difference is below a part of the greatest element.
#[track_caller]
fn assert_within(got: &Tensor, expected: &Tensor, part: f32) -> Result<()> {
    let greatest = |of: &Tensor| of.abs()?.max_all()?.to_scalar::<f32>();
    let (error, scale) = (greatest(&(got - expected)?)?, greatest(expected)?);
    assert!(error < part * scale, "{error} {scale}");
    Ok(())
}

/// Row by row, by the layers of each expert in f64, as transformers computes it.
fn expected(variables: &VarMap, xs: &Tensor, has_gates: bool) -> Result<Tensor> {
    let all = variables.data().lock().expect("variables");
    let weight = |name: &str| all[&format!("{name}.weight")].to_dtype(DType::F64);
    let mut rows = Vec::new();
    for row in 0..xs.dim(0)? {
        let x = xs.narrow(0, row, 1)?.to_dtype(DType::F64)?;
        let scores = x.matmul(&weight("gate")?.t()?)?.flatten_all()?;
        let shares = candle_nn::ops::softmax(&scores, 0)?.to_vec1::<f64>()?;
        let mut order: Vec<usize> = (0..COUNT).collect();
        order.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]));
        let total: f64 = order[..4].iter().map(|expert| shares[*expert]).sum();
        let mut sum = x.zeros_like()?;
        for expert in &order[..4] {
            let product = |x: &Tensor, name: &str| {
                x.matmul(&weight(&format!("experts.{expert}.{name}"))?.t()?)
            };
            let up = product(&x, "up_proj")?;
            let inner =
                if has_gates { (product(&x, "gate_proj")?.silu()? * up)? } else { up.gelu_erf()? };
            sum = (sum + (product(&inner, "down_proj")? * (shares[*expert] / total))?)?;
        }
        rows.push(sum);
    }
    Ok(Tensor::cat(&rows, 0)?.to_dtype(DType::F32)?)
}

fn presets() -> [QConfig; 6] {
    [
        QConfig::int8(),
        QConfig::int8_groups(),
        QConfig::int4(),
        QConfig::float16(),
        QConfig::bfloat16(),
        QConfig::int8().reduce_range(),
    ]
}

#[test]
fn results_are_those_of_each_expert() -> Result<()> {
    let variables = new_variables()?;
    let xs = tensor(&[37, INPUTS], 1)?;
    for (mut mixture, has_gates) in [(mixture(&variables)?, true), (plain(&variables)?, false)] {
        let expected = expected(&variables, &xs, has_gates)?;
        assert_within(&mixture.forward(&xs)?, &expected, 2e-6)?;
        let report = quantize_dynamic(&mut mixture, &QConfigSpec::int8())?;
        assert_eq!(report.swapped().count(), COUNT * (2 + usize::from(has_gates)));
        let left = Outcome::Left { reason: LeftReason::NoRule };
        assert_eq!(layer_at(&report, "gate").outcome, left);
        assert_within(&mixture.forward(&xs)?, &expected, 0.02)?;
    }
    Ok(())
}

#[test]
fn a_row_has_the_bits_that_it_has_alone() -> Result<()> {
    let variables = new_variables()?;
    for dtype in [DType::F32, DType::BF16] {
        let xs = tensor(&[3, 23, INPUTS], 2)?.to_dtype(dtype)?;
        let loads = [mixture as fn(&VarMap) -> _, plain];
        for (qconfig, load) in presets().iter().flat_map(|it| loads.map(|load| (it, load))) {
            let mut mixture = load(&variables)?;
            let spec = QConfigSpec::new().kind(LayerKind::Linear, qconfig.clone());
            quantize_dynamic(&mut mixture, &spec)?;
            let all = mixture.forward(&xs)?;
            assert_eq!((all.dims(), all.dtype()), (xs.dims(), dtype));
            for row in 0..23 {
                let alone = mixture.forward(&xs.narrow(1, row, 1)?)?;
                assert_eq!(bits(&alone), bits(&all.narrow(1, row, 1)?), "{qconfig} row {row}");
            }
            let one = |xs: &Tensor| xs.narrow(0, 1, 1)?.narrow(1, 5, 1);
            assert_eq!(bits(&mixture.forward(&one(&xs)?)?), bits(&one(&all)?), "{qconfig}");
        }
    }
    Ok(())
}

/// Experts that are not quantized alike are computed one by one, with the same bits.
#[test]
fn experts_of_several_formats_have_the_bits_of_each() -> Result<()> {
    let variables = new_variables()?;
    let xs = tensor(&[11, INPUTS], 3)?;
    let ones = ones(&[11, 1]);
    let rows_of = |expert: u32| Tensor::full(expert, (11, 1), CPU);
    let mut alike = mixture(&variables)?;
    quantize_dynamic(&mut alike, &QConfigSpec::int8())?;
    let mut mixed = mixture(&variables)?;
    let spec = QConfigSpec::int8().name("experts.7.up_proj", QConfig::int4());
    quantize_dynamic(&mut mixed, &spec)?;
    for expert in [0, 6, 18] {
        let expected = alike.experts.forward(&xs, &rows_of(expert)?, &ones)?;
        let chosen = Tensor::cat(&[rows_of(expert)?, rows_of(7)?], 1)?;
        let weights = Tensor::cat(&[&ones, &ones.zeros_like()?], 1)?;
        let got = mixed.experts.forward(&xs, &chosen, &weights)?;
        assert_eq!(bits(&got), bits(&expected), "{expert}");
    }
    Ok(())
}

/// A row may choose an expert twice, and features may be none.
#[test]
fn rows_of_equal_experts_and_no_features_are_computed() -> Result<()> {
    let mut mixture = mixture(&new_variables()?)?;
    let xs = tensor(&[2, INPUTS], 9)?;
    let chosen = Tensor::new(&[[3u32, 3], [5, 6]], CPU)?;
    let weights = Tensor::new(&[[0.25f32, 0.5], [1., 0.]], CPU)?;
    let run = |model: &Mixture| model.experts.forward(&xs, &chosen, &weights);
    let float = run(&mixture)?;
    quantize_dynamic(&mut mixture, &QConfigSpec::int8())?;
    assert_within(&run(&mixture)?, &float, 0.03)?;
    for [inputs, inner, outputs] in [[0, 4, 3], [4, 0, 3], [4, 3, 0]] {
        let linear = |out: usize, inputs: usize| {
            nn::Linear::new(ones(&[out, inputs]), None).quantize(&QConfig::int8())
        };
        let [gate, up] = [linear(inner, inputs)?, linear(inner, inputs)?];
        let expert = nn::Expert::new(gate, up, linear(outputs, inner)?);
        let experts = nn::Experts::new(vec![expert; 7]);
        let ys = experts.forward(&xs.narrow(1, 0, inputs)?, &chosen, &weights)?;
        assert_eq!(ys.dims(), [2, outputs]);
    }
    Ok(())
}

#[test]
fn stacked_weights_are_those_of_separate_experts() -> Result<()> {
    let variables = new_variables()?;
    let stacked = |names: &[&str]| -> Result<Tensor> {
        let all = variables.data().lock().expect("variables");
        let expert = |expert| {
            let weight = |name| all[&format!("experts.{expert}.{name}.weight")].as_tensor().clone();
            Tensor::cat(&names.iter().map(weight).collect::<Vec<_>>(), 0)
        };
        let all: Vec<_> = (0..COUNT).map(expert).collect::<candle_core::Result<_>>()?;
        Ok(Tensor::stack(&all, 0)?)
    };
    let both = stacked(&["gate_proj", "up_proj"])?;
    let down = stacked(&["down_proj"])?;
    let xs = tensor(&[9, INPUTS], 4)?;
    let separate = mixture(&variables)?;
    let (chosen, weights) = separate.gate.choose(&xs, 3, false)?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("model.safetensors");
    let tensors = [("gate_up_proj", &both), ("down_proj", &down)];
    let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor.clone()));
    candle_core::safetensors::save(&tensors.into(), &file)?;
    for qconfig in presets() {
        let spec = QConfigSpec::new().kind(LayerKind::Linear, qconfig.clone());
        let mut separate = separate.experts.clone();
        quantize_dynamic(&mut separate, &spec)?;
        let expected = bits(&separate.forward(&xs, &chosen, &weights)?);
        let load = |checkpoint: &Checkpoint| {
            let vb = checkpoint.var_builder(DType::F32, CPU);
            let both = vb.get(both.dims(), "gate_up_proj")?;
            nn::Experts::stacked(&both, &vb.get(down.dims(), "down_proj")?)
        };
        let source = Checkpoint::open(&file)?;
        let mut model = load(&source)?;
        quantize_dynamic(&mut model, &spec)?;
        let got = model.forward(&xs, &chosen, &weights)?;
        assert_eq!(bits(&got), expected, "{qconfig}");
        let quantized = folder.path().join("quantized.safetensors");
        checkpoint::save(&model, &source, &quantized)?;
        let model = load(&Checkpoint::open(&quantized)?)?;
        let got = model.forward(&xs, &chosen, &weights)?;
        assert_eq!(bits(&got), expected, "{qconfig} loaded");
        std::fs::remove_file(quantized)?;
    }
    Ok(())
}

#[test]
fn scores_have_the_same_bits_in_any_batch_and_equal_ones_are_in_order() -> Result<()> {
    let mixture = mixture(&new_variables()?)?;
    let xs = tensor(&[70, INPUTS], 5)?;
    let all = mixture.gate.forward(&xs)?;
    for (first, rows) in [(0, 1), (3, 2), (11, 7), (20, 33)] {
        let part = mixture.gate.forward(&xs.narrow(0, first, rows)?)?;
        assert_eq!(bits(&part), bits(&all.narrow(0, first, rows)?));
    }
    let equal = nn::Router::new(zeros(&[5, 8]));
    let (chosen, weights) = equal.choose(&ones(&[8]), 3, false)?;
    assert_eq!(chosen.to_vec1::<u32>()?, [0, 1, 2]);
    assert_eq!(weights.to_vec1::<f32>()?, [0.2; 3]);
    Ok(())
}

#[test]
fn gradients_flow_through_float_experts_and_end_at_quantized_ones() -> Result<()> {
    let variables = new_variables()?;
    let mut experts = mixture(&variables)?.experts;
    let xs = Var::from_tensor(&tensor(&[5, INPUTS], 6)?)?;
    let chosen = Tensor::full(2u32, (5, 1), CPU)?;
    let weights = ones(&[5, 1]);
    let run = |experts: &nn::Experts| experts.forward(xs.as_tensor(), &chosen, &weights)?.sum_all();
    let gradients = run(&experts)?.backward()?;
    let all = variables.data().lock().expect("variables");
    for tensor in [&xs, &all["experts.2.up_proj.weight"]] {
        assert!(gradients.get(tensor).is_some());
    }
    assert!(gradients.get(&all["experts.3.up_proj.weight"]).is_none());
    drop(all);
    quantize_dynamic(&mut experts, &QConfigSpec::int8())?;
    assert_fails(run(&experts)?.backward(), &["a layer quantized by candle-dynquant"]);
    Ok(())
}

/// Experts that no row chose are rounded.
#[test]
fn gptq_quantizes_the_experts_that_have_inputs_by_them() -> Result<()> {
    let mut mixture = mixture(&new_variables()?)?;
    let xs = tensor(&[90, INPUTS], 8)?;
    let spec = QConfigSpec::new().kind(LayerKind::Linear, QConfig::int4());
    let (chosen, weights) = mixture.gate.choose(&xs, 4, true)?;
    // The last expert has no rows.
    let chosen = chosen.to_vec2::<u32>()?.concat().into_iter().map(|expert| expert.min(17));
    let chosen = Tensor::from_iter(chosen, CPU)?.reshape((90, 4))?;
    let run = |model: &Mixture| model.experts.forward(&xs, &chosen, &weights);
    let float = run(&mixture)?;
    let mut rounded = mixture.clone();
    quantize_dynamic(&mut rounded, &spec)?;
    let report = gptq(&mut mixture, &GptqConfig::new(spec), run)?;
    assert_eq!(report.rounded.len(), 3, "{:?}", report.rounded);
    let error =
        |model| -> Result<f32> { Ok((run(model)? - &float)?.sqr()?.mean_all()?.to_scalar()?) };
    assert!(error(&mixture)? < 0.8 * error(&rounded)?);
    Ok(())
}

#[test]
fn mistakes_are_errors() -> Result<()> {
    let mixture = mixture(&new_variables()?)?;
    let xs = tensor(&[2, INPUTS], 7)?;
    let chosen = |expert: u32, shape: (usize, usize)| Tensor::full(expert, shape, CPU);
    let first = chosen(1, (2, 1))?;
    let float = ones(&[2, 1]);
    let narrow = xs.narrow(1, 0, 60)?;
    for (xs, chosen, weights, part) in [
        (&xs, &chosen(19, (2, 1))?, &float, "expected one of 19"),
        (&xs, &chosen(1, (3, 1))?, &ones(&[3, 1]), "[3, 1]"),
        (&xs, &first, &ones(&[2, 2]), "[2, 2]"),
        (&xs, &float, &float, "u32"),
        (&narrow, &first, &float, "[2, 60]"),
        (&Tensor::new(1f32, CPU)?, &first, &float, "experts"),
    ] {
        assert_fails(mixture.experts.forward(xs, chosen, weights), &[part]);
    }
    assert_fails(mixture.gate.choose(&xs, 20, true), &["at most 19"]);
    assert_fails(mixture.gate.forward(&narrow), &["[2, 60]"]);
    let none = nn::Experts::new(Vec::new());
    let no_expert = (chosen(0, (2, 0))?, zeros(&[2, 0]));
    assert!(none.forward(&xs, &no_expert.0, &no_expert.1).is_err());
    let ys = mixture.experts.forward(&xs, &no_expert.0, &no_expert.1)?;
    assert_eq!(bits(&ys), [0; 2 * INPUTS]);
    // No rows.
    assert_eq!(mixture.forward(&zeros(&[0, INPUTS]))?.dims(), [0, INPUTS]);
    let unequal = nn::Expert::new(linear(4, INPUTS), linear(5, INPUTS), linear(INPUTS, 4));
    let unequal = nn::Experts::new(vec![unequal.with_activation(FusedActivation::Gelu)]);
    assert_fails(unequal.forward(&xs, &chosen(0, (2, 1))?, &float), &["[5, 64"]);
    assert!(nn::Experts::stacked(&zeros(&[2, 7, 4]), &zeros(&[2, 4, 3])).is_err());
    Ok(())
}
